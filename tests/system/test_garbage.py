"""Garbage on both doors of real daemons: each answers or drops, counts it, and goes on (M1-M5, Z6).

Strangers send raw bytes, half of a handshake, huge announcements, envelopes that are nearly right,
damaged batches, packets of consensus. Meanwhile honest clients write and read: all that was
acknowledged is there, nobody waits twice as long, no daemon ends, grows or tells of a crash.

What they say is made in `tests/client/test_protocol_fuzz.py`.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zmq
from support.processes import Cluster, Name, free_ports
from support.traffic import Reader, Writer, judge, wait_until_read

from myqueue import errors
from myqueue.daemons.network.sockets import Transport
from myqueue.producer.producer import Producer
from myqueue.wire import batch, protocol

GROWTH_MAX = 50 << 20  # of a daemon's memory
FLOOR_S = 0.020  # p99 below this is good enough: the machine is shared
FUZZ = Path(__file__).parents[1] / "client" / "test_protocol_fuzz.py"
_spec: Any = spec_from_file_location("fuzz", FUZZ)
fuzz: Any = module_from_spec(_spec)
_spec.loader.exec_module(fuzz)
KEY, LAST, Raw, Stranger, pack = fuzz.KEY, fuzz.LAST, fuzz.Raw, fuzz.Stranger, fuzz.pack


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("garbage"), managers=1) as running:
        running.admin.create_topic("junk", partitions=3)  # strangers write here as well
        running.wait_healthy()
        yield running


@pytest.fixture
def strangers(cluster: Cluster) -> Iterator[Callable[[Name, int], Any]]:
    """Makes one at the clients' (0) or peers' (1) door of a daemon."""
    context: zmq.Context[Any] = zmq.Context()
    made: list[Any] = []

    def make(name: Name, door: int) -> Any:
        made.append(Stranger(context, cluster.ports[name][door]))
        return made[-1]

    yield make
    for one in made:
        one.socket.close(0)
    context.term()


@pytest.fixture
def random(seed: int | None) -> Random:
    chosen = int(time.time()) if seed is None else seed
    print(f"garbage: --seed {chosen}")
    return Random(chosen)


def junk_groups(cluster: Cluster) -> list[int]:
    rows = cluster.admin.describe_topic("junk")["partitions"]
    return [row["group"] for row in rows]


def stats(cluster: Cluster, name: Name) -> dict[str, Any]:
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    answer = cluster.session.call(address, protocol.STATS, (), timeout_ms=10_000).result()
    return dict(answer.envelope[3])


def highest_term(cluster: Cluster) -> int:
    """Of all partitions: strangers' packets name terms from 9 on."""
    topics = cluster.session.read("topics", {"detail": True}).result()["topics"]
    return max(row["term"] for topic in topics for row in topic["partitions"])


@contextlib.contextmanager
def honest(cluster: Cluster, topic: str) -> Iterator[Counter[str]]:
    """A writer and a reader meanwhile; what must hold afterwards. Yields what was counted more."""
    cluster.admin.create_topic(topic, partitions=3)
    cluster.wait_healthy()
    before = {name: stats(cluster, name) for name in cluster.names}
    counted: Counter[str] = Counter()
    writer = Writer(cluster.address, topic, "honest", 100.0)
    reader = Reader(cluster.address, topic, "reader")
    writer.start()
    reader.start()
    try:
        yield counted
        cluster.check_alive()
        writer.finish(30)
        wait_until_read([reader], [writer], 30)
    finally:
        writer.producer.close(0.1)
        reader.finish()
    result = judge([reader], [writer])
    assert result["failed"] == 0 and result["acknowledged"] > 0
    growth = {}
    for name in cluster.names:
        now = stats(cluster, name)
        counted.update(now["counters"])
        counted.subtract(before[name]["counters"])
        grown = now["process"]["resident_bytes"] - before[name]["process"]["resident_bytes"]
        growth[name] = grown >> 20
        told = cluster.log(name)
        for word in ("Traceback", "crashed", "invariant"):
            assert word not in told, told[-3000:]
    crashed = [name for name in counted if "crashed" in name and counted[name]]
    print(f"{topic}: {result}\nMiB more: {growth}")
    print({name: counted[name] for name in sorted(counted) if _is_refusal(name)})
    assert not crashed and max(growth.values()) < GROWTH_MAX >> 20, growth
    assert highest_term(cluster) < 9, "a stranger was heard"


def _is_refusal(name: str) -> bool:
    return any(word in name for word in ("invalid", "dropped", "refused", "malformed", "too_many"))


# -- below ZeroMQ's messages ----------------------------------------------------------------------


def test_bytes_that_are_no_messages(cluster: Cluster, random: Random) -> None:
    """Z6: 300 connections to all doors, none of which says anything sensible; most stay open."""
    with honest(cluster, "raw"):
        open_ones = []
        for number in range(300):
            port = cluster.ports[random.choice(cluster.names)][number % 2]
            one = socket.create_connection(("127.0.0.1", port), 5)
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.send(random.choice(fuzz.raw_starts(random)))
            open_ones.append(one)
            time.sleep(0.005)
        time.sleep(2)
        for name in cluster.names:
            stats(cluster, name)
        for one in open_ones:
            one.close()


# -- the clients' door ----------------------------------------------------------------------------


def test_envelopes_at_the_clients_door(cluster: Cluster, strangers: Any, random: Random) -> None:
    """M3, M5: nearly right requests of every kind, to every daemon, from 24 connections."""
    groups = junk_groups(cluster)
    with honest(cluster, "clients") as counted:
        all_of_them = [strangers(name, 0) for name in cluster.names for _ in range(6)]
        for _ in range(4000):
            random.choice(all_of_them).send(*fuzz.fuzzed(random, groups))
            time.sleep(0.001)
        for one in all_of_them:  # whoever was answered is still heard
            assert one.ask(protocol.STATS)[1] != protocol.ERROR
        told = sum((one.told for one in all_of_them), Counter())
        print(f"told: {dict(told)}")
    assert told["INVALID_REQUEST"] > 500 and told["UNSUPPORTED"] > 100
    assert counted["requests_invalid_total"] > 500 and counted["requests_dropped_total"] > 50


def test_each_request_that_once_did_harm(cluster: Cluster, strangers: Any) -> None:
    """M3, M5, Z6: one by one, with its answer."""
    groups, bad = junk_groups(cluster), "INVALID_REQUEST"
    p = protocol
    leader = cluster.leader_of("junk")
    made = batch.make(([b"junk"], None, None, None), 7)
    with honest(cluster, "one-by-one") as counted:
        for name in cluster.names:
            one = strangers(name, 0)
            assert one.refused(p.UPDATE, KEY, "create_topic", Raw(b"\x81\xa1a" + fuzz.DEEP)) == bad
            assert (
                one.refused(p.UPDATE, KEY, "create_topic", Raw(b"\x81\xa1a" + fuzz.LESS_DEEP))
                == bad
            )
            assert (
                one.refused(p.UPDATE, KEY, "create_topic", Raw(b"\x81\xa1a" + fuzz.EXTENSION))
                == bad
            )
            assert one.refused(p.ALIVE, fuzz.BOMB, []) == bad
            assert one.refused(p.ROUTE, ["junk"] * 20_000, 0) == bad
            assert one.refused(p.OFFSETS, None, 1, [groups[0]] * 20_000) == bad
            assert one.refused(p.STATS, frames=[b""] * 5000) == bad
            assert one.refused(p.STATS, frames=[b""] * p.FRAMES_MAX) == bad
            assert one.refused(p.GREET, "test", "broker", 9, "d", 1, "a", "1") == "UNSUPPORTED"
            assert one.refused(p.PACKET, [], []) == "UNSUPPORTED"
            one.send(Raw(b"\x93") + fuzz.DEEP + b"\x05\x07")
            one.send(b"")
            for _ in range(5):
                one.socket.send(bytes(16 << 20))
                assert one.ask(p.STATS)[1] == p.INFO
            one.send(pack([1, p.STATS, 7]) + b"\x00")
        one = strangers(leader, 0)
        for request in (LAST, LAST - 1):  # the second batch's request was beyond any number
            answer = one.ask(p.PRODUCE, groups * 2, request=request, frames=[made] * 6)
            assert answer[1] == p.ERROR and answer[2] == request
        for frames in ([], [made] * 2, [made] * 4096):
            assert one.refused(p.PRODUCE, groups, frames=frames) == bad
        answer = one.ask(p.PRODUCE, [LAST, groups[0]], frames=[made, made[:-1]])
        codes = {row[0]: row[1] for row in answer[3]}
        assert codes == {9: errors.UnknownPartition.code, 10: errors.BatchInvalid.code}
    assert counted["messages_with_too_many_frames_total"] == 2 * len(cluster.names)
    assert counted["requests_dropped_total"] == 6 * len(cluster.names)


# -- the peers' door ------------------------------------------------------------------------------


def test_the_peers_door(cluster: Cluster, strangers: Any, random: Random) -> None:
    """M5, S1, Z14: whoever is not a member of a group, on its own disk, says nothing about it."""
    group, p = junk_groups(cluster)[0], protocol
    disks = {row["node"]: row["disk"] for row in cluster.admin.brokers()}
    with honest(cluster, "peers") as counted:
        for name in cluster.names:
            one = strangers(name, 1)
            for kind, *fields in fuzz.good([group]):
                if kind not in (p.GREET, 99, 2**40, p.FETCH):
                    told = one.refused(kind, *fields)
                    assert told in ("GREET_FIRST", "INVALID_REQUEST", "UNSUPPORTED"), told
            assert one.refused(p.GREET, "other", "broker", 9, "", 1, "", "") == "CLUSTER_MISMATCH"
            for node, kind in ((0, "broker"), (2**31, "broker"), (LAST, "broker"), (2, "king")):
                assert one.greet(node, kind=kind) == "INVALID_REQUEST"
            assert one.greet(9, "x" * 60_000) == "INVALID_REQUEST"
            assert one.greet(2) == "IDENTITY_MISMATCH"  # it is connected, or this is its own door
            for node, disk in ((2, "made-up"), (9, "made-up"), (9, disks[2])):
                greeted = one.greet(node, disk)
                for _ in range(40):
                    one.send(
                        pack([1, p.PACKET, 7, *fuzz.packets(random, group, node, name[1])]), b"xxxx"
                    )
                    time.sleep(0.002)
                for _ in range(40):
                    one.send(*fuzz.fuzzed(random, [group]))
                assert greeted == ("GREETED" if node == 9 else "IDENTITY_MISMATCH")
            assert one.refused(p.PACKET, [], []) in ("IDENTITY_MISMATCH", "UNSUPPORTED")
            assert one.greet(2, disks[2]) == "IDENTITY_MISMATCH"  # which it read somewhere
            for fields in fuzz.for_another(group, 3, name[1]):
                assert one.refused(p.PACKET, *fields) in ("IDENTITY_MISMATCH", "UNSUPPORTED")
            assert one.refused(p.UPDATE, KEY, "delete_topic", {"topic": "junk"}) == "UNSUPPORTED"
            assert one.refused(p.PRODUCE, [group]) == "UNSUPPORTED"
    assert counted["peer_messages_refused_total"] > 500
    assert counted["peer_messages_dropped_total"] > 10


def test_beats_of_brokers_that_are_none(cluster: Cluster, strangers: Any) -> None:
    """M5: what is registered is told to all; nothing of this is."""
    one = strangers(("manager", 1), 1)
    beat = {
        "disk": "made-up",
        "incarnation": 1,
        "address": "127.0.0.1:9",
        "peer": "127.0.0.1:9",
        "host": "h",
        "version": 0,
        "full": True,
        "groups": [],
        "held": [],
        "producers": [],
        "consumers": [],
        "disk_low": False,
        "free_bytes": 1,
        "load": 0,
    }
    before = cluster.session.read("brokers").result()["brokers"]
    odd = (None, [], {"a": 1}, -1, 1.5, "no address", "x" * 400, fuzz.DEEP, LAST)
    with honest(cluster, "beats"):
        for node in (9, 2**31 - 1):
            assert one.greet(node) == "GREETED"
            for field in beat:
                for value in odd:
                    if type(value) is type(beat[field]) and field not in ("address", "peer"):
                        continue  # it would be right, and such a broker is welcome: no keys yet
                    state = b"".join(
                        pack([name, value if name == field else right])[1:]
                        for name, right in beat.items()
                    )
                    if field == "held" and value is None:
                        continue
                    told = one.refused(protocol.BEAT, Raw(bytes([0x80 + len(beat)]) + state))
                    assert told == "INVALID_REQUEST", (field, value, told)
            many = {**beat, "groups": [[n, True, 1, 9, 0, 1, 1] for n in range(33_000)]}
            assert one.refused(protocol.BEAT, many) == "INVALID_REQUEST"
        time.sleep(3)  # the managers' leader would have registered it
        after = cluster.session.read("brokers").result()["brokers"]
        assert [row["node"] for row in after] == [row["node"] for row in before]


def test_an_address_that_is_none() -> None:
    """One broker's word must not end all others: they connect to what they are told."""
    one, two = free_ports(2)
    transport = Transport(f"127.0.0.1:{one}", f"127.0.0.1:{two}", b"", now=0)
    for address in ("no address", "", "127.0.0.1:99999999", "tcp://127.0.0.1:9", "a b:1", ";:1"):
        transport.set_peer_address(("broker", 9), address)
        assert not transport.send_to_peer(("broker", 9), [b""])
    assert transport.counts["peer_addresses_invalid_total"] >= 3
    transport.set_peer_address(("broker", 9), f"127.0.0.1:{two}")
    transport.close()


# -- an honest client meanwhile -------------------------------------------------------------------


@contextlib.contextmanager
def flooded(cluster: Cluster, random: Random, sent: list[int]) -> Iterator[None]:
    """500 messages a second from two processes."""
    ports = [str(port) for name in cluster.names for port in cluster.ports[name]] * 3
    groups = [str(group) for group in junk_groups(cluster)]
    command = [sys.executable, "-P", str(FUZZ), ",".join(ports), ",".join(groups)]
    two = [
        subprocess.Popen(
            [*command, str(random.getrandbits(30)), "250"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for one in two:
            assert one.stdout and one.stdout.readline() == b"ready\n"
        yield
        sent += [int(one.communicate(timeout=20)[0]) for one in two]
    finally:
        for one in two:
            one.kill()
            one.communicate()


@pytest.mark.slow
@pytest.mark.serial  # it compares latencies
def test_an_honest_client_does_not_wait(cluster: Cluster, random: Random) -> None:
    """One message at a time, each acknowledged: its p99 does not double. In turns with quiet."""
    taken: dict[str, list[float]] = {"quiet": [], "garbage": []}
    sent: list[int] = []
    cluster.admin.create_topic("one-at-a-time", partitions=3)
    with honest(cluster, "p99"), Producer(cluster.address) as producer:

        def measure(when: str, seconds: float = 2.5) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                begin = time.perf_counter()
                producer.send("one-at-a-time", b"x" * 100).result(20)
                taken[when].append(time.perf_counter() - begin)
                time.sleep(0.002)

        measure("quiet")
        taken["quiet"].clear()  # that was to become warm
        for _ in range(4):
            measure("quiet")
            with flooded(cluster, random, sent):
                measure("garbage")
        measure("quiet")
    p99 = {}
    for when, values in taken.items():
        values.sort()
        at = [values[int(share * (len(values) - 1))] * 1000 for share in (0.5, 0.99, 1)]
        p99[when] = at[1] / 1000
        print(f"{when}: {len(values)} messages, p50 {at[0]:.2f} p99 {at[1]:.2f} max {at[2]:.2f} ms")
    print(f"garbage sent: {sum(sent)}")
    assert sum(sent) > 3000
    assert p99["garbage"] <= max(2 * p99["quiet"], FLOOR_S)


def test_nothing_of_it_is_left_behind(cluster: Cluster) -> None:
    """All end in order, start again from what they wrote, and are well."""
    cluster.stop(*[name for name in cluster.names if name[0] == "broker"])
    cluster.stop(*list(cluster.processes))
    cluster.start()
    cluster.wait_healthy()
    for name in cluster.names:
        assert "Traceback" not in cluster.log(name)
    with Producer(cluster.address) as producer:
        assert producer.send("raw", b"after", partition=0).result(10).offset > 0
