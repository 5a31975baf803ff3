"""Compare a store with its log, while the daemon is stopped.

Three checks: the store is readable; every row of its index points to the entry that it describes;
every live entry before the store's watermark has a row. The daemon's lock is held during the
comparison, and nothing is written.

LMDB may end a process that reads a damaged page, so a child process reads the whole store first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator

from myqueue.errors import DirectoryLocked, MisuseError, StoreBroken
from myqueue.wal import format as f
from myqueue.wal.check.check_segment import Progress, SegmentCheck
from myqueue.wal.check.segments import CORRUPT, Finding, Segment, survey
from myqueue.wal.files import lock_directory, unlock_directory
from myqueue.wal.groups import Group, Row
from myqueue.wal.store.guard import check_file, check_in_child
from myqueue.wal.store.store import Store
from myqueue.wal.store.view import View
from myqueue.wal.tools.locate import LogLocation
from myqueue.wal.tools.verify import GroupReplay

NAME = "store"
ROWS_BYTES = 1 << 20


def compare(
    place: LogLocation, progress: Callable[[Progress], None]
) -> Generator[Finding, None, int]:
    """Yield what is wrong; return the number of rows compared.

    DirectoryLocked if the daemon is running.
    """
    if place.daemon is None:
        raise MisuseError(
            f"{place.directory} has no store next to it", hint="Give the daemon's folder."
        )
    directory = os.path.join(place.daemon, NAME)
    try:
        lock = lock_directory(place.daemon)
    except DirectoryLocked as error:
        hint = "Stop the daemon to compare its store, or verify the log alone, without --store."
        raise DirectoryLocked(str(error), hint=hint) from None
    try:
        if not os.path.exists(os.path.join(directory, "data.mdb")):
            yield Finding(CORRUPT, NAME, 0, "there is no store; the daemon's start rebuilds it")
            return 0
        problem = _readable(directory)
        if problem:
            problem = f"{problem}; delete the folder and start the daemon, which rebuilds it"
            yield Finding(CORRUPT, NAME, 0, problem)
            return 0
        store = Store(directory, read_only=True)
        try:
            return (yield from _compare(place, store, progress))
        finally:
            store.close()
    finally:
        unlock_directory(lock)


def _readable(directory: str) -> str:
    """Read the store in a child process; return an empty text, or what happened to the child."""
    try:
        check_file(directory)
        check_in_child(directory, "read-only")
    except StoreBroken as error:
        return str(error)
    return ""


class _Matcher:
    """Observes the records of the log and looks up the row of each live entry."""

    def __init__(self, view: View, watermark: tuple[int, int]) -> None:
        self._view, self._watermark = view, watermark
        self.replay = GroupReplay()
        self.matched: dict[int, int] = {}

    def entry(self, segment: Segment, record: f.Record) -> Finding | None:
        """Compare an ENTRY with its row."""
        if (segment.number, record.position) >= self._watermark:
            return None
        self.replay.entry(segment, record)
        row = self._view.row(record.group, record.index)
        if row is None or (row.segment, row.position) != (segment.number, record.position):
            return None  # truncated, or relocated
        self.matched[record.group] = self.matched.get(record.group, 0) + 1
        wrong = [
            name
            for name in ("length", "count", "offset", "term", "time_ms", "chain")
            if getattr(row, name) != getattr(record, name)
        ]
        if not wrong:
            return None
        problem = f"the store's row of this entry differs in {', '.join(wrong)}"
        return Finding(CORRUPT, segment.name, record.position, problem, record.group, record.index)

    def other(self, segment: Segment, record: f.Record, payload: bytes) -> None:
        """Apply any other record to the groups."""
        if (segment.number, record.position) < self._watermark:
            self.replay.other(segment, record, payload)


def _compare(
    place: LogLocation, store: Store, progress: Callable[[Progress], None]
) -> Generator[Finding, None, int]:
    files = place.open()
    try:
        with store.view() as view:
            matcher = _Matcher(view, store.watermark)
            segments = survey(files)
            yield from _watermark_is_there(store.watermark, segments)
            done, total = 0, sum(segment.capacity for segment in segments)
            for segment in segments:
                if segment.readable:
                    check = SegmentCheck(segment, matcher)
                    for event in check.run():
                        # `verify` reports what is wrong with the log itself.
                        if isinstance(event, Finding) and event.what.startswith("the store's"):
                            yield event
                done += segment.capacity
                progress(Progress(done, total, segment.name))
            yield from _groups(view, matcher, {segment.number for segment in segments})
            return sum(matcher.matched.values())
    finally:
        files.close()


def _watermark_is_there(watermark: tuple[int, int], segments: list[Segment]) -> Iterator[Finding]:
    number, position = watermark
    if number and number not in {segment.number for segment in segments}:
        problem = f"its watermark is position {position} of segment {number}, which is not there"
        yield Finding(CORRUPT, NAME, 0, problem)


def _groups(view: View, matcher: _Matcher, numbers: set[int]) -> Iterator[Finding]:
    """Check each group: its state, rows that point nowhere, entries without a row."""
    stored, logged = view.groups().by_uid, matcher.replay.groups.by_uid
    for uid in sorted(stored.keys() | logged.keys()):
        group, log = stored.get(uid), logged.get(uid)
        if group is None or log is None:
            where = "log, but not in the store" if group is None else "store, but not in the log"
            yield Finding(CORRUPT, NAME, 0, f"this group is in the {where}", uid)
            continue
        for name in ("first_index", "last_index", "term", "vote", "snapshot_index"):
            ours, theirs = getattr(group, name), getattr(log, name)
            if ours != theirs and not log.damaged:
                problem = f"{name} is {ours} in the store, {theirs} in the log"
                yield Finding(CORRUPT, NAME, 0, problem, uid)
        yield from _rows(view, group, matcher.matched.get(uid, 0), numbers)


def _rows(view: View, group: Group, matched: int, numbers: set[int]) -> Iterator[Finding]:
    uid, expected, rows = group.uid, group.first_index, 0
    strays: list[Row] = []
    while True:
        portion = view.rows(uid, expected, group.last_index, ROWS_BYTES)
        if not portion:
            break
        for row in portion:
            if row.index != expected:
                problem = f"entries {expected} to {row.index - 1} have no row in the store"
                yield Finding(CORRUPT, NAME, 0, problem, uid, expected)
            if row.segment not in numbers:
                strays.append(row)
            expected = row.index + 1
        rows += len(portion)
    for row in strays[:1]:
        problem = f"{len(strays)} rows point to segments that are not there, first {row.segment}"
        yield Finding(CORRUPT, NAME, row.position, problem, uid, row.index)
    if rows - len(strays) != matched:
        problem = f"{rows - len(strays)} rows, of which {matched} point to the entry they describe"
        yield Finding(CORRUPT, NAME, 0, problem, uid)
