"""The input and output of an inspection: rows that Spark can move and sort. No logic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from myqueue.analytics.log.catalog import Cut
from myqueue.analytics.log.plan import Task

CORRUPT, TORN, WRONG = "corrupt", "torn", "wrong"
BLOCK_BITS = 12


class Finding(NamedTuple):
    """A fault and its place.

    `verdict`: corrupt (bytes are damaged), torn (a write that was never acknowledged is cut off) or
    wrong (bytes are right, but can't be what happened). `rule`: a short name, one for each check.
    """

    verdict: str
    rule: str
    what: str
    daemon: str = ""
    segment: str = ""
    position: int = 0
    group: int = 0
    index: int = 0  # type: ignore[assignment]  # tuple.index is not used


class Gone(NamedTuple):
    """A segment that was reclaimed before it was read."""

    location: str


class GroupSums(NamedTuple):
    """Counts of one group's records, as a segment's footer has them."""

    entries: int = 0
    bytes: int = 0  # of entries, with headers
    kinds: int = 0  # a bit for each kind of record

    def plus(self, other: GroupSums) -> GroupSums:
        return GroupSums(
            self.entries + other.entries, self.bytes + other.bytes, self.kinds | other.kinds
        )


class Range(NamedTuple):
    """Where the reading of a range began and ended, and counts of what it holds."""

    disk: str
    number: int
    begin: int  # where its first record begins
    end: int  # where the first record of the next range has to begin
    records: int
    entries: int
    messages: int
    bytes: int
    sums: dict[int, GroupSums]  # by group


class TermStart(NamedTuple):
    """The first entry of a run, and each entry with another term than the one before it."""

    index: int  # type: ignore[assignment]
    term: int
    position: int


class Gap(NamedTuple):
    """An entry whose offset is not the one that follows."""

    index: int  # type: ignore[assignment]
    offset: int
    expected: int
    position: int


class Run(NamedTuple):
    """Entries of one group that follow each other in one range."""

    group: int
    disk: str
    number: int
    position: int
    end_position: int
    first: int
    last: int
    first_offset: int
    next_offset: int
    terms: list[TermStart]
    relocated: bool
    gaps: list[Gap]


class Event(NamedTuple):
    """A record of a group that changes what its entries mean: a vote, a truncation, a hint, …"""

    group: int
    disk: str
    number: int
    position: int
    kind: int
    index: int  # type: ignore[assignment]
    term: int
    offset: int
    flags: int
    payload: bytes


class Block(NamedTuple):
    """Entries of one group whose indices have the same high bits, in any order."""

    group: int
    block: int
    disk: str
    number: int
    indices: bytes  # 8 bytes each
    terms: bytes
    digests: bytes  # 0: not known, since the bytes are damaged
    positions: bytes  # 4 bytes each


class BatchRun(NamedTuple):
    """Batches of one producer that continue each other, and one another's offsets."""

    producer: int
    epoch: int
    sequence: int  # of the first message
    offset: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    index: int  # type: ignore[assignment]  # of the last entry
    bytes: int
    time_ms: int  # the latest one


class Command(NamedTuple):
    """The entry of a command."""

    index: int  # type: ignore[assignment]
    offset: int
    payload: bytes


class SnapshotPart(NamedTuple):
    """One part of the snapshot to begin with."""

    number: int
    payload: bytes


Change = BatchRun | Command
_CHANGES: Final = (BatchRun, Command)


def packed(changes: list[Change]) -> list[tuple[Any, ...]]:
    """Changes as plain tuples. There may be one for each batch, and named ones cost eight times as
    much on their way from one process to another (2.6 µs each).
    """
    return [(_CHANGES.index(type(change)), *change) for change in changes]


class Step(NamedTuple):
    """Entries first … last of one group that are in force, as far as they change its state; or one
    part of a snapshot.
    """

    disk: str
    group: int
    first: int
    number: int
    position: int
    last: int
    packed: list[tuple[Any, ...]]
    part: SnapshotPart | None = None

    @property
    def changes(self) -> Iterator[Change]:
        return (_CHANGES[kind](*fields) for kind, *fields in self.packed)


class Replayed(NamedTuple):
    """The entries of a group that are wanted as steps: those in force after index `after`, up to
    and including index `upto`.
    """

    after: int
    upto: int
    split: int  # no step goes over this index: the state is looked at there
    snapshot: tuple[int, int] | None  # (index, term) of the state to begin with
    cuts: tuple[Cut, ...]


class Inspection(NamedTuple):
    """A task, and what is needed to judge it."""

    task: Task
    proven: int  # everything before this position was synced
    last: bool  # the segment ends with this range
    replays: dict[int, Replayed]


Row = Gone | Range | Finding | Run | Event | Block | Step
