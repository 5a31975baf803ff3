"""Run operations without Flask.

Flask makes a context, a request and a response object for every request; measured, that is 95 µs of
120, while all that an operation needs is its headers and its parameters as bytes. So `FastPath`
stands in front of the application and makes an `OperationCall` of every request for an operation.
All other requests (the console, /metrics, unknown paths) go on to Flask.

It can be called in two ways. As a WSGI application it waits for the operation, in a thread of the
pool or of another server. `begin` never waits: produce and consume begin in the reading thread, and
the thread that brings the cluster's reply answers them. So the hot path wakes up no thread of its
own, and requests under way occupy no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flask import Flask, Request
from werkzeug.exceptions import HTTPException

from myqueue.errors import BodyTooLarge, Malformed, MyQueueError
from myqueue.gateway.api import responses
from myqueue.gateway.api.call import OperationCall, OperationRunner
from myqueue.gateway.api.responses import Reply
from myqueue.gateway.dispatch.api_forms import HeaderFields, answer_from_reply
from myqueue.gateway.dispatch.routes import Routes
from myqueue.gateway.http.answer import OnAnswer, status_line
from myqueue.gateway.http.request_head import Head

Environment = dict[str, Any]


class _WsgiHeaders:
    """The headers of a WSGI environment, by name as the guard asks for them."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environment) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        return self._environ.get(f"HTTP_{name.upper().replace('-', '_')}")


class FastPath:
    """Run operations without Flask: `begin` from our server's reading thread, `__call__` under any
    WSGI server.
    """

    def __init__(self, app: Flask) -> None:
        self._flask: Callable[..., Iterable[bytes]] = app.wsgi_app
        self._routes = Routes(app)
        self._sdk = app.extensions["myqueue"]
        guard, requests = app.extensions["myqueue-guard"], app.extensions["myqueue.requests"]
        self._runner = OperationRunner(self._sdk, guard, requests)
        self._body_bytes_max: int = app.extensions["myqueue-config"].body_bytes_max

    def __call__(self, environ: Environment, start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        route = self._routes.find(method, environ["PATH_INFO"])
        if route.operation is None:
            return self._flask(environ, start_response)
        try:
            body = self._body(environ)
        except MyQueueError as error:
            reply = responses.failure(error, self._sdk.name_of)
        else:
            reply = OperationCall(
                self._runner, route.operation, method, _WsgiHeaders(environ),
                environ.get("QUERY_STRING", ""), body, route.variables,
            ).run()  # fmt: skip
        start_response(status_line(reply.status), reply.headers)
        return () if method == "HEAD" else (reply.body,)

    def _body(self, environ: Environment) -> bytes:
        body: bytes | None = environ.get("myqueue.body")  # put there by `wsgi.py`
        if body is not None:
            return body
        request = Request(environ)  # served by another WSGI server
        request.max_content_length = self._body_bytes_max
        try:
            return request.get_data()
        except HTTPException as error:
            if error.code == 413:
                raise BodyTooLarge("the body is larger than this gateway takes") from None
            raise Malformed(f"{error.code}: {error.description}") from None

    def begin(self, head: Head, body: bytes, on_answer: OnAnswer) -> bool:
        """Begin an operation without waiting; any thread may call `on_answer` later, once.

        Return False if the path has variables or is not that of an operation: nothing was begun.
        """
        operation = self._routes.fixed.get((head.method, head.path))
        if operation is None:
            return False
        close = not head.keep_alive

        def on_reply(reply: Reply | Callable[[], Reply]) -> None:
            if isinstance(reply, Reply):
                on_answer(answer_from_reply(reply, close))
            else:
                on_answer(lambda: answer_from_reply(reply(), close))

        headers = HeaderFields(head.headers)
        call = OperationCall(self._runner, operation, head.method, headers, head.query, body)
        call.begin(on_reply)
        return True
