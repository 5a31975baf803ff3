"""The answer to a request, and the functions that the application gives to the server for it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from myqueue.errors import MyQueueError
from myqueue.gateway.http.request_head import Head

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
Headers = list[tuple[str, str]]
_STATUS_LINES: Final = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class Answer(NamedTuple):
    """The answer to one request."""

    status: str  # as WSGI has it: "200 OK"
    headers: Headers
    body: bytes
    close: bool  # the connection ends after it

    def encode_head(self, date: str, close: bool, is_http_1_0: bool = False) -> bytes:
        """Return all that is sent before the body.

        A client of HTTP/1.0 expects the connection to end unless the answer says otherwise.
        """
        lines = [f"HTTP/1.1 {self.status}\r\nDate: {date}\r\nServer: myqueue\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in self.headers]
        if close:
            lines.append("Connection: close\r\n")
        elif is_http_1_0:
            lines.append("Connection: keep-alive\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")


MakeAnswer = Callable[[], Answer]  # may wait, so it runs in a thread of the pool
# Called once for each request: with its answer, or with the function that makes it.
OnAnswer = Callable[[Answer | MakeAnswer], None]


class RequestHandlers(NamedTuple):
    """The functions that answer requests. The server calls them; it knows nothing of the paths."""

    # Answers any request from this client address, and may wait. Runs in a thread of the pool.
    answer: Callable[[str, Head, bytes], Answer]
    # Makes the answer to a request that is not read to its end. The connection ends after it.
    refuse: Callable[[MyQueueError], Answer]
    # Begins to answer without waiting, in the reading thread; any thread may call `OnAnswer`.
    # Returns False, and has begun nothing, for requests that `answer` must answer.
    begin: Callable[[Head, bytes, OnAnswer], bool] | None = None
    # Gets the head of each request with a body, before the body is used. Raises the error that the
    # client gets instead.
    check_head: Callable[[Head], None] | None = None


def status_line(status: int) -> str:
    """Return the status as an answer has it: 404 becomes "404 Not Found"."""
    return _STATUS_LINES.get(status) or f"{status} Unknown"
