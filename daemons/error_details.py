"""The details of an error in an answer: facts for programs, a hint for people."""

from __future__ import annotations

from typing import Any

from myqueue.errors import MyQueueError


def error_details(error: MyQueueError) -> dict[str, Any]:
    """Return the facts of an error for the client's code, and its hint if it has its own."""
    details = getattr(error, "details", None)
    facts = details if isinstance(details, dict) else {}
    return {**facts, "hint": error.own_hint} if error.own_hint else facts
