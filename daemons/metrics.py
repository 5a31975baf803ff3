"""Counters and histograms of a daemon: plain integers, read when a client asks for STATS.

Names follow the rules of Prometheus (`…_total`, `…_bytes`, `…_seconds`). A counter never goes down
while the process lives. Histograms have fixed bounds, so that they can be added up over daemons.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from typing import Any

# Upper bounds of the buckets; the same for all latencies.
HISTOGRAM_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class Histogram:
    """Counts durations by bucket; the last bucket has no upper bound."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(HISTOGRAM_BOUNDS_S) + 1)
        self.sum = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.buckets[bisect_left(HISTOGRAM_BOUNDS_S, seconds)] += times
        self.sum += seconds * times


class DaemonMetrics(defaultdict[str, int]):
    """Counters by name, and `histograms` by name."""

    def __init__(self) -> None:
        super().__init__(int)
        self.histograms: defaultdict[str, Histogram] = defaultdict(Histogram)

    def as_map(self) -> dict[str, Any]:
        return {
            "process": process_usage(),
            "counters": dict(self),
            "bounds": list(HISTOGRAM_BOUNDS_S),
            "histograms": {
                name: [histogram.buckets, histogram.sum]
                for name, histogram in sorted(self.histograms.items())
            },
        }


def process_usage() -> dict[str, Any]:
    """Return the process id, the CPU time used so far, and the resident memory."""
    times = os.times()
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    return {
        "pid": os.getpid(),
        "cpu_seconds": round(times.user + times.system, 3),
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }
