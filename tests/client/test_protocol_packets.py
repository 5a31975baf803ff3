"""A PACKET is looked at twice: as an envelope, and by `packets`, before consensus sees any of it.

M5 and M3: each number is one and in its range, flags are flags, rows of entries follow each other;
whatever else comes is Malformed. A number that is a text would be noticed by the core as well, but
in the middle of a change. Who may speak at all is said by `is_from_node`.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.daemons.interfaces import Peer
from myqueue.daemons.network.loop import Loop
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import LeaderList, NodeHeartbeat, NodeHeartbeatReply, Packet
from myqueue.daemons.replication import packets
from myqueue.daemons.replication.engine import Engine
from myqueue.errors import IdentityMismatch, InvalidRequest
from myqueue.wire import protocol

ME, YOU = t.replica_id(1, 7), t.replica_id(2, 8)
HEAD = (9, ME, YOU, 5)
ENTRIES = [(4, 3, 10, 2, 99, t.DATA, 77, b"one"), (5, 5, 12, 0, 99, t.NOOP, 78, b"")]
MESSAGES: list[t.Message] = [
    t.VoteRequest(*HEAD, 3, 3, True, False),
    t.VoteReply(*HEAD, True, False),
    t.Append(*HEAD, 3, 3, 7, ENTRIES, 3, 0),  # type: ignore[arg-type]
    t.AppendReply(*HEAD, False, 3, 2, 0, True),
    t.InstallSnapshot(*HEAD, t.Snapshot(7, 3, t.Config((ME, YOU), ()), 1, 0, 0, 0, b"state")),
    t.TimeoutNow(*HEAD),
]
BEATS = [
    NodeHeartbeat(3, 4, 1, 2**64 - 1, [(9, ME, 5, 3)]),
    NodeHeartbeatReply(4, True),
    LeaderList([(9, ME, YOU, 5)]),
]


def sent(packet: Packet) -> tuple[list[Any], list[Any]]:
    ((envelope, *frames),) = packets.encode(packet, packets.RowCache())
    return protocol.decode(bytes(envelope)), list(frames)


def malformed(envelope: list[Any], frames: list[Any]) -> None:
    with pytest.raises(packets.MalformedPacket):
        packets.decode(envelope, frames)


def check_types(value: Any) -> None:
    """All numbers, in their ranges; flags where flags are meant."""
    for name in (one.name for one in dataclasses.fields(value)):
        part = getattr(value, name)
        if name in ("ok", "pre", "granted", "transfer", "is_unhealthy", "ask"):
            assert type(part) is bool
        elif name in ("entries", "commits", "groups"):
            for row in part:
                assert type(row) is tuple
                assert all(type(one) is int and one >= 0 for one in row[:7])
        elif name == "snapshot":
            numbers = [*part[:2], *part[3:7], *part.config.members]
            assert all(type(one) is int and one >= 0 for one in numbers)
            assert type(part.state) is bytes
        else:
            assert type(part) is int and 0 <= part < 2**64


def decoded(envelope: list[Any], frames: list[Any]) -> None:
    """Refused as what it is, or of the right types throughout."""
    try:
        packet = packets.decode(envelope, frames)
    except packets.MalformedPacket:
        return
    for one in (*packet.messages, *packet.beats):
        check_types(one)


ODD: list[Any] = [None, True, "1", b"1", 1.0, -1, 2**63, 2**64 - 1, [], {}, [[1]], float("nan")]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_each_field_of_a_message(message: t.Message) -> None:
    """M5"""
    envelope, frames = sent(Packet([message]))
    assert packets.decode(envelope, frames).messages == [message]
    fields = envelope[protocol.FIELDS][0]
    for place, good in enumerate(fields):
        for value in ODD:
            if type(value) is type(good) and type(good) is not int:
                continue  # True for False is another message, as good as this one
            envelope[protocol.FIELDS] = [[*fields[:place], value, *fields[place + 1 :]]]
            malformed(envelope, frames)
    for count in range(len(fields)):
        envelope[protocol.FIELDS] = [fields[:count]]
        malformed(envelope, frames)
    envelope[protocol.FIELDS] = [[*fields, 1]]
    malformed(envelope, frames)


@pytest.mark.parametrize("place", range(9))
def test_each_field_of_a_snapshot(place: int) -> None:
    envelope, frames = sent(Packet([MESSAGES[4]]))
    fields = envelope[protocol.FIELDS][0]
    about = fields[-1]
    for value in ODD:
        if value == [] and type(about[place]) is list:
            continue
        fields[-1] = [*about[:place], value, *about[place + 1 :]]
        malformed(envelope, frames)


@pytest.mark.parametrize("place", range(7))
def test_each_field_of_an_entry(place: int) -> None:
    """M5, R4: terms that fall and offsets with gaps are refused as well."""
    envelope, frames = sent(Packet([MESSAGES[2]]))
    fields = envelope[protocol.FIELDS][0]
    rows = protocol.unpack(fields[-1])
    for value in ODD:
        for at in (0, 1):
            changed = [list(row) for row in rows]
            changed[at][place] = value
            fields[-1] = protocol.pack(changed)
            malformed(envelope, frames)
    falls, gap = [[5, *rows[0][1:]], [3, *rows[1][1:]]], [rows[0], [5, 13, *rows[1][2:]]]
    for changed in (
        falls,
        gap,
        [[*rows[0], 1]],
        [rows[0][:6]],
        [rows[1], rows[0]],
        rows[0],
        5,
        [[]],
        [5],
    ):
        fields[-1] = protocol.pack(changed)
        malformed(envelope, frames)
    for value in (b"\xdc\xff\xff" * 1000, b"\xdc\x0b\x00" * 1000, b"\xc1", "text", [], None):
        fields[-1] = value
        tracemalloc.start()
        malformed(envelope, frames)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("beat", BEATS, ids=lambda one: type(one).__name__)
def test_each_field_of_a_beat(beat: Any) -> None:
    envelope, frames = sent(Packet([], [beat]))
    assert packets.decode(envelope, frames).beats == [beat]
    fields = envelope[protocol.FIELDS + 1][0]
    for place, good in enumerate(fields):
        for value in [*ODD, [[1, 2, 3]], [[1, 2, 3, "4"]], [[1, 2, 3, True]], [[1, 2, 3, 4, 5]]]:
            same = type(value) is type(good)
            if same and (type(good) is bool or value == []):
                continue
            if (
                same
                and type(good) is int
                and value > 0
                and (place, type(beat)) == (4, NodeHeartbeat)
            ):
                continue  # a digest has 64 bits
            envelope[protocol.FIELDS + 1] = [[*fields[:place], value, *fields[place + 1 :]]]
            malformed(envelope, frames)


def test_who_speaks_for_whom() -> None:
    """A member may not speak for the replicas of another one."""
    envelope, _ = sent(Packet(list(MESSAGES), list(BEATS)))
    assert packets.is_from_node(envelope, 1)
    assert not packets.is_from_node(envelope, 2)
    for stranger in (
        Packet([t.TimeoutNow(9, YOU, ME, 5)]),
        Packet([], [LeaderList([(9, YOU, ME, 5)])]),
        Packet([], [NodeHeartbeat(3, 4, 1, 0, [(9, YOU, 5, 3)])]),
    ):
        envelope, _ = sent(stranger)
        assert not packets.is_from_node(envelope, 1) and packets.is_from_node(envelope, 2)
    for odd in ODD:
        assert not packets.is_from_node([1, protocol.PACKET, 0, [odd], []], 1)
        assert type(odd) is list or not packets.is_from_node([1, protocol.PACKET, 0, [], [odd]], 1)
        assert not packets.is_from_node([1, protocol.PACKET, 0, [[6, 9, odd, YOU, 5]], []], 1)


def test_who_may_speak_of_consensus() -> None:
    """S1: whom we met on its own door, with the disk that it had there, and who is a member."""
    loop: Any = object.__new__(Loop)
    member = SimpleNamespace(raft=SimpleNamespace(config=t.Config((ME, YOU))))
    loop.engine, loop._group_member_nodes = SimpleNamespace(replicas={}), set()
    loop._confirmed_disks = {("broker", 1): "a", ("broker", 9): "b"}

    def may(node: int, disk: str) -> bool:
        try:
            loop._check_may_send_packets(Peer(b"", "broker", node, disk, 1))
        except IdentityMismatch:
            return False
        return True

    assert not may(1, "a"), "no group is here"
    loop.engine.replicas[9] = member
    assert may(1, "a")
    assert not may(1, "b") and not may(2, "a") and not may(9, "b")


def test_a_packet_that_speaks_for_another_node_is_refused_before_it_is_read() -> None:
    """S1: its sender is node 1, its message says node 2."""
    engine: Any = object.__new__(Engine)
    engine.kind = "broker"
    with pytest.raises(IdentityMismatch, match="broker 1 sends for another node"):
        engine.receive_packet(1, [1, protocol.PACKET, 0, [[6, 9, YOU, ME, 5]], []], [])


_things = st.recursive(
    st.sampled_from([0, 1, 2, 3, 9, ME, YOU, 2**63 - 1, True, None, "t", b"b", -1, 1.5]),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(_things, max_size=4), st.lists(_things, max_size=4))
@settings(max_examples=120, deadline=None)
def test_random_packets(messages: list[Any], beats: list[Any]) -> None:
    envelope = [1, protocol.PACKET, 0, messages, beats]
    packets.is_from_node(envelope, 1)
    decoded(envelope, [b"one"])


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_damaged_packets(data: st.DataObject) -> None:
    ((envelope, *frames),) = packets.encode(Packet(list(MESSAGES), list(BEATS)), packets.RowCache())
    raw = bytearray(envelope)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = protocol.decode(bytes(raw))
    except InvalidRequest:
        return
    if found[protocol.KIND] == protocol.PACKET:
        packets.is_from_node(found, 1)
        decoded(found, frames[: data.draw(st.integers(0, len(frames)))])
