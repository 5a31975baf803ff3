"""Send answers, from the thread that has them: the client's I/O thread, the pool, or the reader.

A sender never waits for its client, but for streams, which occupy a thread anyway. It first sets
the state of the connection, and then looks at what was received meanwhile (`server.py` explains why
that is enough without a lock). Where the reading thread has to go on, it is woken up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from time import monotonic

from myqueue.gateway.http import deadlines, memory_limit
from myqueue.gateway.http.connection import IDLE, WRITING, Connection
from myqueue.gateway.http.wsgi import Answer
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")


class AnswerSender:
    """Sends the answers of all connections. `wake` wakes up the reading thread."""

    def __init__(self, config: GatewayConfig, wake: Callable[[], None]) -> None:
        self._config, self._wake = config, wake
        self.to_look_at: deque[Connection] = deque()  # for the reading thread to look at
        self.bodies_to_release: deque[int] = deque()  # sizes of large bodies that were answered
        self.stopping = False
        self._second, self._date = 0, ""

    def send(self, connection: Connection, answer: Answer) -> None:
        """Send an answer, as far as the socket takes it; the reading thread sends the rest."""
        if answer.stream is not None:
            self._stream(connection, answer)
            return
        connection.closes = answer.close or self.stopping
        answer.close = connection.closes
        head, body = answer.head(self._now()), answer.body
        if len(body) <= memory_limit.SMALL_BYTES_MAX:
            self.note_sent(connection, connection.send(head + body))
            return
        alive = connection.send(head)  # joining both would double the memory
        rest = connection.unsent
        if rest is not None:
            connection.unsent = memoryview(bytes(rest) + body)
        elif alive:
            alive = connection.send(body)
        self.note_sent(connection, alive)

    def _stream(self, connection: Connection, answer: Answer) -> None:
        """Send an answer whose end is not known yet; it occupies this thread."""
        is_complete = False
        alive = connection.send_all(answer.head(self._now()), memory_limit.SEND_TIMEOUT_S)
        try:
            for chunk in answer.stream or ():
                connection.expire_in(deadlines.request_limit_ms(self._config))
                if chunk and alive:
                    alive = connection.send_all(answer.chunk(chunk), memory_limit.SEND_TIMEOUT_S)
                if not alive or self.stopping or connection.is_broken:
                    break
            else:
                is_complete = connection.send_all(answer.chunk(b""), memory_limit.SEND_TIMEOUT_S)
        except Exception:
            log.exception("a stream failed")
        finally:
            answer.close_stream()
        connection.closes = answer.close or not is_complete
        self.note_sent(connection, alive)

    def note_sent(self, connection: Connection, alive: bool) -> None:
        """Note that an answer was sent, as far as the socket took it. Set the state first, then
        look at what was received.
        """
        if not alive:
            connection.is_broken = True
        body_bytes, connection.large_body_bytes = connection.large_body_bytes, 0
        rest = connection.unsent
        if rest is None:
            connection.expire_in(self._config.idle_timeout_ms)
            connection.state = IDLE
        elif connection.state != WRITING:
            # One deadline for the whole answer: a client that takes a byte now and then can't hold
            # it forever.
            connection.begin_phase()
            connection.deadline = connection.phase_begin_s + memory_limit.seconds_to_take(len(rest))
            connection.state = WRITING
        if body_bytes:
            self.bodies_to_release.append(body_bytes)
        if (
            rest is not None
            or connection.data
            or connection.is_broken
            or connection.closes
            or body_bytes
        ):
            self.to_look_at.append(connection)
            self._wake()

    def _now(self) -> str:
        second = int(monotonic())
        if second != self._second:
            self._date = formatdate(usegmt=True)
            self._second = second
        return self._date
