"""`Waiter`: the receiver of a daemon's answer; and the exceptions that ERROR answers become."""

from __future__ import annotations

from typing import Any

from myqueue.errors import MyQueueError, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

Envelope = words.Envelope


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
    code, message, component, details = envelope[words.FIELDS :]
    error = error_of(code, message, component)
    error.__dict__["details"] = details
    hint = details.get("hint")
    if isinstance(hint, str) and hint:
        error.hint = hint
    return error


def details_of(error: BaseException) -> dict[str, Any]:
    """The details that came with an ERROR; {} without any."""
    details: dict[str, Any] = getattr(error, "details", None) or {}
    return details
