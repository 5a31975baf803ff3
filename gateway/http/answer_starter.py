"""Start the answer to a complete request: in this thread if nothing must wait, else in the pool."""

from __future__ import annotations

from functools import partial

from myqueue.gateway.http.answer import Answer, MakeAnswer, RequestHandlers
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.body_budget import SMALL_BYTES_MAX
from myqueue.gateway.http.connection import Connection
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.http.worker_pool import WorkerPool


class AnswerStarter:
    """Gives each complete request to one of the handlers. Only the reading thread uses it."""

    def __init__(self, handlers: RequestHandlers, sender: AnswerSender, pool: WorkerPool) -> None:
        self._handlers, self._sender, self._pool = handlers, sender, pool

    def start(self, connection: Connection, head: Head, body: bytes) -> None:
        """Start the answer. The connection belongs to the thread that answers until it is sent."""

        def on_answer(answer: Answer | MakeAnswer) -> None:
            if isinstance(answer, Answer):
                self._sender.send(connection, answer)
            else:
                self._pool.add(connection, answer)

        is_heavy = connection.reservation is not None and connection.reservation.is_heavy
        begin, is_small = self._handlers.begin, len(body) <= SMALL_BYTES_MAX
        if is_small and begin is not None and begin(head, body, on_answer):
            return
        make_answer = partial(self._handlers.answer, connection.address, head, body)
        if is_heavy:
            self._pool.add_heavy(connection, make_answer)
        else:
            self._pool.add(connection, make_answer)
