"""The open connections, and what epoll watches each of them for.

Only the reading thread uses this. A thread that still works for a closed connection sees
`is_broken`, not a new connection with the same file descriptor.
"""

from __future__ import annotations

import select
from collections.abc import Iterator

from myqueue.gateway.http.body_budget import BodyBudget
from myqueue.gateway.http.connection import WRITING, Connection

IN, OUT = select.EPOLLIN, select.EPOLLOUT


class OpenConnections:
    """The connections by their file descriptors. Iteration allows closing them meanwhile.

    Invariant: a connection is here from `add` to `close`, and its body is in `bodies` only then.
    """

    def __init__(self, epoll: select.epoll, bodies: BodyBudget) -> None:
        self._epoll, self._bodies = epoll, bodies
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
        self._epoll.register(connection.fd, IN)

    def close(self, connection: Connection) -> None:
        """Close a connection, and free what its body holds. It may be closed already."""
        if connection in self:
            del self._by_fd[connection.fd]
        self._bodies.forget(connection)
        connection.is_broken = True
        connection.received.clear()
        connection.sock.close()

    def pause_reading(self, connection: Connection) -> None:
        """Leave what its client sends to the kernel."""
        connection.is_read_paused = True
        self.update_events(connection)

    def resume_reading(self, connection: Connection) -> None:
        """Read from a connection again, if that is paused."""
        if connection.is_read_paused:
            connection.is_read_paused = False
            self.update_events(connection)

    def update_events(self, connection: Connection) -> None:
        """Watch a connection for what it waits for now; a broken one for nothing."""
        if connection.is_broken:
            if connection.is_watched:  # epoll would report its end again and again
                self._epoll.unregister(connection.fd)
                connection.is_watched = False
            return
        # Before the state is WRITING, `unsent` belongs to the thread that answers.
        has_rest = connection.state == WRITING and connection.unsent is not None
        writes = has_rest or connection.wants_write
        reads = not connection.is_read_paused
        self._epoll.modify(connection.fd, (IN if reads else 0) | (OUT if writes else 0))
