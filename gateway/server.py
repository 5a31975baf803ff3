"""The WSGI server: threads that wait on one epoll, connections that belong to nobody while idle.

    epoll ──▶ a free thread: receive ─▶ whole request? ─▶ application ─▶ send ─▶ arm again
                              └─ not yet: arm again, with a deadline

A connection costs a thread only while its request is worked on. Who sends a header byte by byte,
or nothing at all, or takes an answer slowly, holds a little memory and a place in a table, and is
ended by its deadline (H3). No thread reads for others, so a request is woken up for once.

Limits are looked at before anything is kept: headers by bytes and number, the body by its announced
length, which is refused before a byte of it is read. `DESIGN.md` has the measurement that made us
write this instead of taking one of the servers there are.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from email.utils import formatdate
from time import monotonic
from typing import Any, Final

from myqueue.errors import BodyTooLarge, Malformed, MyQueueError
from myqueue.gateway import http1
from myqueue.gateway.config import GatewayConfig
from myqueue.gateway.sockets import (
    BODY,
    HEAD,
    IDLE,
    LINGERING,
    WORKING,
    WRITING,
    Connection,
)
from myqueue.gateway.wsgi import Answer, refusal, run

log = logging.getLogger("myqueue.gateway")

BACKLOG: Final = 1024
ACCEPT_AT_ONCE: Final = 64
SWEEP_S: Final = 0.5
LINGER_S: Final = 2.0
DRAIN_S: Final = 0.1
ROOM_S: Final = 0.05  # to let a connection end that makes room for another
SEND_S: Final = 30.0  # an answer of which nothing is taken for so long
ONCE_IN: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
ONCE_OUT: Final = select.EPOLLOUT | select.EPOLLONESHOT
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Server:
    """See the chapter's head. `serve` returns when `stop` was called."""

    def __init__(self, application: Application, config: GatewayConfig) -> None:
        self._application, self._config = application, config
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._stopping, self._answered = threading.Event(), threading.Event()
        self._ended = False
        self._tls = _tls_of(config)
        self._listener = _listen(config.listen)
        self._door = self._listener.fileno()
        self._epoll.register(self._door, ONCE_IN)
        self._second, self._date = 0, ""

    def stop(self) -> None:
        """From any thread, or a signal's handler."""
        self._stopping.set()

    def serve(self) -> None:
        threads = [
            threading.Thread(target=self._work, name=f"http-{number}", daemon=True)
            for number in range(self._config.threads)
        ]
        for thread in threads:
            thread.start()
        while not self._stopping.wait(SWEEP_S):
            self._sweep(monotonic())
        self._drain()
        self._ended = True
        os.eventfd_write(self._bell, 1)
        for thread in threads:
            thread.join(0.2)

    def _drain(self) -> None:
        """No new connections; requests under way are answered, as far as the time allows."""
        self._listener.close()
        end = monotonic() + self._config.stop_within_ms / 1000
        while monotonic() < end:
            busy = 0
            for connection in tuple(self._connections.values()):
                if connection.state == IDLE:
                    connection.end()
                busy += connection.state in (BODY, WORKING, WRITING)
            if not busy:
                break
            self._answered.wait(DRAIN_S)
            self._answered.clear()
        for connection in tuple(self._connections.values()):
            connection.end()

    def _sweep(self, now: float) -> None:
        """End what is overdue; its next event goes to a thread, which closes it."""
        for connection in tuple(self._connections.values()):
            if connection.deadline < now and connection.state != WORKING:
                connection.end()

    # -- a thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        poll = self._epoll.poll
        while not self._ended:
            try:
                events = poll(-1, 1)
            except (OSError, ValueError):
                return
            for number, event in events:
                if number == self._bell:
                    return
                if number == self._door:
                    self._accept()
                    continue
                connection = self._connections.get(number)
                if connection is None:
                    continue
                try:
                    self._serve(connection, event)
                except Exception:
                    log.exception("a connection failed")
                    self._close(connection)

    def _accept(self) -> None:
        try:
            for _ in range(ACCEPT_AT_ONCE):
                sock, (address, *_) = self._listener.accept()
                self._open(sock, address)
        except BlockingIOError:
            pass
        except OSError as error:  # too many files, or the door is closed
            if self._stopping.is_set():
                return
            log.warning("a connection was not taken: %s", error.strerror)
            self._make_room()
            self._stopping.wait(ROOM_S)
        try:
            self._epoll.modify(self._door, ONCE_IN)
        except (OSError, ValueError):
            pass  # closed meanwhile

    def _open(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._connections) >= self._config.connections_max:
            self._make_room()
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        number = sock.fileno()
        deadline = monotonic() + self._config.header_timeout_ms / 1000
        self._connections[number] = Connection(sock, address, deadline)
        self._epoll.register(number, ONCE_IN)

    def _make_room(self) -> None:
        """The one that waits longest for a request, or for the rest of one, has to go."""
        waiting = [one for one in tuple(self._connections.values()) if one.state in (IDLE, HEAD)]
        if waiting:
            min(waiting, key=lambda one: one.deadline).end()

    def _arm(self, connection: Connection, state: int, seconds: float | None) -> None:
        """Give it back: the next event goes to whoever is free."""
        connection.state = state
        if seconds is not None:
            connection.deadline = monotonic() + seconds
        writes = connection.out is not None or connection.wants_write
        try:
            self._epoll.modify(connection.sock.fileno(), ONCE_OUT if writes else ONCE_IN)
        except (OSError, ValueError):
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._connections.pop(connection.sock.fileno(), None)
        connection.sock.close()

    # -- a connection -----------------------------------------------------------------------------

    def _serve(self, connection: Connection, event: int) -> None:
        """What one event means."""
        if connection.state == WRITING and not self._write_on(connection):
            return
        if connection.state == LINGERING:
            alive = connection.receive()
            connection.data.clear()
            if alive:
                self._arm(connection, LINGERING, None)
            else:
                self._close(connection)
            return
        if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            if not connection.receive():
                self._close(connection)
                return
        elif connection.wants_write and not connection.receive():
            self._close(connection)
            return
        self._requests(connection)

    def _write_on(self, connection: Connection) -> bool:
        """True: all is sent, and the next request may be read."""
        if connection.out is None or not connection.send(connection.out):
            self._close(connection)
            return False
        return self._is_sent(connection)

    def _is_sent(self, connection: Connection) -> bool:
        if connection.out is not None:
            self._arm(connection, WRITING, SEND_S)
            return False
        if connection.closes:
            self._linger(connection)
            return False
        return True

    def _linger(self, connection: Connection) -> None:
        """Closing a socket with unread bytes would take our answer from the other side."""
        connection.end_output()
        connection.data.clear()
        self._arm(connection, LINGERING, LINGER_S)

    def _requests(self, connection: Connection) -> None:
        """All that are whole, one after the other."""
        config = self._config
        while True:
            try:
                state = self._next(connection)
            except MyQueueError as error:
                self._send(connection, refusal(error))
                return
            if state == WORKING:
                if not self._work_on(connection):
                    return
            elif state == IDLE:
                fresh = connection.state != IDLE
                self._arm(connection, IDLE, config.idle_timeout_ms / 1000 if fresh else None)
                return
            else:
                seconds = config.header_timeout_ms if state == HEAD else config.body_timeout_ms
                fresh = connection.state != state
                self._arm(connection, state, seconds / 1000 if fresh else None)
                return

    def _next(self, connection: Connection) -> int:
        """Which state it is in, by what was received: WORKING means a whole request."""
        data = connection.data
        head = connection.head
        if head is None:
            while data.startswith(b"\r\n"):  # some clients send one behind a body
                del data[:2]
            end = data.find(http1.END)
            if end < 0:
                if len(data) > self._config.header_bytes_max:
                    raise Malformed(f"headers of more than {self._config.header_bytes_max} bytes")
                return HEAD if data else IDLE
            if end > self._config.header_bytes_max:
                raise Malformed(f"headers of more than {self._config.header_bytes_max} bytes")
            head = connection.head = http1.parse(bytes(data[:end]))
            del data[: end + len(http1.END)]
            if head.length > self._config.body_bytes_max:
                raise BodyTooLarge(
                    f"a body of {head.length} bytes; this gateway takes"
                    f" {self._config.body_bytes_max}"
                )
            if head.expects_continue and len(data) < head.length:
                connection.send_all(http1.CONTINUE, 1.0)
        return WORKING if len(data) >= head.length else BODY

    def _work_on(self, connection: Connection) -> bool:
        """Answer the request that is there. True: go on with the next one."""
        head, data = connection.head, connection.data
        if head is None:
            return False
        connection.state, connection.head = WORKING, None
        body = bytes(data[: head.length])
        del data[: head.length]
        answer = run(self._application, self._config, connection.address, head, body)
        if self._stopping.is_set():
            answer.close = True
            self._answered.set()
        return self._send(connection, answer)

    def _send(self, connection: Connection, answer: Answer) -> bool:
        connection.closes = answer.close
        if answer.stream is not None:
            return self._stream(connection, answer)
        if not connection.send(answer.head(self._now()) + answer.body):
            self._close(connection)
            return False
        return self._is_sent(connection)

    def _stream(self, connection: Connection, answer: Answer) -> bool:
        """An answer whose end is not known yet; it holds this thread."""
        connection.state = WORKING
        alive = connection.send_all(answer.head(self._now()), SEND_S)
        try:
            for chunk in answer.stream or ():
                if chunk and alive:
                    alive = connection.send_all(answer.chunk(chunk), SEND_S)
                if not alive or self._stopping.is_set():
                    break
            else:
                alive = alive and connection.send_all(answer.chunk(b""), SEND_S)
        finally:
            answer.close_stream()
        if not alive:
            self._close(connection)
            return False
        connection.closes = connection.closes or self._stopping.is_set()
        return self._is_sent(connection)

    def _now(self) -> str:
        second = int(monotonic())
        if second != self._second:
            self._date = formatdate(usegmt=True)
            self._second = second
        return self._date


def _listen(address: str) -> socket.socket:
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


def _tls_of(config: GatewayConfig) -> ssl.SSLContext | None:
    if not config.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    return context
