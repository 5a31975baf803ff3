"""The log on a disk of 3 MiB that is full: nothing is lost, reading goes on, and so does the rest
as soon as there is room.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from myqueue.errors import DiskFull
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.append.reserve import FILE_NAME
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.log import Log

UID = 7


def open_log(directory: Path, **config: Any) -> Log:
    sizes = {"segment_bytes": 64 << 10, "soft_limit_bytes": 0, "reserve_bytes": 0} | config
    identity = ("cluster", "daemon", "broker")
    return Log(str(directory), identity, JournalConfig(**sizes), lambda: 1, Random(1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system: a full disk is not tested")
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def poll_until(log: Log, what: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what(log.poll()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


def test_a_full_disk_refuses_and_goes_on_by_itself(small_disk: Path) -> None:
    """W15: new records are refused with a typed error, votes go on in the reserve, nothing that was
    acknowledged is lost; with space again all goes on without a restart.
    """
    ballast = small_disk / "ballast"
    log = open_log(small_disk / "log", queue_bytes_max=128 << 10)
    uid, acknowledged, votes = 7, 0, 0
    log.journal.create_group(uid, b"")
    group = log.journal.groups.by_uid[uid]

    def take(events: list[Any]) -> bool:
        nonlocal acknowledged
        for event in events:
            assert not isinstance(event, Stopped), event
            if isinstance(event, Persisted):
                acknowledged = event.tails.get(uid, (0, acknowledged))[1]
        return acknowledged == group.last_index

    def append() -> None:
        index = group.last_index + 1
        entry = (index, 1, index, 1, 1, 0, 0, b"%d" % index * 200)
        log.journal.append(uid, [entry])
        log.journal.submit()

    for _ in range(50):
        append()
    poll_until(log, take)
    space = os.statvfs(small_disk)
    ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - (100 << 10)))
    with pytest.raises(DiskFull):
        for _ in range(10_000):
            append()
            take(log.poll())
            time.sleep(0.001)
    before = group.last_index
    assert DiskFull.retriable
    for term in range(1, 6):  # the reserve: the rest of the open segment, and the prepared one
        batch = log.journal.hard_state(uid, term, 1)
        votes = term
    log.journal.submit()
    poll_until(log, lambda events: take(events) or acknowledged >= before - 40)
    copied = acknowledged
    ballast.unlink()
    poll_until(log, take)
    poll_until(log, lambda events: take(events) and not log.journal.spares.low)
    append()
    poll_until(log, take)
    assert acknowledged == before + 1 > copied - 1
    assert batch and log.close()
    again = open_log(small_disk / "log")
    assert not again.journal.recovered.corrupt and not again.store_problem
    assert again.journal.groups.by_uid[uid].term == votes
    for index in range(1, before + 2):
        assert again.reader.entry(uid, index).payload == b"%d" % index * 200
    assert again.close()


def test_no_room_to_open_is_said(small_disk: Path) -> None:
    """W15: and nothing half made is left that would be in the way later."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((3 << 20) - (64 << 10)))
    with pytest.raises(DiskFull):
        open_log(small_disk / "log")
    ballast.unlink()
    log = open_log(small_disk / "log")
    assert log.close()


# -- a start on a full disk ------------------------------------------------------------------


def payload_of(index: int) -> bytes:
    return b"%d" % index * 200


def append(log: Log, count: int) -> None:
    first = log.journal.groups.by_uid[UID].last_index + 1
    for at in range(first, first + count):
        batch = log.journal.append(UID, [(at, 1, at, 1, 1, 0, 0, payload_of(at))])
        log.journal.submit()
    poll_until(log, lambda events: any(persisted(event, batch) for event in events))


def fill(disk: Path) -> Path:
    """To the last byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            assert os.statvfs(disk).f_bavail == 0
    return ballast


def check_all_readable(log: Log, last: int) -> None:
    for index in range(1, last + 1):
        assert log.reader.entry(UID, index).payload == payload_of(index)
        assert log.reader.entry_at_offset(UID, index).record.index == index


def test_a_start_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """W15: a daemon that was killed with its store behind starts, reads, keeps votes, refuses
    appends; with room again it takes them, and makes its reserve anew.
    """
    directory = small_disk / "log"
    sizes = {"soft_limit_bytes": 700 << 10, "reserve_bytes": 512 << 10}
    log = open_log(directory, **sizes)
    reserve = directory / FILE_NAME
    assert reserve.stat().st_blocks * 512 == reserve.stat().st_size == 512 << 10
    log.journal.create_group(UID, b"")
    append(log, 50)
    assert log.close()
    shutil.copy(directory / "store" / "data.mdb", tmp_path)
    log = open_log(directory, **sizes)
    append(log, 400)
    assert log.close()
    shutil.copy(tmp_path / "data.mdb", directory / "store")
    ballast = fill(small_disk)
    for starts in range(3):
        log = open_log(directory, **sizes)
        assert log.store.watermark > (1, 512) and not log.store_problem
        assert not log.journal.recovered.findings and not reserve.exists()
        check_all_readable(log, 450)
        with pytest.raises(DiskFull):
            log.journal.append(UID, [(451, 1, 451, 1, 1, 0, 0, payload_of(451))])
        batch = log.journal.hard_state(UID, 5 + starts, 1)
        log.journal.submit()
        poll_until(log, lambda events, b=batch: any(persisted(e, b) for e in events))
        assert log.close()
    ballast.unlink()
    log = open_log(directory, **sizes)
    poll_until(log, lambda _: reserve.exists() and not log.journal.spares.low)
    append(log, 1)
    check_all_readable(log, 451)
    assert log.journal.groups.by_uid[UID].term == 7
    assert log.close()


def persisted(event: Any, batch: int) -> bool:
    return isinstance(event, Persisted) and event.batch >= batch


def test_a_start_without_room_for_the_next_segment(small_disk: Path, tmp_path: Path) -> None:
    """W15: the segment was sealed, the next one was not made any more; the writer waits for it."""
    directory, sizes = small_disk / "log", {"reserve_bytes": 48 << 10}
    log = open_log(directory, **sizes)
    log.journal.create_group(UID, b"")
    append(log, 100)
    assert log.close()
    shutil.copy(directory / "store" / "data.mdb", tmp_path)
    log = open_log(directory, **sizes)
    log.journal._rotate()
    assert log.close()
    shutil.copy(tmp_path / "data.mdb", directory / "store")
    max((directory / "wal").glob("*.seg")).unlink()
    ballast = fill(small_disk)
    log = open_log(directory, **sizes)
    assert not log.journal.recovered.corrupt
    check_all_readable(log, 100)
    with pytest.raises(DiskFull):
        log.journal.append(UID, [(101, 1, 101, 1, 1, 0, 0, payload_of(101))])
    batch = log.journal.hard_state(UID, 5, 1)
    log.journal.submit()
    ballast.unlink()
    poll_until(log, lambda events: any(persisted(e, batch) for e in events))
    poll_until(log, lambda _: not log.journal.spares.low)
    append(log, 1)
    assert log.close()
    log = open_log(directory)
    assert not log.journal.recovered.findings
    check_all_readable(log, 101)
    assert log.journal.groups.by_uid[UID].term == 5
    assert log.close()


def test_a_lock_file_without_pages(small_disk: Path) -> None:
    """W15: LMDB maps it; if its pages cannot be had that is an error, not the process's end."""
    directory = small_disk / "log"
    assert open_log(directory).close()
    lock = directory / "store" / "lock.mdb"
    size = lock.stat().st_size
    lock.unlink()
    with lock.open("wb") as file:
        file.truncate(size)
    ballast = fill(small_disk)
    with pytest.raises(DiskFull):
        open_log(directory)
    ballast.unlink()
    assert open_log(directory).close()


@pytest.mark.parametrize("pages", range(6, 13))
def test_a_new_store_without_room_is_no_broken_one(small_disk: Path, pages: int) -> None:
    """W15: LMDB calls a write that was cut short an IO error; it is waited for."""
    directory = small_disk / "log"
    assert open_log(directory).close()
    shutil.rmtree(directory / "store")
    ballast = fill(small_disk)
    os.truncate(ballast, ballast.stat().st_size - pages * 4096)
    with pytest.raises(DiskFull):
        open_log(directory)
    ballast.unlink()
    assert open_log(directory).close()


def test_a_full_disk_does_not_keep_a_group_from_being_removed(small_disk: Path) -> None:
    """W15: its rows go from the store in one commit, which needs fresh pages first: the reserve is
    given for it. Else nothing could ever be reclaimed.
    """
    directory = small_disk / "log"
    log = open_log(directory, reserve_bytes=700 << 10)
    reserve = directory / FILE_NAME
    log.journal.create_group(UID, b"")
    entries = [(at, 1, at, 1, 1, 0, 0, b"small") for at in range(1, 4001)]
    batch = log.journal.append(UID, entries)
    log.journal.submit()
    poll_until(log, lambda events: any(persisted(event, batch) for event in events))
    poll_until(log, lambda _: log.index.committed >= log.journal.persisted_at)
    assert reserve.exists()
    fill(small_disk)
    batch = log.journal.remove_group(UID)
    log.journal.submit()
    poll_until(log, lambda events: any(persisted(event, batch) for event in events))
    poll_until(log, lambda _: log.index.committed >= log.journal.persisted_at)
    assert not reserve.exists() and log.index.row(UID, 1) is None
    assert log.close()
