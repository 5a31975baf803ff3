"""When a segment may go: when nothing in it is needed by anybody, judged by durable values only
(W12).

A pass starts from a store that was synced a moment ago; whatever the store then says about log
starts and newest records is on disk. A sealed segment is removed when for every group in its
footer

- its entries lie before the log's start, or the group was removed, or they stand elsewhere by now;
- no record in force (hard state, start, snapshot, creation, newest commit hint) stands in it;
- it holds no TRUNCATE, reset or GROUP_REMOVED that a replay would miss, because an older segment
  still has records of that group, or may have: of a damaged one nobody knows, unless by its footer.

Removal is a rename first, and an unlink when that is durable. Segments that are held by few live
records are emptied: these are appended again at the end (RELOCATED), and they go in a later pass.
Damaged segments are left alone (W6), and so is one that cannot be read to its end while it is
emptied, or that holds the vote of a group that may have cast a newer one.

A pass is a generator on the loop's thread, in steps of bounded size. What the files take their time
for (reading, renaming, syncing the directory) is done apart, see `background`; deciding and
appending is the loop's. `tools/verdict` is pure but for the footers that it reads.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from copy import copy
from typing import NamedTuple, TypeVar

from myqueue.errors import CorruptData, RecordTooLarge
from myqueue.wal import format as f
from myqueue.wal.append.groups import Group, Groups
from myqueue.wal.append.journal import Journal
from myqueue.wal.files import TRANSIENT, Files
from myqueue.wal.read.reader import Damage, Reader
from myqueue.wal.read.scan import Scan, footer_of, trailer_of
from myqueue.wal.recover.inventory import SegmentFile
from myqueue.wal.space.background import BackgroundJobs
from myqueue.wal.space.live_records import (
    append_hint,
    append_records,
    entry_again,
    has_entries,
    in_snapshot,
    live_entry_bytes,
    portion,
    snapshot_of,
)
from myqueue.wal.store.index import Index

COMPACT_BELOW_SHARE = 0.25
STEP_BYTES = 1 << 20  # read, and appended again, at once
STEP_LOOKUPS = 128  # of entries that may be live
EMPTY_MAX = 2  # segments in one pass
SETTLE_MS = 10_000  # a segment whose share falls by half in this time is left to itself
ROOM_SEGMENTS = 2  # free disk without which nothing is appended again
PAUSE_S = 0.002  # after each segment
NEVER = (0, 0)
_ORDERED = 1 << f.TRUNCATE | 1 << f.GROUP_REMOVED  # a reset counts as a TRUNCATE


T = TypeVar("T")
Pass = Generator[None, None, T]


class ReclaimPlan(NamedTuple):
    """What a pass does: which segments go, oldest first, and which are emptied, sparsest first."""

    gone: list[tuple[SegmentFile, bool]]  # True: what its records cancel has to go first
    sparse: list[tuple[SegmentFile, bool]]  # True: there may be live entries in it


class Reclaimer:
    """`begin` a pass, then `step` until it returns False; once in a while is often enough."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        index: Index,
        reader: Reader,
        apart: BackgroundJobs | None = None,
        settle_ms: int = 0,
    ) -> None:
        self._files, self._journal, self._index, self._reader = files, journal, index, reader
        self._work, self._settle_ms = apart or BackgroundJobs(), settle_ms
        self._pass: Iterator[None] = iter(())
        self._trash: list[str] = []
        # Segments that were emptied, and the place in the log that must be durable before they go.
        self._emptied: dict[int, tuple[int, int]] = {}
        self._held: set[int] = set()  # of them: for other reasons they stay
        self._stuck: set[int] = set()  # cannot be emptied in this process
        self._doubtful: set[int] = set()  # have the vote of a group that may have cast a newer one
        self._sparse: dict[int, tuple[float, int]] = {}  # segment -> its share, and since when
        # Segments with a snapshot that is too large to be moved: uid, segment and position of it.
        self._costly: dict[int, tuple[int, int, int]] = {}
        self.removed_segments = self.removed_bytes = 0
        self.relocated_bytes = 0

    def begin(self, now_ms: int = 0) -> None:
        """Sync the store up to what is persisted, then judge every sealed segment."""
        self._pass = self._run(now_ms)

    def step(self) -> bool:
        """A piece of the pass; False when it is over. True without progress: it waits for a sync,
        or for work that is done apart.
        """
        if self._journal.error is not None:
            self.cancel()
        return next(self._pass, self) is None

    def cancel(self) -> None:
        """Whatever the pass has done so far is whole."""
        self._pass = iter(())

    @property
    def has_more(self) -> bool:
        """Another pass has something to do: to remove what was emptied, say."""
        return bool(self._trash or self._emptied.keys() - self._held)

    @property
    def has_sparse(self) -> bool:
        """A pass some time later may have something to empty."""
        return bool(self._sparse)

    def _in_background(self, work: Callable[[], T]) -> Pass[T]:
        job = self._work.start(work)
        while not job.done:
            yield None
        return job.result()

    def _run(self, now_ms: int) -> Iterator[None]:
        yield from self._remove([])  # what a pass that failed has left
        yield from self._hint()
        target = self._index.added
        self._index.add([], *target, sync=True)
        while self._index.durable < target:
            yield None
        sealed = self._sealed(target)
        doubtful = [one for one in self._journal.groups.by_uid.values() if one.doubtful]
        self._doubtful = {one.number for one, _ in sealed if _holds(doubtful, one.number)}
        verdict = yield from self._in_background(lambda: self._judge(sealed, now_ms))
        for segment, _ in verdict.gone:  # from now on nobody reads in it
            self._journal.forget_segment(segment.number)
        for number in self._emptied.keys() - self._journal.segments.keys():
            del self._emptied[number]
        yield from self._remove(verdict.gone)
        for segment, entries in verdict.sparse:
            yield from self._empty(segment, entries)

    def _hint(self) -> Pass[None]:
        """Groups whose newest hint stands nobody knows where get one: those in a store that an
        older program wrote.
        """
        journal = self._journal
        missing = [one for one in journal.groups.by_uid.values() if not one.is_hinted]
        for group in missing:
            journal.commit_hint(group.uid, group.commit_index)
        if missing:
            yield from self._until_indexed()

    def remove(self, segment: SegmentFile) -> Pass[None]:
        """One that its owner has judged himself, and that the journal has forgotten."""
        yield from self._remove([(segment, True)])

    def _remove(self, gone: list[tuple[SegmentFile, bool]]) -> Pass[None]:
        """What is not renamed in the end is the journal's again, for a later pass to find it. Only
        a full disk is waited for: of other errors nobody knows what they left behind (W3).
        """
        moved: set[str] = set()
        try:
            yield from self._in_background(lambda: self._rename(gone, moved))
        except OSError as error:
            for segment, _ in gone:
                if segment.name not in moved:
                    self._journal.segments[segment.number] = segment
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._journal.writer.fail(error)
            raise

    # -- apart ---------------------------------------------------------------------------------

    def _unlink(self) -> None:
        while self._trash:
            with suppress(FileNotFoundError):
                self._files.move(self._trash[-1], None)
            self._trash.pop()
            self._work.pause(PAUSE_S)

    def _rename(self, gone: list[tuple[SegmentFile, bool]], moved: set[str]) -> None:
        for segment, ordered in gone:
            if ordered:
                self._files.sync(None)
            trash = segment.name + ".trash"
            with suppress(FileNotFoundError):  # somebody else removed it
                self._files.move(segment.name, trash)
                self._trash.append(trash)
            moved.add(segment.name)
            self.removed_segments += 1
            self.removed_bytes += segment.size
            self._work.pause(PAUSE_S)
        if self._trash:
            self._files.sync(None)
            self._unlink()

    def _judge(self, sealed: list[tuple[SegmentFile, bool]], now_ms: int) -> ReclaimPlan:
        """`sealed`: segments, and whether one tells of the one before, which stays."""
        with self._index.store.view() as view:
            groups = view.groups()
        held: set[int] | None = set()  # groups with records in segments that stay; None: any group
        gone: list[tuple[SegmentFile, bool]] = []
        sparse: list[tuple[float, SegmentFile, bool]] = []
        emptied: set[int] = set()
        known, self._sparse = self._sparse, {}
        for segment, tells in sealed:
            rows = self.footer(segment)
            if rows is None:
                held = None
                continue
            if segment.damaged:
                if held is not None:
                    held.update(row.group for row in rows)
                continue
            share = 1.0 if tells else self._live_share(segment, rows, groups, held)
            if share == 0.0:
                gone.append((segment, any(row.kinds & _ORDERED for row in rows)))
                continue
            if self._is_emptied(segment.number):
                emptied.add(segment.number)
            if held is not None:
                held.update(row.group for row in rows)
            if share <= COMPACT_BELOW_SHARE and self._may_be_emptied(segment.number, groups):
                was, since = known.get(segment.number, (1.0, 0))
                if share < was / 2:  # what retention is about to free is not written again
                    was, since = share, now_ms
                self._sparse[segment.number] = was, since
                entries = has_entries(rows, groups)
                if not entries or now_ms - since >= self._settle_ms:
                    sparse.append((share, segment, entries))
            if not self._work.pause(PAUSE_S):
                return ReclaimPlan([], [])
        self._held = emptied
        sparse.sort(key=lambda one: one[0])
        room = ROOM_SEGMENTS * max((one.capacity for _, one, _ in sparse), default=0)
        if self._files.free_bytes() < room:
            sparse = []
        return ReclaimPlan(gone, [(segment, some) for _, segment, some in sparse[:EMPTY_MAX]])

    def _may_be_emptied(self, number: int, groups: Groups) -> bool:
        if number in self._emptied or number in self._stuck or number in self._doubtful:
            return False
        if number in self._costly:
            group = groups.by_uid.get(self._costly[number][0])
            if group is not None and snapshot_of(group) == self._costly[number]:
                return False
            del self._costly[number]
        return True

    def _sealed(self, target: tuple[int, int]) -> list[tuple[SegmentFile, bool]]:
        segments = self._journal.segments
        out = []
        for number in sorted(segments):
            before = segments.get(number - 1)
            if number < target[0]:
                out.append((segments[number], before is not None and before.abandoned_at > 0))
        return out

    def footer(self, segment: SegmentFile) -> list[f.FooterRow] | None:
        """What its footer says, if it can be read."""

        def read(position: int, length: int) -> bytes:
            return self._files.read(segment.name, position, length)

        try:
            trailer = trailer_of(read, segment.uid, segment.capacity)
            return footer_of(read, segment.uid, trailer) if trailer is not None else None
        except OSError as error:  # a sector that can't be read, say
            if error.errno in TRANSIENT:
                raise
            return None

    def _is_emptied(self, number: int) -> bool:
        """What was in force in it stands elsewhere by now, for certain."""
        at = self._emptied.get(number)
        return at is not None and at <= self._index.durable

    def _live_share(
        self, segment: SegmentFile, rows: list[f.FooterRow], groups: Groups, held: set[int] | None
    ) -> float:
        """0.0: nothing is needed. Otherwise about which share of the segment is."""
        emptied, live = self._is_emptied(segment.number), 0.0
        for row in rows:
            group = groups.by_uid.get(row.group)
            if row.kinds & _ORDERED and (held is None or row.group in held):
                live += f.RECORD_HEADER_BYTES
            if group is None:
                continue
            if group.holds(segment.number) or group.hint_at == segment.number:
                live += f.RECORD_HEADER_BYTES
            if not emptied:
                live += live_entry_bytes(row, group)
        return live / segment.capacity

    # -- emptying ------------------------------------------------------------------------------

    def _empty(self, segment: SegmentFile, entries: bool) -> Iterator[None]:
        """Append again, at the end of the log, whatever of this segment is still in force.

        Mostly that is a vote or the like, and nothing of the segment needs to be read.
        """
        number, journal = segment.number, self._journal
        try:
            yield from self._until_indexed()  # a snapshot that is to be read must be on disk
            if (yield from self._is_costly(segment)):
                return
            if entries:
                yield from self._append_entries(segment)
            yield from self._until_indexed()
            for group in list(journal.groups.by_uid.values()):
                append_hint(journal, group, number)
                if not group.holds(number) or group.doubtful:  # it would count as its newest (R2)
                    continue
                parts: list[bytes] = []
                if in_snapshot(group, number):
                    parts = yield from self._snapshot(group)
                if journal.groups.by_uid.get(group.uid) is group:
                    append_records(journal, group, number, parts)
        except (CorruptData, RecordTooLarge) as error:
            self._stuck.add(number)
            if isinstance(error, CorruptData):  # for whoever repairs
                self._reader.damage_by_segment.setdefault(
                    number, Damage(number, 0, 0, 0, str(error))
                )
            return
        journal.submit()
        self._emptied[number] = journal.end

    def _snapshot(self, group: Group) -> Pass[list[bytes]]:
        """Of the group as it is now: it may get a newer one while this one is read."""
        now = copy(group)
        return (yield from self._in_background(lambda: self._reader.snapshot(now)))

    def _is_costly(self, segment: SegmentFile) -> Pass[bool]:
        """Footers do not tell how large a snapshot is. Moving a large one would fill segments that
        are as sparse to the eye as this one, and so on with every pass.
        """
        for group in list(self._journal.groups.by_uid.values()):
            if in_snapshot(group, segment.number):
                place, parts = snapshot_of(group), (yield from self._snapshot(group))
                if sum(map(len, parts)) > COMPACT_BELOW_SHARE * segment.capacity:
                    self._costly[segment.number] = place
                    return True
        return False

    def _append_entries(self, segment: SegmentFile) -> Iterator[None]:
        journal = self._journal
        scan = Scan(
            lambda position, length: self._files.read(segment.name, position, length),
            segment.uid,
            segment.capacity,
        )
        records, is_whole = scan.records(), False
        while True:
            found, is_over = yield from self._in_background(
                lambda: portion(scan, records, journal.groups, STEP_BYTES)
            )
            is_whole = is_whole or any(record.kind == f.FOOTER for record, _ in found)
            lookups = size = 0
            for record, payload in found:
                if record.kind != f.ENTRY:
                    continue
                while journal.rewound_at.get(record.group, NEVER) > self._index.added:
                    yield from self._until_indexed()
                lookups += 1
                group = journal.groups.by_uid.get(record.group)
                if group is not None and self._is_live(record, group, segment.number):
                    journal.append(record.group, [entry_again(record, payload)], relocated=True)
                    self.relocated_bytes += record.length
                    size += record.length
                if lookups >= STEP_LOOKUPS or size >= STEP_BYTES:
                    lookups = size = 0
                    journal.submit()
                    yield None
            journal.submit()
            yield None
            if is_over:
                break
        if not is_whole:
            segment.damaged = True
            raise CorruptData(f"{segment.name} at position {scan.position}: {scan.problem}")

    def _until_indexed(self) -> Iterator[None]:
        """Until look-ups know all that was appended up to now."""
        self._journal.submit()
        end = self._journal.end
        while self._index.added < end:
            yield None

    def _is_live(self, record: f.Record, group: Group, segment: int) -> bool:
        """The index must know of every record that took entries back, see `_append_entries`:
        otherwise it still shows entries that are no longer of the log.
        """
        if not group.first_index <= record.index <= group.last_index:
            return False
        row = self._index.row(record.group, record.index)
        return row is not None and (row.segment, row.position) == (segment, record.position)


def _holds(groups: list[Group], number: int) -> bool:
    return any(one.holds(number) for one in groups)
