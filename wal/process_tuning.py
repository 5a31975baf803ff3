"""Settings of the process that a log with a writer thread needs; call once at start.

- The interpreter's lock changes hands on request after 5 ms. A writer that comes back from a sync
and waits that long for a busy loop is a writer that syncs 200 times a second. 50 microseconds.
- The kernel rounds such short waits up to 50 microseconds more (timer slack); 1 nanosecond.
- glibc gives large buffers back to the kernel at once and asks for them again, page by page, with
  every flush. Keeping them costs memory that is used again at once, and saves the page faults.
- The collector of reference cycles looks at all objects again and again, and a daemon keeps many
that are in no cycle. What was made up to here it shall never look at, and later objects seldom.

`MYQ_TUNING=off` leaves all four alone, for comparison.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys

SWITCH_INTERVAL_S = 50e-6
KEEP_BYTES = 64 << 20
GC_YOUNG = 50_000  # objects; Python's own default is 700
_PR_SET_TIMERSLACK = 29
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune_process() -> None:
    """Safe to call where glibc or prctl is missing: what is not there is skipped."""
    if os.environ.get("MYQ_TUNING") == "off":
        return
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(GC_YOUNG, 20, 100)
    libc = ctypes.CDLL(None)
    prctl, mallopt = getattr(libc, "prctl", None), getattr(libc, "mallopt", None)
    if prctl is not None:
        prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEEP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
        mallopt(_M_TOP_PAD, 1 << 20)


def allow_open_files(wanted: int) -> int:
    """Raise the limit to so many, or as far as the system lets us; what it is then. The usual 1,024
    are for programs that do not serve many others.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
