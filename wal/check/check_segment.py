"""Check one segment by itself: records, marks, footer, trailer.

`SegmentCheck.run` reads it once from start to end and yields what is wrong and how far it came. The
loop over the records is kept short, since a log has millions of them. An observer (`follow`, for
example a replay of the groups) gets each record whose header is known, damaged ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.check.segments import CORRUPT, Finding, Segment
from myqueue.wal.check.verdict import Judge
from myqueue.wal.footer_rows import SegmentRows

PROGRESS_BYTES = 4 << 20
_FIELDS = f.FooterRow._fields


class Progress(NamedTuple):
    """How far a reading came; `done` and `total` are bytes."""

    done: int
    total: int
    segment: str


class RecordObserver(Protocol):
    """Gets the records of groups, in order."""

    def entry(self, segment: Segment, record: f.Record) -> Finding | None:
        """Take an ENTRY; return what is wrong with it, if anything."""

    def other(self, segment: Segment, record: f.Record, payload: bytes) -> None:
        """Take any other record of a group."""


def never() -> int:
    """For `followed`: no later segment is known."""
    return 0


def do_nothing() -> None:
    """For `wait` where no writer can be at work."""


class SegmentCheck:
    """The check of one segment; `run` may be called again when the segment has grown."""

    def __init__(
        self,
        segment: Segment,
        follow: RecordObserver | None = None,
        *,
        flush_before: int = 0,
        followed: Callable[[], int] = never,
        wait: Callable[[], None] = do_nothing,
    ) -> None:
        """`flush_before` is the last flush number of earlier segments, 0 if unknown."""
        self.segment, self._follow = segment, follow
        self.scan = segment.scan()
        self.judge = Judge(segment, self.scan, followed, wait)
        self.rows = SegmentRows()
        self.records = self.entries = self.marks = 0
        self.footer: f.Record | None = None
        self.footer_rows: list[f.FooterRow] | None = None
        self.clean = True  # nothing corrupt was found in it
        self.is_explained = True  # the header of every record is known
        self.flush_number, self._flush_began, self._flush_here = flush_before, 0, False
        # The current batch: its end, records counted before it, records that its mark announces.
        self._batch: tuple[int, int, int] | None = None
        self._seal_checked = False

    def run(self) -> Iterator[Progress | Finding]:
        """Yield findings as they are met, and progress every few MiB and at the end."""
        try:
            yield from self._read()
        except FormatUnknown as error:
            yield self._corrupt(self.scan.position, str(error))
            return
        if self.judge.sealed and not self._seal_checked:
            self._seal_checked = True
            yield from self._check_seal()
        yield Progress(self.scan.position, self.segment.capacity, self.segment.name)

    def _read(self) -> Iterator[Progress | Finding]:
        scan, segment, name = self.scan, self.segment, self.segment.name
        note = self.rows.note
        entry = self._follow.entry if self._follow else None
        report_at = scan.position + PROGRESS_BYTES
        while True:
            for record, payload in scan.records():
                self.records += 1
                position = record.position
                if record.kind == f.ENTRY:
                    self.entries += 1
                    note(record)
                    if entry is not None:
                        problem = entry(segment, record)
                        if problem is not None:
                            yield self._found(problem)
                else:
                    yield from self._other(record, payload)
                if position >= report_at:
                    yield Progress(position, segment.capacity, name)
                    report_at = position + PROGRESS_BYTES
            stop = self.judge.stopped()
            if stop.finding is not None:
                yield self._found(stop.finding)
                self.is_explained &= stop.record is not None
                if stop.again:
                    yield from self._skipped(stop.record)
            if not stop.again:
                return

    def _other(self, record: f.Record, payload: memoryview) -> Iterator[Finding]:
        if record.kind == f.MARK:
            yield from self._mark(record)
            return
        if self.footer is not None:
            yield self._corrupt(record.position, "a record after the footer", record)
        if record.kind == f.FOOTER:
            self.footer, self.footer_rows = record, f.decode_footer(bytes(payload))
        elif record.group:
            self.rows.note(record)
            if self._follow is not None:
                self._follow.other(self.segment, record, bytes(payload))
        if self._batch is not None and record.position >= self._batch[0]:
            self._batch = None
            yield self._corrupt(record.position, "a record outside of any batch", record)

    def _skipped(self, record: f.Record | None) -> Iterator[Finding]:
        """Count a damaged record if its header is known."""
        self._batch = None
        if record is None:
            self._flush_here = False
            return
        if record.kind == f.FOOTER:
            self.footer = record
        elif record.kind == f.MARK:
            yield from self._mark(record)
        elif record.group:
            self.rows.note(record)
            if self._follow is None:
                return
            if record.kind == f.ENTRY:
                problem = self._follow.entry(self.segment, record)
                if problem is not None:
                    yield self._found(problem)
            else:
                self._follow.other(self.segment, record, b"")

    def _mark(self, mark: f.Record) -> Iterator[Finding]:
        """Check a mark: batches are contiguous, flush numbers rise, flushes begin at a mark.

        A batch may be shorter than its mark says: recovery cuts what was not synced.
        """
        number, began, position = mark.index, mark.term, mark.position
        if self._batch is not None:
            end, before, announced = self._batch
            count = self.records - before - 1
            if position > end:
                yield self._corrupt(position, f"the batch before ended at position {end}")
            elif position == end and count != announced:
                problem = f"the batch before has {count} records, its mark says {announced}"
                yield self._corrupt(position, problem)
        self._batch = (mark.end + mark.offset, self.records, mark.count)
        self.marks += 1
        if began == position:
            if number <= self.flush_number:
                problem = f"flush number {number} follows flush number {self.flush_number}"
                yield self._corrupt(position, problem)
        elif self._flush_here and (number, began) != (self.flush_number, self._flush_began):
            problem = (
                f"flush {number} began at position {began}, but the mark before is of flush "
                f"{self.flush_number}, which began at {self._flush_began}"
            )
            yield self._corrupt(position, problem)
        self.flush_number = max(number, self.flush_number)
        self._flush_began, self._flush_here = began, True

    def _check_seal(self) -> Iterator[Finding]:
        """Check that the trailer names the footer, and that the footer has what was counted."""
        trailer = self.segment.trailer()
        if trailer is None:
            return
        place, footer, rows = trailer.position, self.footer, self.footer_rows
        if footer is None:
            problem = f"the footer at position {trailer.offset} is not there"
            if self.clean:
                yield self._corrupt(place, problem)
        elif footer.position != trailer.offset:
            problem = f"the trailer names a footer at {trailer.offset}, it is at {footer.position}"
            yield self._corrupt(place, problem)
        elif rows is not None and self.clean:  # otherwise it would repeat findings
            if footer.count != len(rows):
                problem = f"the footer has {len(rows)} rows, its header says {footer.count}"
                yield self._corrupt(footer.position, problem)
            yield from self._compare(footer, rows)

    def _compare(self, footer: f.Record, rows: list[f.FooterRow]) -> Iterator[Finding]:
        """Compare the footer with what was counted, row by row and field by field."""
        counted = {row.group: row for row in self.rows.footer()}
        for row in rows:
            actual = counted.pop(row.group, None)
            if actual is None:
                problem = f"the footer has {row.entries} entries of a group that was not found"
            elif actual != row:
                wrong = [
                    f"{name} {said}, counted {seen}"
                    for name, said, seen in zip(_FIELDS, row, actual, strict=True)
                    if said != seen
                ]
                problem = f"the footer says {'; '.join(wrong)}"
            else:
                continue
            yield self._corrupt(footer.position, problem, group=row.group, index=row.first_index)
        for group, row in counted.items():
            problem = "the footer has no row for this group"
            yield self._corrupt(footer.position, problem, group=group, index=row.first_index)

    def _corrupt(
        self,
        position: int,
        problem: str,
        record: f.Record | None = None,
        *,
        group: int = 0,
        index: int = 0,
    ) -> Finding:
        if record is not None:
            group, index = record.group, record.index
        return self._found(Finding(CORRUPT, self.segment.name, position, problem, group, index))

    def _found(self, finding: Finding) -> Finding:
        if finding.verdict == CORRUPT:
            self.clean = False
        return finding
