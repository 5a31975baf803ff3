"""The interface to the operating system: seven calls, and the only code of the project that syncs.

`Files` is what the log needs of a directory. `RealFiles` does it with system calls; the simulated
disk of the tests does it in memory and loses what was not synced. One conformance kit
(`tests/seams`) runs on both, so that the simulated disk behaves like a real one.

Durability: bytes are durable after `write(..., sync=True)` or `sync(name)` returned; a name is
durable after `sync(None)` returned. An `OSError` passes through unchanged. After ENOSPC the caller
may try again. After any other error of `write` or `sync` it must stop for good, because a second
sync that succeeds proves nothing about the pages of the first.
"""

from __future__ import annotations

import errno
import fcntl
import os
from threading import Lock
from typing import Protocol

from myqueue.errors import DirectoryLocked

# Errors of a machine that is short of a resource. They say nothing about the file; try again later.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Buffer = bytes | bytearray | memoryview
IOV_MAX = 1024
OPEN_FILES_MAX = 256
_DSYNC = getattr(os, "RWF_DSYNC", 0)


class Files(Protocol):
    """One directory. Safe to call from several threads, except that a name has one writer."""

    def create(self, name: str, size: int) -> None:
        """Make a file of `size` zero bytes with allocated blocks. Its name is not durable yet."""

    def write(self, name: str, position: int, buffers: list[Buffer], sync: bool) -> None:
        """Write the buffers one after another from `position`; with `sync`, durably."""

    def sync(self, name: str | None) -> None:
        """Make a file's bytes durable, or (None) the directory's names."""

    def read(self, name: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer at the end of the file."""

    def move(self, name: str, to: str | None) -> None:
        """Rename, replacing `to`; or remove (None). Not durable before `sync(None)`."""

    def list(self) -> dict[str, int]:
        """Return names and sizes of the files."""

    def free_bytes(self) -> int:
        """Return the space that a writer without privileges may still take."""


class _OpenFile:
    """An open file and the number of calls that use it now: it is closed only at zero."""

    __slots__ = ("fd", "users", "closing")

    def __init__(self, fd: int) -> None:
        self.fd, self.users, self.closing = fd, 0, False


class RealFiles:
    """`Files` in a real directory; each method does what `Files` says."""

    def __init__(
        self, directory: str, read_only: bool = False, open_max: int = OPEN_FILES_MAX
    ) -> None:
        """Open the directory; without `read_only`, make it if it does not exist.

        A reader of another process's log takes a small `open_max`: an open file keeps its blocks
        when its owner removes it.
        """
        self.directory = directory
        self._open_max = open_max
        self._flags = os.O_RDONLY if read_only else os.O_RDWR
        self._open: dict[str, _OpenFile] = {}
        self._lock = Lock()
        if not read_only:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def is_there(self) -> bool:
        """False if the directory was removed. Writes then still succeed, but are lost."""
        return os.fstat(self._directory_fd).st_nlink > 0

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _acquire(self, name: str) -> _OpenFile:
        with self._lock:
            entry = self._open.get(name)
            if entry is None:
                entry = self._keep(name, os.open(self._path(name), self._flags | os.O_CLOEXEC))
            entry.users += 1
            return entry

    def _keep(self, name: str, fd: int) -> _OpenFile:
        if len(self._open) >= self._open_max:
            self._close_oldest()
        entry = self._open[name] = _OpenFile(fd)
        return entry

    def _release(self, entry: _OpenFile) -> None:
        with self._lock:
            entry.users -= 1
            if entry.closing and not entry.users:
                os.close(entry.fd)

    def _close_oldest(self) -> None:
        """Close the file that was opened longest ago and is not in use (dicts keep order)."""
        name = next((n for n, entry in self._open.items() if not entry.users), None)
        if name is not None:
            os.close(self._open.pop(name).fd)

    def _forget(self, name: str) -> None:
        """Close a file, or let its last user close it."""
        with self._lock:
            entry = self._open.pop(name, None)
            if entry is not None and entry.users:
                entry.closing = True
            elif entry is not None:
                os.close(entry.fd)

    def create(self, name: str, size: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(self._path(name), flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                os.unlink(self._path(name))
                raise
            fd = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(fd, size)
        with self._lock:
            if name in self._open:  # a reader has opened it already
                os.close(fd)
            else:
                self._keep(name, fd)

    def write(self, name: str, position: int, buffers: list[Buffer], sync: bool) -> None:
        entry = self._acquire(name)
        try:
            _write_all(entry.fd, position, buffers, sync)
        finally:
            self._release(entry)

    def sync(self, name: str | None) -> None:
        if name is None:
            os.fsync(self._directory_fd)
            return
        entry = self._acquire(name)
        try:
            os.fsync(entry.fd)
        finally:
            self._release(entry)

    def read(self, name: str, position: int, length: int) -> bytes:
        entry = self._acquire(name)
        try:
            data = os.pread(entry.fd, length, position)
            while 0 < len(data) < length:  # one call reads at most 2 GiB, or until a signal
                more = os.pread(entry.fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._release(entry)

    def move(self, name: str, to: str | None) -> None:
        """Rename or remove. Open files are closed last: until then a reader may open the name."""
        if to is None:
            os.unlink(self._path(name))
        else:
            os.rename(self._path(name), self._path(to))
            self._forget(to)
        self._forget(name)

    def list(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                try:
                    if entry.is_file(follow_symlinks=False):
                        sizes[entry.name] = entry.stat().st_size
                except FileNotFoundError:  # removed since the directory was read
                    continue
        return sizes

    def free_bytes(self) -> int:
        space = os.statvfs(self._directory_fd)
        return space.f_bavail * space.f_frsize

    def close(self) -> None:
        """Close all files and the directory."""
        for name in list(self._open):
            self._forget(name)
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1


def _write_all(fd: int, position: int, buffers: list[Buffer], sync: bool) -> None:
    """Write by one `pwritev` with RWF_DSYNC if possible, else by several and an fdatasync."""
    views, total = buffers, sum(map(len, buffers))
    one_call = len(buffers) <= IOV_MAX and _DSYNC != 0
    written = 0
    while written < total:
        flags = _DSYNC if sync and one_call and written == 0 else 0
        written += os.pwritev(fd, views[:IOV_MAX], position + written, flags)
        if written < total:
            views, one_call = _after(buffers, written), False
    if sync and not one_call:
        os.fdatasync(fd)


def _after(buffers: list[Buffer], written: int) -> list[Buffer]:
    """Return the buffers without their first `written` bytes."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []


def replace_file(files: Files, name: str, raw: bytes, part: str = ".new") -> None:
    """Write a small file as a whole, durably: a crash leaves the old one or this one."""
    temporary = name + part
    if temporary in files.list():
        files.move(temporary, None)
    files.create(temporary, len(raw))
    files.write(temporary, 0, [raw], False)
    files.sync(temporary)
    files.move(temporary, name)
    files.sync(None)


def lock_directory(directory: str) -> int:
    """Lock the directory until `unlock_directory`, or until the process ends; return a descriptor.

    DirectoryLocked if another process has it.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise DirectoryLocked(f"{directory} is in use by another process") from None
    return fd


def unlock_directory(fd: int) -> None:
    """Release the lock. Closing alone would not: a forked child may have the descriptor, too."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
