"""The loop's two threads: a write that stalls costs its thread the loop, and never the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event, Thread, get_ident

import pytest

from myqueue.daemons.network.stand_in import TAKE_OVER_S, LoopThreads
from myqueue.wal.append.journal import Journal
from myqueue.wal.append.writer import Persisted
from myqueue.wal.config import JournalConfig
from myqueue.wal.files import Buffer, RealFiles
from myqueue.wal.groups import Groups
from myqueue.wal.recover.recovery import recover

WAIT_S = 20.0  # for what comes at once
OWNER, UID = bytes(16), 0xABC


def in_thread(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_loop_without_writes_runs_in_the_callers_thread() -> None:
    ran: list[int] = []

    def turns() -> bool:
        ran.append(get_ident())
        return True

    LoopThreads(turns).run()
    assert ran == [get_ident()]
    assert "loop-stand-in" not in [one.name for one in threading.enumerate()]


def test_a_quick_write_keeps_the_role() -> None:
    threads = LoopThreads(lambda: all(threads.write(lambda: None) for _ in range(1000)))
    threads.run()
    assert threads.taken_over == 0


def test_w17_while_a_write_stalls_the_other_thread_runs_the_loop() -> None:
    release, stood_in = Event(), Event()
    ran: list[int] = []
    results: list[bool] = []

    def turns() -> bool:
        ran.append(get_ident())
        if len(ran) > 1:
            stood_in.set()
            assert release.wait(WAIT_S)
            return True
        results.append(threads.write(lambda: _check(stood_in.wait(WAIT_S))))
        release.set()
        return results[0]

    threads = LoopThreads(turns)
    threads.run()
    assert results == [False] and threads.taken_over == 1
    assert ran[0] == get_ident() != ran[1]


def _check(value: object) -> None:
    assert value


def test_the_role_comes_back_when_the_other_threads_write_stalls() -> None:
    ran: list[int] = []
    stalls = [Event(), Event()]

    def turns() -> bool:
        turn = len(ran)
        ran.append(get_ident())
        if turn:
            stalls[turn - 1].set()  # the write before this one returns
        if turn == 2:
            return True
        kept = threads.write(lambda: _check(stalls[turn].wait(WAIT_S)))
        assert not kept
        return False

    threads = LoopThreads(turns)
    threads.run()
    assert threads.taken_over == 2 and ran[0] == ran[2] == get_ident() != ran[1]


@pytest.mark.parametrize("in_other_thread", [False, True])
def test_an_error_of_the_loop_reaches_the_caller(in_other_thread: bool) -> None:
    raised = Event()
    ran: list[int] = []

    def turns() -> bool:
        ran.append(1)
        if in_other_thread and len(ran) == 1:
            return threads.write(lambda: _check(raised.wait(WAIT_S)))
        raised.set()
        raise RuntimeError("a defect")

    threads = LoopThreads(turns)
    with pytest.raises(RuntimeError, match="a defect"):
        threads.run()
    assert len(ran) == 1 + in_other_thread


def test_the_stand_in_sleeps_without_writes_and_wakes_for_the_next_stall() -> None:
    asleep, taken = Event(), Event()

    def turns() -> bool:
        if asleep.is_set():
            taken.set()
            return True
        while not threads._is_asleep:  # a second without a write
            asleep.wait(TAKE_OVER_S)
        asleep.set()
        return threads.write(lambda: _check(taken.wait(WAIT_S)))

    threads = LoopThreads(turns)
    threads.run()
    assert threads.taken_over == 1


class SlowFiles(RealFiles):
    """A disk whose first write after `stall` waits for `release`."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.stall, self.stalled, self.release = Event(), Event(), Event()
        self.writers: list[str] = []

    def write(self, name: str, position: int, buffers: list[Buffer], sync: bool) -> None:
        if sync and self.stall.is_set():
            self.stall.clear()
            self.stalled.set()
            assert self.release.wait(WAIT_S)
        if sync:
            self.writers.append(threading.current_thread().name)
        super().write(name, position, buffers, sync)


def test_w17_records_of_the_next_turns_wait_for_the_stalled_write_and_keep_their_order(
    tmp_path: Path,
) -> None:
    files = SlowFiles(str(tmp_path))
    config = JournalConfig(segment_bytes=1 << 20, soft_limit_bytes=0, reserve_bytes=0)
    journal = Journal.open(files, OWNER, config, lambda: 1, Random(1))
    journal.create_group(UID, b"group")
    journal.submit()
    journal.may_hold = True
    journal.writer._small_flushes_s.extend([1e-9] * 8)  # a fast disk, however busy the machine is
    reported: list[int] = []
    appended = 0

    def append() -> None:
        nonlocal appended
        appended += 1
        journal.append(UID, [(appended, 1, appended - 1, 1, 1, 0, 0, b"x" * 100)])
        journal.submit()

    def persisted() -> None:
        for event in journal.poll():
            if isinstance(event, Persisted) and UID in event.tails:
                reported.append(event.tails[UID][1])

    def turns() -> bool:
        journal.change_thread()
        if files.stalled.is_set():  # in the other thread, while the first one is stuck
            for _ in range(3):
                append()
                assert not journal.has_held
                persisted()
            assert reported == [1]
            files.release.set()
            while reported[-1] < 5:
                persisted()
            return True
        while journal.queued_bytes:
            persisted()
        append()
        assert journal.has_held and threads.write(journal.write_held)
        persisted()
        files.stall.set()
        append()
        assert journal.has_held
        assert not threads.write(journal.write_held)
        return False

    threads = LoopThreads(turns)
    threads.run()
    assert reported[-1] == 5 and reported == sorted(reported)
    assert "MainThread" in files.writers and "wal-writer" in files.writers
    journal.change_thread()
    assert journal.close()
    found = recover(files, Groups(), (0, 0), lambda ops, segment, position: None, owner=OWNER)
    assert found.groups.by_uid[UID].last_index == 5
    journal.close_signal()
    files.close()
