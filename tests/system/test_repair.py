"""One bit turned on a disk: noticed, never served, repaired from the peers; on a majority, the
partition stops and says why.

Real daemons and honest clients all the while: W16, W21, R2, promise 6. Bits are turned in the files
of running daemons, in data at rest, in the open segment, and while a daemon is down; found by the
scrubber, by a read, and on start. At the end every client has all that was acknowledged, and the
logs of all daemons are without a fault, and agree with each other and with the stores.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support import wal_logs
from support.processes import Cluster, Name, wait_for
from support.traffic import Reader, Writer, judge, wait_until_read
from support.verifying import verified

from myqueue import errors
from myqueue.cli.shared import cluster_health
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer
from myqueue.wal import format as f
from myqueue.wire import protocol

MIB = 1 << 20
BROKERS: list[Name] = [("broker", number) for number in (1, 2, 3)]
BULK = 12 * MIB  # of messages, in segments of 4 MiB
SIZE = 8 << 10
REPAIR_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("repair")
    limits = {"segment_bytes": 4 * MIB, "soft_limit_bytes": 0, "scrub_bytes_per_s": 256 * MIB}
    with Cluster(folder, **limits) as running:
        yield running
        running.check_alive()
        names = list(running.processes)
        running.stop(*names)  # the clients have ended
        for name in names:
            found, summary = wal_logs.check(running.data(name) / "wal")
            assert not summary.corrupt, (name, [str(one) for one in found])
        report = verified(running.folder, folder, stores=True)
        assert report.findings == [] and report.stores == len(names)


class Damage:
    """A bit of an entry that a daemon has on its disk."""

    def __init__(self, cluster: Cluster, name: Name, group: int, *, last: bool = False) -> None:
        found = {  # the last place of each
            one.record.index: one
            for one in wal_logs.records(cluster.data(name) / "wal")
            if one.record.kind == f.ENTRY and one.record.group == group and one.record.length > SIZE
        }
        chosen = found[max(found) if last else sorted(found)[len(found) // 8]]
        self.path, record = chosen.path, chosen.record
        self.name, self.cluster, self.group = name, cluster, group
        self.index, self.offset, self.position = record.index, record.offset, record.position
        self._byte = record.position + f.RECORD_HEADER_BYTES + record.length // 2

    def turn(self) -> None:
        wal_logs.flip(self.path, self._byte)

    def is_repaired(self) -> bool:
        return not self.path.exists() and not repair_of(self.cluster, self.name)["damaged"]


def told(cluster: Cluster, name: Name, kind: int, *fields: Any) -> dict[str, Any]:
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    found: dict[str, Any] = cluster.session.call(address, kind, fields).result().envelope[3]
    return found


def repair_of(cluster: Cluster, name: Name) -> dict[str, Any]:
    found: dict[str, Any] = told(cluster, name, protocol.STATUS, 0)["repair"]
    return found


def counters(cluster: Cluster, name: Name) -> dict[str, int]:
    found: dict[str, int] = told(cluster, name, protocol.STATS)["counters"]
    return found


def fetched(cluster: Cluster, name: Name, group: int, offset: int) -> tuple[int, bytes]:
    """(code, bytes of the batch) as this broker answers, whoever leads."""
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    fields = (0, 1, 1, [[group, offset]])
    answer = cluster.session.call(address, protocol.FETCH, fields).result()
    ((_, code, _, _, _, _),) = answer.envelope[3]
    return code, bytes(answer.frames[0]) if answer.frames else b""


def repairs(cluster: Cluster) -> str:
    """What an operator sees."""
    command = [sys.executable, "-P", "-m", "myqueue.cli", "broker", "repairs"]
    done = subprocess.run(
        [*command, "--cluster", cluster.address],
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def group_of(cluster: Cluster, topic: str) -> int:
    return int(cluster.admin.describe_topic(topic)["partitions"][0]["group"])


def fill(cluster: Cluster, topic: str) -> int:
    count = BULK // SIZE
    with Producer(cluster.address, batch_bytes=64 << 10) as producer:
        for number in range(count):
            producer.send(topic, b"%08d" % number * (SIZE // 8), partition=0)
    return count


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[tuple[list[Writer], list[Reader]]]:
    """Two topics with much in them, and traffic in a third one until the end."""
    for topic in ("still", "lost", "busy"):
        cluster.admin.create_topic(topic)
    cluster.wait_healthy()
    for topic in ("still", "lost"):
        fill(cluster, topic)
    writers = [Writer(cluster.address, "busy", f"w{n}", 50.0) for n in range(2)]
    readers = [Reader(cluster.address, "busy", "r0")]
    for one in (*writers, *readers):
        one.start()
    yield writers, readers
    for writer in writers:
        writer.finish(30)
    wait_until_read(readers, writers, 30)
    for reader in readers:
        reader.finish()
    counted = judge(readers, writers)
    assert counted["failed"] == 0, "a majority was whole all the time"


def restart(cluster: Cluster, name: Name) -> None:
    """What it has is on its disk alone from now on."""
    cluster.stop(name)
    cluster.start(name)
    wait_for("a broker that answers", lambda: answers(cluster, name), 30)
    cluster.wait_healthy()


def test_the_scrubber_finds_it_and_in_a_manager_too(cluster: Cluster, filled: object) -> None:
    """W21: in data at rest that nobody reads."""
    restart(cluster, BROKERS[0])
    manager = ("manager", 3)
    at_rest = Damage(cluster, BROKERS[0], group_of(cluster, "still"))
    records = [
        one
        for one in wal_logs.records(cluster.data(manager) / "wal")
        if one.record.kind == f.ENTRY and one.record.length > 20
    ]
    at_rest.turn()
    path, record = records[len(records) // 2]
    wal_logs.flip(path, record.position + f.RECORD_HEADER_BYTES + 3)
    wait_for("repair", at_rest.is_repaired, REPAIR_S)
    wait_for("repair of the manager", lambda: not path.exists(), REPAIR_S)
    for name, segment in ((BROKERS[0], at_rest.path.name), (manager, path.name)):
        wait_for("told", lambda at=name: repair_of(cluster, at)["mended"], 10)
        (row,) = repair_of(cluster, name)["mended"]
        assert (row["segment"], row["found"]) == (segment, "scrub")
        assert counters(cluster, name)["damage_repaired_total"] == 1
        log = cluster.log(name)
        assert "damage-found" in log and "damage-repaired" in log and segment in log
    assert counters(cluster, BROKERS[0])["entries_repaired_total"] == 1
    (row,) = repair_of(cluster, BROKERS[0])["mended"]
    assert row["partitions"] == ["still/0"]
    assert repair_of(cluster, manager)["mended"][0]["partitions"] == ["managers"]
    shown = repairs(cluster)
    assert at_rest.path.name in shown and path.name in shown and "repaired in" in shown
    assert "still/0" in shown
    code, data = fetched(cluster, BROKERS[0], at_rest.group, at_rest.offset)
    assert not code and data == fetched(cluster, BROKERS[1], at_rest.group, at_rest.offset)[1]
    cluster.wait_healthy()


def test_a_read_finds_it_and_never_serves_it(cluster: Cluster, filled: object) -> None:
    """W16: who asks for it at once gets the right bytes or is told to come again."""
    restart(cluster, BROKERS[1])
    damage = Damage(cluster, BROKERS[1], group_of(cluster, "lost"))
    right = fetched(cluster, BROKERS[2], damage.group, damage.offset)
    assert not right[0]
    damage.turn()
    seen = set()

    def is_right() -> bool:
        code, data = fetched(cluster, BROKERS[1], damage.group, damage.offset)
        seen.add(code)
        assert code == errors.NotReady.code or data == right[1]
        return not code

    wait_for("the right bytes", is_right, REPAIR_S)
    wait_for("repair", damage.is_repaired, REPAIR_S)
    assert seen == {0, errors.NotReady.code}
    assert repair_of(cluster, BROKERS[1])["mended"][-1]["found"] == "read"
    cluster.wait_healthy()


def test_a_start_finds_it_in_the_open_segment(
    cluster: Cluster, filled: tuple[list[Writer], list[Reader]]
) -> None:
    """R2, W5: a broker that was killed comes back with a bit turned in what it wrote last."""
    with Producer(cluster.address) as producer:
        producer.send("lost", b"x" * (3 * SIZE), partition=0).result(30)
    name, group = BROKERS[2], group_of(cluster, "lost")
    acked = sum(len(writer.acked) for writer in filled[0])  # what follows proves that it was synced
    wait_for("traffic", lambda: sum(len(w.acked) for w in filled[0]) > acked + 50, 30)
    cluster.kill(name)
    damage = Damage(cluster, name, group, last=True)
    damage.turn()
    cluster.start(name)
    wait_for("a broker that answers", lambda: answers(cluster, name), 30)
    wait_for("repair", damage.is_repaired, REPAIR_S)
    log = cluster.log(name)
    assert "recovery-finding" in log and damage.path.name in log
    code, data = fetched(cluster, name, group, damage.offset)
    assert not code and data == fetched(cluster, BROKERS[0], group, damage.offset)[1]
    cluster.wait_healthy()


def answers(cluster: Cluster, name: Name) -> bool:
    try:
        return bool(told(cluster, name, protocol.STATS))
    except errors.MyQueueError:
        return False


def test_on_a_majority_it_stops_and_says_why(
    cluster: Cluster, filled: tuple[list[Writer], list[Reader]]
) -> None:
    """R2, promise 6: no quorum of replicas that lost data; the other partitions go on."""
    writers, _ = filled
    group = group_of(cluster, "lost")
    for name in BROKERS[:2]:
        restart(cluster, name)
    damaged = [Damage(cluster, name, group) for name in BROKERS[:2]]
    assert damaged[0].index == damaged[1].index
    cluster.kill(BROKERS[2])
    for one in damaged:
        one.turn()
        code, data = fetched(cluster, one.name, group, one.offset)
        assert code == errors.NotReady.code and not data

    def what_is_wrong() -> list[str]:
        return [one.text for one in cluster_health.problems(cluster.address, None, 5.0)]

    def is_told() -> bool:
        text = "\n".join(what_is_wrong())
        places = [f"{one.path.name} at position {one.position} (lost/0)" for one in damaged]
        reasons = ["without a leader: lost/0", "no replica that answers has them"]
        return all(one in text for one in places + reasons)

    wait_for("it stands still and says why", is_told, REPAIR_S)
    lost = damaged[0].offset  # nobody waits for ever: each broker says so after ten seconds
    for name in BROKERS[:2]:
        wait_for(
            "a plain no",
            lambda at=name: fetched(cluster, at, group, lost)[0] == errors.CorruptData.code,
            30,
        )
    acked = sum(len(writer.acked) for writer in writers)
    wait_for("others go on", lambda: sum(len(w.acked) for w in writers) > acked + 50, 30)
    with (
        pytest.raises(errors.DeliveryFailed),
        Producer(cluster.address, delivery_timeout_ms=2000) as producer,
    ):
        producer.send("lost", b"x", partition=0)
    cluster.start(BROKERS[2])
    for one in damaged:
        wait_for("repair", one.is_repaired, REPAIR_S)
    cluster.wait_healthy()
    with Producer(cluster.address) as producer:
        producer.send("lost", b"done", partition=0).result(30)


def test_all_is_read_exactly(cluster: Cluster, filled: object) -> None:
    """By the simplest consumer, in order."""
    wanted = [b"%08d" % number for number in range(BULK // SIZE)]
    for topic in ("still", "lost"):
        consumer = MyConsumer([topic], cluster.address, idle_timeout=20)
        got = []
        for message in consumer.get_next():
            got.append((message.offset, message.value[:8]))
            if len(got) == len(wanted):
                break
        consumer.stop()
        assert got == list(enumerate(wanted))
