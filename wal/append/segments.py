"""The list of the log's segments, and which segment comes next.

Segment numbers rise by one and are assigned here only. The next segment is always decided in
advance, so that records can be encoded for it before its file exists (their checksums need its
uid); `preallocate` makes the file in the background. Segments that were prepared before a crash and
never used come first.
"""

from __future__ import annotations

import errno
from random import Random

from myqueue.wal import format as f
from myqueue.wal.append.layout import Layout
from myqueue.wal.append.preallocate import Spares
from myqueue.wal.check.segments import Segment
from myqueue.wal.files import Files
from myqueue.wal.footer_rows import SegmentRows
from myqueue.wal.recover.recovery import Recovered


class Segments:
    """The journal's segments by number, the open one included."""

    def __init__(
        self, files: Files, recovered: Recovered, spares: Spares, capacity: int, random: Random
    ) -> None:
        self.by_number: dict[int, Segment] = dict(recovered.segments)
        self._files = files
        self._spares, self._capacity, self._random = spares, capacity, random
        self._unused = sorted(segment.number for segment in recovered.spares)
        self._next_number = recovered.next_number
        self._planned: tuple[int, int] | None = None

    def resume(self, recovered: Recovered) -> Layout:
        """Return the layout to append to: where recovery found the end, or in a new segment."""
        last = self.by_number.get(recovered.number)
        if last is not None and not last.sealed and not last.damaged:
            tail, rows = recovered.position, recovered.rows
            return Layout(last.number, last.uid, last.capacity, tail, rows, 1)
        number, uid = self._next()
        while self._spares.step():  # no client waits for the log yet: there is time for its zeros
            continue
        try:
            self._spares.ready(number)
        except OSError as error:  # the writer will wait for room; the existing log can be read
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.by_number:
                raise
        layout = self._enter(number, uid, 1)
        if last is not None and not last.sealed and number == last.number + 1:
            layout.abandoned_at = last.abandoned_at = recovered.abandoned_at
        return layout

    def advance(self, next_batch: int) -> Layout:
        """Open the planned segment and plan another one."""
        number, uid = self._planned or self._next()
        layout = self._enter(number, uid, next_batch)
        self.plan()
        return layout

    def plan(self) -> None:
        """Decide number and uid of the next segment."""
        self._planned = self._next()

    def _next(self) -> tuple[int, int]:
        if self._unused:
            number = self._unused.pop(0)
            return number, self.by_number[number].uid
        number, uid = self._next_number, self._random.getrandbits(64)
        self._next_number += 1
        self._spares.plan(number, uid)
        return number, uid

    def _enter(self, number: int, uid: int, next_batch: int) -> Layout:
        segment = self.by_number.get(number)
        if segment is None:
            name, size = f.segment_name(number, uid), self._capacity
            segment = self.by_number[number] = Segment(self._files, name, number, uid, size, size)
        rows = SegmentRows()
        return Layout(number, uid, segment.capacity, f.SEGMENT_HEADER_BYTES, rows, next_batch)
