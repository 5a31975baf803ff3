"""Two clocks: a monotonic one for timeouts, and the wall clock for timestamps in entries."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return monotonic milliseconds, for deadlines. Their zero has no meaning."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970. They may jump, so they never decide about order."""


class RealClock:
    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
