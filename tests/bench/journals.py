"""Driving a real journal, as a daemon's loop does: append in turns, submit, poll, keep some in
flight.
"""

from __future__ import annotations

import os
import select
import shutil
from pathlib import Path
from random import Random
from time import perf_counter, thread_time

from myqueue.wal.append.journal import Journal, JournalConfig
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.files import RealFiles
from myqueue.wal.log import Log

CONFIG = JournalConfig(soft_limit_bytes=1 << 30, queue_bytes_max=1 << 40)
IDENTITY = ("bench", "broker-1", "broker")


def no_clock() -> int:
    return 0


class Driver:
    """A journal, its groups, and what came back from it."""

    def __init__(self, journal: Journal, groups: int) -> None:
        self.journal, self.groups = journal, groups
        self.flush_sizes: list[int] = []
        self._next = [1] * (groups + 1)
        self._group = 0
        self._poll = select.poll()
        self._poll.register(journal.fileno(), select.POLLIN)
        for group in range(1, groups + 1):
            journal.create_group(group, b"bench")
        journal.submit()
        self.wait_until(0)
        self.flush_sizes.clear()

    def turn(self, records: int, payload: bytes) -> None:
        """One record to each of the next groups, then the end of the turn."""
        append, following = self.journal.append, self._next
        for _ in range(records):
            group = self._group = self._group % self.groups + 1
            index = following[group]
            following[group] = index + 1
            append(group, ((index, 1, index, 1, 0, 0, 0, payload),))
        self.journal.submit()

    def poll(self) -> None:
        for event in self.journal.poll():
            if isinstance(event, Persisted):
                self.flush_sizes.append(event.bytes)
            elif isinstance(event, Stopped):
                raise event.error

    def wait_until(self, queued_bytes: int) -> None:
        while self.journal.queued_bytes > queued_bytes:
            self._poll.poll()
            self.poll()

    def appended(self) -> int:
        return sum(self._next) - len(self._next)


def journal_seconds(
    directory: Path, size: int, groups: int, total_bytes: int, turn: int, in_flight: int
) -> tuple[float, list[int], int]:
    """Seconds for appending that much, the sizes of the flushes, and the number of records."""
    path = directory / "journal"
    files = RealFiles(str(path))
    journal = Journal.open(files, b"b" * 16, CONFIG, no_clock, Random(1))
    driver = Driver(journal, groups)
    payload, most = os.urandom(size), (in_flight - 1) * turn * (size + 80)
    began = perf_counter()
    for _ in range(max(1, total_bytes // size // turn)):
        driver.turn(turn, payload)
        driver.poll()
        driver.wait_until(most)
    driver.wait_until(0)
    took = perf_counter() - began
    records = driver.appended()
    if not journal.close():
        raise TimeoutError("the journal did not close")
    files.close()
    shutil.rmtree(path)
    return took, driver.flush_sizes, records


def append_cost_us(directory: Path, groups: int, records: int) -> float:
    """CPU of the loop's own thread for appending one 100 B record, waiting excluded."""
    path = directory / "journal"
    files = RealFiles(str(path))
    journal = Journal.open(files, b"b" * 16, CONFIG, no_clock, Random(1))
    driver = Driver(journal, groups)
    payload, spent = os.urandom(100), 0.0
    for _ in range(records // 64):
        began = thread_time()
        driver.turn(64, payload)
        spent += thread_time() - began
        driver.poll()
        driver.wait_until(1 << 20)
    driver.wait_until(0)
    journal.close()
    files.close()
    shutil.rmtree(path)
    return spent / (records // 64 * 64) * 1e6


def latencies_us(directory: Path, size: int, rounds: int) -> list[float]:
    """One record at a time: from append to persisted."""
    path = directory / "journal"
    files = RealFiles(str(path))
    journal = Journal.open(files, b"b" * 16, CONFIG, no_clock, Random(1))
    driver = Driver(journal, 1)
    payload, times = os.urandom(size), []
    for _ in range(rounds):
        began = perf_counter()
        driver.turn(1, payload)
        driver.wait_until(0)
        times.append((perf_counter() - began) * 1e6)
    journal.close()
    files.close()
    shutil.rmtree(path)
    return times


def open_log(directory: Path) -> Log:
    return Log(str(directory), IDENTITY, CONFIG, no_clock, Random(1))


def fill(log: Log, groups: int, entries: int, size: int, messages: int = 1) -> int:
    """Append `entries` to each group, round-robin, and wait until all of it is in the store."""
    journal, payload = log.journal, os.urandom(size)
    for group in range(1, groups + 1):
        journal.create_group(group, b"bench")
    waiting = select.poll()
    waiting.register(journal.fileno(), select.POLLIN)
    for index in range(1, entries + 1):
        entry = ((index, 1, (index - 1) * messages, messages, index, 0, 0, payload),)
        for group in range(1, groups + 1):
            journal.append(group, entry)
        journal.submit()
        log.poll()
        while journal.queued_bytes > 16 << 20:
            waiting.poll()
            log.poll()
    while journal.queued_bytes or log.index.committed < journal.persisted_at:
        waiting.poll(100)
        log.poll()
    return groups * entries
