"""Answers as bytes: JSON, in the one form that every success and every failure has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from flask import Response

from myqueue.errors import MyQueueError
from myqueue.gateway.api import failures
from myqueue.gateway.api.large_json import dumps, encoded

JSON: Final = "application/json"
# Messages may be hostile: no browser may take them for a page, nor cache them.
GUARDS: Final = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))
JSON_HEADERS: Final = (("Content-Type", JSON), *GUARDS)


class Reply(NamedTuple):
    """A complete answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def success(facts: dict[str, Any]) -> Reply:
    """Make the answer of a success."""
    body = encoded({"status": "success"} | facts)
    return Reply(200, [*JSON_HEADERS, ("Content-Length", str(len(body)))], body)


def failure(error: MyQueueError, name_of: Callable[[str], str]) -> Reply:
    """Make the answer of a failure; `name_of` as in `failures.describe`."""
    status, facts, headers = failures.describe(error, name_of)
    body = dumps(facts).encode()
    fields = [*JSON_HEADERS, ("Content-Length", str(len(body))), *headers.items()]
    return Reply(status, fields, body)


def to_flask(reply: Reply) -> Response:
    return Response(reply.body, reply.status, reply.headers)


def add_guards(response: Response) -> Response:
    """Add the guarding headers, unless the response has its own."""
    for name, value in GUARDS:
        response.headers.setdefault(name, value)
    return response
