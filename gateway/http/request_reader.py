"""Take requests out of the received bytes, and have them answered.

    received bytes ─▶ head ─▶ check head ─▶ body, when it has room ─▶ `RequestHandlers`
                       │ incomplete: wait for more, until the deadline

Limits are checked before anything is stored: headers by bytes and number, the body by its announced
length. A request whose head shows that it will be refused is refused before its body is read.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from myqueue.errors import BodyTooLarge, Busy, Malformed, MyQueueError
from myqueue.gateway import drop_reasons
from myqueue.gateway.http import deadlines, request_head
from myqueue.gateway.http.answer import CONTINUE, Answer, MakeAnswer, RequestHandlers, refusal
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.body_budget import HEAVY_BYTES, SMALL_BYTES_MAX, BodyBudget
from myqueue.gateway.http.connection import BODY, HEAD, IDLE, Connection
from myqueue.gateway.http.worker_pool import WorkerPool
from myqueue.gateway.settings import GatewayConfig

PARSED: Final = (IDLE, HEAD, BODY)  # received bytes are parsed at once in these states


class RequestReader:
    """Reads the requests of all connections. Only the reading thread uses it."""

    def __init__(
        self,
        config: GatewayConfig,
        handlers: RequestHandlers,
        bodies: BodyBudget,
        sender: AnswerSender,
        pool: WorkerPool,
        dropped: drop_reasons.DropCounter,
    ) -> None:
        self._config, self._handlers, self._bodies = config, handlers, bodies
        self._sender, self._pool, self._dropped = sender, pool, dropped

    def read(self, connection: Connection) -> bool:
        """Begin all requests that were received completely, one after the other. Return True if
        the next one needs more bytes of the client.
        """
        while (
            connection.state in PARSED
            and not connection.close_after_answer
            and not connection.is_failed
        ):
            head = connection.head
            if head is None:
                try:
                    head = self._take_head(connection)
                except MyQueueError as error:
                    self._refuse(connection, error)
                    return False
                if head is None:
                    self._await_head(connection)
                    return True
            is_whole = len(connection.received) >= head.body_bytes
            if not self._has_room(connection, head, is_whole):
                return not is_whole
            if not is_whole:
                return True
            self._begin_request(connection, head)
        return False

    # -- heads ------------------------------------------------------------------------------------

    def _take_head(self, connection: Connection) -> request_head.Head | None:
        """Take a head out of the received bytes and check it; None if its end is missing. Raises
        what the client gets if its request is refused.
        """
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
        if head.body_bytes:
            self._check_head(head)
        return head

    def _check_head(self, head: request_head.Head) -> None:
        """Check it also if its body is here already: that depends on how its bytes arrived."""
        length, limit = head.body_bytes, self._config.body_bytes_max
        if length > limit:
            raise BodyTooLarge(f"a body of {length} bytes; this gateway takes {limit}")
        if self._handlers.check_head is not None:
            self._handlers.check_head(head)

    def _await_head(self, connection: Connection) -> None:
        if connection.state == IDLE and connection.received:
            connection.begin_head(self._config.header_timeout_ms)
        elif connection.state == HEAD and not connection.received:
            connection.await_head()

    # -- bodies -----------------------------------------------------------------------------------

    def _has_room(self, connection: Connection, head: request_head.Head, is_whole: bool) -> bool:
        """Return True if a body may be read, or answered if it is here as a whole already."""
        if connection.state == BODY or (is_whole and head.body_bytes <= SMALL_BYTES_MAX):
            return True
        if self._bodies.begin_or_queue(connection, head.body_bytes):
            self._begin_body(connection, is_whole)
            if self._bodies.needs_room:
                self.make_room()
            return connection.state == BODY  # it may have been dropped for others
        connection.await_room(self._config.body_timeout_ms)
        return False

    def _begin_body(self, connection: Connection, is_whole: bool) -> None:
        connection.begin_body(self._config.body_timeout_ms)
        head = connection.head
        if head is not None and head.expects_continue and not is_whole:
            # The send buffer has room for these bytes, unless earlier answers were not taken.
            connection.send(CONTINUE)
            if connection.unsent is not None:
                connection.is_failed = True

    def make_room(self) -> None:
        """Drop the bodies that others have to wait for, and begin the queued ones that fit."""
        for connection in self._bodies.choose_to_drop():
            self.drop_body(connection)
        while (queued := self._bodies.begin_next_queued()) is not None:
            self._begin_body(queued, False)
            self._sender.hand_over(queued)  # its body may be here already

    def drop_body(self, connection: Connection) -> None:
        """Answer 429 instead of reading the body, or the rest of it: others need the room."""
        self._dropped.add(drop_reasons.BYTES)
        self._bodies.forget(connection)
        connection.received.clear()
        self._refuse(
            connection, Busy("too many request bodies are being sent to this gateway at once")
        )

    def release_body(self, body_bytes: int) -> None:
        """Free the bytes of a large body that was answered, so that the next ones can go on."""
        self._bodies.release(body_bytes)
        if body_bytes >= HEAVY_BYTES:
            self._pool.end_heavy()
        self.make_room()

    # -- complete requests ------------------------------------------------------------------------

    def _refuse(self, connection: Connection, error: MyQueueError) -> None:
        connection.begin_answer(deadlines.SEND_TIMEOUT_S * 1000)
        self._sender.send(connection, refusal(error))

    def _begin_request(self, connection: Connection, head: request_head.Head) -> None:
        """Take the body of a complete request out of the received bytes, and start answering."""
        if connection.state == BODY:
            connection.large_body_bytes = self._bodies.end_reading(connection)
        connection.had_request = True
        body = _cut_body(connection, head.body_bytes)
        connection.begin_answer(deadlines.making_ms_max(self._config))
        self._dispatch(connection, head, body)

    def _dispatch(self, connection: Connection, head: request_head.Head, body: bytes) -> None:
        """Have a request answered: without waiting if possible, else in a thread of the pool."""

        def on_answer(answer: Answer | MakeAnswer) -> None:
            if isinstance(answer, Answer):
                self._sender.send(connection, answer)
            else:
                self._pool.add(connection, answer)

        begin, is_small = self._handlers.begin, len(body) <= SMALL_BYTES_MAX
        if is_small and begin is not None and begin(head, body, on_answer):
            return
        make_answer = partial(self._handlers.answer, connection.address, head, body)
        if connection.large_body_bytes >= HEAVY_BYTES:
            self._pool.add_heavy(connection, make_answer)
        else:
            self._pool.add(connection, make_answer)


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
