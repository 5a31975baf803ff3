"""The seam to the operating system: seven calls, and the only place of the project that syncs.

`Files` says what the log needs of a directory; `RealFiles` does it with system calls; the simulated
disk of the tests does it in memory and loses what was not synced. One conformance kit
(`tests/seams`) runs on both, so that the simulated one cannot lie.

Durability, once: bytes are durable after `write(..., sync=True)` or `sync(name)` returned; a name
is durable after `sync(None)` returned. An `OSError` passes through unchanged: ENOSPC may be tried
again, any other error of `write` or `sync` must stop the caller for good (a second sync that
succeeds proves nothing about the first one's pages).
"""

from __future__ import annotations

import errno
import fcntl
import os
from threading import Lock
from typing import Protocol

from myqueue.errors import DirectoryLocked

# Errors of a machine that is short of something, not of a file: nothing is known of the file, and
# what was tried is tried again.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Buffer = bytes | bytearray | memoryview
IOV_MAX = 1024
OPEN_FILES_MAX = 256
_DSYNC = getattr(os, "RWF_DSYNC", 0)


class Files(Protocol):
    """One directory. Safe to call from several threads, except that a name has one writer."""

    def create(self, name: str, size: int) -> None:
        """A new file of `size` zero bytes, its blocks allocated. The name is not durable yet."""

    def write(self, name: str, position: int, buffers: list[Buffer], sync: bool) -> None:
        """Write the buffers one after another from `position`; with `sync`, durably."""

    def sync(self, name: str | None) -> None:
        """Make a file's bytes durable, or (None) the directory's names."""

    def read(self, name: str, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""

    def move(self, name: str, to: str | None) -> None:
        """Rename, replacing; or remove (None). Not durable before `sync(None)`."""

    def list(self) -> dict[str, int]:
        """Names and sizes."""

    def free_bytes(self) -> int:
        """Space that a writer without privileges may still take."""


class _Open:
    """An open file and how many calls use it now, so that it is not closed under one of them."""

    __slots__ = ("fd", "users", "closing")

    def __init__(self, fd: int) -> None:
        self.fd, self.users, self.closing = fd, 0, False


class RealFiles:
    """`Files` over a real directory."""

    def __init__(
        self, directory: str, read_only: bool = False, open_max: int = OPEN_FILES_MAX
    ) -> None:
        """An onlooker takes a small `open_max`: a file that is open keeps its blocks when its
        owner removes it.
        """
        self.directory = directory
        self._open_max = open_max
        self._flags = os.O_RDONLY if read_only else os.O_RDWR
        self._open: dict[str, _Open] = {}
        self._lock = Lock()
        if not read_only:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def is_there(self) -> bool:
        """False: somebody removed the directory. What is written then is on no disk afterwards."""
        return os.fstat(self._directory_fd).st_nlink > 0

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _acquire(self, name: str) -> _Open:
        with self._lock:
            entry = self._open.get(name)
            if entry is None:
                entry = self._keep(name, os.open(self._path(name), self._flags | os.O_CLOEXEC))
            entry.users += 1
            return entry

    def _keep(self, name: str, fd: int) -> _Open:
        if len(self._open) >= self._open_max:
            self._close_one()
        entry = self._open[name] = _Open(fd)
        return entry

    def _release(self, entry: _Open) -> None:
        with self._lock:
            entry.users -= 1
            if entry.closing and not entry.users:
                os.close(entry.fd)

    def _close_one(self) -> None:
        """Forget the file that was opened longest ago and is not in use (dicts keep order)."""
        name = next((n for n, entry in self._open.items() if not entry.users), None)
        if name is not None:
            os.close(self._open.pop(name).fd)

    def _forget(self, name: str) -> None:
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
            if name in self._open:  # a reader found it already
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
        """Forget the open files last: a reader may open the old name until it is gone."""
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
        for name in list(self._open):
            self._forget(name)
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1


def _write_all(fd: int, position: int, buffers: list[Buffer], sync: bool) -> None:
    """One `pwritev` with RWF_DSYNC where that is enough, else several and an fdatasync."""
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
    """What is left of the buffers once `written` bytes of them are gone."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []


def lock_directory(directory: str) -> int:
    """Own the directory until `unlock_directory` (or until the process ends)."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise DirectoryLocked(f"{directory} is in use by another process") from None
    return fd


def unlock_directory(fd: int) -> None:
    """Not by closing alone: a process that was forked meanwhile may have the descriptor, too."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
