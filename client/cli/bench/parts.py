"""Shared by all benchmarks: pacing, percentiles, CPU and memory of daemons, the disk's floor.

Latencies are measured at a given rate from the time a message was *due*: a stalled sender does not
hide its own delay (coordinated omission). Daemons report their CPU and memory, so this works with
a cluster on other machines as well.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

from myqueue.cluster.session import Session
from myqueue.errors import MyQueueError
from myqueue.wal.files import RealFiles
from myqueue.wire import protocol

_STAMP = Struct("<q")
STAMP_BYTES = _STAMP.size
LATE_NS = 2_000_000  # timers are coarse; a message later than this counts from when it was due


def payload(size: int, stamp_ns: int = 0) -> bytes:
    return _STAMP.pack(stamp_ns) + b"x" * (size - STAMP_BYTES)


def age_ns(value: bytes, now_ns: int) -> int:
    return now_ns - int(_STAMP.unpack_from(value)[0])


class Pacer:
    """Yield the stamps of messages that are due at a steady rate."""

    def __init__(self, count: int, rate: float) -> None:
        self._count, self._step_ns, self._at = count, 1e9 / rate, 0
        self._begin_ns = time.monotonic_ns()

    def stamps(self) -> Iterator[int]:
        while self._at < self._count:
            due = self._begin_ns + int(self._at * self._step_ns)
            now = time.monotonic_ns()
            if due > now:
                time.sleep((due - now) / 1e9)
                now = time.monotonic_ns()
            self._at += 1
            yield now if now - due < LATE_NS else due


def percentiles(ns: list[int], prefix: str) -> dict[str, Any]:
    """Return percentiles in µs, under the names that the peers' benchmark uses."""
    ordered = sorted(ns)

    def at(share: float) -> float | None:
        if not ordered:
            return None
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e3, 1)

    return {
        f"{prefix}_p50_us": at(0.5),
        f"{prefix}_p99_us": at(0.99),
        f"{prefix}_p999_us": at(0.999),
        f"{prefix}_max_us": at(1.0),
        f"{prefix}_n": len(ordered),
    }


def timed(call: Callable[[], object], count: int, seconds: float, warm: int = 50) -> list[int]:
    """Return the duration in ns of each of `count` calls, made one at a time."""
    for _ in range(warm):
        call()
    out: list[int] = []
    end = time.monotonic() + seconds
    while len(out) < count and time.monotonic() < end:
        begin = time.perf_counter_ns()
        call()
        out.append(time.perf_counter_ns() - begin)
    return out


class Used(NamedTuple):
    """CPU and memory of all daemons that answer, together."""

    cpu_s: float
    resident_bytes: int
    biggest_bytes: int  # of the daemon that holds most
    daemons: int


def used(session: Session) -> Used:
    daemons = [row for kind in ("managers", "brokers") for row in session.read(kind).result()[kind]]
    replies = [
        session.call(row["address"], protocol.STATS, timeout_ms=3000)
        for row in daemons
        if row["address"]
    ]
    processes = []
    for future in replies:
        try:
            processes.append(future.result().envelope[protocol.FIELDS]["process"])
        except MyQueueError:
            continue  # a daemon that is down uses nothing
    resident = [process["resident_bytes"] for process in processes]
    cpu = sum(process["cpu_seconds"] for process in processes)
    return Used(cpu, sum(resident), max(resident, default=0), len(processes))


def sync_floor(folder: str | None, count: int = 500) -> dict[str, Any]:
    """Measure bare synced appends of 4 KiB: the least time of any acknowledged write."""
    data, size = os.urandom(4096), 4096
    with tempfile.TemporaryDirectory(dir=folder) as place:
        files = RealFiles(place)
        files.create("floor", size)
        try:
            ends = iter(range(0, 100 * count * size, size))
            return percentiles(
                timed(lambda: files.write("floor", next(ends), [data], True), count, 10.0, warm=20),
                "fdatasync",
            )
        finally:
            files.close()
