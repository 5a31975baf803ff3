"""The two clocks of the client library: the wall clock and the time since the machine's start.

Messages carry the sender's wall-clock time; an application may give its own `timestamp_ms`. Waits
and measurements use the time since the machine's start, which cannot be set back. It advances while
the machine sleeps, as the managers' clocks do: a group member that wakes up knows at once that its
session is over.
"""

from __future__ import annotations

import time
from typing import Final

_SINCE_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


def now_ms() -> int:
    """Milliseconds that only grow, from an arbitrary start."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000
