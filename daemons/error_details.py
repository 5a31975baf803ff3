"""What an answer says about an error beside its text: facts for programs, a hint for people."""

from __future__ import annotations

from typing import Any

from myqueue.errors import MyQueueError


def error_details(error: MyQueueError) -> dict[str, Any]:
    """What goes beside the text: facts for the client's code, and a hint for this case alone."""
    details = getattr(error, "details", None)
    found = details if isinstance(details, dict) else {}
    return {**found, "hint": error.own_hint} if error.own_hint else found
