"""The client library's one look at the wall clock: messages carry the time of who sent them.

Everything that waits or measures goes by the monotonic clock, which nobody sets back. Tests and
applications that want other times give `timestamp_ms` with each message.
"""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


def now_ms() -> int:
    """Milliseconds that only grow, from an arbitrary start."""
    return time.monotonic_ns() // 1_000_000
