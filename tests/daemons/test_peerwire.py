"""Packets survive their way through frames; wrong ones are refused, whatever is wrong (M1, M5)."""

from __future__ import annotations

from random import Random

import pytest

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import LeaderList, NodeHeartbeat, NodeHeartbeatReply, Packet
from myqueue.daemons.repair.messages import EntriesRequest, EntryReply
from myqueue.daemons.replication import packets
from myqueue.wire import protocol

SIZES = (0, 1, 100, 5000, packets.OWN_FRAME_BYTES - 1, packets.OWN_FRAME_BYTES, 100_000)


def number(random: Random) -> int:
    return random.getrandbits(random.choice((1, 8, 32, 63)))


def entries_after(random: Random, index: int, count: int) -> list[t.Entry]:
    offset, out = number(random), []
    for at in range(index + 1, index + 1 + count):
        payload = random.randbytes(random.choice(SIZES))
        out.append((at, 3, offset, 2, 1_700_000_000_000, t.DATA, random.getrandbits(32), payload))
        offset += 2
    return out


def message(random: Random) -> t.Message:
    head = (number(random), number(random), number(random), number(random))
    config = t.Config((1, 2, 3), (4,))
    start = (number(random), number(random), number(random), number(random))
    index = number(random)
    made = (
        t.VoteRequest(*head, number(random), number(random), True, False),
        t.VoteReply(*head, True, False),
        t.Append(*head, index, 2, 7, entries_after(random, index, random.randrange(5)), 9, 3),
        t.AppendReply(*head, False, number(random), 4, 2, True),
        t.InstallSnapshot(*head, t.Snapshot(7, 2, config, *start, random.randbytes(50_000))),
        t.TimeoutNow(*head),
    )
    return random.choice(made)


def packet(random: Random) -> Packet:
    beats = [
        NodeHeartbeat(number(random), 5, 6, number(random), [(1, 2, 3, 4), (5, 6, 7, 8)]),
        NodeHeartbeatReply(5, True),
        LeaderList([(1, 2, 3, 4)]),
    ]
    head = (number(random), number(random), number(random), number(random))
    beside = [
        EntriesRequest(*head, [number(random) for _ in range(random.randrange(1, 5))]),
        EntryReply(*head, entries_after(random, number(random) // 2, 1)[0]),
    ]
    messages = [message(random) for _ in range(random.randrange(8))]
    return Packet(messages, beats, beside[: random.randrange(3)])


def over_the_wire(sent: Packet) -> Packet:
    out = Packet()
    for frames in packets.encode(sent, packets.RowCache()):
        got = packets.decode(protocol.decode(frames[0]), frames[1:])
        out.messages += got.messages
        out.repair_messages += got.repair_messages
        out.beats += got.beats
    return out


@pytest.mark.parametrize("seed", range(30))
def test_a_packet_arrives_as_it_was_sent(seed: int) -> None:
    sent = packet(Random(seed))
    assert over_the_wire(sent) == sent


def test_a_large_packet_travels_in_several_messages() -> None:
    random = Random(1)
    many = [t.Append(g, 2, 3, 4, 0, 0, 0, entries_after(random, 0, 4000), 0) for g in range(9)]
    small = [[(*entry[:7], b"x") for entry in append.entries] for append in many]
    for append, entries in zip(many, small, strict=True):
        append.entries = entries
    sent = Packet(list(many))
    parts = list(packets.encode(sent, packets.RowCache()))
    assert len(parts) > 1
    assert max(len(frames[0]) for frames in parts) < protocol.ENVELOPE_BYTES_MAX
    assert over_the_wire(sent) == sent


@pytest.mark.parametrize("size", [100, 2 << 10, packets.OWN_FRAME_BYTES - 1])
def test_many_groups_that_lag_fit_into_frames(size: int) -> None:
    """Z6: each sends a follower that is back 1 MiB in the same turn, of batches that are small."""
    data = bytes(size)
    entries = [(at, 3, 2 * at, 2, 1, t.DATA, 7, data) for at in range(1, (1 << 20) // size)]
    sent = Packet([t.Append(group, 2, 3, 4, 0, 0, 0, entries, 0) for group in range(40)])
    for frames in packets.encode(sent, packets.RowCache()):
        assert max(map(len, frames)) <= protocol.FRAME_BYTES_MAX // 2
    assert over_the_wire(sent) == sent


def test_rows_are_packed_once_for_all_followers() -> None:
    cache, entries = packets.RowCache(), entries_after(Random(1), 4, 3)
    assert cache.rows(1, entries) is cache.rows(1, list(entries))


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_packet_is_malformed_and_nothing_else(seed: int) -> None:
    random = Random(seed)
    for frames in packets.encode(packet(random), packets.RowCache()):
        raw = bytearray(frames[0])
        for _ in range(random.randrange(1, 6)):
            raw[random.randrange(len(raw))] = random.randrange(256)
        cut = random.randrange(len(frames))
        try:
            packets.decode(protocol.decode(bytes(raw)), frames[1 : 1 + cut])
        except (packets.MalformedPacket, errors.InvalidRequest):
            pass  # what is meant; a packet that still makes sense is as good


def test_missing_payloads_are_noticed() -> None:
    for size in (100, packets.OWN_FRAME_BYTES):
        sent = t.Append(1, 2, 3, 4, 0, 0, 0, [(1, 3, 0, 1, 5, 0, 9, b"x" * size)], 0)
        (frames,) = packets.encode(Packet([sent]), packets.RowCache())
        with pytest.raises(packets.MalformedPacket):
            packets.decode(protocol.decode(frames[0]), [])


@pytest.mark.parametrize("more", [-1, 0, 1, packets.OWN_FRAME_BYTES])
def test_a_state_is_not_limited_by_the_size_of_a_frame(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """R20: sent in several frames, each as small as frames have to be; together they are one."""
    size = 2 * packets.OWN_FRAME_BYTES
    monkeypatch.setattr(packets, "STATE_FRAME_BYTES", size)
    state = Random(more).randbytes(3 * size + more)
    snapshot = t.Snapshot(7, 2, t.Config((1, 2)), 5, 1, 40, 9, state)
    sent = Packet([t.InstallSnapshot(1, 2, 3, 4, snapshot), t.TimeoutNow(1, 2, 3, 4)])
    (frames,) = packets.encode(sent, packets.RowCache())
    assert max(map(len, frames)) <= size
    assert over_the_wire(sent) == sent
