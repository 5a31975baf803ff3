"""`Attempt`: one batch in one PRODUCE, the receiver of its result.

A batch may be sent several times; each time is an attempt with a number. The answer "stored" counts
for whichever attempt it answers. A refusal changes the batch only if it answers the latest attempt
(`is_awaited`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from myqueue.cluster.connection import Connection
from myqueue.cluster.waiters import Envelope, Waiter, failure
from myqueue.errors import MyQueueError, OutcomeUnknown, error_of
from myqueue.producer.batch import AWAITING, Batch
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

if TYPE_CHECKING:
    from myqueue.producer.sender import Sender


class Attempt(Waiter):
    """One attempt to send a batch, and its receiver of the answer."""

    __slots__ = ("attempt_number", "batch", "connection", "request_number", "sender", "siblings")

    def __init__(self, sender: Sender, batch: Batch, connection: Connection) -> None:
        self.sender, self.batch, self.connection = sender, batch, connection
        self.attempt_number = batch.attempts
        self.request_number = 0  # of the answer on its connection
        self.siblings: Sequence[Attempt] = ()  # all attempts in the message, with this one

    @property
    def is_awaited(self) -> bool:
        """Is it the latest attempt of its batch, and does the batch still wait for its answer?"""
        return self.batch.state is AWAITING and self.batch.attempts == self.attempt_number

    def produced(self, row: list[Any]) -> None:
        _, code, offset, time_ms, details = row
        if not code:
            self.sender.stored(self.batch, offset, time_ms)
            return
        error = error_of(code, component=self.connection.address, details=details)
        self.sender.attempt_failed(self, error)

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        """Receive an ERROR instead of results: no batch of the message was accepted."""
        text = f"{words.name_of(envelope[words.KIND])} is no answer to PRODUCE"
        is_error = envelope[words.KIND] == words.ERROR
        error = failure(envelope) if is_error else OutcomeUnknown(text)
        self.sender.attempt_failed(self, error)
        if self is self.siblings[0]:  # an ERROR that answers the whole message has its number
            for attempt in self.siblings[1:]:
                if self.connection.take(attempt.request_number) is not None:
                    self.sender.attempt_failed(attempt, error)

    def lost(self, error: MyQueueError) -> None:
        self.sender.attempt_failed(self, error)
