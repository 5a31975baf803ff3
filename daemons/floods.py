"""A flood of messages, and whose it is: the bound of what waits at the doors of this process.

Sockets queue what comes in without a limit (`transport.py` says why), and libzmq reads faster than
the loop does. Honest clients and daemons bound what they have under way. This is the bound for the
others: they could take all memory, with more messages than the loop can read, or on a connection
whose messages libzmq never shows to the loop (the second one of the same name).

The memory of the process is measured. If it has grown by half of `ROOM_BYTES`, the bytes that each
connection ever brought are noted; if it has grown by all of it, the connections that brought most
since then are cut, until the rest brought a tenth. While the loop stays behind, each further
`MORE_BYTES` cuts again. Messages that came before are answered as far as that is possible. If the
memory grew for another reason, some clients have to connect again, once.

Decides, and shuts connections of this process; nothing else here speaks TCP but libzmq.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

ROOM_BYTES: Final = 512 << 20  # of memory that messages may take
MORE_BYTES: Final = 64 << 20  # more, while the loop is behind, until it cuts again
LOOK_MS: Final = 50
SPARED_SHARE: Final = 0.1  # of the bytes of a flood: connections that brought them stay
_BYTES_RECEIVED: Final = 128  # its place in struct tcp_info (Linux 4.2 and newer)
_RESET: Final = struct.pack("ii", 1, 0)  # the sender learns of it when libzmq closes, not later
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Floods:
    """See the module's docstring."""

    def __init__(self, room_bytes: int = ROOM_BYTES, more_bytes: int = MORE_BYTES) -> None:
        self._room, self._more = room_bytes, more_bytes
        self._look_at = 0
        self._base = -1  # memory at the lowest, or when somebody was cut last; -1: not known
        self._before: dict[int, int] | None = None  # bytes by inode of the connection
        self._is_on = False  # somebody was cut, and what came until then is not read yet

    def look(self, now: int, *, is_behind: bool) -> int:
        """Called in each turn. How many connections were cut."""
        self._is_on &= is_behind
        if now < self._look_at:
            return 0
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
            count = cut(self._before)
            self._base, self._before, self._is_on = memory, None, is_behind
            return count
        return 0


def memory_bytes() -> int:
    """Of this process, without the pages of files, such as those of the store."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE


def cut(before: dict[int, int]) -> int:
    """Shut the connections that brought most since `before`; how many."""
    brought = {
        inode: received - before.get(inode, 0) for inode, received in received_bytes().items()
    }
    left = sum(brought.values())
    spared = SPARED_SHARE * left
    chosen = set()
    for inode, size in sorted(brought.items(), key=lambda pair: -pair[1]):
        if left <= spared:
            break
        chosen.add(inode)
        left -= size
    count = 0
    for inode, connection in _connections():
        if inode in chosen:
            with suppress(OSError):  # it is gone by itself
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def received_bytes() -> dict[int, int]:
    """Bytes that each TCP connection of this process ever received, by its inode."""
    found = {}
    for inode, connection in _connections():
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(told) >= _BYTES_RECEIVED + 8:
            (found[inode],) = struct.unpack_from("Q", told, _BYTES_RECEIVED)
    return found


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
