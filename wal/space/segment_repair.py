"""The repair of one damaged segment: it is evacuated, and reclaim removes it like any other.

Comes in: the number of a segment in which something cannot be read. Goes out: its readable entries
at the end of the log; the rows of the other ones (`unreadable`), which the daemon's repair has to
fetch from other replicas. The store's index and the groups in memory say what stands where, not the
segment. So it does not matter what is damaged: a header, a footer, or the whole file.

The steps, on the loop's thread, while files are read in the thread of `background`:

1. if it is the open segment, it is sealed, so that nothing follows the damage;
2. all that is persisted is committed to the store, so that it has a row for each entry here;
3. the entry of each row is read and verified; the others are `unreadable`;
4. the segment is evacuated until nothing in it is live: no unreadable entry, and no record whose
   replacement had to be waited for;
5. reclaim judges it, with the kinds of records that it holds, and removes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from myqueue.wal import format as f
from myqueue.wal.check.check_segment import SegmentCheck
from myqueue.wal.check.segments import Segment, examine
from myqueue.wal.files import TRANSIENT
from myqueue.wal.groups import Group, Row
from myqueue.wal.space.evacuate import Pass, Unmoved
from myqueue.wal.space.reclaim import ROOM_SEGMENTS, Reclaimer

STEP_ROWS = 256
VERIFY_ROWS = 8192  # verified in one job
ROOM = "room on the disk"


class SegmentRepair:
    """Empties one damaged segment. `run` is a generator that the loop steps at its own pace."""

    def __init__(
        self, reclaimer: Reclaimer, number: int, new_snapshot: Callable[[int], bool]
    ) -> None:
        """`new_snapshot(uid)` replaces an unreadable snapshot; False: that is not possible now."""
        self._reclaimer, self._evacuator = reclaimer, reclaimer.evacuator
        self._journal, self._index = self._evacuator.journal, self._evacuator.index
        self.number, self._new_snapshot = number, new_snapshot
        self.unreadable: list[Row] = []
        self.unreported: deque[Row] = deque()  # of them, those that the repair has not taken yet
        self.is_examined = False  # `unreadable` is complete
        self.is_held_up = False  # it waits for entries of other replicas, or for older segments
        self.is_waiting = False  # only older segments hold it up; its live records were relocated
        self.waits_for = ""  # what has to change before its records can be appended again

    @property
    def is_removed(self) -> bool:
        """True once its file is gone."""
        return self._segment is None and not self._reclaimer.is_to_remove(self.number)

    @property
    def relocated_bytes(self) -> int:
        """The bytes of entries that were appended again, in all segments; for a pace."""
        return self._evacuator.relocated_bytes

    def run(self) -> Pass[None]:
        """Do steps 1 to 5; ends when the segment is removed."""
        if self._segment is None:
            return
        if self.number == self._journal.end[0]:
            self._journal.leave_segment()
        yield from self._until_durable()
        rows = yield from self._examine()
        self.is_examined = True
        while any(map(self._is_live, rows)) or self._is_in_force():
            yield from self._evacuate(rows)
            yield from self._until_durable()
            rows = yield from self._rows()
        segment = self._segment
        if segment is not None:
            kinds = yield from self._evacuator.in_background(partial(self._kinds_in, segment))
            self._reclaimer.add_repaired(self.number, kinds)
        self.is_waiting = self.is_held_up = True
        while not self.is_removed:
            if self._index.added[0] <= self.number:  # a start would look for the watermark here
                self._journal.settle()
            yield None

    # -- examining -----------------------------------------------------------------------------

    @property
    def _segment(self) -> Segment | None:
        """The segment; None if it was reclaimed because nothing in it was needed any more."""
        return self._journal.segments.get(self.number)

    def examine(self) -> list[Row]:
        """Return the live entries that can't be read, without steps: for a start of the daemon."""
        for _ in self._examine():
            continue
        return self.unreadable

    def _examine(self) -> Pass[list[Row]]:
        """Fill `unreadable`; return every row of the store that points here."""
        self.unreadable, self.is_held_up = [], False
        self.unreported.clear()
        rows = yield from self._rows()
        for begin in range(0, len(rows), VERIFY_ROWS):
            work = partial(self._unreadable_of, rows[begin : begin + VERIFY_ROWS])
            bad = yield from self._evacuator.in_background(work)
            for at in range(0, len(bad), STEP_ROWS):
                self._note_unreadable(list(filter(self._is_live, bad[at : at + STEP_ROWS])))
                yield None
        return rows

    def _unreadable_of(self, rows: list[Row]) -> list[Row]:
        portions = self._evacuator.looked_up(rows)
        return [row for portion in portions for row, entry in portion if entry is None]

    def _note_unreadable(self, rows: list[Row]) -> None:
        self.unreadable += rows
        self.unreported += rows

    def _kinds_in(self, segment: Segment) -> list[f.FooterRow] | None:
        """Return the kinds of records of each group in the segment; None if that is unknown."""
        rows = self._reclaimer.footer(segment)
        if rows is not None:
            return rows
        files, pause = self._evacuator.files, self._evacuator.background.pause
        try:
            file = examine(files, segment.name, segment.number, segment.uid, segment.capacity)
            check = SegmentCheck(file, followed=lambda: segment.abandoned_at or segment.capacity)
            for _ in check.run() if file.readable else ():
                pause(0.001)
        except OSError as error:
            if error.errno in TRANSIENT:
                raise
            return None
        # A record with an unknown header may take back records of any group.
        return check.rows.footer() if file.readable and check.is_explained else None

    def _rows(self) -> Pass[list[Row]]:
        """Return every row of the store that points here, by position."""
        rows, start = list[Row](), b""
        while True:
            part, start = yield from self._evacuator.in_background(partial(self._some_rows, start))
            rows += part
            if not start:
                return sorted(rows, key=lambda row: row.position)

    def _some_rows(self, start: bytes) -> tuple[list[Row], bytes]:
        with self._index.store.view() as view:
            return view.rows_in_segment(self.number, start)

    def _is_live(self, row: Row) -> bool:
        return self._evacuator.is_live(self.number, row)

    def _is_in_force(self) -> bool:
        """Whether a record in force stands in this segment."""
        groups = self._journal.groups.by_uid.values()
        return any(group.holds(self.number) or group.hint_at == self.number for group in groups)

    # -- evacuating ----------------------------------------------------------------------------

    def _evacuate(self, rows: list[Row]) -> Pass[None]:
        """Append again what can be read; wait until the rest was fetched, replaced or removed."""
        bad = {(row.group, row.index) for row in self.unreadable}
        rows = [row for row in rows if (row.group, row.index) not in bad]
        source = self._evacuator.looked_up(rows)
        unmoved = yield from self._with_room(self._evacuator.evacuate(self.number, source))
        self._note_unreadable(unmoved.entries)
        for at, row in enumerate(self.unreadable):
            while self._is_live(row):
                self.is_held_up = True
                yield None
            if at % STEP_ROWS == STEP_ROWS - 1:
                yield None
        while unmoved.groups:
            reasons = [self._reason_to_wait(group) for group in unmoved.groups]
            self.waits_for = next(filter(None, reasons), "")
            self.is_held_up = bool(self.waits_for)
            yield None
            unmoved = yield from self._with_room(self._evacuator.evacuate(self.number, iter(())))
        self.waits_for, self.is_held_up = "", False

    def _reason_to_wait(self, group: Group) -> str:
        """Return what has to change before the group's records can be appended again, if any."""
        if group.doubtful:
            return f"group {group.uid:x}, whose newest vote may be lost, to be removed"
        return "" if self._new_snapshot(group.uid) else f"a newer snapshot of group {group.uid:x}"

    def _with_room(self, steps: Pass[Unmoved[Row]]) -> Pass[Unmoved[Row]]:
        """Step only while the disk has room: the last room is for records that free space."""
        journal = self._journal
        while True:
            room = ROOM_SEGMENTS * journal.segments[journal.end[0]].capacity
            if journal.spares.free_bytes < room:
                self.waits_for, self.is_held_up = ROOM, True
            else:
                if self.waits_for == ROOM:
                    self.waits_for, self.is_held_up = "", False
                try:
                    next(steps)
                except StopIteration as end:
                    unmoved: Unmoved[Row] = end.value
                    return unmoved
            yield None

    def _until_durable(self) -> Pass[None]:
        """Wait until all that was appended is in the store, and synced."""
        yield from self._evacuator.until_indexed()
        yield from self._evacuator.until_synced()
