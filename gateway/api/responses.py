"""Answers as bytes: JSON, in the one form that every success and every failure has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from flask import Response

from myqueue.errors import MyQueueError
from myqueue.gateway.api import failures

JSON: Final = "application/json"
# Messages may be hostile: no browser may take them for a page, nor cache them.
GUARDS: Final = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))
JSON_HEADERS: Final = (("Content-Type", JSON), *GUARDS)
# Only ASCII: an answer may repeat what a client sent, even if that is not valid text.
dumps: Final[Callable[[Any], str]] = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, default=str
).encode


def protected(response: Response) -> Response:
    """Add the guarding headers, unless the response has its own."""
    for name, value in GUARDS:
        response.headers.setdefault(name, value)
    return response


def success(facts: dict[str, Any], status: int = 200) -> Response:
    """Make the answer of a success."""
    return Response(dumps({"status": "success"} | facts), status, content_type=JSON)


def failure(error: MyQueueError, name_of: Callable[[str], str]) -> Response:
    """Make the answer of a failure."""
    status, body, headers = failures.describe(error, name_of)
    return Response(dumps(body), status, headers, content_type=JSON)
