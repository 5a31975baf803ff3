"""The open connections, and what epoll watches each of them for.

Only the reading thread uses this. A thread that still makes an answer for a closed connection can't
reach a new connection with the same file descriptor: it has the closed socket, and fails to send.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Final

from myqueue.gateway.http.connection import (
    ANSWERING,
    WAITS_FOR_ROOM,
    WRITING,
    Connection,
)

IN, OUT = select.EPOLLIN, select.EPOLLOUT
PIPELINED_BYTES_MAX: Final = 64 << 10  # what is read of a client that awaits its answer


class OpenConnections:
    """The connections by their file descriptors. Iteration allows closing them meanwhile.

    Invariant: a connection is here from `add` to `close`.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._by_fd: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._by_fd)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._by_fd.values()))

    def __contains__(self, connection: Connection) -> bool:
        return self._by_fd.get(connection.fd) is connection

    def get(self, fd: int) -> Connection | None:
        """Return the connection with this file descriptor."""
        return self._by_fd.get(fd)

    def add(self, connection: Connection) -> None:
        """Watch a new connection."""
        self._by_fd[connection.fd] = connection
        self.watch(connection)

    def close(self, connection: Connection) -> None:
        """Close a connection, and free what its body holds. It may be closed already."""
        if connection in self:
            del self._by_fd[connection.fd]
        if connection.state != ANSWERING:  # else the thread that answers still has the body
            connection.release_reservation()
        connection.is_failed = True
        connection.received.clear()
        connection.sock.close()

    def watch(self, connection: Connection) -> None:
        """Watch a connection for what it waits for now. Call it after each change."""
        events = wanted_events(connection)
        if events == connection.watched_events:
            return
        if events is None:
            self._epoll.unregister(connection.fd)
        elif connection.watched_events is None:
            self._epoll.register(connection.fd, events)
        else:
            self._epoll.modify(connection.fd, events)
        connection.watched_events = events


def wanted_events(connection: Connection) -> int | None:
    """Return the events that a connection waits for, by its state and its buffers.

    With 0, epoll still reports that the client is gone. None means that epoll must not watch the
    connection at all, because it would report a failed one again and again.
    """
    if connection.is_failed:
        return None
    state = connection.state
    events = 0
    if not connection.input_ended and state != WAITS_FOR_ROOM:
        is_under_way = state in (ANSWERING, WRITING)
        if not is_under_way or len(connection.received) <= PIPELINED_BYTES_MAX:
            events = IN | OUT if connection.wants_write else IN
    # While the state is ANSWERING, `unsent` belongs to the thread that answers.
    return events | OUT if state == WRITING else events
