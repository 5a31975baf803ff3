"""Take requests out of the received bytes; `answer_starter.py` starts their answers.

    received bytes ─▶ head ─▶ check head ─▶ body, when it has room ─▶ `AnswerStarter`
                       │ incomplete: wait for more, until the deadline

Limits are checked before anything is stored: headers by bytes and number, the body by its announced
length. A request whose head shows that it will be refused is refused before its body is read.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from myqueue.errors import BodyTooLarge, Malformed, MyQueueError
from myqueue.gateway.http import deadlines, request_head
from myqueue.gateway.http.answer import CONTINUE
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.answer_starter import AnswerStarter
from myqueue.gateway.http.body_budget import SMALL_BYTES_MAX, BodyBudget
from myqueue.gateway.http.connection import BODY, HEAD, IDLE, WAITS_FOR_ROOM, Connection
from myqueue.gateway.settings import GatewayConfig

PARSED: Final = (IDLE, HEAD, BODY)  # received bytes are parsed at once in these states


class Next(Enum):
    """The next step of a connection."""

    BYTES = auto()  # of its client: the next request is not complete
    SERVER = auto()  # this server has to act: an answer, or room for a body, or the end
    CLOSE = auto()  # nothing: the connection is over


BYTES, SERVER, CLOSE = Next  # as the states in `connection.py`: quicker than an attribute


class RequestIntake:
    """Takes the requests of all connections. Only the reading thread uses it."""

    def __init__(
        self,
        config: GatewayConfig,
        check_head: Callable[[request_head.Head], None] | None,
        bodies: BodyBudget,
        sender: AnswerSender,
        starter: AnswerStarter,
    ) -> None:
        self._config, self._check_by_application = config, check_head
        self._bodies, self._sender, self._starter = bodies, sender, starter

    def take_requests(self, connection: Connection) -> Next:
        """Begin all requests that were received completely, one after the other."""
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
                    self._sender.refuse(connection, error)
                    return SERVER
                if head is None:
                    self._begin_head(connection)
                    return BYTES
            is_whole = len(connection.received) >= head.body_bytes
            is_small = head.body_bytes <= SMALL_BYTES_MAX
            if connection.state != BODY and not (is_whole and is_small):
                self._reserve_room(connection, head)
            if not is_whole:  # also if it waits for room: then it is read later
                return BYTES
            if connection.state == WAITS_FOR_ROOM:
                return SERVER
            self._start_answer(connection, head)
        return SERVER

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
        """Raise the error for which a request is refused by its head alone.

        A request whose body has arrived together with its head is checked too: how the bytes were
        cut on their way must not decide what the client gets.
        """
        length, limit = head.body_bytes, self._config.body_bytes_max
        if length > limit:
            raise BodyTooLarge(f"a body of {length} bytes; this gateway takes {limit}")
        if self._check_by_application is not None:
            self._check_by_application(head)

    def _begin_head(self, connection: Connection) -> None:
        """Limit the time of a head whose first bytes are here.

        A lone CR may be half of an empty line, so it begins nothing. Otherwise a client that sends
        empty lines byte by byte would get a new deadline with each of them.
        """
        received = connection.received
        if connection.state == IDLE and received and received != b"\r":
            connection.begin_head(self._config.header_timeout_ms / 1000)

    # -- bodies -----------------------------------------------------------------------------------

    def _reserve_room(self, connection: Connection, head: request_head.Head) -> None:
        """Reserve room for a body, and begin to read it, or let it wait for room."""
        reservation = self._bodies.reserve(connection, head.body_bytes)
        connection.reservation = reservation
        if self._bodies.is_queued(reservation):
            connection.await_room(self._config.body_timeout_ms / 1000)
        else:
            self.begin_body(connection)

    def begin_body(self, connection: Connection) -> None:
        """Read a body that has room from now on."""
        connection.begin_body(self._config.body_timeout_ms / 1000)
        head = connection.head
        if (
            head is not None
            and head.expects_continue
            and len(connection.received) < head.body_bytes
        ):
            # The send buffer has room for these bytes, unless earlier answers were not taken.
            connection.send(CONTINUE)
            if connection.unsent is not None:
                connection.is_failed = True

    # -- complete requests ------------------------------------------------------------------------

    def _start_answer(self, connection: Connection, head: request_head.Head) -> None:
        """Take the body of a complete request out of the received bytes, and start answering."""
        connection.had_request = True
        body = _cut_body(connection, head.body_bytes)
        if connection.reservation is not None and connection.reservation.is_small:
            connection.release_reservation()
        connection.begin_answer(deadlines.making_s_max(self._config))
        self._starter.start(connection, head, body)


def _cut_body(connection: Connection, length: int) -> bytes:
    """Take a body out of the received bytes."""
    received = connection.received
    if connection.reservation is not None:
        with memoryview(received) as view:  # saves one copy of a large body
            body = bytes(view[:length])
    else:
        body = bytes(received[:length])
    del received[:length]
    return body
