"""The floor: what the disk gives to a loop that does nothing but `pwritev` and `fdatasync`.

Two floors, since they differ by half: a plain file that grows as it is written, which is what a
simple program does, and a file whose blocks were all written before, which is what our segments
are.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

from bench.figures import percentile


def bare_seconds(directory: Path, sizes: list[int], written_before: bool) -> float:
    """Write that many bytes with as many syncs; the buffer's content does not matter."""
    path = directory / "bare"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    if written_before:
        _write_zeros(fd, sum(sizes))
    buffer = memoryview(os.urandom(max(sizes)))
    position = 0
    began = perf_counter()
    for size in sizes:
        os.pwritev(fd, [buffer[:size]], position)
        os.fdatasync(fd)
        position += size
    took = perf_counter() - began
    os.close(fd)
    path.unlink()
    return took


def bare_latency_us(directory: Path, size: int, rounds: int, written_before: bool) -> float:
    """Median of one append and its sync."""
    path = directory / "bare"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    if written_before:
        _write_zeros(fd, size * rounds)
    buffer = os.urandom(size)
    times = []
    for number in range(rounds):
        began = perf_counter()
        os.pwritev(fd, [buffer], number * size)
        os.fdatasync(fd)
        times.append(perf_counter() - began)
    os.close(fd)
    path.unlink()
    return percentile(times, 0.5) * 1e6


def _write_zeros(fd: int, size: int) -> None:
    os.posix_fallocate(fd, 0, size)
    zeros = bytes(1 << 20)
    for position in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - position], position)
    os.fsync(fd)
