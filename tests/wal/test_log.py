"""A whole log on real files: closed and opened, killed and opened, and whom it lets in."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any

import pytest

from myqueue.errors import (
    DirectoryLocked,
    DirectoryUnusable,
    EntryMissing,
    IdentityMismatch,
    StoreBroken,
)
from myqueue.wal import log as log_module
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.log import Log
from myqueue.wal.store.store import Store

IDENTITY = ("cluster", "daemon", "broker")
GROUP = 5


def open_log(directory: Path, identity: tuple[str, str, str] = IDENTITY, seed: int = 1) -> Log:
    config = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)
    return Log(str(directory), identity, config, lambda: 1, Random(seed))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(directory: Path) -> Iterator[Log]:
    log = open_log(directory)
    log.journal.create_group(GROUP, b"topic")
    yield log
    log.close()


def payload_of(index: int) -> bytes:
    return Random(index).randbytes(index * 7 % 300)


def append(log: Log, entries: int) -> None:
    """And wait until all of it is on disk."""
    group = log.journal.groups.by_uid[GROUP]
    for _ in range(entries):
        index = group.last_index + 1
        entry = (index, 1, 2 * index, 2, 1, 0, index, payload_of(index))
        batch = log.journal.append(GROUP, [entry])
    log.journal.submit()
    wait_for(log, lambda event: isinstance(event, Persisted) and event.batch >= batch)


def wait_for(log: Log, what: Any) -> None:
    end = monotonic() + 10
    while not [event for event in log.poll() if what(event)]:
        assert monotonic() < end
        Event().wait(0.002)


def check(log: Log, first: int, last: int) -> None:
    for index in range(first, last + 1):
        entry = log.reader.entry(GROUP, index)
        assert (entry.payload, entry.record.offset) == (payload_of(index), 2 * index)
        assert log.reader.entry_at_offset(GROUP, 2 * index + 1).record.index == index
    for index in (first - 1, last + 1):
        with pytest.raises(EntryMissing):
            log.reader.entry(GROUP, index)


def copy_of(directory: Path, copy: Path) -> None:
    """As of one moment: none if the log made or renamed a file meanwhile."""
    while True:
        try:
            names = sorted(os.listdir(directory / "wal"))
            shutil.copytree(directory, copy)
            if names == sorted(os.listdir(directory / "wal")):
                return
        except shutil.Error:
            pass
        shutil.rmtree(copy)


def dump(log: Log) -> list[Any]:
    with log.store.view() as view:
        return list(view.dump())


def all_committed(log: Log) -> None:
    target, end = log.index.added, monotonic() + 10
    log.index.add([], *target, sync=True)
    while log.index.durable < target or log.index.committed < target:
        assert monotonic() < end
        log.poll()
        Event().wait(0.002)


# -- opening again ---------------------------------------------------------------------------


def test_after_a_clean_close(log: Log, directory: Path) -> None:
    append(log, 200)
    check(log, 1, 200)
    assert log.close()
    again = open_log(directory)
    assert again.journal.recovered.findings == [] and again.store_problem == ""
    assert again.journal.recovered.records < 100, "the store's watermark saves the reading"
    check(again, 1, 200)
    append(again, 10)
    check(again, 1, 210)
    assert again.close()


def test_without_a_close(log: Log, directory: Path, tmp_path: Path) -> None:
    """W1: a copy of the directory at some moment is what a kill leaves."""
    for copies in range(8):
        append(log, 30)
        copy = tmp_path / f"copy-{copies}"
        copy_of(directory, copy)
        again = open_log(copy)
        assert not again.journal.recovered.corrupt
        check(again, 1, 30 * (copies + 1))
        append(again, 5)
        check(again, 1, 30 * (copies + 1) + 5)
        assert again.close()


def test_without_the_store(log: Log, directory: Path) -> None:
    """L1, L11: the store is rebuilt with the same content."""
    append(log, 200)
    log.journal.hard_state(GROUP, 3, 2)
    log.journal.truncate(GROUP, 190, 1, 2 * 190, 189)
    append(log, 5)
    all_committed(log)
    before = dump(log)
    assert log.close()
    shutil.rmtree(directory / "store")
    again = open_log(directory)
    all_committed(again)
    assert dump(again) == before
    check(again, 1, 194)
    assert again.close()


@pytest.mark.parametrize("size", [0, 1, 4096, 8192, 20_000])
def test_a_store_that_was_cut_is_rebuilt(log: Log, directory: Path, size: int) -> None:
    """A file that is shorter than LMDB believes would end the process (SIGBUS)."""
    append(log, 200)
    assert log.close()
    os.truncate(directory / "store" / "data.mdb", size)
    again = open_log(directory)
    assert again.store_problem or size == 0
    check(again, 1, 200)
    assert again.close()


def test_a_rebuild_that_was_interrupted_begins_anew(log: Log, directory: Path) -> None:
    append(log, 200)
    assert log.close()
    shutil.rmtree(directory / "store")
    (directory / "store").mkdir()
    half = Store(str(directory / "store"))
    rows = [(GROUP, 7, 9, 600, 1, 1, 1, 1, 1, 1), (GROUP, 900, 9, 600, 1, 1, 1, 1, 1, 1)]
    half.commit([rows], 0, 0)
    half.close()
    again = open_log(directory)
    check(again, 1, 200)
    assert again.close()


def test_a_store_that_breaks_during_recovery_is_rebuilt(
    log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, 50)
    assert log.close()
    commit, failed = Store.commit, []

    def breaks_once(self: Store, *args: Any) -> None:
        if not failed:
            failed.append(1)
            raise StoreBroken("a page is gone")
        commit(self, *args)

    monkeypatch.setattr(Store, "commit", breaks_once)
    again = open_log(directory)
    assert again.store_problem == "a page is gone"
    check(again, 1, 50)
    assert again.close()


def test_a_row_that_cannot_be_read_is_met_by_one_process_only(log: Log, directory: Path) -> None:
    """L10: a daemon that ends in order because of it would meet it again, with every start."""
    append(log, 50)
    assert log.close()
    log = open_log(directory)
    tables, key = log.store._tables, GROUP.to_bytes(8, "big") + (7).to_bytes(8, "big")
    with log.store._env.begin(write=True, db=tables["index"]) as txn:
        row = bytearray(txn.get(key))
        row[0] ^= 1
        txn.put(key, bytes(row))
    with pytest.raises(StoreBroken):
        log.index.row(GROUP, 7)
    assert log.close()
    again = open_log(directory)
    assert again.store_problem
    check(again, 1, 50)
    assert again.close()
    assert open_log(directory).close()


def test_leftovers_are_removed(log: Log, directory: Path) -> None:
    append(log, 50)
    assert log.close()
    left = ["000000000099-00000000000000aa.seg.new", "000000000001-00000000000000bb.seg.trash"]
    for name in left:
        (directory / "wal" / name).write_bytes(b"x" * 100)
    (directory / "wal" / "notes.txt").write_text("not ours")
    again = open_log(directory)
    names = os.listdir(directory / "wal")
    assert not set(left) & set(names) and "notes.txt" in names
    check(again, 1, 50)
    assert again.close()


# -- who may ---------------------------------------------------------------------------------

OPEN = """
import sys
from random import Random
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.log import Log
config = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)
try:
    Log(sys.argv[1], ("cluster", "daemon", "broker"), config, lambda: 1, Random(1)).close()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}; {getattr(error, 'hint', '')}")
"""


def opened_elsewhere(directory: Path) -> str:
    command = [sys.executable, "-P", "-c", OPEN, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip()


def test_one_owner_at_a_time(log: Log, directory: Path) -> None:
    """W22: refused in this process and in another one, before anything is read or changed."""
    append(log, 10)
    with pytest.raises(DirectoryLocked):
        open_log(directory)
    assert opened_elsewhere(directory).startswith("DirectoryLocked")
    append(log, 10)
    assert log.close()
    assert opened_elsewhere(directory) == ""
    again = open_log(directory)
    check(again, 1, 20)
    assert again.close()


def test_a_close_that_the_disk_delays_keeps_the_lock(
    log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W22: a thread may still be writing."""
    with monkeypatch.context() as patch:
        patch.setattr(log.journal, "close", lambda: False)
        assert not log.close()
    with pytest.raises(DirectoryLocked):
        open_log(directory)


@pytest.mark.parametrize("at", range(3))
def test_the_directory_of_another_daemon(log: Log, directory: Path, at: int) -> None:
    """W7."""
    append(log, 10)
    assert log.close()
    theirs = tuple("other" if at == i else word for i, word in enumerate(IDENTITY))
    with pytest.raises(IdentityMismatch):
        open_log(directory, theirs)  # type: ignore[arg-type]
    again = open_log(directory)
    check(again, 1, 10)
    assert again.close()


def test_segments_of_another_disk(log: Log, directory: Path, tmp_path: Path) -> None:
    """W7: the identity file is right, the segments were another directory's."""
    append(log, 10)
    assert log.close()
    other = tmp_path / "other"
    assert open_log(other, seed=2).close()
    shutil.rmtree(other / "wal")
    shutil.copytree(directory / "wal", other / "wal")
    for _ in range(2):  # the first refusal let go of everything
        with pytest.raises(IdentityMismatch):
            open_log(other)
    os.unlink(directory / "identity")
    with pytest.raises(IdentityMismatch):
        open_log(directory, seed=9)


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """The error names the path and says what to do."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DirectoryUnusable, match="file") as caught:
            open_log(path)
        assert "chown" in caught.value.hint


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_of_another_user() -> None:
    """Not below tmp_path, which other users cannot enter."""
    directory = Path("/tmp") / f"myqueue-test-{os.getpid()}"
    assert open_log(directory).close()
    try:
        said = told_by_another_user(directory)
    finally:
        shutil.rmtree(directory)
    assert said.startswith("DirectoryUnusable") and str(directory) in said and "chown" in said


def told_by_another_user(directory: Path) -> str:
    """A fork, since another user may not be able to start this interpreter."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65534)
        try:
            open_log(directory)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}; {getattr(error, 'hint', '')}"
            os.write(writable, text.encode())
        os._exit(0)
    os.close(writable)
    with open(readable) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_failed_open_lets_go(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "Index", None)
        with pytest.raises(TypeError):
            open_log(directory)
    log = open_log(directory)
    assert log.close()


def test_an_error_of_the_store_loses_no_event(log: Log) -> None:
    """Poll raises before it takes events from the journal, so none is lost."""
    append(log, 5)
    log.index.error = StoreBroken("x")
    batch = log.journal.append(GROUP, [(6, 1, 12, 2, 1, 0, 6, payload_of(6))])
    log.journal.submit()
    for _ in range(20):
        with pytest.raises(StoreBroken):
            log.poll()
        Event().wait(0.005)
    log.index.error = None
    wait_for(log, lambda event: isinstance(event, Persisted) and event.batch >= batch)


def test_nothing_is_acknowledged_behind_a_failure(log: Log) -> None:
    """W3: another thread met the failure, and a flush that was under way succeeded after it."""
    append(log, 3)
    persisted = log.journal.persisted_at
    log.journal.writer.fail(OSError(5, "preparing a segment"))
    log.journal._emit(Persisted(99, {GROUP: (1, 4)}, [], 9, 999, 10, 0.1))
    assert [type(event) for event in log.poll()] == [Stopped]
    assert log.poll() == [] and log.journal.persisted_at == persisted
