"""Turns packets between daemons into frames, and frames into packets.

A daemon has at most one packet for each other daemon and turn. It becomes one multipart message:
the envelope with all messages and heartbeats, then the payloads of entries. Small payloads are
joined in the first frame, since one copy of them costs less than a frame each. A payload of at
least `OWN_FRAME_BYTES` is a frame of its own, sent and received without a copy.

The rows that describe entries are the same for every follower, so they are packed once a turn and
put into each envelope as bytes (`RowCache`).

Packets come from peers that greeted, so of our cluster and version. They may still be wrong: then
decoding raises `MalformedPacket`, and the packet is counted and dropped. The core calculates with
the fields in the middle of its own changes, where an exception would leave a replica half changed.
So every field is checked for type and range before the core sees any of a packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import LeaderList, NodeHeartbeat, NodeHeartbeatReply, Packet
from myqueue.daemons.repair.messages import ENTRIES_PER_REQUEST_MAX, EntriesRequest, EntryReply
from myqueue.wire import protocol

OWN_FRAME_BYTES = 32 << 10
PACKET_BYTES_MAX = 512 << 10  # of an envelope; then a second message begins
PACKET_FRAMES_MAX = 1000
JOINED_BYTES_MAX = 4 << 20  # of small payloads in one frame, before the last one
STATE_FRAME_BYTES = 8 << 20  # a frame has a size limit, a state has none
_VOTE, _VOTED, _APPEND, _APPENDED, _INSTALL, _TIMEOUT, _LACK, _HAVE = 1, 2, 3, 4, 5, 6, 7, 8
_BEAT, _BEAT_REPLY, _LEADS = 1, 2, 3
_INT_END, _WORD_END = 1 << 63, 1 << 32  # of indexes, terms, …; of counts, lengths, chains
_TYPES_END = max(t.DATA, t.NOOP, t.CONFIG, t.COMMAND) + 1
_JUST_INT = {int}
Buffer = bytes | memoryview


class MalformedPacket(Exception):
    """A packet with wrong types, ranges or lengths."""


class RowCache:
    """Packed rows of the entries of this turn, by group, first index, count and last term."""

    def __init__(self) -> None:
        self._packed: dict[tuple[int, int, int, int], bytes] = {}

    def rows(self, group: int, entries: list[t.Entry]) -> bytes:
        key = (group, entries[0][t.INDEX], len(entries), entries[-1][t.TERM])
        packed = self._packed.get(key)
        if packed is None:
            packed = self._packed[key] = protocol.pack(
                [(*entry[1:7], len(entry[7])) for entry in entries]
            )
        return packed

    def clear(self) -> None:
        self._packed.clear()


# -- out ------------------------------------------------------------------------------------------


class _Writer:
    """Collects one multipart message."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.beats: list[Any] = []
        self.small: list[Buffer] = []
        self.big: list[Buffer] = []
        self.size = self.joined = 0

    def payload(self, data: Buffer) -> None:
        if len(data) >= OWN_FRAME_BYTES:
            self.big.append(data)
        else:
            self.small.append(data)
            self.joined += len(data)

    def frames(self) -> list[Buffer]:
        envelope = protocol.encode(protocol.PACKET, 0, self.messages, self.beats)
        if not self.small and not self.big:
            return [envelope]
        return [envelope, b"".join(self.small), *self.big]

    @property
    def full(self) -> bool:
        """Whether to begin another message: a frame over the limit ends the connection."""
        return (
            self.size > PACKET_BYTES_MAX
            or len(self.big) > PACKET_FRAMES_MAX
            or self.joined > JOINED_BYTES_MAX
        )


def encode(packet: Packet, cache: RowCache) -> Iterator[list[Buffer]]:
    """Encode a packet as one multipart message, rarely more."""
    writer = _Writer()
    writer.beats = [_beat(beat) for beat in packet.beats]
    for message in (*packet.messages, *packet.repair_messages):
        _add(writer, message, cache)
        if writer.full:
            yield writer.frames()
            writer = _Writer()
    if writer.messages or writer.beats:
        yield writer.frames()


def _add(writer: _Writer, m: t.Message | EntriesRequest | EntryReply, cache: RowCache) -> None:
    head = (m.group, m.source, m.target, m.term)
    size = 64
    if isinstance(m, t.Append):
        rows = cache.rows(m.group, m.entries) if m.entries else b""
        place = (m.prev_index, m.prev_term, m.prev_chain, m.commit, m.context)
        writer.messages.append((_APPEND, *head, *place, rows))
        for entry in m.entries:
            writer.payload(entry[t.PAYLOAD])
        size += len(rows)
    elif isinstance(m, t.AppendReply):
        said = (m.ok, m.index, m.hint_term, m.context, m.is_unhealthy)
        writer.messages.append((_APPENDED, *head, *said))
    elif isinstance(m, t.VoteRequest):
        writer.messages.append((_VOTE, *head, m.last_index, m.last_term, m.pre, m.transfer))
    elif isinstance(m, t.VoteReply):
        writer.messages.append((_VOTED, *head, m.granted, m.pre))
    elif isinstance(m, t.InstallSnapshot):
        s = m.snapshot
        start = (s.start_index, s.start_term, s.start_offset, s.start_chain)
        fixed = (s.index, s.term, s.config.voters, s.config.learners, *start, len(s.state))
        writer.messages.append((_INSTALL, *head, fixed))
        for at in range(0, len(s.state), STATE_FRAME_BYTES):
            writer.payload(s.state[at : at + STATE_FRAME_BYTES])
        size += 40 * len(s.config.members)
    elif isinstance(m, EntriesRequest):
        writer.messages.append((_LACK, *head, m.indexes[:ENTRIES_PER_REQUEST_MAX]))
        size += 9 * ENTRIES_PER_REQUEST_MAX
    elif isinstance(m, EntryReply):
        rows = cache.rows(m.group, [m.entry])
        writer.messages.append((_HAVE, *head, m.entry[t.INDEX], rows))
        writer.payload(m.entry[t.PAYLOAD])
    else:
        writer.messages.append((_TIMEOUT, *head))
    writer.size += size


def _beat(beat: NodeHeartbeat | NodeHeartbeatReply | LeaderList) -> tuple[Any, ...]:
    if isinstance(beat, NodeHeartbeat):
        return (_BEAT, beat.incarnation, beat.number, beat.leads, beat.digest, beat.commits)
    if isinstance(beat, NodeHeartbeatReply):
        return (_BEAT_REPLY, beat.number, beat.ask)
    return (_LEADS, beat.groups)


# -- in -------------------------------------------------------------------------------------------


def is_from_node(envelope: protocol.Envelope, node: int) -> bool:
    """Whether all messages and heartbeats of a packet come from replicas of this node."""
    try:
        return all(m[2] >> t.NODE_SHIFT == node for m in envelope[protocol.FIELDS]) and all(
            row[1] >> t.NODE_SHIFT == node
            for beat in envelope[protocol.FIELDS + 1]
            for row in _leaders_in(beat)
        )
    except (TypeError, LookupError):
        return False


def _leaders_in(beat: list[Any]) -> list[Any]:
    """Return rows (group, leader's replica, …) of a packed heartbeat."""
    if type(beat) is not list:
        raise TypeError
    rows: list[Any] = beat[5] if beat[0] == _BEAT else beat[1] if beat[0] == _LEADS else []
    return rows


def _check_ints(numbers: Sequence[Any], end: int = _INT_END) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number < end:
            raise MalformedPacket("a number that is none, or out of range")


def _check_bools(*values: Any) -> None:
    for value in values:
        if value is not True and value is not False:
            raise MalformedPacket("neither true nor false")


class _Payloads:
    """The payloads of a multipart, in order, by their lengths."""

    def __init__(self, frames: Sequence[Buffer]) -> None:
        self._small: Buffer = frames[0] if frames else b""
        self._at = 0
        self._big = iter(frames[1:])

    def take(self, length: int) -> Buffer:
        if length >= OWN_FRAME_BYTES:
            frame = next(self._big, b"")
            if len(frame) != length:
                raise MalformedPacket(f"a payload of {len(frame)} bytes instead of {length}")
            return frame
        end = self._at + length
        data = self._small[self._at : end]
        if length < 0 or len(data) != length:
            raise MalformedPacket("payloads are cut short")
        self._at = end
        return data


def decode(envelope: protocol.Envelope, frames: Sequence[Buffer]) -> Packet:
    payloads = _Payloads(frames)
    packet = Packet()
    try:
        for fields in envelope[protocol.FIELDS]:
            message: Any = _message(fields, payloads)
            (packet.repair_messages if fields[0] >= _LACK else packet.messages).append(message)
        for kind, *fields in envelope[protocol.FIELDS + 1]:
            packet.beats.append(_beat_of(kind, fields))
    except (TypeError, ValueError, LookupError) as error:
        raise MalformedPacket(f"a packet that can't be read: {error}") from None
    return packet


def _message(fields: list[Any], payloads: _Payloads) -> t.Message | EntriesRequest | EntryReply:
    kind, *rest = fields
    if type(kind) is not int:  # True equals 1
        raise MalformedPacket("a message without a kind")
    if kind == _APPEND:
        return _append(rest, payloads)
    _check_ints(rest[:4])
    if kind == _APPENDED:
        group, source, target, term, ok, index, hint_term, context, unhealthy = rest
        _check_ints((index, hint_term, context))
        _check_bools(ok, unhealthy)
        return t.AppendReply(group, source, target, term, ok, index, hint_term, context, unhealthy)
    if kind == _VOTE:
        group, source, target, term, last_index, last_term, pre, transfer = rest
        _check_ints((last_index, last_term))
        _check_bools(pre, transfer)
        return t.VoteRequest(group, source, target, term, last_index, last_term, pre, transfer)
    if kind == _VOTED:
        group, source, target, term, granted, pre = rest
        _check_bools(granted, pre)
        return t.VoteReply(group, source, target, term, granted, pre)
    if kind == _INSTALL:
        group, source, target, term, about = rest
        return t.InstallSnapshot(group, source, target, term, _snapshot(about, payloads))
    if kind == _LACK:
        group, source, target, term, indexes = rest
        if type(indexes) is not list or not 0 < len(indexes) <= ENTRIES_PER_REQUEST_MAX:
            raise MalformedPacket("indexes that are not listed")
        _check_ints(indexes)
        return EntriesRequest(group, source, target, term, indexes)
    if kind == _HAVE:
        return _have(rest, payloads)
    if kind == _TIMEOUT:
        group, source, target, term = rest
        return t.TimeoutNow(group, source, target, term)
    raise MalformedPacket("a message of a kind that is not known")


def _append(rest: list[Any], payloads: _Payloads) -> t.Append:
    group, source, target, term, index, index_term, chain, commit, context, rows = rest
    _check_ints(rest[:9])
    if type(rows) is not bytes:
        raise MalformedPacket("rows of entries that are not packed")
    entries = _entries(index, rows, payloads) if rows else []
    return t.Append(group, source, target, term, index, index_term, chain, entries, commit, context)


def _have(rest: list[Any], payloads: _Payloads) -> EntryReply:
    group, source, target, term, index, rows = rest
    _check_ints((index,))
    if type(rows) is not bytes or not index:
        raise MalformedPacket("rows of entries that are not packed")
    entries = _entries(index - 1, rows, payloads)
    if len(entries) != 1:
        raise MalformedPacket("not one entry")
    return EntryReply(group, source, target, term, entries[0])


def _snapshot(about: list[Any], payloads: _Payloads) -> t.Snapshot:
    index, term, voters, learners, first, first_term, offset, chain, length = about
    _check_ints((index, term, first, first_term, offset, chain, length))
    if type(voters) is not list or type(learners) is not list:
        raise MalformedPacket("members that are not listed")
    _check_ints((*voters, *learners))
    sizes = (min(STATE_FRAME_BYTES, length - at) for at in range(0, length, STATE_FRAME_BYTES))
    state = b"".join(payloads.take(size) for size in sizes)
    config = t.Config(tuple(voters), tuple(learners))
    return t.Snapshot(index, term, config, first, first_term, offset, chain, state)


def _entries(prev_index: int, rows: bytes, payloads: _Payloads) -> list[t.Entry]:
    """Unpack entries; terms never fall, each offset follows the entry before."""
    take = payloads.take
    entries: list[t.Entry] = []
    last_term = next_offset = 0
    for index, row in enumerate(protocol.unpack_rows(rows), prev_index + 1):
        term, offset, count, time_ms, kind, chain, length = row
        if {
            type(term),
            type(offset),
            type(count),
            type(time_ms),
            type(kind),
            type(chain),
            type(length),
        } != _JUST_INT:
            raise MalformedPacket("a row of an entry that is not of numbers")
        if not (
            last_term <= term < _INT_END
            and (next_offset == offset or not entries)
            and 0 <= offset < _INT_END
            and 0 <= count < _WORD_END
            and 0 <= time_ms < _INT_END
            and 0 <= kind < _TYPES_END
            and 0 <= chain < _WORD_END
        ):
            raise MalformedPacket("a row of an entry that does not follow the one before")
        entries.append((index, term, offset, count, time_ms, kind, chain, take(length)))
        last_term, next_offset = term, offset + count
    return entries


def _beat_of(kind: int, fields: list[Any]) -> NodeHeartbeat | NodeHeartbeatReply | LeaderList:
    if type(kind) is not int:
        raise MalformedPacket("a beat without a kind")
    if kind == _BEAT:
        incarnation, number, leads, digest, commits = fields
        _check_ints((incarnation, number, leads))
        _check_ints((digest,), protocol.INT_END)
        return NodeHeartbeat(incarnation, number, leads, digest, _rows(commits))
    if kind == _BEAT_REPLY:
        number, ask = fields
        _check_ints((number,))
        _check_bools(ask)
        return NodeHeartbeatReply(number, ask)
    if kind == _LEADS:
        (groups,) = fields
        return LeaderList(_rows(groups))
    raise MalformedPacket("a beat of a kind that is not known")


def _rows(rows: list[Any]) -> list[tuple[int, int, int, int]]:
    """Unpack rows of four numbers each."""
    if type(rows) is not list:
        raise MalformedPacket("rows that are not listed")
    out = []
    for row in rows:
        group, first, second, third = row
        _check_ints((group, first, second, third))
        out.append((group, first, second, third))
    return out
