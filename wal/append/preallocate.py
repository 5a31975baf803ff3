"""The next segment is made before it is needed, and its zeros are written before its records.

Two callers share a `Spares`: a background thread that takes small paced steps, and the writer,
which needs the file *now* if records have reached it. A sync into blocks that were written before
costs about a third less than one into blocks that are only allocated, because the file system's
own journal is not involved; but the zeros of 64 MiB written at once would stall the log for tens
of milliseconds. Hence pieces, each synced by itself, with pauses in proportion to what they cost.

Space: `low` is true while the disk has less free space than the soft limit or refused to allocate a
segment. The rest of the current segment and the prepared one are the reserve that votes and other
urgent records may still use.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from threading import Condition, RLock, Thread
from time import monotonic

from myqueue.wal import format as f
from myqueue.wal.files import TRANSIENT, Files
from myqueue.wal.space.reserve import Reserve

PIECE_BYTES = 1 << 20
PAUSE_SHARE = 2.0  # pause this many times as long as a piece took
SPACE_CHECK_S = 0.5


class Spares:
    """Prepares planned segments, one after another."""

    def __init__(
        self, files: Files, owner: bytes, capacity: int, clock_ms: Callable[[], int],
        soft_limit_bytes: int, on_space: Callable[[bool], None], reserve: Reserve | None = None,
    ) -> None:  # fmt: skip
        self._files, self._owner, self._capacity = files, owner, capacity
        self._clock_ms, self._soft_limit, self._on_space = clock_ms, soft_limit_bytes, on_space
        self._reserve = reserve
        self._lock = RLock()
        self._plans: deque[f.SegmentHeader] = deque()
        self._filled = 0  # bytes of the first planned file that were written; 0: not created yet
        self._is_named = False  # it has its name, but the name may not be on the disk yet
        self.low = False
        self.free_bytes = 1 << 62  # when it was looked at last

    def plan(self, number: int, uid: int) -> None:
        """A segment to prepare after those planned before; nothing is done here.

        Without the lock: it is held while pieces are synced, and the loop must not wait for that
        (W17). Appending to a deque is one step; only holders of the lock take from it.
        """
        self._plans.append(
            f.SegmentHeader(number, uid, self._capacity, self._clock_ms(), self._owner)
        )

    def step(self) -> bool:
        """Do one piece of work; False if there is none (left, or possible)."""
        with self._lock:
            self.check_space()
            if not self._plans or self.low:
                return False
            try:
                self._advance(self._plans[0])
            except OSError as error:
                if error.errno in TRANSIENT:
                    return False  # nothing was written; it is tried again
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._give_up()
                return False
            return bool(self._plans)

    def ready(self, number: int) -> None:
        """Return when this segment can be written; the writer cannot wait for its zeros."""
        with self._lock:
            while self._plans and self._plans[0].number <= number:
                if not self._filled:
                    self._create(self._plans[0])
                self._publish(self._plans[0])

    def check_space(self) -> None:
        """Not low again before there is room for the segment that could not be made."""
        missing = self._capacity if self._plans and not self._filled else 0
        self.free_bytes = free = self._files.free_bytes()
        self.set_low(free < max(self._soft_limit, missing))
        if self._reserve is not None and not self.low:
            self._reserve.keep(free - max(self._soft_limit, missing))

    @property
    def has_next(self) -> bool:
        """The next segment is there already, and needs no more room."""
        return not self._plans

    def set_low(self, low: bool) -> None:
        if low != self.low:
            self.low = low
            self._on_space(low)

    def _advance(self, planned: f.SegmentHeader) -> None:
        if not self._filled:
            self._create(planned)
        elif self._filled < self._capacity and not self._is_named:
            size = min(PIECE_BYTES, self._capacity - self._filled)
            name = f.segment_name(planned.number, planned.uid) + ".new"
            self._files.write(name, self._filled, [bytes(size)], True)
            self._filled += size
        else:
            self._publish(planned)

    def _create(self, planned: f.SegmentHeader) -> None:
        name = f.segment_name(planned.number, planned.uid) + ".new"
        self._files.create(name, self._capacity)
        try:
            self._files.write(name, 0, [f.encode_segment_header(planned)], False)
        except OSError:  # not even room for that: the next try creates it again
            self._files.move(name, None)
            raise
        self._filled = f.SEGMENT_HEADER_BYTES

    def _publish(self, planned: f.SegmentHeader) -> None:
        name = f.segment_name(planned.number, planned.uid)
        if not self._is_named:
            try:
                self._files.sync(name + ".new")
            except OSError:  # the next sync would not write these pages: it is created again
                self._files.move(name + ".new", None)
                self._filled = 0
                raise
            self._files.move(name + ".new", name)
            self._is_named = True
        self._files.sync(None)
        self._plans.popleft()
        self._filled, self._is_named = 0, False

    def _give_up(self) -> None:
        """No room: leave nothing half made behind. The space check decides when to try again."""
        planned = self._plans[0]
        if self._filled and not self._is_named:
            self._files.move(f.segment_name(planned.number, planned.uid) + ".new", None)
            self._filled = 0
        self.set_low(True)


class SparesThread:
    """Steps a `Spares` in the background, from `kick` until there is nothing left to do."""

    def __init__(self, spares: Spares, on_error: Callable[[OSError], None]) -> None:
        self._spares, self._on_error = spares, on_error
        self._condition = Condition()
        self._kicked = self._stopping = False
        self._thread = Thread(target=self._run, name="wal-spares", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        with self._condition:
            self._kicked = True
            self._condition.notify()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait(SPACE_CHECK_S):
                if not self._kicked:
                    self._spares.check_space()
                    continue
                began = monotonic()
                self._kicked = self._spares.step() or self._spares.low
                took = monotonic() - began
                if not self._pause(SPACE_CHECK_S if self._spares.low else took * PAUSE_SHARE):
                    return
        except OSError as error:
            self._on_error(error)

    def _wait(self, timeout_s: float) -> bool:
        with self._condition:
            if not self._kicked and not self._stopping:
                self._condition.wait(timeout_s)
            return not self._stopping

    def _pause(self, timeout_s: float) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._stopping, timeout_s)
            return not self._stopping
