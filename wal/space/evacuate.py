"""A damaged segment is emptied and goes: what is live in it is appended again at the log's end.

In: the number of a segment in which something can't be read. Out: the same entries at another
place, RELOCATED, read from the segment where it is whole; rows of those that are not
(`unreadable`), which somebody else has to bring; at last the segment's removal. What stands where
is told by the store's index and by the groups in memory, not by the segment: so it does not matter
what is damaged, a header, a footer, or all of the file.

The steps, on the loop's thread, while files are read in the thread of `background`:

1. if it is the open segment, it is sealed: nothing may follow what is bad in it;
2. all that is persisted gets into the store, so that its rows know every entry of the segment;
3. each of these rows is read and verified; what can't be read is `unreadable`;
4. what can is appended again, in portions; then it is waited until nobody misses the rest;
5. records in force (votes, starts, snapshots) are appended again from memory;
6. when the store says that no entry stands here, and all of this is durable, the segment goes. But
   if it takes back records that an older segment still holds, it waits for that one: a replay that
   met these without it would take them for the log's (as in `reclaim`).

Whatever a crash leaves is a log with both copies, and the newer one counts.
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
LOOK_ROWS = 8192  # verified in one job
PAUSE_S = 0.001
FINDINGS_MAX = 100
ROOM = "room on the disk"
ORDERED = 1 << f.TRUNCATE | 1 << f.GROUP_REMOVED  # a reset counts as a TRUNCATE
T = TypeVar("T")


class Evacuation:
    """One segment. `run` is a generator that the loop steps, at its own pace."""

    def __init__(self, log: Log, number: int, new_snapshot: Callable[[int], bool]) -> None:
        """`new_snapshot` writes one of a group if that can be now: the old one can't be read."""
        self._log, self.number, self._new_snapshot = log, number, new_snapshot
        self.unreadable: list[Row] = []
        self.unreported: deque[Row] = deque()  # the same, until somebody takes notice
        self.findings: list[Finding] = []
        self.is_examined = False  # what is unreadable is known
        self.is_held_up = False  # by entries that others have to bring, or by older segments
        self.is_waiting = False  # for older segments; all that is live is elsewhere
        self.waits_for = ""  # what has to change before its records can be appended again
        self.relocated_bytes = 0
        self._kinds: list[f.FooterRow] | None = None  # what is in it; None: not for certain

    def run(self) -> Pass[None]:
        journal = self._log.journal
        if self._segment is None:
            return
        if self.number == journal.end[0]:
            journal.leave_segment()
        yield from self._until_durable()
        yield from self._examine()
        self.is_examined = True
        while True:
            yield from self._entries()
            yield from self._until_given()
            yield from self._until_durable()
            yield from self._records()
            yield from self._until_durable()
            rows = yield from self._rows()
            if not any(map(self._is_live, rows)):
                break
        self.is_waiting = self.is_held_up = True
        while not (yield from self._may_go()):
            yield None
        yield from self._until_passed()
        segment = self._segment
        if segment is not None:
            journal.forget_segment(self.number)
            yield from self._log.reclaimer.remove(segment)

    # -- what is in it -------------------------------------------------------------------------

    @property
    def _segment(self) -> SegmentFile | None:
        """None once it was reclaimed: nothing in it was needed any more."""
        return self._log.journal.segments.get(self.number)

    def examine(self) -> list[Row]:
        """Live entries that can't be read, at once: for a start, when nobody waits yet."""
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
        for begin in range(0, len(rows), LOOK_ROWS):
            part = rows[begin : begin + LOOK_ROWS]
            bad = yield from self._in_background(partial(self._bad_of, part))
            for at, row in enumerate(bad):
                if at % STEP_ROWS == STEP_ROWS - 1:
                    yield None
                if self._is_live(row):
                    self._lost(row)

    def _lost(self, row: Row) -> None:
        self.unreadable.append(row)
        self.unreported.append(row)

    def _bad_of(self, rows: list[Row]) -> list[Row]:
        """In pieces, so that others have the disk and the interpreter as well."""
        bad: list[Row] = []
        for begin in range(0, len(rows), STEP_ROWS):
            part = rows[begin : begin + STEP_ROWS]
            found = self._log.reader.read_rows(part)
            bad += [row for row, entry in zip(part, found, strict=True) if entry is None]
            self._log.background.pause(PAUSE_S)
        return bad

    def _check(self, segment: SegmentFile) -> None:
        """What is wrong with it, for people; and which kinds of records it holds."""
        try:
            one = examine(
                self._log.files, segment.name, segment.number, segment.uid, segment.capacity
            )
            check = SegmentCheck(one, followed=lambda: segment.abandoned_at or segment.capacity)
            found = [one.finding] if one.finding else []
            for event in check.run() if one.readable else ():
                if not isinstance(event, Progress) and event.verdict == CORRUPT:
                    found.append(event)
                self._log.background.pause(PAUSE_S)
        except OSError as error:
            if error.errno in TRANSIENT:
                raise
            what = f"the file can't be read: {error.strerror}"
            self.findings = [Finding(CORRUPT, segment.name, 0, what)]
            return
        self.findings = found[:FINDINGS_MAX]
        self._kinds = self._log.reclaimer.footer(segment)
        # Of a record of which nothing is known, nobody can say what it took back.
        if self._kinds is None and one.readable and check.is_explained:
            self._kinds = check.rows.footer()

    def _rows(self) -> Pass[list[Row]]:
        """Every row of the store that points here."""
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
        group = self._log.journal.groups.by_uid.get(row.group)
        if group is None or not group.first_index <= row.index <= group.last_index:
            return False
        now = self._log.index.row(row.group, row.index)
        return now is not None and (now.segment, now.position) == (row.segment, row.position)

    # -- what is taken out of it ---------------------------------------------------------------

    def _entries(self) -> Pass[None]:
        """Append again what can be read."""
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
            found = yield from self._in_background(partial(self._log.reader.read_rows, part))
            for row, entry in zip(part, found, strict=True):
                # The index must know of every record that took entries back.
                while journal.rewound_at.get(row.group, NEVER) > index.added:
                    yield from self._until_indexed()
                if not self._is_live(row):
                    continue
                if entry is None:
                    self._lost(row)
                    continue
                journal.append(row.group, [entry_again(*entry)], relocated=True)
                self.relocated_bytes += row.length
            journal.submit()
            yield None

    def _until_given(self) -> Pass[None]:
        """Until nobody misses what can't be read here. What is elsewhere once stays there."""
        for at, row in enumerate(self.unreadable):
            while self._is_live(row):
                self.is_held_up = True
                yield None
            if at % STEP_ROWS == STEP_ROWS - 1:
                yield None
        self.is_held_up = False

    def _records(self) -> Pass[None]:
        """Votes, starts, snapshots and the like that are in force."""
        journal = self._log.journal
        while held := self._held():
            yield from self._until_room()
            waits_for = ""
            for group in held:
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

    def _held(self) -> list[Group]:
        groups = self._log.journal.groups.by_uid.values()
        return [one for one in groups if one.holds(self.number) or one.hint_at == self.number]

    def _snapshot(self, group: Group) -> Pass[list[bytes]]:
        now = copy(group)
        return (yield from self._in_background(partial(self._log.reader.snapshot, now)))

    def _may_go(self) -> Pass[bool]:
        """Whether no older segment has what a record here takes back."""
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

    def _until_passed(self) -> Pass[None]:
        """Until the store's watermark stands behind it, for certain: a start would miss it (W12).
        Of the open segment nothing may have been live, and then nothing was written since.
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
        """What can be read here can wait; the last room of a disk is for what gives room back."""
        journal = self._log.journal
        capacity = journal.segments[journal.end[0]].capacity
        while journal.spares.free_bytes < ROOM_SEGMENTS * capacity:
            self.waits_for, self.is_held_up = ROOM, True
            yield None
        if self.waits_for == ROOM:
            self.waits_for, self.is_held_up = "", False

    def _until_indexed(self) -> Pass[None]:
        journal, index = self._log.journal, self._log.index
        journal.submit()
        end = journal.end
        while index.added < end and journal.queued_bytes:  # a segment may have just begun
            yield None

    def _until_durable(self) -> Pass[None]:
        """All that was appended is in the store, and synced."""
        yield from self._until_indexed()
        index = self._log.index
        target = index.added
        index.add([], *target, sync=True)
        while index.durable < target:
            yield None
