"""Evacuation: the live records of a segment are appended again at the end of the log (RELOCATED).

Reclaim empties sparse segments in this way, repair empties damaged ones. They differ in the source
of the entries: `scanned` reads a healthy segment from start to end and refuses damage; `looked_up`
reads the entries that rows of the store name, around damage. What can't be read is a result, not an
error. Votes, starts and other records in force are known in memory, and are appended from there.

A crash may leave a log with both copies; the newer one counts. The old segment may be removed when
everything appended here is durable and in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from copy import copy
from typing import Generic, NamedTuple, TypeVar

from myqueue.errors import CorruptData
from myqueue.wal import format as f
from myqueue.wal.append import entry_checks
from myqueue.wal.append.journal import Journal
from myqueue.wal.check.segments import Segment
from myqueue.wal.files import Files
from myqueue.wal.groups import Group, Row
from myqueue.wal.read.reader import Entry, Reader
from myqueue.wal.space.background import BackgroundJobs
from myqueue.wal.store.index import Index

STEP_BYTES = 1 << 20  # read, or appended again, at once
STEP_LOOKUPS = 128  # of entries that may be live
STEP_ROWS = 256  # read at once
PAUSE_S = 0.001
NEVER = (0, 0)  # a place before every record

T = TypeVar("T")
Pass = Generator[None, None, T]  # stepped by the loop; it yields where others may have their turn
Place = TypeVar("Place", f.Record, Row)  # where an entry stands, and its header
Source = Iterator[list[tuple[Place, Entry | None]]]  # portions of entries; None: it can't be read


class Unmoved(NamedTuple, Generic[Place]):
    """What is live in a segment and could not be appended again."""

    entries: list[Place]  # they can't be read
    groups: list[Group]  # their snapshot can't be read, or they are doubtful


class Evacuator:
    """Evacuates segments of one log; on the loop's thread, while `background` reads files."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        index: Index,
        reader: Reader,
        background: BackgroundJobs,
    ) -> None:
        self.files, self.journal, self.index = files, journal, index
        self.reader, self.background = reader, background
        self.relocated_bytes = 0

    def evacuate(self, number: int, source: Source[Place]) -> Pass[Unmoved[Place]]:
        """Append what is live in this segment again: entries of `source`, then records in force."""
        entries = yield from self._entries(number, source)
        yield from self.until_indexed()
        groups = yield from self._records(number)
        self.journal.submit()
        return Unmoved(entries, groups)

    def _entries(self, number: int, source: Source[Place]) -> Pass[list[Place]]:
        """Append live entries again, in portions; return those that can't be read."""
        journal, unreadable = self.journal, list[Place]()
        while (portion := (yield from self.in_background(lambda: next(source, None)))) is not None:
            lookups = size = 0
            for place, entry in portion:
                # The index must have every record that truncates this log. Otherwise it would still
                # show entries that were taken back.
                while journal.rewound_at.get(place.group, NEVER) > self.index.added:
                    yield from self.until_indexed()
                lookups += 1
                if self.is_live(number, place):
                    if entry is None:
                        unreadable.append(place)
                    else:
                        journal.append(place.group, [entry_again(*entry)], relocated=True)
                        size += place.length
                        self.relocated_bytes += place.length
                if lookups >= STEP_LOOKUPS or size >= STEP_BYTES:
                    lookups = size = 0
                    journal.submit()
                    yield None
            journal.submit()
            yield None
        return unreadable

    def _records(self, number: int) -> Pass[list[Group]]:
        """Append records in force again; return the groups whose records have to stay."""
        groups, unmoved = self.journal.groups.by_uid, list[Group]()
        for group in list(groups.values()):
            if group.hint_at == number and groups.get(group.uid) is group:
                self.journal.commit_hint(group.uid, group.commit_index)
            if not group.holds(number):
                continue
            parts: list[bytes] = []
            if group.doubtful:  # its vote, appended again, would count as its newest one
                unmoved.append(group)
                continue
            if in_snapshot(group, number):
                try:
                    parts = yield from self.snapshot(group)
                except CorruptData:
                    unmoved.append(group)
                    continue
            if groups.get(group.uid) is group and not group.doubtful:
                append_records(self.journal, group, number, parts)
        return unmoved

    def is_live(self, number: int, place: f.Record | Row) -> bool:
        """Whether the log still has the entry, at this place of segment `number`."""
        group = self.journal.groups.by_uid.get(place.group)
        if group is None or not group.first_index <= place.index <= group.last_index:
            return False
        row = self.index.row(place.group, place.index)
        return row is not None and (row.segment, row.position) == (number, place.position)

    def snapshot(self, group: Group) -> Pass[list[bytes]]:
        """Read the group's snapshot as it is now: it may get a newer one meanwhile."""
        now = copy(group)
        return (yield from self.in_background(lambda: self.reader.snapshot(now)))

    # -- sources: generators that the background thread runs -----------------------------------

    def scanned(self, segment: Segment) -> Source[f.Record]:
        """Read a healthy segment from start to end. CorruptData if its footer is not reached.

        Entries before their log's start are left out: starts only rise.
        """
        groups = self.journal.groups.by_uid
        portion: list[tuple[f.Record, Entry | None]] = []
        scan = segment.scan()
        until = scan.position + STEP_BYTES
        for record, payload in scan.records():
            if record.kind == f.ENTRY:
                group = groups.get(record.group)
                if group is not None and record.index >= group.first_index:
                    portion.append((record, Entry(record, payload)))
            if scan.position >= until:
                yield portion
                portion, until = [], scan.position + STEP_BYTES
        yield portion
        if scan.footer is None:
            raise CorruptData(f"{segment.name} at position {scan.position}: {scan.problem}")

    def looked_up(self, rows: list[Row]) -> Source[Row]:
        """Read the entries of these rows of one segment, which are in order, around damage."""
        at = 0
        while at < len(rows):
            size, begin = 0, at
            while at < len(rows) and size < STEP_BYTES and at - begin < STEP_ROWS:
                size += rows[at].length
                at += 1
            part = rows[begin:at]
            yield list(zip(part, self.reader.read_rows(part), strict=True))
            self.background.pause(PAUSE_S)

    # -- waiting -------------------------------------------------------------------------------

    def in_background(self, work: Callable[[], T]) -> Pass[T]:
        """Have the background thread do this."""
        job = self.background.start(work)
        while not job.done:
            yield None
        return job.result()

    def until_indexed(self) -> Pass[None]:
        """Wait until look-ups see all that was appended up to now."""
        self.journal.submit()
        end = self.journal.end
        while self.index.added < end and self.journal.queued_bytes:  # a segment may have just begun
            yield None

    def until_synced(self) -> Pass[tuple[int, int]]:
        """Wait until all that look-ups see is in the store, and synced; return its end."""
        target = self.index.added
        self.index.add([], *target, sync=True)
        while self.index.durable < target:
            yield None
        return target


def in_snapshot(group: Group, segment: int) -> bool:
    """Whether the segment may hold a part of the group's newest snapshot."""
    return group.snapshot_from <= segment <= group.snapshot_at


def append_records(journal: Journal, group: Group, segment: int, snapshot: list[bytes]) -> None:
    """Append again the records of a group that are in force and stand in this segment.

    `snapshot` has the parts of its snapshot. Entries and the commit hint are not included.
    """
    uid = group.uid
    if group.created_at == segment and group.created is not None:
        journal.create_group(uid, group.created, again=True)
    if group.hard_state_at == segment:
        journal.hard_state(uid, group.term, group.vote, group.incomplete, group.lacking)
    if in_snapshot(group, segment):
        journal.snapshot(uid, group.snapshot_index, group.snapshot_term, snapshot)
    if group.start_at == segment:
        journal.start(
            uid, group.first_index, group.start_term, group.start_offset, group.start_chain
        )


def entry_again(record: f.Record, payload: memoryview) -> entry_checks.Entry:
    """Return the entry of a record, to be appended again."""
    return (
        record.index,
        record.term,
        record.offset,
        record.count,
        record.time_ms,
        record.entry_type,
        record.chain,
        payload,
    )
