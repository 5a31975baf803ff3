"""Which ZeroMQ sockets are ready: one `epoll` over their descriptors; only used sockets are asked.

`zmq_poll` asks every socket for its events, at least one system call each, before and after it
waits. Daemons and clients have a dozen sockets, and at one time most of them have nothing.

The descriptor of a ZeroMQ socket does not become readable for a message, but for a note that
libzmq's thread left for the socket: for example that there are messages again. Each call on the
socket takes such notes, so after it the descriptor may stay silent although a message waits.
Two rules follow:

- A socket whose descriptor is readable is asked for its events, and counts only if one of them is
  wanted. If none is, the wait goes on.
- A socket that was read or written since the last wait is asked before the next one. The user of
  this class calls `note_use` for that; sockets that were ready are noted by themselves, and
  `note_empty` takes it back.
"""

from __future__ import annotations

import select
from time import monotonic
from typing import Any

# ZeroMQ's options and events by their numbers: its enumerations cost a microsecond each time.
_FD, _EVENTS = 14, 15
READABLE, WRITABLE = 1, 2


class ReadySockets:
    """The sockets of one thread, and descriptors of others. `wait` fills `ready`."""

    def __init__(self) -> None:
        self.ready: set[Any] = set()  # sockets and descriptors, as of the last wait
        self._epoll = select.epoll()
        self._sockets: dict[int, Any] = {}  # by descriptor
        self._wanted: dict[Any, int] = {}  # socket -> READABLE, or with WRITABLE
        self._used: set[Any] = set()  # sockets, since the last wait
        self.note_use = self._used.add
        self.note_empty = self._used.discard  # its events were asked for after its last use

    def add(self, socket: Any) -> None:
        """Watch a ZeroMQ socket until it is readable."""
        descriptor = int(socket.getsockopt(_FD))
        self._epoll.register(descriptor, select.EPOLLIN)
        self._sockets[descriptor] = socket
        self._wanted[socket] = READABLE
        self.note_use(socket)

    def add_descriptor(self, descriptor: int) -> None:
        """Watch a descriptor that is no ZeroMQ socket until it is readable."""
        self._epoll.register(descriptor, select.EPOLLIN)

    def want(self, socket: Any, events: int) -> None:
        """Choose for which events of a socket `wait` returns."""
        self._wanted[socket] = events
        self.note_use(socket)

    def remove(self, socket: Any) -> None:
        """Stop watching a socket; call it before the socket is closed."""
        descriptor = int(socket.getsockopt(_FD))
        self._epoll.unregister(descriptor)
        del self._sockets[descriptor], self._wanted[socket]
        self._used.discard(socket)
        self.ready.discard(socket)

    def wait(self, timeout_ms: int) -> None:
        """Wait until a wanted event occurs, a descriptor is readable, or the time is over."""
        ready, used, wanted = self.ready, self._used, self._wanted
        ready.clear()
        for socket in used:
            if int(socket.getsockopt(_EVENTS)) & wanted[socket]:
                ready.add(socket)
        timeout_s = 0.0 if ready else timeout_ms / 1000
        deadline_s = monotonic() + timeout_s if timeout_s else 0.0
        while True:
            events = self._epoll.poll(timeout_s)
            for descriptor, _ in events:
                socket = self._sockets.get(descriptor)
                if socket is None:
                    ready.add(descriptor)
                elif int(socket.getsockopt(_EVENTS)) & wanted[socket]:
                    ready.add(socket)
            if ready or not events or not timeout_s:
                break
            timeout_s = max(0.0, deadline_s - monotonic())
        used.clear()
        used.update(ready.intersection(wanted))

    def close(self) -> None:
        """Close the descriptor of the wait itself."""
        self._epoll.close()
