"""An opening that fails lets go of everything that it took until then."""

import errno
import os
from pathlib import Path
from random import Random
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from myqueue.errors import DirectoryUnusable, JournalStopped, StoreBroken
from myqueue.wal import log as log_module
from myqueue.wal.append import journal as journal_module
from myqueue.wal.append import preallocate as spares_module
from myqueue.wal.append import segments as segments_module
from myqueue.wal.append import writer as writer_module
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.log import Log
from myqueue.wal.store.index import Index

CONFIG = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)


def open_log(directory: Path) -> Log:
    return Log(str(directory), ("cluster", "daemon", "broker"), CONFIG, lambda: 1, Random(1))


def failing(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def open_descriptors() -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the one that the list was read with
            continue
    return sorted(links)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (log_module, "claim"), (log_module, "Store"), (journal_module, "recover"),
        (segments_module, "Layout"), (spares_module.Spares, "check_space"),
        (writer_module, "WriterThread"), (journal_module, "SparesThread"),
        (log_module, "Index"), (log_module, "Reader"), (log_module, "Reclaimer"),
    ],
)  # fmt: skip
def test_nothing_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    assert open_log(tmp_path).close()
    descriptors, threads = open_descriptors(), enumerate_threads()
    for error in (OSError(24, "Too many open files"), KeyboardInterrupt()):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, failing(error))
            with pytest.raises((DirectoryUnusable, KeyboardInterrupt)):
                open_log(tmp_path)
        assert open_descriptors() == descriptors and enumerate_threads() == threads
    assert open_log(tmp_path).close()


def test_a_disk_that_fails_is_not_called_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: as when it fails later on; making the directory anew would be the wrong advice."""
    monkeypatch.setattr(
        journal_module, "recover", failing(OSError(errno.EIO, "Input/output error"))
    )
    with pytest.raises(JournalStopped, match="Input/output error") as caught:
        open_log(tmp_path)
    assert "disk" in caught.value.hint


def test_a_second_try_finds_no_writer_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is found broken when the journal is open already: all is opened once more."""
    assert open_log(tmp_path).close()
    writers: list[int] = []

    def index(store: Any, *rest: Any) -> Index:
        writers.append([one.name for one in enumerate_threads()].count("wal-writer"))
        if len(writers) == 1:
            raise StoreBroken("found out late")
        return Index(store, *rest)

    monkeypatch.setattr(log_module, "Index", index)
    log = open_log(tmp_path)
    assert writers == [1, 1] and log.store_problem == "found out late"
    log.journal.create_group(5, b"")
    assert log.close()
    log = open_log(tmp_path)
    assert list(log.journal.groups.by_uid) == [5] and not log.store_problem
    assert log.close()
