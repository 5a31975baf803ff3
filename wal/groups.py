"""The state of each group as its records say: where its log begins and ends, vote, snapshot.

Records come in and change the state; nothing here does IO. The journal uses this code while it
appends, recovery while it reads, and the store while it saves, so the three cannot disagree about
the meaning of a record.

Invariants of a `Group`: first_index <= last_index + 1; an empty log has last_index == first_index
- 1; `last_term`, `next_offset` and `chain` describe the entry at last_index (or the one before
the log's start, if the log is empty).
"""

from __future__ import annotations

from operator import attrgetter
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from myqueue.errors import StoreBroken
from myqueue.wal import format as f

_SAVED_NAMES = (
    *("uid", "first_index", "start_term", "start_offset", "start_chain", "term", "vote"),
    *("commit_index", "snapshot_index", "snapshot_term", "created_at", "hard_state_at"),
    *("start_at", "snapshot_at", "snapshot_from", "snapshot_position", "pending_from"),
    *("pending_position", "snapshot_parts"),
)
_SAVED, _saved_fields = Struct("<18QI"), attrgetter(*_SAVED_NAMES)
_HINT = Struct("<Q")
_HAS_HINT = 16  # among the flags


class Row(NamedTuple):
    """Where one entry stands on disk, and what its header says: a row of the index."""

    group: int
    index: int  # type: ignore[assignment]  # tuple.index and .count are not used
    segment: int
    position: int
    length: int
    count: int  # type: ignore[assignment]
    offset: int
    term: int
    time_ms: int
    chain: int


# A Row as a plain tuple, which costs a quarter to make; one is made for every entry.
RowTuple = tuple[int, int, int, int, int, int, int, int, int, int]


class Relocated(list[RowTuple]):
    """Rows of entries that were appended again elsewhere; not a new end of their group's log."""


# What the store has to learn, in log order: rows of entries, or another record with the number of
# its segment and its payload.
Op = list[RowTuple] | tuple[f.Record, int, bytes]


class Group:
    """One incarnation of a Raft group on this disk, as its records describe it."""

    __slots__ = (
        "chain",
        "commit_index",
        "created",
        "created_at",
        "damaged",
        "doubtful",
        "first_index",
        "hard_state_at",
        "hint_at",
        "incomplete",
        "lacking",
        "last_index",
        "last_term",
        "missing",
        "next_offset",
        "pending_from",
        "pending_position",
        "snapshot_at",
        "snapshot_from",
        "snapshot_index",
        "snapshot_parts",
        "snapshot_position",
        "snapshot_term",
        "start_at",
        "start_chain",
        "start_offset",
        "start_term",
        "term",
        "uid",
        "vote",
    )

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.created: bytes | None = None  # payload of GROUP_CREATED
        self.first_index, self.start_term, self.start_offset, self.start_chain = 1, 0, 0, 0
        self.last_index, self.last_term, self.next_offset, self.chain = 0, 0, 0, 0
        self.term, self.vote, self.commit_index = 0, 0, 0
        self.snapshot_index, self.snapshot_term = 0, 0
        self.snapshot_parts = 0  # parts of the newest complete snapshot, 0 if there is none
        # Ranges [first, last] of indices that a replay has not seen: reclaimed, relocated, or lost.
        self.missing: list[tuple[int, int]] = []
        # Acknowledged entries may be missing: the replica must not vote, campaign or count toward a
        # quorum. Stays true until the owner's hard state says otherwise.
        self.incomplete = False
        self.doubtful = False  # any record may be missing, even the newest vote
        self.lacking = False  # entries whose index and place are known cannot be read
        self.damaged = False  # a record of this group is known to be lost or unreadable
        # Numbers of the segments that hold the newest record of each kind, 0 for none.
        self.created_at, self.hard_state_at, self.start_at, self.snapshot_at = 0, 0, 0, 0
        # Segment of the COMMIT record with commit_index; 0 if the snapshot's index is as high.
        self.hint_at = 0
        # Where the first part of that snapshot stands, and of one that is not complete yet.
        self.snapshot_from, self.snapshot_position = 0, 0
        self.pending_from, self.pending_position = 0, 0

    def holds(self, segment: int) -> bool:
        """Whether a record in force stands in this segment; entries and the hint do not count."""
        return (
            segment in (self.created_at, self.hard_state_at, self.start_at)
            or self.snapshot_from <= segment <= self.snapshot_at
            or 0 < self.pending_from <= segment
        )

    @property
    def is_hinted(self) -> bool:
        """Whether a record with a known place says how far the group is committed."""
        return self.hint_at > 0 or self.commit_index <= self.snapshot_index

    def append(self, index: int, term: int, next_offset: int, chain: int) -> None:
        """Make this entry the last one of the log."""
        self.last_index, self.last_term = index, term
        self.next_offset, self.chain = next_offset, chain

    def seen(self, index: int) -> None:
        """Remove an index from `missing`: its entry was found at another place."""
        for at, (first, last) in enumerate(self.missing):
            if first <= index <= last:
                remaining = [(first, index - 1), (index + 1, last)]
                self.missing[at : at + 1] = [(a, b) for a, b in remaining if a <= b]
                return

    def apply(self, record: f.Record, segment: int, payload: bytes) -> None:
        """Change the state by any record but an ENTRY."""
        kind = record.kind
        if kind == f.HARD_STATE:
            self.term, self.vote, self.hard_state_at = record.term, record.index, segment
            self.incomplete = bool(record.flags & f.INCOMPLETE)
            self.doubtful = bool(record.flags & f.DOUBTFUL)
            self.lacking = bool(record.flags & f.LACKING)
        elif kind == f.COMMIT:
            if 0 < record.index >= self.commit_index:
                self.commit_index, self.hint_at = record.index, segment
        elif kind == f.TRUNCATE:
            self.append(record.index - 1, record.term, record.offset, record.chain)
            # If the first record of a replay was an entry, first_index was only a guess.
            self.first_index = min(self.first_index, record.index)
            self.missing = [
                (a, min(b, record.index - 1)) for a, b in self.missing if a < record.index
            ]
        elif kind == f.START:
            self._start(record, segment)
        elif kind == f.SNAPSHOT:
            self._snapshot(record, segment)
        elif kind == f.GROUP_CREATED:
            self.created, self.created_at = bytes(payload), segment

    def _start(self, record: f.Record, segment: int) -> None:
        self.first_index, self.start_term = record.index, record.term
        self.start_offset, self.start_chain, self.start_at = record.offset, record.chain, segment
        self.missing = [(max(a, record.index), b) for a, b in self.missing if b >= record.index]
        if record.flags & f.RESET:
            self.missing = []
        if record.flags & f.RESET or self.last_index < record.index - 1:
            self.append(record.index - 1, record.term, record.offset, record.chain)

    def _snapshot(self, record: f.Record, segment: int) -> None:
        """Note a part of a snapshot. The last part puts the snapshot in force."""
        if record.count == 0:
            self.pending_from, self.pending_position = segment, record.position
        if record.flags & f.LAST:
            self.snapshot_index, self.snapshot_term = record.index, record.term
            self.snapshot_parts, self.snapshot_at = record.count + 1, segment
            self.snapshot_from, self.snapshot_position = self.pending_from, self.pending_position
            self.pending_from, self.pending_position = 0, 0
            if record.index >= self.commit_index:
                self.commit_index, self.hint_at = record.index, 0

    def save(self) -> bytes:
        """Encode the group for the store, without its tail: the index table has that."""
        created = self.created or b""
        has_created = self.created is not None
        flags = has_created | self.incomplete << 1 | self.doubtful << 2 | self.lacking << 3
        body = (
            _SAVED.pack(*_saved_fields(self))
            + bytes((flags | _HAS_HINT,))
            + _HINT.pack(self.hint_at)
            + created
        )
        return body + crc32(body).to_bytes(4, "little")

    @classmethod
    def load(cls, raw: bytes) -> Group:
        """Decode what `save` made; StoreBroken if the checksum is wrong."""
        body = raw[:-4]
        if len(raw) < _SAVED.size + 5 or crc32(body).to_bytes(4, "little") != raw[-4:]:
            raise StoreBroken("a group's row in the store fails its checksum")
        group = cls(0)
        (  # in the order of _SAVED_NAMES; a loop would take three times as long
            group.uid,
            group.first_index,
            group.start_term,
            group.start_offset,
            group.start_chain,
            group.term,
            group.vote,
            group.commit_index,
            group.snapshot_index,
            group.snapshot_term,
            group.created_at,
            group.hard_state_at,
            group.start_at,
            group.snapshot_at,
            group.snapshot_from,
            group.snapshot_position,
            group.pending_from,
            group.pending_position,
            group.snapshot_parts,
        ) = _SAVED.unpack_from(body)
        flags, rest = body[_SAVED.size], body[_SAVED.size + 1 :]
        if flags & _HAS_HINT:  # a row of an older program lacks the hint's place
            (group.hint_at,), rest = _HINT.unpack_from(rest), rest[_HINT.size :]
        group.created = rest if flags & 1 else None
        group.incomplete, group.doubtful = bool(flags & 2), bool(flags & 4)
        group.lacking = bool(flags & 8)
        group.append(group.first_index - 1, group.start_term, group.start_offset, group.start_chain)
        return group


class Groups:
    """All groups of a log by uid, as a replay of its records builds them."""

    def __init__(self) -> None:
        self.by_uid: dict[int, Group] = {}

    def entry(self, record: f.Record) -> str | None:
        """Apply an ENTRY; return a text if it cannot follow the entries before it.

        A jump forward is no error yet: segments are reclaimed in any order, so missing entries may
        lie before the log's start, or may have been relocated. Entries that are still missing at
        the end of the log were lost.
        """
        group = self.by_uid.get(record.group)
        if group is None:
            group = self.by_uid[record.group] = Group(record.group)
            group.first_index = record.index
            group.append(record.index - 1, record.term, record.offset, 0)
        if record.flags & f.RELOCATED:
            group.first_index = min(group.first_index, record.index)
            group.seen(record.index)
            if record.index > group.last_index:
                group.append(record.index, record.term, record.offset + record.count, record.chain)
            return None
        problem = None
        if record.index > group.last_index + 1:
            group.missing.append((group.last_index + 1, record.index - 1))
        elif record.index <= group.last_index:
            problem = f"index {record.index} follows index {group.last_index}"
            group.damaged = True
        group.append(record.index, record.term, record.offset + record.count, record.chain)
        return problem

    def apply(self, record: f.Record, segment: int, payload: bytes) -> None:
        """Apply any other record of a group."""
        if record.kind == f.GROUP_REMOVED:
            self.by_uid.pop(record.group, None)
            return
        group = self.by_uid.get(record.group)
        if group is None:
            group = self.by_uid[record.group] = Group(record.group)
        group.apply(record, segment, payload)
