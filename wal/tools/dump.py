"""The records of a log, one after another, while its daemon may be writing.

    dump = Dump(files, RecordFilter(group=7))
    for item in dump.records(): ...      all records that exist now
    for item in dump.records(): ...      records that were appended since

Only the place that was reached is kept, so memory does not depend on the log. Records are verified;
a damaged place is returned as a `Finding`, and reading continues after it. The newest records may
be in the page cache only, not yet on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from myqueue.wal import format as f
from myqueue.wal.check.check_segment import do_nothing
from myqueue.wal.check.segments import (
    CORRUPT,
    Finding,
    ReadableFiles,
    Segment,
    examine,
    is_followed,
    list_segments,
    synced_to,
)
from myqueue.wal.check.verdict import Judge
from myqueue.wal.read.scan import footer_of

_WITH_INDEX = (f.ENTRY, f.TRUNCATE, f.COMMIT, f.SNAPSHOT, f.START)


class RecordFilter(NamedTuple):
    """Selects records by group, kind, index, offset or segment; ranges include both ends."""

    group: int | None = None
    kinds: frozenset[int] | None = None
    indices: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None
    segment: int | None = None

    def takes(self, record: f.Record) -> bool:
        """Whether a record is selected. The caller checks `segment`."""
        if self.group is not None and record.group != self.group:
            return False
        if self.kinds is not None and record.kind not in self.kinds:
            return False
        if self.indices is not None:
            first, last = self.indices
            if record.kind not in _WITH_INDEX or not first <= record.index <= last:
                return False
        if self.offsets is not None:
            first, last = self.offsets
            if record.kind != f.ENTRY or not record.count:
                return False
            return record.offset <= last and first < record.offset + record.count
        return True

    def may_be_in(self, rows: list[f.FooterRow]) -> bool:
        """Whether a segment with this footer may hold selected records."""
        if self.group is None:
            return True
        row = next((row for row in rows if row.group == self.group), None)
        if row is None:
            return False
        if self.kinds is not None and not any(row.kinds >> kind & 1 for kind in self.kinds):
            return False
        if self.offsets is not None:
            first, last = self.offsets
            return bool(row.entries) and row.first_offset <= last and first < row.next_offset
        if self.indices is not None and self.kinds == frozenset([f.ENTRY]):
            first, last = self.indices
            return bool(row.entries) and row.first_index <= last and first <= row.last_index
        return True


class DumpedRecord(NamedTuple):
    """One record of one segment; the payload is valid until the next record is read."""

    segment: Segment
    record: f.Record
    payload: memoryview


class Dump:
    """Reads a log from its start; each call of `records` continues where the last one ended."""

    def __init__(
        self, look: ReadableFiles, wanted: RecordFilter, wait: Callable[[], None] = do_nothing
    ) -> None:
        self._look, self._wanted, self._wait = look, wanted, wait
        self._number = 0  # of the segment to be read next, or that is being read
        self._reading: _Reading | None = None

    def records(self) -> Iterator[DumpedRecord | Finding]:
        """Yield records up to the end. A torn place ends this silently: the log may grow there."""
        if self._reading is not None and not self._reading.has_news():
            return
        for number, uid, name, size in list_segments(self._look):
            if number < self._number or self._wanted.segment not in (None, number):
                continue
            try:
                if self._reading is None:
                    segment = examine(self._look, name, number, uid, size)
                    if segment.finding is not None and segment.is_used():
                        yield segment.finding
                    self._number = number
                    self._reading = _Reading(segment, self._wanted, self._wait)
                complete = yield from self._reading.run()
            except FileNotFoundError:  # reclaimed
                complete = True
            if not complete:
                return
            self._number, self._reading = number + 1, None


class _Reading:
    """The reading of one segment, which may still grow."""

    def __init__(self, segment: Segment, wanted: RecordFilter, wait: Callable[[], None]) -> None:
        self._segment, self._wanted = segment, wanted
        self._scan = segment.scan()
        self._judge = Judge(segment, self._scan, lambda: synced_to(segment), wait)

    def has_news(self) -> bool:
        """Whether there is something to read; cheap, because callers poll it."""
        try:
            header = self._segment.read(self._scan.position, f.RECORD_HEADER_BYTES)
            return any(header) or self._segment.trailer() is not None or self._is_followed()
        except FileNotFoundError:
            return True

    def run(self) -> Generator[DumpedRecord | Finding, None, bool]:
        """Yield the records that exist; return whether this segment will get no more."""
        segment, judge = self._segment, self._judge
        if not segment.readable or (judge.sealed and self._is_superfluous()):
            return True
        judge.refresh()
        while True:
            yield from self._read()
            if judge.sealed:
                trailer = segment.trailer()
                if trailer is not None and self._wanted.takes(trailer):
                    yield DumpedRecord(segment, trailer, memoryview(b""))
                return True
            if not self._is_followed():
                return False
            if not judge.refresh():  # its trailer is damaged; the log continued all the same
                return True

    def _read(self) -> Iterator[DumpedRecord | Finding]:
        scan, takes = self._scan, self._wanted.takes
        while True:
            for record, payload in scan.records():
                if takes(record):
                    yield DumpedRecord(self._segment, record, payload)
            stop = self._judge.stopped()
            if stop.finding is not None and stop.finding.verdict == CORRUPT:
                yield stop.finding
            if not stop.again:
                return

    def _is_superfluous(self) -> bool:
        """Whether the footer says that no selected record is here."""
        segment, trailer = self._segment, self._segment.trailer()
        rows = footer_of(segment.read, segment.uid, trailer) if trailer is not None else None
        return rows is not None and not self._wanted.may_be_in(rows)

    def _is_followed(self) -> bool:
        return is_followed(self._segment.look, self._segment.number)
