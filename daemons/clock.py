"""Two clocks: one that only runs forward, for timeouts, and the wall's, for stamps in entries."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Monotonic; for deadlines. Its zero means nothing."""

    def wall_ms(self) -> int:
        """Since 1970, as far as the machine knows; may jump. Never decides about order."""


class RealClock:
    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
