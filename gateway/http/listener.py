"""New connections: the listening socket, TLS, and a place for each connection."""

from __future__ import annotations

import errno
import select
import socket
import ssl
from collections import deque
from time import monotonic
from typing import Any, Final

from myqueue.gateway import drop_reasons
from myqueue.gateway.http import eviction
from myqueue.gateway.http.connection import Connection
from myqueue.gateway.http.open_connections import OpenConnections
from myqueue.gateway.settings import GatewayConfig

BACKLOG: Final = 1024
ACCEPT_AT_ONCE: Final = 64
EVICTED_SHARE: Final = 64  # of so many connections, one slow one is closed at a time
ACCEPT_PAUSE_S: Final = 0.1  # before the next accept after a pause
NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """The listening socket, which adds to the open connections. Raises OSError if it can't listen.

    When no file descriptor is free, it evicts a connection and pauses: a new connection that can't
    be accepted would wake up the reading thread again and again. It also pauses while all places
    are taken and only young connections could be evicted.
    """

    def __init__(
        self,
        config: GatewayConfig,
        epoll: select.epoll,
        connections: OpenConnections,
        dropped: drop_reasons.DropCounter,
    ) -> None:
        self._config, self._epoll = config, epoll
        self._connections, self._dropped = connections, dropped
        self._tls = _make_tls_context(config)
        self._socket = _listen(config.listen)
        self._paused_until = 0.0  # 0: it is not paused
        self._evictable: deque[Connection] | None = None  # None: not chosen in this turn
        self.fd = self._socket.fileno()
        epoll.register(self.fd, select.EPOLLIN)

    def accept(self) -> None:
        """Accept the connections that wait, up to `ACCEPT_AT_ONCE`."""
        self._evictable = None
        was_full = self._is_full()
        for _ in range(ACCEPT_AT_ONCE):
            if self._is_full():
                if not was_full:
                    return  # the next turn evicts, after it closed new ones that are gone already
                if not self._choose() and eviction.may_evict_later(self._connections):
                    self._pause()  # arrivals wait in the backlog until one of these is old enough
                    return
            try:
                sock, (address, *_) = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_FILES:
                    if not self._evict(drop_reasons.FILES):
                        self._dropped.add(drop_reasons.FILES)
                    self._pause()
                    return
                continue  # the client closed it before it was accepted
            try:
                self._open(sock, address)
            except OSError:  # this connection failed; others are not affected
                sock.close()
            except BaseException:
                sock.close()
                raise

    def resume_if_due(self, now: float) -> None:
        """Accept again after a pause."""
        if self._paused_until and now > self._paused_until:
            self._paused_until = 0.0
            self._epoll.modify(self.fd, select.EPOLLIN)

    def close(self) -> None:
        """Accept no more connections."""
        self._epoll.unregister(self.fd)
        self._socket.close()

    def _open(self, sock: socket.socket, address: str) -> None:
        if self._is_full() and not self._evict(drop_reasons.PLACES):
            self._dropped.add(drop_reasons.REFUSED)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        connection = Connection(sock, address)
        connection.expire_in(self._config.header_timeout_ms / 1000)
        self._connections.add(connection)

    def _is_full(self) -> bool:
        return len(self._connections) >= self._config.connections_max

    def _pause(self) -> None:
        self._paused_until = monotonic() + ACCEPT_PAUSE_S
        self._epoll.modify(self.fd, 0)

    def _evict(self, reason: str) -> bool:
        """Close a connection for a new one. Return False if none may be closed.

        Where slow ones go first, a few more of them are closed than needed, so that the next
        arrivals need no choice at all.
        """
        evictable = self._choose()
        if not evictable:
            return False
        more = len(self._connections) // EVICTED_SHARE
        self._close_evicted(evictable.popleft(), reason)
        while more > 1 and evictable and evictable[0].is_slow:
            self._close_evicted(evictable.popleft(), reason)
            more -= 1
        return True

    def _choose(self) -> deque[Connection]:
        """Return the connections that may still be closed for new ones. They are chosen once for
        all arrivals of a turn.
        """
        if self._evictable is None:
            chosen = eviction.choose_for_places(self._connections, monotonic())
            self._evictable = deque(chosen)
        return self._evictable

    def _close_evicted(self, connection: Connection, reason: str) -> None:
        self._dropped.add(reason)
        self._connections.close(connection)


def _listen(address: str) -> socket.socket:
    """Open a listening socket on HOST:PORT, not blocking. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket whose client may have closed the connection before the first byte.

    The plain class asks for the peer's address while it is built; for a closed connection that
    fails and leaks the file. Here the next read reports the end, as on every other connection.
    """

    def getpeername(self) -> Any:
        try:
            return super().getpeername()
        except OSError:
            return ("", 0)


def _make_tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """Build the TLS settings; None if no certificate is configured."""
    if not config.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _TlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    return context
