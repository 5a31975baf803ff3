"""Reading one segment in portions, to find damage before somebody needs what is damaged.

The checks are those of `verify`, segment by segment: whoever has many segments decides about their
order and the pace. What one portion cost is told in bytes, records included: a record takes time as
well, and small ones would make a pace in bytes alone a heavy load.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from myqueue.wal.files import TRANSIENT
from myqueue.wal.tools.check_segment import PROGRESS_BYTES, Progress, SegmentCheck
from myqueue.wal.tools.segments import CORRUPT, Finding, ReadableFiles, Segment, examine, synced_to

RECORD_COST_BYTES = 1024
FINDINGS_MAX = 100  # of one segment; it is emptied anyway
LOST = "what was synced can't be read"


class Scrub:
    """One segment, read once; `portion` until `is_done`. Work for a thread of its own."""

    def __init__(
        self,
        look: ReadableFiles,
        segment: tuple[str, int, int, int],
        until: int,
        wait: Callable[[], None],
    ) -> None:
        """`segment`: name, number, uid, capacity. `until`: of the open one, how far it is synced,
        else 0: what is behind is not read, 64 MiB of zeros mostly. `wait` lets a running writer
        finish a record.
        """
        self.number, self.name = segment[1], segment[0]
        self.is_done = False
        self.findings: list[Finding] = []
        self.cost_bytes = self.read_bytes = 0  # of the last portion
        self._done_bytes = self._done_records = 0
        self._until = until
        self._events = self._run(look, segment, wait)

    def portion(self) -> None:
        """Read a few MiB. What is not there any more was reclaimed, or is missing: the caller
        knows which."""
        event: Progress | Finding | None
        self.cost_bytes = self.read_bytes = 0
        while (event := next(self._events, None)) is not None:
            if isinstance(event, Progress):
                return
            if event.verdict != CORRUPT and event.position < self._until:
                # Of the last records the log does not prove that they were synced. We know it.
                event = replace(event, verdict=CORRUPT, what=LOST)
            if event.verdict == CORRUPT and len(self.findings) < FINDINGS_MAX:
                self.findings.append(event)
        self.is_done = True

    def _run(
        self, look: ReadableFiles, segment: tuple[str, int, int, int], wait: Callable[[], None]
    ) -> Iterator[Progress | Finding]:
        name, number, uid, capacity = segment
        try:
            one = examine(look, name, number, uid, capacity)
            if one.finding is not None:
                yield one.finding
            if not one.readable:
                return
            if self._until and (yield from self._is_whole(one)):
                return
            check = SegmentCheck(one, followed=lambda: synced_to(one), wait=wait)
            for event in check.run():
                if isinstance(event, Progress):
                    self._count(event.done, check.records)
                yield event
            if check.scan.position < self._until and not self.findings:
                yield Finding(CORRUPT, name, check.scan.position, LOST)  # zeros: the usual end
        except OSError as error:
            if error.errno in TRANSIENT:
                raise
            yield Finding(CORRUPT, name, 0, f"the file can't be read: {error.strerror}")

    def _is_whole(self, segment: Segment) -> Generator[Progress, None, bool]:
        """Whether all can be read up to there; if not, what is wrong is told by the whole check."""
        scan, records, told = segment.scan(), 0, 0
        for _ in scan.records():
            records += 1
            if scan.position >= self._until:
                break
            if scan.position >= told + PROGRESS_BYTES:
                told = scan.position
                self._count(told, records)
                yield Progress(told, segment.capacity, segment.name)
        self._count(scan.position, records)
        return scan.position >= self._until

    def _count(self, done_bytes: int, records: int) -> None:
        more, entries = max(0, done_bytes - self._done_bytes), max(0, records - self._done_records)
        self._done_bytes, self._done_records = done_bytes, records
        self.read_bytes, self.cost_bytes = more, more + entries * RECORD_COST_BYTES
