"""Disks that are set back to an older copy: the daemon that is contradicted goes on without that
group, says so, over starts too; the others go on, and what it alone has is kept.

Real daemons. Two of three disks are set back, so those two agree on another history than the third
one, which is right and has all that was acknowledged.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support import wal_logs
from support.joining import wait_for_event_line
from support.processes import Cluster, Name, wait_for

from myqueue.errors import MyQueueError
from myqueue.problems import describe
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer
from myqueue.wal import format as f
from myqueue.wire import protocol

ONE: Name = ("broker", 1)
TWO: list[Name] = [("broker", 2), ("broker", 3)]
BACK, QUIET = "back", "quiet"  # topics: one is set back, and one has nothing new since the copy


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", segment_bytes=4 << 20, soft_limit_bytes=0) as running:
        yield running
        running.check_alive()


def produce(cluster: Cluster, topic: str, *values: bytes) -> None:
    with Producer(cluster.address, delivery_timeout_ms=30_000) as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(30)


def values(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    with MyConsumer(topic, cluster.address, idle_timeout=20) as consumer:
        return [message.value for message in islice(consumer.get_next(), count)]


def status(cluster: Cluster, name: Name) -> dict[str, Any]:
    """Empty if it does not answer."""
    address = f"tcp://{cluster.door(name)}"
    try:
        asked = cluster.session.call(address, protocol.STATUS, (0,), timeout_ms=1000)
        found: dict[str, Any] = asked.result().envelope[3]
    except MyQueueError:
        return {}
    return found


def closed(cluster: Cluster, name: Name) -> dict[str, Any] | None:
    """The row of what that daemon closed."""
    rows = status(cluster, name).get("closed") or [None]
    found: dict[str, Any] | None = rows[0]
    return found


def told(cluster: Cluster) -> list[dict[str, Any]]:
    return [row for row in cluster.problems() or () if row["problem"] == "closed"]


def copy_of(cluster: Cluster, names: list[Name], folder: Path) -> None:
    """As somebody makes it of daemons that are stopped."""
    cluster.stop(*names)
    for name in names:
        shutil.copytree(cluster.data(name), folder / f"{name[0]}-{name[1]}")
    cluster.start(*names)
    cluster.wait_healthy()


def set_back(cluster: Cluster, names: list[Name], folder: Path) -> None:
    for name in names:
        cluster.wipe(name)
        shutil.copytree(folder / f"{name[0]}-{name[1]}", cluster.data(name))


def test_a_broker_goes_on_without_the_partition_that_others_contradict(
    cluster: Cluster, tmp_path: Path
) -> None:
    for topic in (BACK, QUIET):
        cluster.admin.create_topic(topic, partitions=1)
        produce(cluster, topic, b"before")
    cluster.wait_healthy()
    copy_of(cluster, TWO, tmp_path)
    produce(cluster, BACK, b"acknowledged")
    cluster.wait_healthy()
    managers = [("manager", 2), ("manager", 3)]
    cluster.stop(ONE, *TWO)
    set_back(cluster, TWO, tmp_path)
    cluster.start(*TWO)
    # More than the third one has: it can't be elected, and so be the one that contradicts them.
    produce(cluster, BACK, b"instead", b"more", b"more")
    cluster.stop(*managers)  # nobody replaces anything meanwhile
    cluster.start(ONE)

    row = wait_for("closed", lambda: closed(cluster, ONE), 30)
    assert row["partition"] == f"{BACK}/0" and "logs differ" in row["why"] and not row["kept"]
    wait_for("noted", lambda: list(cluster.data(ONE).glob("closed-*[0-9a-f]")))
    cluster.check_alive()
    cluster.kill(ONE)
    cluster.start(ONE)
    row = wait_for("closed still", lambda: closed(cluster, ONE), 30)
    assert "logs differ" in row["why"] and list(status(cluster, ONE)["refused"].values())
    log = cluster.log(ONE)
    assert "from=healthy to=closed" in log and f"{BACK}/0" in log and "from=start to=closed" in log

    cluster.start(*managers)
    kept = wait_for("replaced", lambda: [one for one in told(cluster) if one["kept"]], 60)[0]
    assert kept["partition"] == f"{BACK}/0" and (kept["kind"], kept["node"]) == ONE
    sentence = describe([kept])[0].text
    assert f"{BACK}/0" in sentence and kept["kept"] in sentence
    wait_for("nothing else", lambda: [kept] == cluster.problems(), 60)  # three copies again
    found = [
        one.path.read_bytes()[one.record.position :][: one.record.length + 200]
        for one in wal_logs.records(Path(kept["kept"]))
        if one.record.kind == f.ENTRY
    ]
    assert any(b"acknowledged" in one for one in found)
    produce(cluster, BACK, b"after")
    produce(cluster, QUIET, b"after")
    assert values(cluster, BACK, 5) == [b"before", b"instead", b"more", b"more", b"after"]
    assert values(cluster, QUIET, 2) == [b"before", b"after"]
    shutil.rmtree(kept["kept"])
    cluster.wait_healthy()


def test_a_manager_that_others_contradict_takes_no_part_and_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    one, two = ("manager", 1), [("manager", 2), ("manager", 3)]
    cluster.admin.create_topic(QUIET, partitions=1)
    produce(cluster, QUIET, b"before")
    cluster.wait_healthy()
    copy_of(cluster, two, tmp_path)
    cluster.admin.create_topic("forgotten", partitions=1)
    cluster.stop(one, *two)
    set_back(cluster, two, tmp_path)
    cluster.start(*two)
    wait_for("a leader", lambda: cluster.problems() is not None, 30)
    for number in range(20):  # so that the third one can't be elected
        cluster.admin.create_topic(f"instead-{number}", partitions=1)
    cluster.start(one)
    row = wait_for("told", lambda: told(cluster), 30)[0]
    assert (row["kind"], row["node"], row["partition"]) == (*one, "managers")
    assert "takes no part" in describe([row])[0].text
    wait_for("noted", lambda: list(cluster.data(one).glob("closed-*[0-9a-f]")))
    cluster.check_alive()
    cluster.kill(one)
    cluster.start(one)
    wait_for("told still", lambda: closed(cluster, one) and told(cluster), 30)
    assert status(cluster, one)["refused"]["1"] == row["why"]
    hint = wait_for_event_line(cluster.folder / "manager-1.log", "to=closed")
    for text in (hint, describe([row])[0].advice):
        assert "with an empty folder" in text and "without its note it is closed again" in text
    cluster.check_alive()
    produce(cluster, QUIET, b"after")  # with all managers as addresses
    assert values(cluster, QUIET, 2) == [b"before", b"after"]

    # What the texts say: without its note it is closed again, and an empty folder is refused.
    cluster.stop(one)
    (note,) = cluster.data(one).glob("closed-1-*[0-9a-f]")
    note.unlink()
    cluster.start(one)
    wait_for("closed again", lambda: closed(cluster, one), 30)
    wait_for("noted again", note.exists)
    cluster.stop(one)
    cluster.wipe(one)
    cluster.start(one)
    why = "manager 1 is registered with disk"
    wait_for("refused", lambda: all(why in cluster.log(name) for name in two), 30)
    produce(cluster, QUIET, b"last")  # they go on
    assert values(cluster, QUIET, 3) == [b"before", b"after", b"last"]
