"""The answer to a request, and the bytes of its head."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from myqueue.errors import MyQueueError
from myqueue.gateway.api import responses
from myqueue.gateway.http.request_head import Head

Headers = list[tuple[str, str]]
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


class Answer:
    """The answer to one request."""

    __slots__ = ("body", "close", "headers", "status")

    def __init__(self, status: str, headers: Headers, body: bytes, close: bool) -> None:
        self.status = status  # as WSGI has it: "200 OK"
        self.headers, self.body = headers, body
        self.close = close  # the connection ends after it

    def head(self, date: str) -> bytes:
        lines = [f"HTTP/1.1 {self.status}\r\nDate: {date}\r\nServer: myqueue\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in self.headers]
        lines.append("Connection: close\r\n\r\n" if self.close else "\r\n")
        return "".join(lines).encode("latin-1")


# Gets the answer; or a function that makes it and takes long, to be run in the pool.
Respond = Callable[[Answer | Callable[[], Answer]], None]
# Begins to answer a request without waiting; False if it can't, and then it has begun nothing.
BeginRequest = Callable[[Head, bytes, Respond], bool]


def refusal(error: MyQueueError) -> Answer:
    """Make the answer to a request that never reached the application. It closes the connection."""
    reply = responses.failure(error, lambda address: address)
    return Answer(status_line(reply.status), reply.headers, reply.body, True)


def status_line(status: int) -> str:
    """Return the status as an answer has it: 404 becomes "404 Not Found"."""
    return f"{status} {_PHRASES.get(status, 'Unknown')}"
