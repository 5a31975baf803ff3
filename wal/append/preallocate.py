"""Spare segments: the next segment is made before it is needed, and filled with zeros.

Two callers share a `Spares`: a background thread that takes small paced steps, and the writer,
which needs the file at once if records have reached it. A sync into blocks that were written before
costs about a third less than one into blocks that are only allocated, because the file system's own
journal is not involved. But writing the zeros of 64 MiB at once would stall the log for tens of
milliseconds. So the zeros are written in pieces, each synced by itself, with pauses in proportion
to the time that a piece took.

Space: `low` is true while the disk has less free space than the soft limit, or refused to allocate
a segment. Votes and other urgent records may still use the rest of the open segment and the
prepared one.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from threading import Condition, RLock, Thread
from time import monotonic

from myqueue.wal import format as f
from myqueue.wal.append.reserve import Reserve
from myqueue.wal.files import TRANSIENT, Files

PIECE_BYTES = 1 << 20
PAUSE_SHARE = 2.0  # pause this many times as long as a piece took
SPACE_CHECK_S = 0.5


class Spares:
    """Prepares planned segments, one after another, and watches the free space."""

    def __init__(
        self,
        files: Files,
        owner: bytes,
        capacity: int,
        clock_ms: Callable[[], int],
        soft_limit_bytes: int,
        on_space: Callable[[bool], None],
        reserve: Reserve | None = None,
    ) -> None:
        self._files, self._owner, self._capacity = files, owner, capacity
        self._clock_ms, self._soft_limit, self._on_space = clock_ms, soft_limit_bytes, on_space
        self._reserve = reserve
        self._lock = RLock()
        self._plans: deque[f.SegmentHeader] = deque()
        self._filled = 0  # bytes of the first planned file that were written; 0: not created yet
        self._is_named = False  # the file has its final name, which may not be durable yet
        self.low = False
        self.free_bytes = 1 << 62  # as of the last `check_space`

    def plan(self, number: int, uid: int) -> None:
        """Plan a segment to be prepared after those planned before; `step` does the work.

        Without the lock: it is held while pieces are synced, and the loop must not wait for a
        disk. Appending to a deque is atomic; only holders of the lock remove from it.
        """
        self._plans.append(
            f.SegmentHeader(number, uid, self._capacity, self._clock_ms(), self._owner)
        )

    def step(self) -> bool:
        """Do one piece of work; False if nothing is left to do, or nothing can be done now."""
        with self._lock:
            self.check_space()
            if not self._plans or self.low:
                return False
            try:
                self._advance(self._plans[0])
            except OSError as error:
                if error.errno in TRANSIENT:
                    return False  # nothing was written; a later step tries again
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._give_up()
                return False
            return bool(self._plans)

    def ready(self, number: int) -> None:
        """Make sure that this segment can be written now, without waiting for its zeros.

        Numbers of planned segments only grow, so one that is not planned any more is ready; no
        lock is taken then, as its holder may be syncing zeros of the next one.
        """
        if all(planned.number > number for planned in tuple(self._plans)):
            return
        with self._lock:
            while self._plans and self._plans[0].number <= number:
                if not self._filled:
                    self._create(self._plans[0])
                self._publish(self._plans[0])

    def check_space(self) -> None:
        """Update `low`. It stays true until there is room for a segment that could not be made."""
        missing = self._capacity if self._plans and not self._filled else 0
        self.free_bytes = free = self._files.free_bytes()
        self.set_low(free < max(self._soft_limit, missing))
        if self._reserve is not None and not self.low:
            self._reserve.keep(free - max(self._soft_limit, missing))

    @property
    def has_next(self) -> bool:
        """True if the next segment exists and needs no more room."""
        return not self._plans

    def set_low(self, low: bool) -> None:
        """Set `low`, and report a change."""
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
        except OSError:  # no room even for the header: the next try creates the file again
            self._files.move(name, None)
            raise
        self._filled = f.SEGMENT_HEADER_BYTES

    def _publish(self, planned: f.SegmentHeader) -> None:
        name = f.segment_name(planned.number, planned.uid)
        if not self._is_named:
            try:
                self._files.sync(name + ".new")
            except OSError:  # a second sync would not write these pages: the file is created again
                self._files.move(name + ".new", None)
                self._filled = 0
                raise
            self._files.move(name + ".new", name)
            self._is_named = True
        self._files.sync(None)
        self._plans.popleft()
        self._filled, self._is_named = 0, False

    def _give_up(self) -> None:
        """Remove a half made file when the disk is full. `check_space` decides when to retry."""
        planned = self._plans[0]
        if self._filled and not self._is_named:
            self._files.move(f.segment_name(planned.number, planned.uid) + ".new", None)
            self._filled = 0
        self.set_low(True)


class SparesThread:
    """Steps a `Spares` in the background, from `kick` until nothing is left to do."""

    def __init__(self, spares: Spares, on_error: Callable[[OSError], None]) -> None:
        self._spares, self._on_error = spares, on_error
        self._condition = Condition()
        self._kicked = self._stopping = False
        self._thread = Thread(target=self._run, name="wal-spares", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """Start preparing the planned segments, unless that is going on; cheap, for every batch.

        A call at the moment in which the thread finishes may be lost; the next batch calls again.
        """
        if self._kicked:
            return
        with self._condition:
            self._kicked = True
            self._condition.notify()

    def stop(self) -> None:
        """End the thread after its current piece."""
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
