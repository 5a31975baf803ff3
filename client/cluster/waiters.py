"""`Waiter`: the receiver of a daemon's answer; the answer itself, and the error that it may be."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

from myqueue.errors import MyQueueError, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

Envelope = words.Envelope


class Answer(NamedTuple):
    envelope: Envelope
    frames: list[Buffer]

    @property
    def fields(self) -> list[Any]:
        return self.envelope[words.FIELDS :]


class Waiter:
    """Receives the answer to a request: exactly one of these calls, unless it was forgotten."""

    __slots__ = ()

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        """Receive the answer, ERROR or another, decoded and checked."""

    def produced(self, row: list[Any]) -> None:
        """Receive one result of a PRODUCED: request, code, offset, time_ms, details."""

    def taken(self, row: list[Any], frames: list[Buffer]) -> None:
        """Receive a result of a TAKEN: request, code, first, next, batches, details; all frames."""

    def lost(self, error: MyQueueError) -> None:
        """Learn that no answer will come. `error.outcome` is "none" if it was never sent."""


def failure(envelope: Envelope) -> MyQueueError:
    """Make the exception of an ERROR, with the wire's `details`."""
    return error_of(*envelope[words.FIELDS :])


def resolve(future: Future[Any], result: Any, error: BaseException | None = None) -> None:
    """End a future, unless its caller has cancelled it."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
