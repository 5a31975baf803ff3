"""The client library's one look at the wall clock: messages carry the time of who sent them.

Everything that waits or measures goes by the clock since the start of the machine, which nobody
sets back. It goes on while a machine sleeps, as the managers' does meanwhile: a member of a group
that wakes up knows at once that its session is over (C8). Tests and applications that want other
times give `timestamp_ms` with each message.
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
