"""The HTTP server: one thread reads all connections, a pool runs what has to wait.

    epoll ─▶ receive ─▶ head ─▶ check head ─▶ body ─▶ `fast_path.py`, else a thread of the pool
                          │ incomplete: wait for more, until the deadline          │
    the thread that has the answer sends it ◀──────────────────────────────────────┘

A connection occupies a thread only while its request waits for something in one. A client that
sends a header byte by byte, or nothing, or takes an answer slowly, costs a little memory and a
place in a table. The server closes it at its deadline, or earlier if other clients need its place
(`connection_limits.py`) or its bytes (`body_budget.py`). Limits are checked before anything is
stored: headers by bytes and number, the body by its announced length. A request whose head shows
that it will be refused is refused before its body is read.

The reading thread and the thread that sends an answer share no lock, but keep an order: the reader
first notes what it received (bytes, or the end) and then looks at the state; the sender first sets
the state and then looks at what was received. So one of them always sees that there is more to do.
Only the reader takes requests out of a connection, and only it closes one. `State` lists which
function changes the state in which thread.

`gateway/DESIGN.md` has the measurements for which this was written instead of using an existing
server.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

from myqueue.errors import BodyTooLarge, Busy, Malformed, MyQueueError
from myqueue.gateway import drop_reasons
from myqueue.gateway.http import body_budget, connection_limits, request_head, thread_stacks
from myqueue.gateway.http.answer import Answer, MakeAnswer, RequestHandlers, refusal
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.connection import (
    ANSWERING,
    BODY,
    HEAD,
    IDLE,
    LINGERING,
    PARSED,
    WAITS_FOR_ROOM,
    WRITING,
    Connection,
)
from myqueue.gateway.http.listener import listen, make_tls_context
from myqueue.gateway.http.worker_pool import WorkerPool
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

EVENTS_AT_ONCE: Final = 256
ACCEPT_AT_ONCE: Final = 64
SWEEP_S: Final = 0.25
DRAIN_S: Final = 0.05  # between two checks whether all requests are answered
LINGER_S: Final = 2.0
ACCEPT_PAUSE_S: Final = 0.1  # before the next accept when no file descriptor is free
PIPELINED_BYTES_MAX: Final = 64 << 10  # a client may send so much before it has its answer
NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
IN, OUT = select.EPOLLIN, select.EPOLLOUT


class Server:
    """An HTTP/1.1 server; `serve` returns after `stop` was called.

    `count_dropped` gets the reason for each connection that was dropped (`drop_reasons.REASONS`).
    Raises OSError if it can't listen.
    """

    def __init__(
        self,
        config: GatewayConfig,
        handlers: RequestHandlers,
        count_dropped: Callable[[str], None] | None = None,
    ) -> None:
        self._config, self._handlers = config, handlers
        self._bodies = body_budget.BodyBudget(config)
        self._dropped = drop_reasons.DropCounter(count_dropped)
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, IN)
        self._connections: dict[int, Connection] = {}
        self._sender = AnswerSender(config, self._wake)
        self._pool = WorkerPool(config.threads, self._sender)
        self._stopping = False
        self._accept_paused_until = 0.0
        self._tls = make_tls_context(config)
        self._listener = listen(config.listen)
        self._listener_fd = self._listener.fileno()
        self._epoll.register(self._listener_fd, IN)

    def stop(self) -> None:
        """Ask the server to stop; from any thread or a signal handler."""
        self._stopping = self._sender.stopping = True
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def serve(self) -> None:
        """Serve until `stop` is called. Call it in the main thread, which receives the signals."""
        self._pool.start()
        sweep_at = monotonic() + SWEEP_S
        while not self._stopping:
            self._turn(max(0.0, sweep_at - monotonic()))
            if monotonic() >= sweep_at:
                self._sweep()
                sweep_at = monotonic() + SWEEP_S
        self._drain()
        self._pool.stop()
        for connection in tuple(self._connections.values()):
            self._close(connection)

    def _turn(self, seconds: float) -> None:
        for fd, event in self._epoll.poll(seconds, EVENTS_AT_ONCE):
            connection = self._connections.get(fd)
            if connection is not None:
                self._on_event(connection, event)
            elif fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif fd == self._listener_fd:
                self._accept()
        while self._sender.connections_to_continue:
            connection = self._sender.connections_to_continue.popleft()
            if self._connections.get(connection.fd) is connection:
                self._continue_or_close(connection)
        while self._sender.bodies_to_release:
            self._release_body(self._sender.bodies_to_release.popleft())

    def _drain(self) -> None:
        """Accept no new connections; answer requests under way, as far as the time allows."""
        self._epoll.unregister(self._listener_fd)
        self._listener.close()
        end = monotonic() + self._config.stop_within_ms / 1000
        while monotonic() < end:
            busy = 0
            for connection in tuple(self._connections.values()):
                if connection.state in (IDLE, WAITS_FOR_ROOM):
                    self._close(connection)
                busy += connection.state in (BODY, ANSWERING, WRITING)
            if not busy:
                return
            self._turn(DRAIN_S)

    def _sweep(self) -> None:
        """Close connections that are overdue, and those whose place or bytes others need."""
        now = monotonic()
        for connection in tuple(self._connections.values()):
            if connection.deadline < now:
                self._end_overdue(connection)
        connection_limits.update_pace(self._connections.values(), now)
        for connection in connection_limits.choose_slow_readers(self._connections.values(), now):
            self._dropped.add(drop_reasons.ANSWERS)
            self._close(connection)
        self._free_body_bytes()
        self._dropped.log_due(now)
        if self._accept_paused_until and now > self._accept_paused_until:
            self._accept_paused_until = 0.0
            self._epoll.modify(self._listener_fd, IN)

    def _end_overdue(self, connection: Connection) -> None:
        if connection.state == ANSWERING:
            limit_s = connection_limits.request_limit_ms(self._config) / 1000
            log.error(
                "%s is overdue after %.0f s: a defect of this program; all threads follow",
                connection.describe(),
                monotonic() - connection.deadline + limit_s,
                extra={"facts": {"trace": thread_stacks.describe_threads()}},
            )
        elif connection.state == WRITING:
            self._dropped.add(drop_reasons.ANSWERS)
        elif connection.state == WAITS_FOR_ROOM:
            self._drop_body(connection)
            return
        self._close(connection)

    # -- connections that come and go -------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, (address, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_FILES:
                    self._pause_accept()
                    return
                continue  # the client closed it before it was accepted
            try:
                self._open(sock, address)
            except OSError:  # this connection failed; others are not affected
                sock.close()

    def _pause_accept(self) -> None:
        """Close a connection to get a free file descriptor, and try again a little later."""
        if not self._free_connection(drop_reasons.FILES):
            self._dropped.add(drop_reasons.FILES)
        self._accept_paused_until = monotonic() + ACCEPT_PAUSE_S
        self._epoll.modify(self._listener_fd, 0)

    def _open(self, sock: socket.socket, address: str) -> None:
        is_full = len(self._connections) >= self._config.connections_max
        if is_full and not self._free_connection(drop_reasons.PLACES):
            self._dropped.add(drop_reasons.REFUSED)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        connection = Connection(sock, address)
        connection.expire_in(self._config.header_timeout_ms)
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, IN)

    def _free_connection(self, reason: str) -> bool:
        """Close connections that may be closed for a new one. Return False if all are busy."""
        chosen = connection_limits.choose_to_close(self._connections.values())
        for connection in chosen:
            self._dropped.add(reason)
            self._close(connection)
        return bool(chosen)

    def _free_body_bytes(self) -> None:
        for connection in self._bodies.choose_to_drop():
            self._drop_body(connection)
        while (queued := self._bodies.begin_next()) is not None:
            self._read_body(queued)

    def _drop_body(self, connection: Connection) -> None:
        """Answer 429 instead of reading the body, or the rest of it: others need the room."""
        self._dropped.add(drop_reasons.BYTES)
        self._bodies.drop(connection)
        connection.received.clear()
        self._refuse(
            connection, Busy("too many request bodies are being sent to this gateway at once")
        )

    def _close(self, connection: Connection) -> None:
        """Close a connection. Threads that still work for it see `is_broken`, not a new connection
        with the same file descriptor.
        """
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
        self._bodies.drop(connection)
        connection.is_broken = True
        connection.received.clear()
        connection.sock.close()

    def _update_events(self, connection: Connection) -> None:
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

    # -- what a connection brings -----------------------------------------------------------------

    def _on_event(self, connection: Connection, event: int) -> None:
        try:
            self._send_or_receive(connection, event)
        except Exception:
            self._close_failed(connection)

    def _continue_or_close(self, connection: Connection) -> None:
        try:
            self._continue(connection)
        except Exception:
            self._close_failed(connection)

    def _close_failed(self, connection: Connection) -> None:
        log.exception("%s failed, and is closed: a defect of this program", connection.describe())
        self._close(connection)

    def _send_or_receive(self, connection: Connection, event: int) -> None:
        rest = connection.unsent
        if event & OUT and rest is not None and connection.state == WRITING:
            self._send_on(connection, rest)
            return
        had_to_write = connection.wants_write
        connection.receive()
        state = connection.state
        if state == LINGERING:
            connection.received.clear()
        is_answered = state in (ANSWERING, WRITING)
        is_full = is_answered and len(connection.received) > PIPELINED_BYTES_MAX
        if connection.is_broken and not is_answered:
            self._close(connection)
            return
        if is_full and not connection.is_broken:
            connection.is_read_paused = True
        if connection.is_broken or is_full or connection.wants_write or had_to_write:
            self._update_events(connection)
        if state in PARSED:
            self._begin_requests(connection)

    def _continue(self, connection: Connection) -> None:
        """Go on after an answer was sent, as far as the socket took it."""
        if connection.state in (ANSWERING, LINGERING):
            return
        if connection.state == WRITING and not connection.is_broken:
            self._update_events(connection)
            return
        if connection.close_after_answer and not connection.is_broken:
            # Closing a socket with unread bytes would make the client lose the answer.
            connection.end_output()
            connection.received.clear()
            connection.state = LINGERING
            connection.expire_in(LINGER_S * 1000)
        if connection.is_broken:
            self._close(connection)
            return
        if connection.is_read_paused:
            connection.is_read_paused = False
            self._update_events(connection)
        if connection.state != LINGERING:
            self._begin_requests(connection)

    def _begin_requests(self, connection: Connection) -> None:
        """Begin all requests that were received completely, one after the other."""
        while connection.state in PARSED and not connection.close_after_answer:
            head = connection.head
            if head is None:
                try:
                    head = self._try_read_head(connection)
                    if head is not None:
                        self._check_new_head(connection, head)
                except MyQueueError as error:
                    self._refuse(connection, error)
                    return
            if head is None:
                self._wait_for_head(connection)
                return
            if len(connection.received) < head.length:
                self._wait_for_body(connection, head)
                return
            self._begin_request(connection, head)

    def _try_read_head(self, connection: Connection) -> request_head.Head | None:
        """Take a head out of the received bytes, if all of it was received. Raises Malformed."""
        received, limit = connection.received, self._config.header_bytes_max
        while received.startswith(b"\r\n"):  # some clients send an empty line after a body
            del received[:2]
        if not received:
            return None
        end = received.find(request_head.END)
        if end > limit or (end < 0 and len(received) > limit):
            raise Malformed(f"headers of more than {limit} bytes")
        if end < 0:
            return None
        head = connection.head = request_head.parse(bytes(received[:end]))
        del received[: end + len(request_head.END)]
        return head

    def _check_new_head(self, connection: Connection, head: request_head.Head) -> None:
        """Raise what the client gets if its request is refused by its head."""
        if head.length > self._config.body_bytes_max:
            raise BodyTooLarge(
                f"a body of {head.length} bytes; this gateway takes {self._config.body_bytes_max}"
            )
        # Only to save memory: a body that is here already is checked by the application.
        if len(connection.received) < head.length and self._handlers.check_head is not None:
            self._handlers.check_head(head)

    def _wait_for_head(self, connection: Connection) -> None:
        if not connection.received:
            connection.state = IDLE
        elif connection.state != HEAD:
            connection.state = HEAD
            connection.begin_phase()
            connection.expire_in(self._config.header_timeout_ms)

    def _wait_for_body(self, connection: Connection, head: request_head.Head) -> None:
        """Read a body from now on, or pause reading until it has room."""
        if connection.state == BODY:
            return
        if self._bodies.begin_or_queue(connection, head.length):
            self._read_body(connection)
            if self._bodies.needs_room:
                self._free_body_bytes()
            return
        connection.state, connection.is_read_paused = WAITS_FOR_ROOM, True
        connection.expire_in(self._config.body_timeout_ms)
        self._update_events(connection)

    def _read_body(self, connection: Connection) -> None:
        connection.state = BODY
        connection.begin_phase()
        connection.expire_in(self._config.body_timeout_ms)
        if connection.is_read_paused:
            connection.is_read_paused = False
            self._update_events(connection)
        if connection.expects_continue:
            # The send buffer has room for these bytes, unless earlier answers were not taken.
            is_alive = connection.send(request_head.CONTINUE)
            if not is_alive or connection.unsent is not None:
                self._close(connection)

    def _refuse(self, connection: Connection, error: MyQueueError) -> None:
        connection.state = ANSWERING
        connection.expire_in(connection_limits.SEND_TIMEOUT_S * 1000)
        self._sender.send(connection, refusal(error))

    def _begin_request(self, connection: Connection, head: request_head.Head) -> None:
        """Take the body of a complete request out of the received bytes, and start answering."""
        connection.head_in_answer = head
        if connection.state == BODY:
            connection.large_body_bytes = self._bodies.body_received(connection)
        connection.state, connection.head, connection.had_request = ANSWERING, None, True
        connection.expire_in(connection_limits.request_limit_ms(self._config))
        self._dispatch(connection, head, _cut_body(connection, head.length))

    def _dispatch(self, connection: Connection, head: request_head.Head, body: bytes) -> None:
        """Have a request answered: without waiting if possible, else in a thread of the pool."""

        def on_answer(answer: Answer | MakeAnswer) -> None:
            if isinstance(answer, Answer):
                self._sender.send(connection, answer)
            else:
                self._pool.add(connection, answer)

        begin, is_small = self._handlers.begin, len(body) <= body_budget.SMALL_BYTES_MAX
        if is_small and begin is not None and begin(head, body, on_answer):
            return
        make_answer = partial(self._handlers.answer, connection.address, head, body)
        if connection.large_body_bytes >= body_budget.HEAVY_BYTES:
            self._pool.add_heavy(connection, make_answer)
        else:
            self._pool.add(connection, make_answer)

    def _release_body(self, body_bytes: int) -> None:
        """Free the bytes of a large body that was answered, so that the next ones can go on."""
        self._bodies.release(body_bytes)
        if body_bytes >= body_budget.HEAVY_BYTES:
            self._pool.end_heavy()
        self._free_body_bytes()

    # -- answers ----------------------------------------------------------------------------------

    def _send_on(self, connection: Connection, rest: memoryview) -> None:
        is_alive = connection.send(rest)
        if connection.unsent is None:
            self._update_events(connection)
        self._sender.finish_or_hand_over(connection, is_alive)


def _cut_body(connection: Connection, length: int) -> bytes:
    """Take a body out of the received bytes."""
    received = connection.received
    if connection.large_body_bytes:
        with memoryview(received) as view:  # saves one copy of a large body
            body = bytes(view[:length])
    else:
        body = bytes(received[:length])
    del received[:length]
    return body
