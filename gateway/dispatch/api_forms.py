"""Between the forms of `gateway/http` and those of `gateway/api`: headers, replies, refusals."""

from __future__ import annotations

from myqueue.errors import MyQueueError
from myqueue.gateway.api import responses
from myqueue.gateway.http.answer import Answer, status_line


class HeaderFields:
    """The headers of a head, by name in any case."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def get(self, name: str, /) -> str | None:
        return self._headers.get(name.lower())


def answer_from_reply(reply: responses.Reply, close: bool) -> Answer:
    """Make the answer that carries the reply of an operation."""
    return Answer(status_line(reply.status), reply.headers, reply.body, close)


def refusal(error: MyQueueError) -> Answer:
    """Make the answer to a request that never reached the application. It closes the connection."""
    return answer_from_reply(responses.failure(error, lambda address: address), True)
