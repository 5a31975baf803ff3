"""How fast the bytes of one connection move: a stopwatch, without a clock of its own."""

from __future__ import annotations

import math
from typing import Final

FRESH_S: Final = 0.5  # between two measurements; a phase that began later is never slow
SLOW_BYTES_PER_S: Final = 256 << 10


class Pace:
    """The pace of one phase: a request or its body arrives, or its answer is taken."""

    __slots__ = ("begin_s", "bytes_per_s", "last_progress_s", "measured_bytes", "measured_s")

    def __init__(self, now: float) -> None:
        self.begin(now, 0)

    def begin(self, now: float, progress: int) -> None:
        """Begin a phase. `progress` is how many of its bytes have moved already."""
        self.begin_s = self.measured_s = self.last_progress_s = now
        self.measured_bytes = progress
        self.bytes_per_s = math.inf  # not known yet

    @property
    def is_slow(self) -> bool:
        """True if fewer than `SLOW_BYTES_PER_S` moved in the time that was measured last."""
        return self.bytes_per_s < SLOW_BYTES_PER_S

    def measure(self, now: float, progress: int) -> None:
        """Set the pace to that since the last measurement, unless it was just now. Call it
        regularly.
        """
        if now - self.measured_s < FRESH_S:
            return
        self.bytes_per_s = (progress - self.measured_bytes) / (now - self.measured_s)
        if self.bytes_per_s > 0:
            self.last_progress_s = now
        self.measured_s, self.measured_bytes = now, progress
