"""Who waits for an answer of a daemon, and the errors that answers may be."""

from __future__ import annotations

from typing import Any

from myqueue.errors import MyQueueError, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

Envelope = words.Envelope


class Waiter:
    """Who waits for an answer. Each request ends in exactly one of these, or is forgotten."""

    __slots__ = ()

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        """The answer, ERROR or another, decoded and checked."""

    def produced(self, row: list[Any]) -> None:
        """One result of a PRODUCED: request, code, offset, time_ms, details."""

    def taken(self, row: list[Any], frames: list[Buffer]) -> None:
        """One result of a TAKEN: request, code, first, next, batches, details; and all frames."""

    def lost(self, error: MyQueueError) -> None:
        """There will be no answer. `error.outcome` is "none" if it was never sent."""


def failure(envelope: Envelope) -> MyQueueError:
    """The exception that an ERROR stands for, with the wire's `details`."""
    code, message, component, details = envelope[words.FIELDS :]
    error = error_of(code, message, component)
    error.__dict__["details"] = details
    hint = details.get("hint")
    if isinstance(hint, str) and hint:
        error.hint = hint
    return error


def details_of(error: BaseException) -> dict[str, Any]:
    found: dict[str, Any] = getattr(error, "details", None) or {}
    return found
