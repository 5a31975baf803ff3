"""Settings of the process that a log with a writer thread needs; `tune_process` is called once.

- Switch interval, 50 µs: a thread waits up to 5 ms by default for the interpreter's lock. A writer
  that waits so long after each sync, because the loop is busy, syncs only 200 times a second.
- Timer slack, 1 ns: by default the kernel makes such short waits up to 50 µs longer.
- Allocation: glibc returns large buffers to the kernel at once and maps them again, page by page,
  with every flush. Keeping them costs memory that is soon used again, and saves the page faults.
- Garbage collection: the collector of reference cycles examines all objects again and again, and a
  daemon keeps many that are in no cycle. Objects made before the call are never examined, later
  ones rarely.

`MYQ_TUNING=off` changes nothing, for comparison.
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
    """Apply the settings; those of glibc and prctl are skipped where these are missing."""
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
    """Raise the limit of open files to `wanted`, or as far as the system allows; return the limit.

    The usual limit of 1,024 is too low for a daemon with many connections and segments.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
