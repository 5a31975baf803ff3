"""The HTTP server: one thread reads all connections, a pool runs what has to wait.

    epoll ─▶ receive ─▶ whole request? ─▶ short way (`lane.py`), else a thread of the pool
                          │ not yet: wait for more, until its deadline      │
    whoever has the answer sends it ◀──────────────────────────────────────-┘

A connection costs a thread only while its request waits for something in one. Who sends a header
byte by byte, or nothing at all, or takes an answer slowly, holds a little memory and a place in a
table, and is ended by its deadline (H3). Limits are looked at before anything is kept: headers by
bytes and number, the body by its announced length, which is refused before a byte of it is read.

Between the reading thread and who sends an answer there is no lock, but an order: the reader first
notes what came (data, or the end) and then looks at the state; the other one first sets the state
and then looks at what came. So one of them always sees that there is more to do. Only the reader
takes requests out of a connection, and only it closes one.

`DESIGN.md` has the measurement that made us write this instead of taking a server that exists.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections import deque
from email.utils import formatdate
from queue import SimpleQueue
from time import monotonic
from typing import Final, Protocol

from myqueue.errors import BodyTooLarge, Malformed, MyQueueError
from myqueue.gateway import http1, overdue
from myqueue.gateway.config import GatewayConfig
from myqueue.gateway.sockets import (
    BODY,
    HEAD,
    IDLE,
    LINGERING,
    WORKING,
    WRITING,
    Connection,
    listen,
    tls_of,
)
from myqueue.gateway.wsgi import Answer, Application, Respond, refusal, run

log = logging.getLogger("myqueue.gateway")

EVENTS_AT_ONCE: Final = 256
ACCEPT_AT_ONCE: Final = 64
SWEEP_S: Final = 0.5
DRAIN_S: Final = 0.05  # between two looks whether all is answered
LINGER_S: Final = 2.0
SEND_S: Final = 30.0  # an answer of which nothing is taken for so long
ROOM_S: Final = 0.1  # before the next try to take a connection when there are no files left
QUICK_BYTES_MAX: Final = 64 << 10  # a larger body is not read in the thread that serves all
AHEAD_BYTES_MAX: Final = 64 << 10  # that a client may send before it has its answer
IN, OUT = select.EPOLLIN, select.EPOLLOUT


class Quick(Protocol):
    """What can be done without waiting."""

    def begin(self, head: http1.Head, body: bytes, respond: Respond) -> bool: ...


class Server:
    """See the chapter's head. `serve` returns when `stop` was called."""

    def __init__(
        self, application: Application, config: GatewayConfig, quick: Quick | None = None
    ) -> None:
        self._application, self._config, self._quick = application, config, quick
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, IN)
        self._connections: dict[int, Connection] = {}
        self._handed: deque[Connection] = deque()  # that the reader should look at
        self._waiting: SimpleQueue[tuple[Connection, http1.Head, bytes] | None] = SimpleQueue()
        self._stopping = False
        self._door_shut_until = 0.0
        self._tls = tls_of(config)
        self._listener = listen(config.listen)
        self._door = self._listener.fileno()
        self._epoll.register(self._door, IN)
        self._second, self._date = 0, ""

    def stop(self) -> None:
        """From any thread, or a signal's handler."""
        self._stopping = True
        os.eventfd_write(self._bell, 1)

    def serve(self) -> None:
        """In the main thread, which hears the signals."""
        for number in range(self._config.threads):
            name = f"http-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        sweep_at = monotonic() + SWEEP_S
        while not self._stopping:
            self._turn(max(0.0, sweep_at - monotonic()))
            if monotonic() >= sweep_at:
                self._sweep()
                sweep_at = monotonic() + SWEEP_S
        self._drain()
        for _ in range(self._config.threads):
            self._waiting.put(None)
        for connection in tuple(self._connections.values()):
            self._close(connection)

    def _turn(self, seconds: float) -> None:
        for number, event in self._epoll.poll(seconds, EVENTS_AT_ONCE):
            connection = self._connections.get(number)
            if connection is not None:
                self._safely(connection, event)
            elif number == self._bell:
                os.eventfd_read(self._bell)
            elif number == self._door:
                self._accept()
        while self._handed:
            connection = self._handed.popleft()
            if self._connections.get(connection.number) is connection:
                self._safely(connection, 0)

    def _safely(self, connection: Connection, event: int) -> None:
        try:
            if event:
                self._heard(connection, event)
            else:
                self._look(connection)
        except Exception:
            log.exception("a connection failed")
            self._close(connection)

    def _drain(self) -> None:
        """No new connections; requests under way are answered, as far as the time allows."""
        self._epoll.unregister(self._door)
        self._listener.close()
        end = monotonic() + self._config.stop_within_ms / 1000
        while monotonic() < end:
            busy = 0
            for connection in tuple(self._connections.values()):
                if connection.state == IDLE:
                    self._close(connection)
                busy += connection.state in (BODY, WORKING, WRITING)
            if not busy:
                return
            self._turn(DRAIN_S)

    def _sweep(self) -> None:
        """End what is overdue."""
        now = monotonic()
        for connection in tuple(self._connections.values()):
            if connection.deadline < now:
                if connection.state == WORKING:
                    log.error("a request is overdue\n%s", overdue.threads())
                self._close(connection)
        if self._door_shut_until and now > self._door_shut_until:
            self._door_shut_until = 0.0
            self._epoll.modify(self._door, IN)

    # -- connections that come and go -------------------------------------------------------------

    def _accept(self) -> None:
        try:
            for _ in range(ACCEPT_AT_ONCE):
                sock, (address, *_) = self._listener.accept()
                self._open(sock, address)
        except BlockingIOError:
            pass
        except OSError as error:  # too many files
            log.warning("a connection was not taken: %s", error.strerror)
            self._make_room()
            self._door_shut_until = monotonic() + ROOM_S
            self._epoll.modify(self._door, 0)

    def _open(self, sock: socket.socket, address: str) -> None:
        if len(self._connections) >= self._config.connections_max and not self._make_room():
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        connection = Connection(sock, address, self._in(self._config.header_timeout_ms))
        self._connections[connection.number] = connection
        self._epoll.register(connection.number, IN)

    def _make_room(self) -> bool:
        """Who waits longest for a request, or for the rest of a head, has to go."""
        waiting = [one for one in self._connections.values() if one.state in (IDLE, HEAD)]
        if waiting:
            self._close(min(waiting, key=lambda one: one.deadline))
        return bool(waiting)

    def _close(self, connection: Connection) -> None:
        """Whoever still works for it finds it gone, and not another one with its number."""
        if self._connections.get(connection.number) is connection:
            del self._connections[connection.number]
        connection.gone = True
        connection.sock.close()

    def _in(self, ms: float) -> float:
        return monotonic() + ms / 1000

    def _listen_for(self, connection: Connection) -> None:
        if connection.gone:
            if connection.is_watched:  # its end would be told again and again
                self._epoll.unregister(connection.number)
                connection.is_watched = False
            return
        writes = connection.out is not None or connection.wants_write
        reads = not connection.is_deaf
        self._epoll.modify(connection.number, (IN if reads else 0) | (OUT if writes else 0))

    # -- what a connection brings -----------------------------------------------------------------

    def _heard(self, connection: Connection, event: int) -> None:
        left = connection.out
        if event & OUT and left is not None:
            self._send_on(connection, left)
            return
        had_to_write = connection.wants_write
        connection.receive()
        state = connection.state
        if state == LINGERING:
            connection.data.clear()
        is_full = state in (WORKING, WRITING) and len(connection.data) > AHEAD_BYTES_MAX
        if connection.gone and state not in (WORKING, WRITING):
            self._close(connection)
            return
        if is_full and not connection.gone:
            connection.is_deaf = True
        if connection.gone or is_full or connection.wants_write or had_to_write:
            self._listen_for(connection)
        if state in (IDLE, HEAD, BODY):
            self._requests(connection)

    def _look(self, connection: Connection) -> None:
        """An answer was sent, as far as it goes, and there is more to do."""
        if connection.state in (WORKING, LINGERING):
            return
        if connection.state == WRITING and not connection.gone:
            self._listen_for(connection)
            return
        if connection.closes and not connection.gone:
            # Closing a socket with unread bytes would take our answer from the other side.
            connection.end_output()
            connection.data.clear()
            connection.state, connection.deadline = LINGERING, self._in(LINGER_S * 1000)
        if connection.gone:
            self._close(connection)
            return
        if connection.is_deaf:
            connection.is_deaf = False
            self._listen_for(connection)
        if connection.state != LINGERING:
            self._requests(connection)

    def _requests(self, connection: Connection) -> None:
        """All that are whole, one after the other."""
        config = self._config
        while connection.state < WORKING and not connection.closes:
            try:
                found = self._next(connection)
            except MyQueueError as error:
                connection.state, connection.deadline = WORKING, self._in(SEND_S * 1000)
                self._answer(connection, refusal(error))
                return
            if found == WORKING:
                self._begin(connection)
            elif found == connection.state:
                return
            else:
                connection.state = found
                if found != IDLE:
                    ms = config.header_timeout_ms if found == HEAD else config.body_timeout_ms
                    connection.deadline = self._in(ms)
                return

    def _next(self, connection: Connection) -> int:
        """Which state it is in, by what was received: WORKING means a whole request."""
        data, head, limit = connection.data, connection.head, self._config.header_bytes_max
        if head is None:
            while data.startswith(b"\r\n"):  # some clients send one behind a body
                del data[:2]
            end = data.find(http1.END)
            if end > limit or (end < 0 and len(data) > limit):
                raise Malformed(f"headers of more than {limit} bytes")
            if end < 0:
                return HEAD if data else IDLE
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

    def _begin(self, connection: Connection) -> None:
        """Have the request answered that is there: at once, soon, or by a thread of the pool."""
        head, data = connection.head, connection.data
        if head is None:
            return
        connection.state, connection.head = WORKING, None
        connection.deadline = self._in(overdue.limit_ms(self._config))
        body = bytes(data[: head.length])
        del data[: head.length]

        def respond(answer: Answer | None) -> None:
            if answer is not None:
                self._answer(connection, answer)
            else:
                self._waiting.put((connection, head, body))

        is_small = len(body) <= QUICK_BYTES_MAX
        if self._quick is None or not is_small or not self._quick.begin(head, body, respond):
            self._waiting.put((connection, head, body))

    # -- what it gets; from any thread ------------------------------------------------------------

    def _work(self) -> None:
        """A thread of the pool."""
        while (found := self._waiting.get()) is not None:
            try:
                self._do(*found)
            except Exception:
                log.exception("a request was not answered")
                found[0].gone = True
                self._sent(found[0], False)

    def _do(self, connection: Connection, head: http1.Head, body: bytes) -> None:
        answer = run(self._application, self._config, connection.address, head, body)
        if answer.stream is None:
            self._answer(connection, answer)
        else:
            self._stream(connection, answer)

    def _answer(self, connection: Connection, answer: Answer) -> None:
        connection.closes = answer.close or self._stopping
        answer.close = connection.closes
        self._sent(connection, connection.send(answer.head(self._now()) + answer.body))

    def _stream(self, connection: Connection, answer: Answer) -> None:
        """An answer whose end is not known yet; it holds this thread."""
        is_whole = False
        alive = connection.send_all(answer.head(self._now()), SEND_S)
        try:
            for chunk in answer.stream or ():
                connection.deadline = self._in(overdue.limit_ms(self._config))
                if chunk and alive:
                    alive = connection.send_all(answer.chunk(chunk), SEND_S)
                if not alive or self._stopping or connection.gone:
                    break
            else:
                is_whole = connection.send_all(answer.chunk(b""), SEND_S)
        except Exception:
            log.exception("a stream failed")
        finally:
            answer.close_stream()
        connection.closes = answer.close or not is_whole
        self._sent(connection, alive)

    def _sent(self, connection: Connection, alive: bool) -> None:
        """It is sent, or as much as goes now. First the state, then what came meanwhile."""
        if not alive:
            connection.gone = True
        if connection.out is not None:
            connection.deadline = self._in(SEND_S * 1000)
            connection.state = WRITING
        else:
            connection.deadline = self._in(self._config.idle_timeout_ms)
            connection.state = IDLE
        if connection.out is not None or connection.data or connection.gone or connection.closes:
            self._handed.append(connection)
            os.eventfd_write(self._bell, 1)

    def _send_on(self, connection: Connection, left: memoryview) -> None:
        alive = connection.send(left)
        if connection.out is None:
            self._listen_for(connection)
        self._sent(connection, alive)

    def _now(self) -> str:
        second = int(monotonic())
        if second != self._second:
            self._date = formatdate(usegmt=True)
            self._second = second
        return self._date
