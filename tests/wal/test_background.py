"""Work apart: done in another thread, in order; its errors reach who ordered it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from myqueue.wal.config import JournalConfig
from myqueue.wal.log import Log
from myqueue.wal.space.background import BackgroundJobs

UID = 7


def test_at_once_without_a_thread() -> None:
    apart = BackgroundJobs()
    job = apart.start(lambda: 3)
    assert job.done and job.result() == 3
    failed = apart.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert apart.pause(1000) and apart.close()


def test_in_order_in_another_thread_and_errors_come_back() -> None:
    apart, seen = BackgroundJobs(threads=True), list[Any]()
    gate = threading.Event()
    jobs = [apart.start(gate.wait)]
    jobs += [apart.start(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(5)]
    jobs.append(apart.start(lambda: 1 // 0))
    assert not any(job.done for job in jobs)
    gate.set()
    while not jobs[-1].done:
        time.sleep(0.001)
    assert [number for number, _ in seen] == list(range(5))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    with pytest.raises(ZeroDivisionError):
        jobs[-1].result()
    assert apart.close()


def test_closing_does_not_wait_for_pauses() -> None:
    apart = BackgroundJobs(threads=True)
    job = apart.start(lambda: [apart.pause(5) for _ in range(100)])
    begin = time.monotonic()
    assert apart.close() and time.monotonic() - begin < 5
    assert not any(job.result())


def test_a_pass_touches_no_file_in_the_loops_thread(tmp_path: Path) -> None:
    """W17: a rename, a removal, a sync or a read may take longer than a heartbeat; only records are
    handed over by the loop.
    """
    config = JournalConfig(segment_bytes=64 << 10, soft_limit_bytes=0, reserve_bytes=0)
    log = Log(str(tmp_path), ("cluster", "daemon", "broker"), config, lambda: 1, Random(1))
    log.reclaimer._settle_ms = 0
    for uid in (UID, UID + 1):
        log.journal.create_group(uid, b"")
    log.journal.append(UID + 1, [(1, 1, 0, 1, 1, 0, 0, b"stays")])

    def fill(first: int, count: int) -> None:
        for index in range(first, first + count):
            log.journal.append(UID, [(index, 1, index, 1, 1, 0, 0, bytes(4000))])
            log.journal.submit()
        while log.journal.queued_bytes:
            log.poll()
            time.sleep(0.001)

    fill(1, 100)
    log.journal.start(UID, 90, 1, 90)
    fill(101, 1)
    loop, guilty = threading.get_ident(), list[str]()
    files: Any = log.files
    for name in ("move", "sync", "read", "list"):
        real = getattr(files, name)

        def watched(*args: Any, what: str = name, call: Any = real) -> Any:
            if threading.get_ident() == loop:
                guilty.append(what)
            return call(*args)

        setattr(files, name, watched)
    before = len(log.journal.segments)
    for _ in range(4):
        log.reclaimer.begin()
        while log.reclaimer.step():
            log.poll()
            time.sleep(0.001)
    assert not guilty
    assert log.reclaimer.relocated_bytes and log.reclaimer.removed_bytes
    assert len(log.journal.segments) < before - 3
    assert log.reader.entry(UID + 1, 1).payload == b"stays"
    assert log.close()
