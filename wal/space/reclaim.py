"""Reclaim: delete the segments of which no record is needed, judged by durable values only.

A pass starts from a store that was just synced; all that the store then says about log starts and
newest records is on disk. A sealed segment is removed when for every group in its footer

- its entries lie before the log's start, or the group was removed, or the entries were relocated;
- no record in force (hard state, start, snapshot, creation, newest commit hint) stands in it;
- it holds no TRUNCATE, reset or GROUP_REMOVED that a replay would miss, because an older segment
  has, or may have, records of that group. A damaged segment whose footer cannot be read may hold
  records of any group.

A segment is renamed first and unlinked when the new name is durable. A segment with few live
records is emptied: these are appended again at the end (RELOCATED), and a later pass removes it.
Three kinds of segments stay: damaged ones until they are repaired (`segment_repair`), those that
cannot be read to their end while they are emptied, and those with the vote of a group that may have
cast a newer one.

A pass is a generator on the loop's thread, in steps of bounded size. Reading, renaming and syncing
files are jobs of `background`; the loop's thread decides and appends.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from myqueue.errors import CorruptData, RecordTooLarge
from myqueue.wal import format as f
from myqueue.wal.append.journal import Journal
from myqueue.wal.check.segments import Segment
from myqueue.wal.files import TRANSIENT, Files
from myqueue.wal.groups import Group, Groups
from myqueue.wal.read.reader import Damage, Reader
from myqueue.wal.read.scan import footer_of
from myqueue.wal.space.background import BackgroundJobs
from myqueue.wal.space.evacuate import Evacuator, Pass, in_snapshot
from myqueue.wal.store.index import Index

COMPACT_BELOW_SHARE = 0.25
EMPTY_MAX = 2  # segments in one pass
SETTLE_MS = 10_000  # a segment whose share falls by half in this time is left to itself
ROOM_SEGMENTS = 2  # free disk without which nothing is appended again
PAUSE_S = 0.002  # after each segment
_ORDERED = 1 << f.TRUNCATE | 1 << f.GROUP_REMOVED  # a reset counts as a TRUNCATE


class ReclaimPlan(NamedTuple):
    """The segments that a pass removes, oldest first, and those it empties, sparsest first."""

    to_remove: list[tuple[Segment, bool]]  # True: older removals must be durable before this
    to_empty: list[tuple[Segment, bool]]  # True: it may hold live entries


class Reclaimer:
    """Runs passes: `begin` one, then `step` until it returns False."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        index: Index,
        reader: Reader,
        background: BackgroundJobs | None = None,
        settle_ms: int = 0,
    ) -> None:
        self._files, self._journal, self._index, self._reader = files, journal, index, reader
        self._work, self._settle_ms = background or BackgroundJobs(), settle_ms
        self.evacuator = Evacuator(files, journal, index, reader, self._work)
        self._pass: Iterator[None] = iter(())
        self._trash: list[str] = []
        # Segments that were emptied, and the place in the log that must be durable before they go.
        self._emptied: dict[int, tuple[int, int]] = {}
        # Damaged segments that were emptied, durably, and what they hold; None: that is unknown.
        self._repaired: dict[int, list[f.FooterRow] | None] = {}
        self._held: set[int] = set()  # emptied segments that stay for another reason
        self._stuck: set[int] = set()  # segments that cannot be emptied in this process
        self._doubtful: set[int] = set()  # have the vote of a group that may have cast a newer one
        self._sparse: dict[int, tuple[float, int]] = {}  # segment -> live share, and since when
        # segment with a snapshot too large to be moved -> its uid, first segment and position
        self._costly: dict[int, tuple[int, int, int]] = {}
        self.removed_segments = self.removed_bytes = 0

    def begin(self, now_ms: int = 0) -> None:
        """Sync the store up to what is persisted, then judge every sealed segment."""
        self._pass = self._run(now_ms)

    def step(self) -> bool:
        """Do a piece of the pass; False when it is over.

        True without progress means that the pass waits for a sync or a background job.
        """
        if self._journal.error is not None:
            self.cancel()
        return next(self._pass, self) is None

    def cancel(self) -> None:
        """End the pass early. Every step leaves a complete state, so nothing has to be undone."""
        self._pass = iter(())

    @property
    def has_more(self) -> bool:
        """True if another pass has something to do now, such as removing an emptied segment."""
        return bool(self._trash or (self._emptied.keys() | self._repaired.keys()) - self._held)

    @property
    def has_sparse(self) -> bool:
        """True if a later pass may empty a segment that is sparse now."""
        return bool(self._sparse)

    @property
    def relocated_bytes(self) -> int:
        """The bytes of entries that were appended again."""
        return self.evacuator.relocated_bytes

    def add_repaired(self, number: int, rows: list[f.FooterRow] | None) -> None:
        """Have later passes remove a damaged segment: nothing in it is live, which is durable.

        `rows` say which kinds of records it holds, like a footer; None if that is unknown.
        """
        self._repaired[number] = rows

    def is_to_remove(self, number: int) -> bool:
        """True from `add_repaired` until the segment's file is removed."""
        return number in self._repaired

    def _run(self, now_ms: int) -> Iterator[None]:
        yield from self._remove([])  # finish the removals of a pass that failed
        yield from self._hint()
        target = yield from self.evacuator.until_synced()
        sealed = self._sealed(target)
        doubtful = [group for group in self._journal.groups.by_uid.values() if group.doubtful]
        self._doubtful = {file.number for file, _ in sealed if _any_holds(doubtful, file.number)}
        plan = yield from self.evacuator.in_background(lambda: self._plan(sealed, now_ms))
        for segment, _ in plan.to_remove:  # no reader opens them from now on
            self._journal.forget_segment(segment.number)
        yield from self._remove(plan.to_remove)  # if that fails, they are removed by a later pass
        for number in (self._emptied.keys() | self._repaired) - self._journal.segments.keys():
            self._emptied.pop(number, None)
            self._repaired.pop(number, None)
        for segment, may_have_entries in plan.to_empty:
            yield from self._empty(segment, may_have_entries)

    def _hint(self) -> Pass[None]:
        """Append a commit hint for each group whose hint has no known place.

        A store that an older program wrote does not name the place.
        """
        journal = self._journal
        missing = [group for group in journal.groups.by_uid.values() if not group.is_hinted]
        for group in missing:
            journal.commit_hint(group.uid, group.commit_index)
        if missing:
            yield from self.evacuator.until_indexed()

    def _remove(self, segments: list[tuple[Segment, bool]]) -> Pass[None]:
        """Rename and unlink segments.

        If that fails, segments that still have their name return to the journal, for a later pass.
        On any error but a full disk the writer stops: it is unknown what the error left on disk.
        """
        moved: set[str] = set()
        try:
            yield from self.evacuator.in_background(lambda: self._rename(segments, moved))
        except OSError as error:
            for segment, _ in segments:
                if segment.name not in moved:
                    self._journal.segments[segment.number] = segment
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._journal.writer.fail(error)
            raise

    # -- in the background thread --------------------------------------------------------------

    def _unlink(self) -> None:
        while self._trash:
            with suppress(FileNotFoundError):
                self._files.move(self._trash[-1], None)
            self._trash.pop()
            self._work.pause(PAUSE_S)

    def _rename(self, segments: list[tuple[Segment, bool]], moved: set[str]) -> None:
        """Rename segments to `.trash`, noting each in `moved`; then unlink them."""
        for segment, ordered in segments:
            if ordered:
                self._files.sync(None)
            trash = segment.name + ".trash"
            with suppress(FileNotFoundError):  # the file was removed by hand
                self._files.move(segment.name, trash)
                self._trash.append(trash)
            moved.add(segment.name)
            self.removed_segments += 1
            self.removed_bytes += segment.size
            self._work.pause(PAUSE_S)
        if self._trash:
            self._files.sync(None)
            self._unlink()

    def _plan(self, sealed: list[tuple[Segment, bool]], now_ms: int) -> ReclaimPlan:
        """Decide about each sealed segment.

        A segment with True is needed: its first mark says where the log abandoned the one before.
        """
        with self._index.store.view() as view:
            groups = view.groups()
        held: set[int] | None = set()  # groups with records in segments that stay; None: any group
        to_remove: list[tuple[Segment, bool]] = []
        sparse: list[tuple[float, Segment, bool]] = []
        emptied: set[int] = set()
        sparse_before, self._sparse = self._sparse, {}
        for segment, is_needed in sealed:
            is_repaired = segment.number in self._repaired
            rows = self._repaired.get(segment.number)
            if rows is None:
                rows = self.footer(segment)
            stays = is_needed or (not is_repaired and (rows is None or segment.damaged))
            share = 1.0 if stays else self._live_share(segment, rows, groups, held)
            if share == 0.0:
                ordered = rows is None or any(row.kinds & _ORDERED for row in rows)
                to_remove.append((segment, ordered))
                continue
            if is_repaired or self._is_emptied(segment.number):
                emptied.add(segment.number)
            held = None if held is None or rows is None else held.union(row.group for row in rows)
            if rows is None or segment.damaged:
                continue
            if share <= COMPACT_BELOW_SHARE and self._may_be_emptied(segment.number, groups):
                share_before, since = sparse_before.get(segment.number, (1.0, 0))
                if share < share_before / 2:  # retention may soon free the rest without a write
                    share_before, since = share, now_ms
                self._sparse[segment.number] = share_before, since
                may_have_entries = has_entries(rows, groups)
                if not may_have_entries or now_ms - since >= self._settle_ms:
                    sparse.append((share, segment, may_have_entries))
            if not self._work.pause(PAUSE_S):
                return ReclaimPlan([], [])
        self._held = emptied
        sparse.sort(key=lambda candidate: candidate[0])
        room = ROOM_SEGMENTS * max((segment.capacity for _, segment, _ in sparse), default=0)
        if self._files.free_bytes() < room:
            sparse = []
        return ReclaimPlan(to_remove, [candidate[1:] for candidate in sparse[:EMPTY_MAX]])

    def _may_be_emptied(self, number: int, groups: Groups) -> bool:
        if number in self._emptied or number in self._stuck or number in self._doubtful:
            return False
        if number in self._costly:
            group = groups.by_uid.get(self._costly[number][0])
            if group is not None and snapshot_of(group) == self._costly[number]:
                return False
            del self._costly[number]
        return True

    def _sealed(self, target: tuple[int, int]) -> list[tuple[Segment, bool]]:
        """Return segments before `target`, and whether the log abandoned the one before each."""
        segments = self._journal.segments
        out = []
        for number in sorted(segments):
            before = segments.get(number - 1)
            if number < target[0]:
                out.append((segments[number], before is not None and before.abandoned_at > 0))
        return out

    def footer(self, segment: Segment) -> list[f.FooterRow] | None:
        """Return the rows of a segment's footer; None if it cannot be read."""
        try:
            trailer = segment.trailer()
            return None if trailer is None else footer_of(segment.read, segment.uid, trailer)
        except OSError as error:  # an unreadable sector
            if error.errno in TRANSIENT:
                raise
            return None

    def _is_emptied(self, number: int) -> bool:
        """Whether all live records of it were appended again, and that is durable."""
        at = self._emptied.get(number)
        return at is not None and at <= self._index.durable

    def _live_share(
        self,
        segment: Segment,
        rows: list[f.FooterRow] | None,
        groups: Groups,
        held: set[int] | None,
    ) -> float:
        """Estimate the share of the segment that is needed; 0.0 means nothing, for certain.

        Without `rows` it may take back records of any group. Only repaired segments are without.
        """
        number, live = segment.number, 0.0
        if rows is None:
            in_force = any(_is_in_force(group, number) for group in groups.by_uid.values())
            return float(held is None or bool(held) or in_force)
        emptied = number in self._repaired or self._is_emptied(number)
        for row in rows:
            group = groups.by_uid.get(row.group)
            if row.kinds & _ORDERED and (held is None or row.group in held):
                live += f.RECORD_HEADER_BYTES
            if group is None:
                continue
            if _is_in_force(group, number):
                live += f.RECORD_HEADER_BYTES
            if not emptied:
                live += live_entry_bytes(row, group)
        return live / segment.capacity

    # -- emptying ------------------------------------------------------------------------------

    def _empty(self, segment: Segment, may_have_entries: bool) -> Pass[None]:
        """Evacuate this segment. Mostly that is a vote or the like, and it need not be read."""
        number = segment.number
        try:
            yield from self.evacuator.until_indexed()  # snapshots are read from the disk
            if (yield from self._is_costly(segment)):
                return
            source = self.evacuator.scanned(segment) if may_have_entries else iter(())
            unmoved = yield from self.evacuator.evacuate(number, source)
            if any(not group.doubtful for group in unmoved.groups):
                raise CorruptData(f"{segment.name}: a snapshot can't be read")
        except (CorruptData, RecordTooLarge) as error:
            self._stuck.add(number)
            if isinstance(error, CorruptData):  # the repair looks there
                segment.damaged = True
                damage = Damage(number, 0, 0, 0, str(error))
                self._reader.damage_by_segment.setdefault(number, damage)
            return
        self._emptied[number] = self._journal.end

    def _is_costly(self, segment: Segment) -> Pass[bool]:
        """Whether the segment holds a snapshot that is too large to be moved.

        Footers do not say how large a snapshot is. Moving a large one would fill a segment that
        looks as sparse as this one, and so on with every pass.
        """
        for group in list(self._journal.groups.by_uid.values()):
            if in_snapshot(group, segment.number):
                place, parts = snapshot_of(group), (yield from self.evacuator.snapshot(group))
                if sum(map(len, parts)) > COMPACT_BELOW_SHARE * segment.capacity:
                    self._costly[segment.number] = place
                    return True
        return False


def _any_holds(groups: list[Group], number: int) -> bool:
    return any(group.holds(number) for group in groups)


def _is_in_force(group: Group, number: int) -> bool:
    """Whether a record in force of the group stands in this segment."""
    return group.holds(number) or group.hint_at == number


def snapshot_of(group: Group) -> tuple[int, int, int]:
    """Return uid, segment and position of the group's newest snapshot."""
    return group.uid, group.snapshot_from, group.snapshot_position


def has_entries(rows: list[f.FooterRow], groups: Groups) -> bool:
    """Whether a segment with this footer may hold live entries."""
    return any(
        (group := groups.by_uid.get(row.group)) and live_entry_bytes(row, group) for row in rows
    )


def live_entry_bytes(row: f.FooterRow, group: Group) -> float:
    """Estimate the bytes of entries at or after the log's start, as if all had the same size."""
    if not row.entries or row.last_index < group.first_index:
        return 0.0
    span = row.last_index - row.first_index + 1
    kept = row.last_index - max(row.first_index, group.first_index) + 1
    return max(1.0, row.entry_bytes * kept / span)
