"""Checks of LMDB's file before LMDB opens it.

LMDB maps its file and trusts what it reads. A file that is shorter than its own meta page says
ends the process with SIGBUS, a page of zeros ends it with SIGABRT; neither is an exception. So

- the two meta pages are read first, with plain reads. Once LMDB has the file open, this would be
  wrong, because closing the file would drop LMDB's POSIX locks;
- a child process reads every value in three cases: after the machine was restarted (it may have
  lost power), after two starts in a row without a clean close (the store may be what ends the
  process), and after a value could not be read. If the child dies, the store is broken, and the
  daemon lives.

A small file next to LMDB's holds the boot id and the number of opens since the last close. It
needs no sync: if it is lost or old, the store is checked once more.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from struct import Struct

from myqueue.errors import StoreBroken

STATE_FILE = "opened"
OPENS_UNCHECKED_MAX = 2
LOCKS_BYTES = 8192  # size of LMDB's lock file for 126 readers
CHECK_BYTES_PER_S = 1 << 20  # far slower than any disk; bounds a check that hangs
CHECK_TIMEOUT_S = 60.0
_CHECK = "import sys; from myqueue.wal.store.store import check_store; check_store(*sys.argv[1:])"
_META = Struct("<16xIIQQI")  # page header, then magic, version, address, map size, page size
_TAIL = Struct("<QQ")  # last page in use, transaction id
_TAIL_AT = 136
_MAGIC = 0xBEEFC0DE


def check_before_opening(directory: str) -> None:
    """Raise StoreBroken unless LMDB can safely open the store in this directory."""
    check_file(directory)
    opens = _opens_since_close(directory)
    if not os.path.exists(os.path.join(directory, "data.mdb")):
        opens = 0
    elif opens is None or opens >= OPENS_UNCHECKED_MAX:
        check_in_child(directory)
        opens = 0
    _allocate_locks(directory)
    _note_opens(directory, opens + 1)


def note_closed(directory: str) -> None:
    """Note a clean close: the next start needs no check of every value."""
    with suppress(FileNotFoundError):  # the directory was removed
        _note_opens(directory, 0)


def note_broken(directory: str) -> None:
    """Make the next start read every value.

    Otherwise a daemon that stops cleanly because of a bad value would meet it again at each start.
    """
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, STATE_FILE))


def _opens_since_close(directory: str) -> int | None:
    """Return the count; None if it is unknown or from before the machine's last start."""
    try:
        with open(os.path.join(directory, STATE_FILE), "rb") as file:
            boot, _, opens = file.read(100).partition(b" ")
    except FileNotFoundError:
        return None
    return int(opens) if boot == boot_id() and opens.isdigit() else None


def _note_opens(directory: str, opens: int) -> None:
    try:
        with open(os.path.join(directory, STATE_FILE), "wb") as file:
            file.write(b"%s %d" % (boot_id(), opens))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise  # on a full disk the file is empty, and the next start checks the store


def _allocate_locks(directory: str) -> None:
    """Allocate the lock file, which LMDB maps: on a full disk a missing page ends the process."""
    fd = os.open(os.path.join(directory, "lock.mdb"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, LOCKS_BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    finally:
        os.close(fd)


def check_in_child(directory: str, *flags: str) -> None:
    """Read every value in a child process; StoreBroken if that fails or does not end.

    `flags` are those of `check_store`.
    """
    timeout_s = CHECK_TIMEOUT_S
    timeout_s += os.path.getsize(os.path.join(directory, "data.mdb")) / CHECK_BYTES_PER_S
    command = [sys.executable, "-P", "-c", _CHECK, directory, *flags]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise StoreBroken(f"{directory}: reading it does not come to an end") from error
    if done.returncode:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise StoreBroken(f"{directory}: the check ended with {done.returncode}: {last_line}")


def check_file(directory: str) -> None:
    """Raise StoreBroken if the data file exists and cannot be a file that LMDB wrote."""
    path = os.path.join(directory, "data.mdb")
    try:
        size = os.path.getsize(path)
    except FileNotFoundError:
        return
    with open(path, "rb") as file:
        head = file.read(_TAIL_AT + _TAIL.size)
        page = _page_size(head, path)
        file.seek(page)
        second = file.read(_TAIL_AT + _TAIL.size)
    metas = [meta for meta in (head, second) if _page_size(meta, path) == page]
    newest = max(metas, key=lambda meta: _TAIL.unpack_from(meta, _TAIL_AT)[1])
    last_page, _ = _TAIL.unpack_from(newest, _TAIL_AT)
    if size < (last_page + 1) * page and last_page > 1:
        raise StoreBroken(f"{path} has {size} bytes, its meta page names {(last_page + 1) * page}")


def _page_size(meta: bytes, path: str) -> int:
    if len(meta) < _TAIL_AT + _TAIL.size:
        raise StoreBroken(f"{path} is cut short")
    magic, _, _, _, page = _META.unpack_from(meta)
    page = int(page)
    if magic != _MAGIC or page not in (4096, 8192, 16384, 32768, 65536):
        raise StoreBroken(f"{path} is damaged: a meta page is not LMDB's")
    return page


def boot_id() -> bytes:
    """Return an id that changes when the machine restarts; constant where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        return b"unknown"
