"""A flood of messages, and whose it is: the bound of what waits at the doors of this process.

Sockets queue what comes in without a limit (`sockets.py` says why), and libzmq reads faster than
the loop does. Honest clients and daemons bound what they have under way. This is the bound for the
others: they could take all memory, with more messages than the loop can read, or on a connection
whose messages libzmq never shows to the loop (the second one of the same name).

The memory of the process is measured. If it has grown by half of its room (`room_bytes`), the bytes
that each connection ever brought are noted; if it has grown by all of it, the connections that
brought most since then are cut, until the rest brought a tenth. While the loop stays behind, each
further `MORE_BYTES` cuts again. Messages that came before are answered as far as that is possible.

Connections of this cluster's daemons are never cut: those that we made, and those of peers that we
met on their own door. Nobody is cut if what the others brought can't have taken that memory.

Decides, and shuts connections of this process; nothing else here speaks TCP but libzmq.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

ROOM_SHARE: Final = 8  # messages may take this part of the machine's memory
ROOM_MIN_BYTES: Final = 128 << 20
ROOM_MAX_BYTES: Final = 2 << 30
MORE_BYTES: Final = 64 << 20  # more, while the loop is behind, until it cuts again
LOOK_MS: Final = 50
SPARED_SHARE: Final = 0.1  # of the bytes of a flood: connections that brought them stay
MEMORY_A_BYTE: Final = 64  # at most, of a received one: of the smallest messages, libzmq's overhead
_BYTES_RECEIVED: Final = 128  # its place in struct tcp_info (Linux 4.2 and newer)
_RESET: Final = struct.pack("ii", 1, 0)  # the sender learns of it when libzmq closes, not later
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_V2, _V1 = "memory.max", "memory.limit_in_bytes"

# By inode and local port of a connection: whether it is one of this cluster's daemons.
IsOurs = Callable[[int, int], bool]


class Cut(NamedTuple):
    """A connection that was cut."""

    address: str
    received_bytes: int  # since memory began to grow


class FloodGuard:
    """See the module's docstring."""

    def __init__(self, room_bytes: int, more_bytes: int = MORE_BYTES) -> None:
        self._room, self._more = room_bytes, more_bytes
        self._look_at = 0
        self._base = -1  # memory at the lowest, or when somebody was cut last; -1: not known
        self._before: dict[int, int] | None = None  # bytes by inode of the connection
        self._is_on = False  # somebody was cut, and what came until then is not read yet

    def look(self, now: int, is_ours: IsOurs, *, is_behind: bool) -> list[Cut]:
        """Called in each turn. Which connections were cut."""
        self._is_on &= is_behind
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_MS
        memory, limit = memory_bytes(), self._more if self._is_on else self._room
        if self._base < 0 or memory < self._base:
            self._base = memory
        grown = memory - self._base
        if grown < limit // 2:
            self._before = None
        elif self._before is None:
            self._before = received_bytes()
        elif grown >= limit:
            done = cut_heaviest_connections(self._before, is_ours, grown)
            self._base, self._before, self._is_on = memory, None, is_behind
            return done
        return []


def memory_bytes() -> int:
    """Of this process, without the pages of files, such as those of the store."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE


def room_bytes(total_bytes: int) -> int:
    """Memory that messages may take, where there is so much.

    >>> room_bytes(8 << 30) >> 20
    1024
    """
    return min(max(total_bytes // ROOM_SHARE, ROOM_MIN_BYTES), ROOM_MAX_BYTES)


def machine_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may have: the machine's, or less if a cgroup of its says so."""
    found = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (groups / "memory", _V1) if controllers else (groups, _V2)
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(root):
                    found += _limit(folder / name)
    return min(found)


def _limit(file: Path) -> list[int]:
    with suppress(OSError, ValueError):  # not there, or "max"
        return [int(file.read_text("ascii"))]
    return []


def cut_heaviest_connections(
    before: dict[int, int], is_ours: IsOurs, grown_bytes: int = 0
) -> list[Cut]:
    """Shut the connections of others that brought most since `before`."""
    brought = {
        inode: _received(one) - before.get(inode, 0)
        for inode, one in _connections()
        if not is_ours(inode, one.getsockname()[1])
    }
    left = sum(brought.values())
    if left * MEMORY_A_BYTE < grown_bytes:
        return []
    spared = SPARED_SHARE * left
    chosen = set()
    for inode, size in sorted(brought.items(), key=lambda pair: -pair[1]):
        if left <= spared:
            break
        chosen.add(inode)
        left -= size
    done = []
    for inode, connection in _connections():
        if inode in chosen:
            with suppress(OSError):  # it is gone by itself
                host, port, *_ = connection.getpeername()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.shutdown(socket.SHUT_RDWR)
                done.append(Cut(f"{host}:{port}", brought[inode]))
    return done


def received_bytes() -> dict[int, int]:
    """Bytes that each TCP connection of this process ever received, by its inode."""
    return {inode: _received(connection) for inode, connection in _connections()}


def _received(connection: socket.socket) -> int:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(told) < _BYTES_RECEIVED + 8:
        return 0
    return int(struct.unpack_from("Q", told, _BYTES_RECEIVED)[0])


def _connections() -> Iterator[tuple[int, socket.socket]]:
    """The TCP connections of this process, by inode. Each has a descriptor of its own while it is
    looked at: libzmq may close the other one at any time.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, no socket, or not connected
            info = os.stat(f"/proc/self/fd/{name}")
            if not stat.S_ISSOCK(info.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type == socket.SOCK_STREAM and one.family != socket.AF_UNIX:
                    one.getpeername()
                    yield os.fstat(one.fileno()).st_ino, one
