"""Answers as bytes: JSON, in the one form that every success and every failure has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from flask import Response

from myqueue.errors import MyQueueError
from myqueue.gateway.api import failures

JSON: Final = "application/json"
# Messages come from strangers: no browser may guess that they are a page, nor keep them.
GUARDS: Final = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))
JSON_HEADERS: Final = (("Content-Type", JSON), *GUARDS)
# Only ASCII: what a client sent may come back in a message, even if it is no text at all.
dumps: Final[Callable[[Any], str]] = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, default=str
).encode


def protected(response: Response) -> Response:
    """With the guards, unless it has its own."""
    for name, value in GUARDS:
        response.headers.setdefault(name, value)
    return response


def success(facts: dict[str, Any], status: int = 200) -> Response:
    return Response(dumps({"status": "success"} | facts), status, content_type=JSON)


def failure(error: MyQueueError, name_of: Callable[[str], str]) -> Response:
    status, body, headers = failures.describe(error, name_of)
    return Response(dumps(body), status, headers, content_type=JSON)
