"""Evacuation: empty a damaged segment by appending its live records again, then remove it.

Comes in: the number of a segment in which something cannot be read. Goes out: its readable entries
at the end of the log (RELOCATED); the rows of the other ones (`unreadable`), which the repair has
to fetch from other replicas; at last the removal of the segment. The store's index and the groups
in memory say what stands where, not the segment. So it does not matter what is damaged: a header, a
footer, or the whole file.

The steps, on the loop's thread, while files are read in the thread of `background`:

1. if it is the open segment, it is sealed, so that nothing follows the damage;
2. all that is persisted is committed to the store, so that it has a row for each entry here;
3. the entry of each row is read and verified; the others are `unreadable`;
4. readable entries are appended again, in portions; then the evacuation waits until no unreadable
   entry is live here any more;
5. records in force (votes, starts, snapshots) are appended again from memory;
6. when no row of the store points here, and all of this is durable, the segment is removed. But if
   it takes back records that an older segment still holds, it waits until that one is removed: a
   replay of the older one alone would restore those records (as in `reclaim`).

A crash may leave a log with both copies; the newer one counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from myqueue.errors import CorruptData
from myqueue.wal import format as f
from myqueue.wal.append.groups import Group, Row
from myqueue.wal.files import TRANSIENT
from myqueue.wal.space.live_records import append_hint, append_records, entry_again, in_snapshot
from myqueue.wal.space.reclaim import NEVER, ROOM_SEGMENTS, Pass
from myqueue.wal.tools.check_segment import Progress, SegmentCheck
from myqueue.wal.tools.segments import CORRUPT, Finding, examine

if TYPE_CHECKING:
    from myqueue.wal.log import Log
    from myqueue.wal.recover.inventory import SegmentFile

STEP_BYTES = 1 << 20  # read, or appended again, at once
STEP_ROWS = 256
VERIFY_ROWS = 8192  # verified in one job
PAUSE_S = 0.001
FINDINGS_MAX = 100
ROOM = "room on the disk"
ORDERED = 1 << f.TRUNCATE | 1 << f.GROUP_REMOVED  # a reset counts as a TRUNCATE
T = TypeVar("T")


class Evacuation:
    """The evacuation of one segment. `run` is a generator that the loop steps at its own pace."""

    def __init__(self, log: Log, number: int, new_snapshot: Callable[[int], bool]) -> None:
        """`new_snapshot(uid)` replaces an unreadable snapshot; False: that is not possible now."""
        self._log, self.number, self._new_snapshot = log, number, new_snapshot
        self.unreadable: list[Row] = []
        self.unreported: deque[Row] = deque()  # unreadable rows that the repair has not taken yet
        self.findings: list[Finding] = []
        self.is_examined = False  # `unreadable` is complete
        self.is_held_up = False  # it waits for entries of other replicas, or for older segments
        self.is_waiting = False  # only older segments hold it up; its live records were relocated
        self.waits_for = ""  # what has to change before its records can be appended again
        self.relocated_bytes = 0
        self._kinds: list[f.FooterRow] | None = None  # its groups' kinds of records; None: unknown

    def run(self) -> Pass[None]:
        """Do steps 1 to 6; ends when the segment is removed."""
        journal = self._log.journal
        if self._segment is None:
            return
        if self.number == journal.end[0]:
            journal.leave_segment()
        yield from self._until_durable()
        yield from self._examine()
        self.is_examined = True
        while True:
            yield from self._relocate_entries()
            yield from self._until_none_missed()
            yield from self._until_durable()
            yield from self._relocate_records()
            yield from self._until_durable()
            rows = yield from self._rows()
            if not any(map(self._is_live, rows)):
                break
        self.is_waiting = self.is_held_up = True
        while not (yield from self._may_be_removed()):
            yield None
        yield from self._until_watermark_passed()
        segment = self._segment
        if segment is not None:
            journal.forget_segment(self.number)
            yield from self._log.reclaimer.remove(segment)

    # -- examining -----------------------------------------------------------------------------

    @property
    def _segment(self) -> SegmentFile | None:
        """The segment; None if it was reclaimed because nothing in it was needed any more."""
        return self._log.journal.segments.get(self.number)

    def examine(self) -> list[Row]:
        """Return the live entries that can't be read, without steps: for a start of the daemon."""
        segment = self._segment
        if segment is not None:
            segment.damaged = True
            for _ in self._examine():
                continue
        return self.unreadable

    def _examine(self) -> Pass[None]:
        segment = self._segment
        if segment is None:
            return
        yield from self._in_background(partial(self._check, segment))
        self.unreadable, self.is_held_up = [], False
        self.unreported.clear()
        rows = yield from self._rows()
        for begin in range(0, len(rows), VERIFY_ROWS):
            part = rows[begin : begin + VERIFY_ROWS]
            bad = yield from self._in_background(partial(self._unreadable_of, part))
            for at, row in enumerate(bad):
                if at % STEP_ROWS == STEP_ROWS - 1:
                    yield None
                if self._is_live(row):
                    self._note_unreadable(row)

    def _note_unreadable(self, row: Row) -> None:
        self.unreadable.append(row)
        self.unreported.append(row)

    def _unreadable_of(self, rows: list[Row]) -> list[Row]:
        """Read entries in pieces, with pauses for others; return the rows of unreadable ones."""
        bad: list[Row] = []
        for begin in range(0, len(rows), STEP_ROWS):
            part = rows[begin : begin + STEP_ROWS]
            entries = self._log.reader.read_rows(part)
            bad += [row for row, entry in zip(part, entries, strict=True) if entry is None]
            self._log.background.pause(PAUSE_S)
        return bad

    def _check(self, segment: SegmentFile) -> None:
        """Note what is wrong with the segment, and which kinds of records it holds."""
        try:
            file = examine(
                self._log.files, segment.name, segment.number, segment.uid, segment.capacity
            )
            check = SegmentCheck(file, followed=lambda: segment.abandoned_at or segment.capacity)
            findings = [file.finding] if file.finding else []
            for event in check.run() if file.readable else ():
                if not isinstance(event, Progress) and event.verdict == CORRUPT:
                    findings.append(event)
                self._log.background.pause(PAUSE_S)
        except OSError as error:
            if error.errno in TRANSIENT:
                raise
            problem = f"the file can't be read: {error.strerror}"
            self.findings = [Finding(CORRUPT, segment.name, 0, problem)]
            return
        self.findings = findings[:FINDINGS_MAX]
        self._kinds = self._log.reclaimer.footer(segment)
        # A record with an unknown header may take back records of any group.
        if self._kinds is None and file.readable and check.is_explained:
            self._kinds = check.rows.footer()

    def _rows(self) -> Pass[list[Row]]:
        """Return every row of the store that points here, by position."""
        rows, start = list[Row](), b""
        while True:
            part, start = yield from self._in_background(partial(self._some_rows, start))
            rows += part
            if not start:
                return sorted(rows, key=lambda row: row.position)

    def _some_rows(self, start: bytes) -> tuple[list[Row], bytes]:
        with self._log.store.view() as view:
            return view.rows_in_segment(self.number, start)

    def _is_live(self, row: Row) -> bool:
        """Whether the log still has the entry, at this place."""
        group = self._log.journal.groups.by_uid.get(row.group)
        if group is None or not group.first_index <= row.index <= group.last_index:
            return False
        now = self._log.index.row(row.group, row.index)
        return now is not None and (now.segment, now.position) == (row.segment, row.position)

    # -- relocating ----------------------------------------------------------------------------

    def _relocate_entries(self) -> Pass[None]:
        """Append the readable live entries again."""
        journal, index = self._log.journal, self._log.index
        bad = {(row.group, row.index) for row in self.unreadable}
        rows = yield from self._rows()
        rows = [row for row in rows if (row.group, row.index) not in bad]
        at = 0
        while at < len(rows):
            size, begin = 0, at
            while at < len(rows) and size < STEP_BYTES and at - begin < STEP_ROWS:
                size += rows[at].length
                at += 1
            yield from self._until_room()
            part = list(filter(self._is_live, rows[begin:at]))
            entries = yield from self._in_background(partial(self._log.reader.read_rows, part))
            for row, entry in zip(part, entries, strict=True):
                # The index must have every record that truncates this log.
                while journal.rewound_at.get(row.group, NEVER) > index.added:
                    yield from self._until_indexed()
                if not self._is_live(row):
                    continue
                if entry is None:
                    self._note_unreadable(row)
                    continue
                journal.append(row.group, [entry_again(*entry)], relocated=True)
                self.relocated_bytes += row.length
            journal.submit()
            yield None

    def _until_none_missed(self) -> Pass[None]:
        """Wait until no unreadable entry is live here: each was fetched, truncated or reclaimed."""
        for at, row in enumerate(self.unreadable):
            while self._is_live(row):
                self.is_held_up = True
                yield None
            if at % STEP_ROWS == STEP_ROWS - 1:
                yield None
        self.is_held_up = False

    def _relocate_records(self) -> Pass[None]:
        """Append records in force again: votes, starts, snapshots, creations, commit hints."""
        journal = self._log.journal
        while holding := self._groups_in_force():
            yield from self._until_room()
            waits_for = ""
            for group in holding:
                parts: list[bytes] = []
                append_hint(journal, group, self.number)
                if not group.holds(self.number):
                    continue
                if group.doubtful:
                    waits_for = f"group {group.uid:x}, whose newest vote may be lost, to be removed"
                    continue
                if in_snapshot(group, self.number):
                    try:
                        parts = yield from self._snapshot(group)
                    except CorruptData:
                        if not self._new_snapshot(group.uid):
                            waits_for = f"a newer snapshot of group {group.uid:x}"
                        continue
                if journal.groups.by_uid.get(group.uid) is group and not group.doubtful:
                    append_records(journal, group, self.number, parts)
            self.waits_for, self.is_held_up = waits_for, bool(waits_for)
            journal.submit()
            yield None
        self.waits_for, self.is_held_up = "", False

    def _groups_in_force(self) -> list[Group]:
        """Return the groups that have a record in force in this segment."""
        groups = self._log.journal.groups.by_uid.values()
        return [
            group for group in groups if group.holds(self.number) or group.hint_at == self.number
        ]

    def _snapshot(self, group: Group) -> Pass[list[bytes]]:
        now = copy(group)
        return (yield from self._in_background(partial(self._log.reader.snapshot, now)))

    def _may_be_removed(self) -> Pass[bool]:
        """Whether no older segment holds records that a record here takes back."""
        segments = self._log.journal.segments
        older = [segments[number] for number in sorted(segments) if number < self.number]
        if not older:
            return True
        if self._kinds is None:
            return False
        ordered = {row.group for row in self._kinds if row.kinds & ORDERED}
        for segment in older if ordered else ():
            rows = yield from self._in_background(partial(self._log.reclaimer.footer, segment))
            if rows is None or any(row.group in ordered for row in rows):
                return False
        return True

    def _until_watermark_passed(self) -> Pass[None]:
        """Wait until the store's durable watermark is in a later segment.

        Otherwise a start would look for this segment. If nothing was live in the former open
        segment, nothing was written since; so a mark is written.
        """
        while self._log.index.durable[0] <= self.number:
            self._log.journal.settle()
            yield None
            yield from self._until_durable()

    # -- waiting -------------------------------------------------------------------------------

    def _in_background(self, work: Callable[[], T]) -> Pass[T]:
        job = self._log.background.start(work)
        while not job.done:
            yield None
        return job.result()

    def _until_room(self) -> Pass[None]:
        """Wait while the disk is nearly full: the last room is for records that free space."""
        journal = self._log.journal
        capacity = journal.segments[journal.end[0]].capacity
        while journal.spares.free_bytes < ROOM_SEGMENTS * capacity:
            self.waits_for, self.is_held_up = ROOM, True
            yield None
        if self.waits_for == ROOM:
            self.waits_for, self.is_held_up = "", False

    def _until_indexed(self) -> Pass[None]:
        """Wait until look-ups see all that was appended up to now."""
        journal, index = self._log.journal, self._log.index
        journal.submit()
        end = journal.end
        while index.added < end and journal.queued_bytes:  # a segment may have just begun
            yield None

    def _until_durable(self) -> Pass[None]:
        """Wait until all that was appended is in the store, and synced."""
        yield from self._until_indexed()
        index = self._log.index
        target = index.added
        index.add([], *target, sync=True)
        while index.durable < target:
            yield None
