"""What every `Files` must do, asked of the real directory and of the simulated disk alike.

The simulated disk is the ground on which the log's crash tests stand. If it answered differently
from the operating system, they would prove nothing; so every test of `FilesContract` runs on both.
What only one of them can show (short writes, a limit of open files) stands below.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from sim.disk import SimDisk

from myqueue.wal import files as files_module
from myqueue.wal.files import IOV_MAX, OPEN_FILES_MAX, Files, RealFiles, lock_directory


class FilesContract:
    """The tests; a subclass says on what."""

    def test_create_gives_zeros_of_the_full_size(self, files: Files) -> None:
        """W18."""
        files.create("a", 5000)
        assert files.list() == {"a": 5000}
        assert files.read("a", 0, 5000) == bytes(5000)

    def test_create_refuses_a_name_that_exists(self, files: Files) -> None:
        files.create("a", 512)
        files.write("a", 0, [b"kept"], True)
        with pytest.raises(OSError) as caught:
            files.create("a", 512)
        assert caught.value.errno == errno.EEXIST
        assert files.read("a", 0, 4) == b"kept"

    def test_unknown_names_are_enoent(self, files: Files) -> None:
        for call in (
            lambda: files.read("no", 0, 1),
            lambda: files.write("no", 0, [b"x"], False),
            lambda: files.write("no", 0, [b"x"], True),
            lambda: files.sync("no"),
            lambda: files.move("no", "other"),
            lambda: files.move("no", None),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.ENOENT
        assert files.list() == {}

    @pytest.mark.parametrize("sync", [False, True])
    def test_write_puts_buffers_one_after_another(self, files: Files, sync: bool) -> None:
        files.create("a", 4096)
        files.write("a", 510, [b"one", bytearray(b"two"), memoryview(b"three"), b""], sync)
        assert files.read("a", 508, 15) == b"\0\0onetwothree\0\0"
        assert files.list() == {"a": 4096}

    def test_write_of_nothing(self, files: Files) -> None:
        files.create("a", 512)
        files.write("a", 0, [], True)
        files.write("a", 0, [b""], False)
        assert files.read("a", 0, 512) == bytes(512)

    @pytest.mark.parametrize("sync", [False, True])
    @pytest.mark.parametrize("number", [IOV_MAX - 1, IOV_MAX, IOV_MAX + 1, 3 * IOV_MAX + 7])
    def test_write_of_many_buffers(self, files: Files, number: int, sync: bool) -> None:
        buffers = [b"%06d" % at for at in range(number)]
        files.create("a", 32768)
        files.write("a", 100, list(buffers), sync)
        assert files.read("a", 100, 6 * number) == b"".join(buffers)
        assert files.read("a", 100 + 6 * number, 6) == bytes(6)

    def test_write_beyond_the_end_makes_the_file_longer(self, files: Files) -> None:
        files.create("a", 512)
        files.write("a", 600, [b"xy"], True)
        assert files.list() == {"a": 602}
        assert files.read("a", 510, 100) == bytes(90) + b"xy"

    def test_read_is_short_at_the_end(self, files: Files) -> None:
        files.create("a", 512)
        assert len(files.read("a", 500, 100)) == 12
        assert files.read("a", 512, 100) == b""
        assert files.read("a", 9999, 100) == b""
        assert files.read("a", 0, 0) == b""

    def test_a_negative_position_is_einval(self, files: Files) -> None:
        files.create("a", 512)
        with pytest.raises(OSError) as caught:
            files.read("a", -1, 10)
        assert caught.value.errno == errno.EINVAL

    def test_read_gives_a_copy(self, files: Files) -> None:
        files.create("a", 512)
        before = files.read("a", 0, 4)
        files.write("a", 0, [b"next"], True)
        assert before == bytes(4)
        assert files.read("a", 0, 4) == b"next"

    def test_rename_replaces(self, files: Files) -> None:
        files.create("a", 512)
        files.create("b", 1024)
        files.write("a", 0, [b"from a"], True)
        files.write("b", 0, [b"from b"], True)
        files.move("a", "b")
        files.sync(None)
        assert files.list() == {"b": 512}
        assert files.read("b", 0, 6) == b"from a"

    def test_a_renamed_file_is_written_under_its_new_name(self, files: Files) -> None:
        files.create("a", 512)
        files.write("a", 0, [b"1"], False)
        files.sync("a")
        files.move("a", "b")
        files.write("b", 1, [b"2"], True)
        files.create("a", 600)
        assert files.read("a", 0, 2) == bytes(2)
        assert files.read("b", 0, 2) == b"12"

    def test_remove(self, files: Files) -> None:
        files.create("a", 512)
        files.move("a", None)
        assert files.list() == {}
        files.create("a", 100)
        assert files.list() == {"a": 100}

    def test_free_bytes_is_a_number(self, files: Files) -> None:
        assert files.free_bytes() > 1 << 20

    def test_reading_while_writing(self, files: Files) -> None:
        """Every reader sees whole writes that were finished before it began, at least."""
        files.create("a", 1 << 16)
        files.create("b", 1 << 16)
        problems: list[object] = []
        done: list[bool] = []

        def read() -> None:
            try:
                while not done:
                    number = files.read("a", 0, 8)
                    if files.read("b", 0, 8) < number:
                        problems.append(number)
            except OSError as error:
                problems.append(error)

        readers = [Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(200):
            files.write("b", 0, [number.to_bytes(8, "big")], False)
            files.write("a", 0, [number.to_bytes(8, "big")], False)
        done.append(True)
        for reader in readers:
            reader.join()
        assert problems == []

    def test_renaming_and_removing_under_readers(self, files: Files) -> None:
        """A name is gone when `move` returns, however many readers opened it just before."""
        problems: list[object] = []
        done: list[bool] = []

        def read() -> None:
            while not done:
                try:
                    got = files.read("a", 0, 4)
                    if got not in (b"", bytes(4), b"aaaa"):
                        problems.append(got)
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        problems.append(error)

        before = len(os.listdir("/proc/self/fd"))
        readers = [Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for number in range(200):
                files.create("a", 512)
                files.write("a", 0, [b"aaaa"], False)
                files.move("a", "b" if number % 2 else None)
                with pytest.raises(FileNotFoundError):
                    files.read("a", 0, 4)
        finally:
            done.append(True)
            for reader in readers:
                reader.join()
        assert problems == []
        assert len(os.listdir("/proc/self/fd")) <= before + 1


class TestRealFiles(FilesContract):
    @pytest.fixture
    def files(self, tmp_path: Path) -> Iterator[Files]:
        files = RealFiles(str(tmp_path / "wal"))
        yield files
        files.close()


class TestSimDisk(FilesContract):
    @pytest.fixture
    def files(self) -> Files:
        return SimDisk()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealFiles]:
    files = RealFiles(str(tmp_path / "wal"))
    yield files
    files.close()


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_short_write_is_continued(
    real: RealFiles, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The system may write less than it was asked to; what was synced is then synced as a whole."""
    calls: list[str] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def short(fd: int, buffers: list[bytes], position: int, flags: int) -> int:
        calls.append("write")
        return pwritev(fd, [b"".join(buffers)[:most]], position, flags)

    def counted(fd: int) -> None:
        calls.append("sync")
        fdatasync(fd)

    monkeypatch.setattr(files_module.os, "pwritev", short)
    monkeypatch.setattr(files_module.os, "fdatasync", counted)
    real.create("a", 4096)
    data = [bytes([at]) * at for at in range(1, 60)]
    real.write("a", 3, list(data), True)
    assert real.read("a", 3, sum(map(len, data))) == b"".join(data)
    assert calls[-1] == "sync"
    assert calls.count("sync") == 1


@pytest.mark.parametrize("number", [1, IOV_MAX + 1])
def test_a_synced_write_is_synced(
    real: RealFiles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """W1: in one call where the system can, with fdatasync otherwise; without `sync` not at all."""
    flags_seen: list[int] = []
    syncs: list[int] = []
    pwritev = os.pwritev

    def seen(fd: int, buffers: list[bytes], position: int, flags: int) -> int:
        flags_seen.append(flags)
        return pwritev(fd, buffers, position, flags)

    monkeypatch.setattr(files_module.os, "pwritev", seen)
    monkeypatch.setattr(files_module.os, "fdatasync", syncs.append)
    real.create("a", 8192)
    real.write("a", 0, [b"x"] * number, False)
    assert not any(flags_seen) and not syncs
    real.write("a", 0, [b"x"] * number, True)
    in_one_call = number <= IOV_MAX and hasattr(os, "RWF_DSYNC")
    assert (flags_seen[-1] == getattr(os, "RWF_DSYNC", 0)) == in_one_call
    assert len(syncs) == (0 if in_one_call else 1)


def test_an_error_of_the_system_passes_unchanged(
    real: RealFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: whoever called must see which error it was, and that there was one."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    real.create("a", 512)
    for name in ("pwritev", "fsync", "pread"):
        monkeypatch.setattr(files_module.os, name, broken)
    for call in (
        lambda: real.write("a", 0, [b"x"], True),
        lambda: real.sync("a"),
        lambda: real.sync(None),
        lambda: real.read("a", 0, 1),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EIO


def test_no_half_made_file_is_left_when_there_is_no_room(
    real: RealFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W15."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files_module.os, "posix_fallocate", full)
    with pytest.raises(OSError) as caught:
        real.create("a", 512)
    assert caught.value.errno == errno.ENOSPC
    assert real.list() == {}


def test_a_file_system_without_preallocation(
    real: RealFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "cannot")

    monkeypatch.setattr(files_module.os, "posix_fallocate", unable)
    real.create("a", 5000)
    assert real.read("a", 0, 5000) == bytes(5000)


def test_open_files_are_limited(real: RealFiles) -> None:
    before = len(os.listdir("/proc/self/fd"))
    names = [f"{number:03}" for number in range(OPEN_FILES_MAX + 50)]
    for name in names:
        real.create(name, 8)
        real.write(name, 0, [name.encode()], False)
    for name in names + names[::-1]:
        assert real.read(name, 0, 3) == name.encode()
    assert len(os.listdir("/proc/self/fd")) <= before + OPEN_FILES_MAX


def test_reads_of_more_files_than_may_be_open_from_many_threads(real: RealFiles) -> None:
    names = [f"{number:03}" for number in range(OPEN_FILES_MAX + 20)]
    for name in names:
        real.create(name, 8)
        real.write(name, 0, [name.encode()], False)
    problems: list[object] = []

    def read(step: int) -> None:
        for number in range(0, 1500, step):
            name = names[number * 7 % len(names)]
            if real.read(name, 0, 3) != name.encode():
                problems.append(name)

    threads = [Thread(target=read, args=(step,)) for step in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_close_gives_all_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = RealFiles(str(tmp_path / "wal"))
    for number in range(20):
        files.create(str(number), 8)
    files.close()
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_read_only_directory_is_not_made_and_not_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealFiles(str(tmp_path / "no"), read_only=True)
    (tmp_path / "a").write_bytes(b"abc")
    files = RealFiles(str(tmp_path), read_only=True)
    assert files.read("a", 1, 9) == b"bc"
    with pytest.raises(OSError):
        files.write("a", 0, [b"x"], False)
    files.close()
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_only_files_are_listed(real: RealFiles) -> None:
    os.mkdir(os.path.join(real.directory, "folder"))
    os.symlink("/etc/passwd", os.path.join(real.directory, "link"))
    real.create("a", 8)
    assert real.list() == {"a": 8}


def test_the_directory_has_one_owner(tmp_path: Path) -> None:
    """W22."""
    from myqueue.errors import DirectoryLocked

    fd = lock_directory(str(tmp_path))
    with pytest.raises(DirectoryLocked):
        lock_directory(str(tmp_path))
    os.close(fd)
    os.close(lock_directory(str(tmp_path)))
