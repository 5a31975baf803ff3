"""A log that was taken away while its store stayed: the next one begins behind it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest
from support import wal_logs

from myqueue.errors import JournalStopped
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.append.writer import Persisted
from myqueue.wal.files import RealFiles
from myqueue.wal.log import Log
from myqueue.wal.recover.recovery import recover
from myqueue.wal.store.store import Store

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


def test_r2_the_newest_segment_is_gone_and_a_start_was_killed(tmp_path: Path) -> None:
    """Votes of the segment before must not be read once more, as if they were newer than the doubt
    that is in the store.
    """
    directory = tmp_path / "data"
    log = open_log(directory)
    log.journal.create_group(OLD, b"old")
    for term in range(1, 21):
        log.journal.hard_state(OLD, term, 7)
        write(log, OLD, 15)
    newest, owner = log.journal.end[0], log.identity.owner
    assert log.close()
    for number in (newest, newest + 1):  # the next one was not prepared yet
        for lost in directory.glob(f"wal/{number:012}-*.seg"):
            lost.unlink()
    store, files = Store(str(directory / "store")), RealFiles(str(directory / "wal"))
    assert store.watermark[0] == newest > 2
    numbers = []
    for _ in range(3):  # each is killed when it has made sure of what it found
        with store.view() as view:
            found = recover(files, view.groups(), store.watermark, store.commit, owner=owner)
        group = found.groups.by_uid[OLD]
        assert group.doubtful and (group.term, group.last_index) == (20, 300)
        numbers.append(found.next_number)
    assert numbers == [newest + 1, newest + 2, newest + 3]
    files.close()
    store.close()
    log = open_log(directory)
    log.journal.remove_group(OLD)
    log.journal.create_group(NEW, b"new")
    write(log, NEW, 3)
    assert log.close()
    log = open_log(directory)
    assert log.journal.recovered.findings == [] and set(log.journal.groups.by_uid) == {NEW}
    assert not log.journal.groups.by_uid[NEW].doubtful and log.close()
    found, _ = wal_logs.check(directory / "wal")
    assert not [one for one in found if "flush number" in one.what], found


def test_r2_the_log_is_set_back_and_goes_on_behind_what_the_store_knows(tmp_path: Path) -> None:
    """A volume that was rolled back: what is written below the watermark, in a segment that was
    prepared when that copy was made, would never be read again.
    """
    directory, before = tmp_path / "data", tmp_path / "before"
    log = open_log(directory)
    log.journal.create_group(OLD, b"old")
    write(log, OLD, 150)
    old = log.journal.end[0]
    wait_for_spare(directory, old + 1)
    shutil.copytree(directory / "wal", before)
    write(log, OLD, 300)
    reached = log.journal.end[0]
    assert reached > old + 2 and log.close()
    shutil.rmtree(directory / "wal")
    shutil.copytree(before, directory / "wal")
    log = open_log(directory)
    assert log.journal.recovered.unknown_loss and log.journal.groups.by_uid[OLD].doubtful
    assert log.journal.end[0] > reached
    log.journal.create_group(NEW, b"new")
    write(log, NEW, 3)
    shutil.copytree(directory, tmp_path / "killed")
    assert log.close()
    again = open_log(tmp_path / "killed")
    assert again.journal.groups.by_uid[NEW].last_index == 3
    assert not again.journal.groups.by_uid[NEW].doubtful and again.close()


def wait_for_spare(directory: Path, number: int) -> None:
    end = monotonic() + 10
    while not list(directory.glob(f"wal/{number:012}-*.seg")):
        assert monotonic() < end
        sleep(0.002)


def test_r2_that_any_group_may_be_lost_is_known_until_its_owner_is_sure(gone: Path) -> None:
    """The next start does not see the hole again, and would make a group that was in it once more,
    under its old name, without the votes that it gave.
    """
    for start in range(3):
        log = open_log(gone)
        assert log.journal.recovered.unknown_loss
        log.journal.create_group(NEW + start, b"another")
        write(log, NEW + start, 3)
        assert not log.journal.groups.by_uid[NEW + start].doubtful
        assert log.close()
    log = open_log(gone)
    log.clear_unknown_loss()
    assert log.close()
    log = open_log(gone)
    assert not log.journal.recovered.unknown_loss and log.journal.recovered.findings == []
    assert log.close()


def test_r2_doubt_outlives_the_store(tmp_path: Path) -> None:
    """The newest segment is lost; then the store is, which knew what that meant. By itself the rest
    of the log looks whole, and its last vote as if it were the newest.
    """
    directory = tmp_path / "data"
    log = open_log(directory)
    log.journal.create_group(OLD, b"old")
    for term in range(1, 21):
        log.journal.hard_state(OLD, term, 7)
        write(log, OLD, 15)
    newest = log.journal.end[0]
    assert log.close()
    for number in (newest, newest + 1):
        for lost in directory.glob(f"wal/{number:012}-*.seg"):
            lost.unlink()
    for _ in range(3):
        log = open_log(directory)
        group = log.journal.groups.by_uid[OLD]
        assert log.journal.recovered.unknown_loss and group.doubtful and group.incomplete
        assert log.close()
        shutil.rmtree(directory / "store")  # as the hint of StoreBroken says
    log = open_log(directory)
    log.journal.remove_group(OLD)
    log.journal.create_group(NEW, b"new")
    write(log, NEW, 3)
    log.clear_unknown_loss()
    assert log.close()
    shutil.rmtree(directory / "store")
    log = open_log(directory)
    assert not log.journal.recovered.unknown_loss and not log.journal.groups.by_uid[NEW].doubtful
    assert log.close()


def test_a_folder_that_is_removed_while_the_store_commits_stops_the_log(tmp_path: Path) -> None:
    """The thread of the store may notice it first; the log says what happened, and closes."""
    directory = tmp_path / "data"
    log = open_log(directory)
    log.journal.create_group(NEW, b"new")
    write(log, NEW, 3)
    shutil.rmtree(directory)
    with pytest.raises(JournalStopped, match="the data folder was removed"):
        write(log, NEW, 50)
        until(log, lambda _: False)
    assert log.close()
