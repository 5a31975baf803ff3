"""A log that was taken away while its store stayed: the next one begins behind it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from myqueue.wal.journal import JournalConfig
from myqueue.wal.log import Log
from myqueue.wal.writer import Persisted

OLD, NEW = 5, 6


def open_log(directory: Path) -> Log:
    config = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)
    return Log(str(directory), ("cluster", "daemon", "broker"), config, lambda: 1, Random(1))


def until(log: Log, what: Callable[[Persisted], bool]) -> None:
    end = monotonic() + 10
    while not any(what(one) for one in log.poll() if isinstance(one, Persisted)):
        assert monotonic() < end
        sleep(0.002)


def write(log: Log, group: int, entries: int) -> None:
    first = log.journal.groups.by_uid[group].last_index + 1
    for index in range(first, first + entries):
        batch = log.journal.append(group, [(index, 1, index, 1, 1, 0, 1, bytes(200))])
    log.journal.submit()
    until(log, lambda event: event.batch >= batch)


@pytest.fixture
def gone(tmp_path: Path) -> Path:
    """A directory of which only the store is left, far in the log of which it knows."""
    directory = tmp_path / "data"
    log = open_log(directory)
    log.journal.create_group(OLD, b"old")
    write(log, OLD, 300)
    assert log.close()
    shutil.rmtree(directory / "wal")
    (directory / "begun").unlink()
    return directory


def judge(directory: Path) -> Log:
    """What the old log had stays in doubt, and what is new never is."""
    log = open_log(directory)
    old, new = (log.journal.groups.by_uid[group] for group in (OLD, NEW))
    assert log.journal.recovered.findings == []
    assert old.doubtful and not new.doubtful and not new.incomplete
    assert new.last_index == 3 and log.reader.entry(NEW, 3).payload == bytes(200)
    return log


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_new_log_is_believed(gone: Path, tmp_path: Path, how: str) -> None:
    """R2, W5: what it holds is short of the place that the store knew of the old one, and whole."""
    log = open_log(gone)
    assert log.journal.recovered.unknown_loss and log.journal.groups.by_uid[OLD].doubtful
    log.journal.create_group(NEW, b"new")
    write(log, NEW, 3)
    if how == "killed":
        shutil.copytree(gone, tmp_path / "killed")
        gone = tmp_path / "killed"
    assert log.close()
    again = judge(gone)
    write(again, NEW, 100)
    assert again.close()


def test_a_start_that_was_killed_before_it_made_a_segment(gone: Path, tmp_path: Path) -> None:
    """R2: the doubt is in the store by then, and the next log begins behind all that it knows."""
    killed = tmp_path / "killed"
    log = open_log(gone)
    number = log.journal.end[0]
    shutil.copytree(gone, killed)
    assert log.close()
    shutil.rmtree(killed / "wal")
    (killed / "begun").unlink()
    log = open_log(killed)
    assert log.journal.end[0] == number + 1
    log.journal.create_group(NEW, b"new")
    write(log, NEW, 3)
    assert log.close()
    assert judge(killed).close()
