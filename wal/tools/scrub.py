"""Scrub: read one segment in portions, to find damage before its data is needed.

The checks are those of `verify`. The caller decides about the order of segments and the pace. The
cost of a portion is its bytes plus a constant for each record, because a record takes time as well:
with a pace in bytes alone, small records would be a heavy load.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from myqueue.wal.check.check_segment import PROGRESS_BYTES, Progress, SegmentCheck
from myqueue.wal.check.segments import CORRUPT, Finding, ReadableFiles, Segment, examine, synced_to
from myqueue.wal.files import TRANSIENT

RECORD_COST_BYTES = 1024
FINDINGS_MAX = 100  # of one segment; it is emptied anyway
LOST = "synced data can't be read"


class Scrub:
    """Reads one segment once. Call `portion` until `is_done`, outside of the loop's thread."""

    def __init__(
        self,
        look: ReadableFiles,
        segment: tuple[str, int, int, int],
        until: int,
        wait: Callable[[], None],
    ) -> None:
        """`segment` is (name, number, uid, capacity).

        `until` is how far the open segment is synced, 0 for any other: the rest of it, mostly
        64 MiB of zeros, is not read. `wait` lets a running writer finish a record.
        """
        self.number, self.name = segment[1], segment[0]
        self.is_done = False
        self.findings: list[Finding] = []
        self.cost_bytes = self.read_bytes = 0  # of the last portion
        self._done_bytes = self._done_records = 0
        self._until = until
        self._events = self._run(look, segment, wait)

    def portion(self) -> None:
        """Read a few MiB. A missing file was reclaimed or lost: the caller knows which."""
        event: Progress | Finding | None
        self.cost_bytes = self.read_bytes = 0
        while (event := next(self._events, None)) is not None:
            if isinstance(event, Progress):
                return
            if event.verdict != CORRUPT and event.position < self._until:
                # No mark proves the last records to be synced, but the caller knows that they are.
                event = replace(event, verdict=CORRUPT, what=LOST)
            if event.verdict == CORRUPT and len(self.findings) < FINDINGS_MAX:
                self.findings.append(event)
        self.is_done = True

    def _run(
        self, look: ReadableFiles, segment: tuple[str, int, int, int], wait: Callable[[], None]
    ) -> Iterator[Progress | Finding]:
        name, number, uid, capacity = segment
        try:
            file = examine(look, name, number, uid, capacity)
            if file.finding is not None:
                yield file.finding
            if not file.readable:
                return
            if self._until and (yield from self._reads_to_the_end(file)):
                return
            check = SegmentCheck(file, followed=lambda: synced_to(file), wait=wait)
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

    def _reads_to_the_end(self, segment: Segment) -> Generator[Progress, None, bool]:
        """Read up to `until`; False if a record is bad: then the full check says what is wrong."""
        scan, records, reported = segment.scan(), 0, 0
        for _ in scan.records():
            records += 1
            if scan.position >= self._until:
                break
            if scan.position >= reported + PROGRESS_BYTES:
                reported = scan.position
                self._count(reported, records)
                yield Progress(reported, segment.capacity, segment.name)
        self._count(scan.position, records)
        return scan.position >= self._until

    def _count(self, done_bytes: int, records: int) -> None:
        more, entries = max(0, done_bytes - self._done_bytes), max(0, records - self._done_records)
        self._done_bytes, self._done_records = done_bytes, records
        self.read_bytes, self.cost_bytes = more, more + entries * RECORD_COST_BYTES
