"""Bounds the memory of messages that wait to be read, by cutting the connections that sent most.

Sockets queue incoming messages without a limit (`sockets.py` says why), and libzmq reads faster
than the loop. Well-behaved clients and daemons bound what they have in flight. Others could take
all memory: with more messages than the loop can read, or on a connection whose messages libzmq
never gives to the loop (a second one with the same identity).

The memory of the process is measured. When it has grown by half of its room (`room_bytes`), the
bytes received so far on each connection are noted. When it has grown by all of its room, the
connections that received most since then are cut, until the rest received a tenth. While the loop
still lags, each further `MORE_BYTES` cuts again. Messages received before are still answered if
possible.

Connections of this cluster's daemons are never cut: connections that we made, and those of peers
that we also reached at their own listener. Nothing is cut if the bytes received from others can't
explain the growth.

Only this file and libzmq use TCP connections of this process.
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
MORE_BYTES: Final = 64 << 20  # further growth, while the loop lags, until it cuts again
LOOK_MS: Final = 50
SPARED_SHARE: Final = 0.1  # of a flood's bytes: connections with less than this stay
# At most, for each received byte: libzmq's overhead of the smallest messages
MEMORY_A_BYTE: Final = 64
_BYTES_RECEIVED: Final = 128  # offset in struct tcp_info (Linux 4.2 and newer)
_RESET: Final = struct.pack("ii", 1, 0)  # the sender gets a reset when libzmq closes
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_V2, _V1 = "memory.max", "memory.limit_in_bytes"

# (inode, local port) of a connection -> whether it belongs to a daemon of this cluster.
IsOurs = Callable[[int, int], bool]


class Cut(NamedTuple):
    """A connection that was cut."""

    address: str
    received_bytes: int  # since memory began to grow


class FloodGuard:
    """Measures memory and cuts connections. Called in each turn of the loop."""

    def __init__(self, room_bytes: int, more_bytes: int = MORE_BYTES) -> None:
        self._room, self._more = room_bytes, more_bytes
        self._look_at = 0
        self._base = -1  # lowest memory since the last cut; -1: not known
        self._before: dict[int, int] | None = None  # bytes by inode of the connection
        self._is_on = False  # a connection was cut, and messages from before are not read yet

    def look(self, now: int, is_ours: IsOurs, *, is_behind: bool) -> list[Cut]:
        """Cut connections if memory has grown too much; return those that were cut."""
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
    """Return the resident memory of this process, without pages of files such as the store's."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE


def room_bytes(total_bytes: int) -> int:
    """Return the memory that messages may take, of `total_bytes`.

    >>> room_bytes(8 << 30) >> 20
    1024
    """
    return min(max(total_bytes // ROOM_SHARE, ROOM_MIN_BYTES), ROOM_MAX_BYTES)


def machine_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory this process may have: the machine's, or less if its cgroup limits it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (groups / "memory", _V1) if controllers else (groups, _V2)
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(root):
                    limits += _limit(folder / name)
    return min(limits)


def _limit(file: Path) -> list[int]:
    with suppress(OSError, ValueError):  # not there, or "max"
        return [int(file.read_text("ascii"))]
    return []


def cut_heaviest_connections(
    before: dict[int, int], is_ours: IsOurs, grown_bytes: int = 0
) -> list[Cut]:
    """Shut the connections that received most since `before`; never those of our daemons."""
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
            with suppress(OSError):  # it was closed since
                host, port, *_ = connection.getpeername()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.shutdown(socket.SHUT_RDWR)
                done.append(Cut(f"{host}:{port}", brought[inode]))
    return done


def received_bytes() -> dict[int, int]:
    """Return the bytes that each TCP connection of this process ever received, by its inode."""
    return {inode: _received(connection) for inode, connection in _connections()}


def _received(connection: socket.socket) -> int:
    tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(tcp_info) < _BYTES_RECEIVED + 8:
        return 0
    return int(struct.unpack_from("Q", tcp_info, _BYTES_RECEIVED)[0])


def _connections() -> Iterator[tuple[int, socket.socket]]:
    """Iterate over the TCP connections of this process, with their inodes.

    Each is duplicated while it is used: libzmq may close its own descriptor at any time.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since, no socket, or not connected
            info = os.stat(f"/proc/self/fd/{name}")
            if not stat.S_ISSOCK(info.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type == socket.SOCK_STREAM and one.family != socket.AF_UNIX:
                    one.getpeername()
                    yield os.fstat(one.fileno()).st_ino, one
