"""Send answers, from the thread that has them: the client's I/O thread, the pool, or the reader.

A sender never waits for its client. It first sets the state of the connection, and then looks at
what was received since (`server.py` explains why that is enough without a lock). Where the reading
thread has to go on, it is woken up. No sender lets an exception out: whoever called it could not
end the connection, and its client would wait for the deadline.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from time import monotonic
from typing import Final

from myqueue.errors import MyQueueError
from myqueue.gateway.http import deadlines
from myqueue.gateway.http.answer import Answer
from myqueue.gateway.http.connection import Connection
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

JOINED_BYTES_MAX: Final = 64 << 10  # larger bodies are sent apart from their head


class AnswerSender:
    """Sends the answers of all connections. `wake` wakes up the reading thread, if that is not the
    thread that calls it.
    """

    def __init__(
        self,
        config: GatewayConfig,
        refuse: Callable[[MyQueueError], Answer],
        wake: Callable[[], None],
    ) -> None:
        self._make_refusal, self._wake = refuse, wake
        self._idle_s = config.idle_timeout_ms / 1000
        self.handed_over: deque[Connection] = deque()  # the reading thread goes on with them
        self.stopping = False
        self._second, self._date = 0, ""

    def send(self, connection: Connection, answer: Answer) -> None:
        """Send an answer, as far as the socket takes it; the reading thread sends the rest."""
        try:
            self._send(connection, answer)
        except Exception:
            self.abandon(connection)

    def refuse(self, connection: Connection, error: MyQueueError) -> None:
        """Answer a request that is not read to its end; in the reading thread.

        The connection ends after it: what follows in it would be taken for the next request.
        """
        connection.release_reservation()
        connection.begin_answer(deadlines.SEND_TIMEOUT_S)
        self.send(connection, self._make_refusal(error)._replace(close=True))

    def abandon(self, connection: Connection) -> None:
        """Log the exception that is handled, and have the reading thread close the connection."""
        log.exception("%s was not answered: a defect of this program", connection.describe())
        connection.unsent, connection.is_failed = None, True
        self._finish_or_hand_over(connection)

    def send_rest(self, connection: Connection) -> None:
        """Send more of an answer. Only the reading thread calls this, and then goes on itself."""
        rest = connection.unsent
        if rest is not None:
            connection.send(rest)
        if connection.unsent is None:
            connection.end_answer(self._idle_s)

    def _send(self, connection: Connection, answer: Answer) -> None:
        close = connection.close_after_answer = answer.close or self.stopping
        request, body = connection.head, answer.body
        is_http_1_0 = request is not None and request.minor == 0
        head = answer.encode_head(self._http_date(), close, is_http_1_0)
        if len(body) <= JOINED_BYTES_MAX:
            connection.send(head + body)
        elif connection.send(head):  # joining both would double the memory
            unsent_head = connection.unsent
            if unsent_head is None:
                connection.send(body)
            else:
                connection.unsent = memoryview(bytes(unsent_head) + body)
        self._finish_or_hand_over(connection)

    def _finish_or_hand_over(self, connection: Connection) -> None:
        """Finish an answer that the socket took completely; hand over the rest of any other.

        The state is set first, then comes the look at what was received (`server.py`). A connection
        that has more to do than wait for its next request is handed over to the reading thread.
        """
        connection.head = None
        connection.release_reservation()
        rest = connection.unsent
        if rest is None:
            connection.end_answer(self._idle_s)
        else:
            connection.begin_writing(deadlines.sending_s_max(len(rest)))
        if (
            rest is not None
            or connection.received
            or connection.input_ended
            or connection.is_failed
            or connection.close_after_answer
        ):
            self.hand_over(connection)

    def hand_over(self, connection: Connection) -> None:
        """Have the reading thread go on with a connection."""
        self.handed_over.append(connection)
        self._wake()

    def _http_date(self) -> str:
        second = int(monotonic())
        if second != self._second:
            self._date = formatdate(usegmt=True)
            self._second = second
        return self._date
