"""Packets between hosts as frames: what the core sends, in as few frames as possible.

A host has at most one packet for each other host and turn; here it becomes one multipart: the
envelope with all messages and beats, then the payloads of entries. Small payloads travel joined
in the first frame, as one copy of them costs less than a frame each; from `OWN_FRAME_BYTES` on a
payload is a frame of its own, sent and received without a copy.

The rows that describe entries are the same for every follower, so they are packed once a turn and
put into each envelope as bytes (`RowCache`).

What comes in is from a peer that greeted, so it is of our cluster and version; it may still be
wrong, and then it is a `Malformed`, counted and dropped, never an assertion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from myqueue import protocol
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.host import Beat, BeatReply, Leads, Packet

OWN_FRAME_BYTES = 32 << 10
PACKET_BYTES_MAX = 512 << 10  # of an envelope; then a second one begins
PACKET_FRAMES_MAX = 1000
_VOTE, _VOTED, _APPEND, _APPENDED, _INSTALL, _TIMEOUT = 1, 2, 3, 4, 5, 6
_BEAT, _BEAT_REPLY, _LEADS = 1, 2, 3
Buffer = bytes | memoryview


class Malformed(Exception):
    """A packet that is not what its envelope says."""


class RowCache:
    """Packed rows of the entries of this turn, by group, place and term: that says which."""

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
    """Collects one multipart."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.beats: list[Any] = []
        self.small: list[Buffer] = []
        self.big: list[Buffer] = []
        self.size = 0

    def payload(self, data: Buffer) -> None:
        (self.big if len(data) >= OWN_FRAME_BYTES else self.small).append(data)

    def frames(self) -> list[Buffer]:
        envelope = protocol.encode(protocol.PACKET, 0, self.messages, self.beats)
        if not self.small and not self.big:
            return [envelope]
        return [envelope, b"".join(self.small), *self.big]

    @property
    def full(self) -> bool:
        return self.size > PACKET_BYTES_MAX or len(self.big) > PACKET_FRAMES_MAX


def encode(packet: Packet, cache: RowCache) -> Iterator[list[Buffer]]:
    """One multipart, seldom more."""
    writer = _Writer()
    writer.beats = [_beat(beat) for beat in packet.beats]
    for message in packet.messages:
        _add(writer, message, cache)
        if writer.full:
            yield writer.frames()
            writer = _Writer()
    if writer.messages or writer.beats:
        yield writer.frames()


def _add(writer: _Writer, m: t.Message, cache: RowCache) -> None:
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
        said = (m.ok, m.index, m.hint_term, m.context, m.recovering)
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
        writer.payload(s.state)
        size += 40 * len(s.config.members)
    else:
        writer.messages.append((_TIMEOUT, *head))
    writer.size += size


def _beat(beat: Beat | BeatReply | Leads) -> tuple[Any, ...]:
    if isinstance(beat, Beat):
        return (_BEAT, beat.incarnation, beat.number, beat.leads, beat.digest, beat.commits)
    if isinstance(beat, BeatReply):
        return (_BEAT_REPLY, beat.number, beat.ask)
    return (_LEADS, beat.groups)


# -- in -------------------------------------------------------------------------------------------


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
                raise Malformed(f"a payload of {len(frame)} bytes instead of {length}")
            return frame
        end = self._at + length
        data = self._small[self._at : end]
        if length < 0 or len(data) != length:
            raise Malformed("payloads are cut short")
        self._at = end
        return data


def decode(envelope: protocol.Envelope, frames: Sequence[Buffer]) -> Packet:
    payloads = _Payloads(frames)
    packet = Packet()
    try:
        for fields in envelope[protocol.FIELDS]:
            packet.messages.append(_message(fields, payloads))
        for kind, *fields in envelope[protocol.FIELDS + 1]:
            packet.beats.append(_beat_of(kind, fields))
    except (TypeError, ValueError, IndexError) as error:
        raise Malformed(f"a packet that can't be read: {error}") from None
    return packet


def _message(fields: list[Any], payloads: _Payloads) -> t.Message:
    kind, *rest = fields
    if not all(type(number) is int for number in rest[:4]):
        raise Malformed("a message without group, replicas and term")
    if kind == _APPEND:
        group, source, target, term, index, index_term, chain, commit, context, rows = rest
        entries = _entries(index, rows, payloads) if rows else []
        return t.Append(
            group, source, target, term, index, index_term, chain, entries, commit, context
        )
    if kind == _APPENDED:
        return t.AppendReply(*rest)
    if kind == _VOTE:
        return t.VoteRequest(*rest)
    if kind == _VOTED:
        return t.VoteReply(*rest)
    if kind == _INSTALL:
        group, source, target, at_term, (index, term, voters, learners, *start, length) = rest
        config = t.Config(tuple(voters), tuple(learners))
        state = bytes(payloads.take(length))
        first, first_term, offset, chain = start
        snapshot = t.Snapshot(index, term, config, first, first_term, offset, chain, state)
        return t.InstallSnapshot(group, source, target, at_term, snapshot)
    if kind == _TIMEOUT:
        return t.TimeoutNow(*rest)
    raise Malformed(f"a message of kind {kind!r}")


def _entries(prev_index: int, rows: bytes, payloads: _Payloads) -> list[t.Entry]:
    take = payloads.take
    return [
        (index, term, offset, count, time_ms, kind, chain, take(length))
        for index, (term, offset, count, time_ms, kind, chain, length) in enumerate(
            protocol.unpack(rows), prev_index + 1
        )
    ]


def _beat_of(kind: int, fields: list[Any]) -> Beat | BeatReply | Leads:
    if kind == _BEAT:
        incarnation, number, leads, digest, commits = fields
        return Beat(incarnation, number, leads, digest, [tuple(one) for one in commits])
    if kind == _BEAT_REPLY:
        return BeatReply(*fields)
    if kind == _LEADS:
        return Leads([tuple(one) for one in fields[0]])
    raise Malformed(f"a beat of kind {kind!r}")
