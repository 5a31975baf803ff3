"""A forked child has a copy of an open log: it must not use it, nor keep the directory locked."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any

import pytest

from myqueue.errors import WrongProcess
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.append.writer import Persisted
from myqueue.wal.log import Log

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12

GROUP = 5
CONFIG = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)


def open_log(directory: Path) -> Log:
    return Log(str(directory), ("cluster", "daemon", "broker"), CONFIG, lambda: 1, Random(1))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path)
    log.journal.create_group(GROUP, b"topic")
    append(log, 20)
    yield log
    log.close()


def append(log: Log, count: int) -> None:
    first = log.journal.groups.by_uid[GROUP].last_index + 1
    for at in range(first, first + count):
        batch = log.journal.append(GROUP, [(at, 1, at, 1, 1, 0, 0, b"payload")])
    log.journal.submit()
    end = monotonic() + 10
    while not [one for one in log.poll() if isinstance(one, Persisted) and one.batch >= batch]:
        assert monotonic() < end
        Event().wait(0.002)


def in_child(what: Callable[[], str]) -> str:
    """What it returned, or the name of its exception."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = what()
        except BaseException as error:
            answer = type(error).__name__
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        answer = answers.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


CALLS: dict[str, Callable[[Log], Any]] = {
    "append": lambda log: log.journal.append(GROUP, [(21, 1, 21, 1, 1, 0, 0, b"payload")]),
    "hard state": lambda log: log.journal.hard_state(GROUP, 2, 1),
    "submit": lambda log: log.journal.submit(),
    "poll of the log": lambda log: log.poll(),
    "poll of the journal": lambda log: log.journal.poll(),
    "apply": lambda log: log.index.apply({GROUP: (1, {}, [])}),
    "read": lambda log: log.reader.entry(GROUP, 1),
    "read what is new": lambda log: log.reader.entry(GROUP, 20),
    "read by offset": lambda log: log.reader.entry_at_offset(GROUP, 20),
    "runs": lambda log: log.term_runs(GROUP),
    "view": lambda log: log.store.view().__enter__(),
    "commit": lambda log: log.store.commit([], 1, 512),
    "sync": lambda log: log.store.sync(),
    "close": lambda log: log.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_works_in_a_child(log: Log, tmp_path: Path, name: str) -> None:
    """L6: refused, and the parent goes on as if nothing had been."""
    assert in_child(lambda: str(CALLS[name](log))) == WrongProcess.__name__
    append(log, 5)
    assert log.reader.entry(GROUP, 25).payload == b"payload"
    assert log.close()
    again = open_log(tmp_path)
    assert not again.journal.recovered.findings and not again.store_problem
    assert again.journal.groups.by_uid[GROUP].last_index == 25
    assert again.close()


def test_a_child_may_open_a_log_of_its_own(log: Log, tmp_path: Path) -> None:
    def child() -> str:
        own = open_log(tmp_path / "own")
        own.journal.create_group(GROUP, b"")
        append(own, 10)
        entry = own.reader.entry(GROUP, 10)
        return f"{entry.record.index} {own.close()}"

    assert in_child(child) == "10 True"


def test_the_lock_goes_with_the_parent(tmp_path: Path) -> None:
    """W22: neither a close nor a kill of the owner leaves the lock with a child that lives on."""
    log = open_log(tmp_path)
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        assert log.close()
        assert open_log(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_close_unlocks_for_all(tmp_path: Path) -> None:
    """W22: a process that was not forked by the interpreter keeps the descriptor."""
    log = open_log(tmp_path)
    kept = os.dup(log._lock)
    assert log.close()
    assert open_log(tmp_path).close()
    os.close(kept)


def test_a_child_has_no_share_in_the_lock(tmp_path: Path) -> None:
    """W22: what a kill of the parent would leave to it."""
    log = open_log(tmp_path)
    lock = os.readlink(f"/proc/self/fd/{log._lock}")
    assert in_child(lambda: str(log._lock)) == "-1"
    held = in_child(lambda: str([fd for fd in os.listdir("/proc/self/fd") if link(fd) == lock]))
    assert held == str([str(log._base._directory_fd)]), "only what no lock was taken with"
    assert log.close()


def link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""
