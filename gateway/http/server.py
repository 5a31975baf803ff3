"""The HTTP server: one thread reads all connections, a pool runs what has to wait.

    epoll ─▶ receive ─▶ `request_intake.py` ─▶ begun in this thread, else in a thread of the pool
                                                                        │
    the thread that has the answer sends it (`answer_sender.py`) ◀──────┘

A connection occupies a thread only while its request waits for something in one. A client that
sends a header byte by byte, or nothing, or takes an answer slowly, costs a little memory and a
place in a table. The server closes it at its deadline, or earlier if other clients need its place
(`eviction.py`) or its bytes (`body_budget.py`).

The reading thread and the thread that sends an answer share no lock, but keep an order: the reader
first notes what it received (bytes, or the end) and then looks at the state; the sender first sets
the state and then looks at what was received. So one of them always sees that there is more to do.
Only the reader takes requests out of a connection, and only it closes one. `State` lists all
changes of the state.

`gateway/DESIGN.md` has the measurements for which this was written instead of using an existing
server.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import Final

from myqueue.errors import Busy
from myqueue.gateway import drop_reasons, thread_stacks
from myqueue.gateway.http import deadlines, eviction
from myqueue.gateway.http.answer import RequestHandlers
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.answer_starter import AnswerStarter
from myqueue.gateway.http.body_budget import BodyBudget
from myqueue.gateway.http.connection import (
    ANSWERING,
    BODY,
    IDLE,
    LINGERING,
    WAITS_FOR_ROOM,
    WRITING,
    Connection,
    State,
)
from myqueue.gateway.http.listener import Listener
from myqueue.gateway.http.open_connections import IN, OUT, OpenConnections
from myqueue.gateway.http.request_intake import BYTES, CLOSE, PARSED, SERVER, Next, RequestIntake
from myqueue.gateway.http.worker_pool import WorkerPool
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

EVENTS_AT_ONCE: Final = 256
SWEEP_S: Final = 0.25
DRAIN_S: Final = 0.05  # between two checks whether all requests are answered
GONE: Final = select.EPOLLHUP | select.EPOLLERR  # not even the sending side is left


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
        self._config, self._stopping, self._reading_thread = config, False, 0
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, IN)
        self._dropped = drop_reasons.DropCounter(count_dropped)
        self._bodies = BodyBudget(config, self._wake)
        self._connections = OpenConnections(self._epoll)
        self._sender = AnswerSender(config, handlers.refuse, self._wake)
        self._pool = WorkerPool(config.threads, self._sender)
        self._intake = RequestIntake(
            config, handlers.check_head, self._bodies, self._sender,
            AnswerStarter(handlers, self._sender, self._pool),
        )  # fmt: skip
        self._listener = Listener(config, self._epoll, self._connections, self._dropped)

    def stop(self) -> None:
        """Ask the server to stop; from any thread or a signal handler."""
        self._stopping = self._sender.stopping = True
        os.eventfd_write(self._wake_fd, 1)

    def _wake(self) -> None:
        if get_ident() != self._reading_thread:  # that one looks for work before it waits
            os.eventfd_write(self._wake_fd, 1)

    def serve(self) -> None:
        """Serve until `stop` is called. Call it in the main thread, which receives the signals."""
        self._reading_thread = get_ident()
        self._pool.start()
        sweep_at = monotonic() + SWEEP_S
        while not self._stopping:
            self._turn(max(0.0, sweep_at - monotonic()))
            if monotonic() >= sweep_at:
                self._guarded("a sweep", self._sweep)
                sweep_at = monotonic() + SWEEP_S
        self._drain()
        self._pool.stop()
        for connection in self._connections:
            self._connections.close(connection)

    def _turn(self, seconds: float) -> None:
        """Wait up to so many seconds for events, and handle them and what was handed over."""
        handed_over = self._sender.handed_over
        has_new = False
        for fd, event in self._epoll.poll(0.0 if handed_over else seconds, EVENTS_AT_ONCE):
            connection = self._connections.get(fd)
            if connection is not None:
                self._guarded(connection, self._send_or_receive, connection, event)
            elif fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif fd == self._listener.fd:
                has_new = True
        while handed_over:
            connection = handed_over.popleft()
            if connection in self._connections:
                self._guarded(connection, self._advance, connection)
        # After all events: a new connection may get the file descriptor of one that was closed.
        if has_new:
            self._guarded("accepting connections", self._listener.accept)
        # Last: all the above reserves room for bodies or releases it. What one turn reserves too
        # much is small, because a turn receives little of each connection.
        if self._bodies.needs_room:
            self._guarded("making room for bodies", self._make_room)

    def _guarded(
        self, subject: Connection | str, action: Callable[..., None], *arguments: object
    ) -> None:
        """Call an action. Whatever it raises is logged and ends at most the connection that is its
        subject, never the loop.
        """
        try:
            action(*arguments)
        except Exception:
            if isinstance(subject, str):
                log.exception("%s failed: a defect of this program", subject)
                return
            log.exception("%s failed, and is closed: a defect of this program", subject.describe())
            self._connections.close(subject)

    def _drain(self) -> None:
        """Accept no new connections; answer requests under way, as far as the time allows."""
        self._listener.close()
        end = monotonic() + self._config.stop_within_ms / 1000
        while monotonic() < end:
            busy = 0
            for connection in self._connections:
                if connection.state in (IDLE, WAITS_FOR_ROOM):
                    self._connections.close(connection)
                busy += connection.state in (BODY, ANSWERING, WRITING)
            if not busy:
                return
            self._turn(DRAIN_S)

    # -- what a connection brings -----------------------------------------------------------------

    def _send_or_receive(self, connection: Connection, event: int) -> None:
        if connection.state == WRITING and event & OUT:
            self._sender.send_rest(connection)
        if not (connection.watched_events or 0) & IN:
            if event & GONE:  # other threads set the field too, so it is never set to False
                connection.is_failed = True
        elif event & ~OUT or connection.wants_write:
            connection.receive()
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """Do what comes next for a connection.

        Only its state and its buffers decide that, not what brought it here: another event may have
        done it already.
        """
        state = connection.state  # after receiving: the docstring of this module says why
        if state != ANSWERING and (connection.is_failed or self._go_on(connection, state) is CLOSE):
            self._connections.close(connection)
        else:
            self._connections.watch(connection)

    def _go_on(self, connection: Connection, state: State) -> Next:
        """Do what comes next in any state but ANSWERING."""
        if state in PARSED and not connection.close_after_answer:
            awaited = self._intake.take_requests(connection)
            has_ended = connection.input_ended or connection.is_failed
            return CLOSE if awaited is BYTES and has_ended else awaited
        if state == LINGERING:
            connection.received.clear()
            return CLOSE if connection.input_ended else BYTES
        if state == IDLE:  # the last answer was sent
            if connection.input_ended or not connection.linger(deadlines.LINGER_S):
                return CLOSE
            return BYTES
        return SERVER

    # -- what others need, or has lasted too long -------------------------------------------------

    def _sweep(self) -> None:
        """Close connections that are overdue, and those whose place or bytes others need."""
        now = monotonic()
        for connection in self._connections:
            if connection.deadline < now:
                self._guarded(connection, self._end_overdue, connection)
            elif connection.is_measured:
                connection.pace.measure(now, connection.progress)
        for connection in eviction.choose_slow_readers(self._connections, now):
            self._dropped.add(drop_reasons.ANSWERS)
            self._connections.close(connection)
        # Also if no room was released: a body that this sweep found slow gives way to others.
        self._make_room()
        self._dropped.log_due(now)
        self._listener.resume_if_due(now)

    def _make_room(self) -> None:
        """Drop the bodies that others have to wait for, and begin the queued ones that fit."""
        for connection in self._bodies.choose_to_drop():
            self._drop_body(connection)
        while (queued := self._bodies.admit_next_queued()) is not None:
            self._intake.begin_body(queued)
            self._sender.hand_over(queued)  # its body may be here already

    def _drop_body(self, connection: Connection) -> None:
        """Answer 429 instead of reading the body, or the rest of it: others need the room."""
        self._dropped.add(drop_reasons.BYTES)
        connection.received.clear()
        self._sender.refuse(
            connection, Busy("too many request bodies are being sent to this gateway at once")
        )

    def _end_overdue(self, connection: Connection) -> None:
        if connection.state == WAITS_FOR_ROOM:
            self._drop_body(connection)
            return
        if connection.state == ANSWERING:
            limit_s = deadlines.making_s_max(self._config)
            log.error(
                "%s is overdue after %.0f s: a defect of this program; all threads follow",
                connection.describe(),
                monotonic() - connection.deadline + limit_s,
                extra={"facts": {"trace": thread_stacks.describe_threads()}},
            )
        elif connection.state == WRITING:
            self._dropped.add(drop_reasons.ANSWERS)
        self._connections.close(connection)
