"""Run operations with a fixed path without Flask: from the request to the function and back.

Flask finds the route and makes a context, a request and a response object for every request;
measured, that is 95 µs of 120, while all that an operation needs is its parameters as bytes. So
this stands in front of the application. A request whose method and path are exactly those of an
operation in the table is answered here, with the same checks, errors and metrics as by Flask;
everything else (paths with variables, the console, /metrics, unknown paths) goes on to Flask.

It can be called in two ways. As a WSGI application it runs in a thread of the pool and waits for
the operation. `begin` never waits: operations with a quick form (produce, consume) begin in the
reading thread, and the thread that brings the cluster's reply answers them. So the hot path wakes
up no thread of its own, and requests under way occupy no threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, Final

from flask import Flask

from myqueue.errors import Internal, MyQueueError
from myqueue.gateway.api import failures
from myqueue.gateway.api.auth import Guard
from myqueue.gateway.api.large_json import LARGE_BYTES, encoded
from myqueue.gateway.api.operations import OPERATIONS, Operation, perform, prepare
from myqueue.gateway.api.responses import JSON_HEADERS, dumps
from myqueue.gateway.cluster_client import ClusterClient
from myqueue.gateway.http.admission import HeaderFields
from myqueue.gateway.http.request_head import Head, reason
from myqueue.gateway.http.wsgi import Answer, Headers, Respond

log = logging.getLogger("myqueue.gateway")

Environment = dict[str, Any]
OK: Final = "200 OK"


class _WsgiHeaders:
    """The headers of a WSGI environment, by name as the guard asks for them."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environment) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        return self._environ.get(f"HTTP_{name.upper().replace('-', '_')}")


class OperationMetrics:
    """The metrics of one operation in this process."""

    __slots__ = ("_answered", "_labels", "_now", "_ok", "_took")

    def __init__(self, requests: Any, row: Operation) -> None:
        self._labels = (row.method, row.path)
        self._now, self._answered = requests.now, requests.answered
        self._took = requests.durations.labels(*self._labels)
        self._ok = self._answered.labels(*self._labels, "200")

    def begin(self) -> float:
        """Count a request under way; return when it began, for `end`."""
        self._now.inc()
        return monotonic()

    def end(self, came_s: float, status: int) -> None:
        """Count a request as answered with `status`."""
        self._now.dec()
        is_ok = status == 200
        (self._ok if is_ok else self._answered.labels(*self._labels, str(status))).inc()
        self._took.observe(monotonic() - came_s)

    def hand_to_pool(self) -> None:
        """Uncount a request that a thread of the pool will count."""
        self._now.dec()


def _message_bytes(result: Any) -> int:
    """Return the size of the messages in a result of take; 0 for any other result."""
    return sum(len(message.value) for message in getattr(result, "messages", ()))


class FastPath:
    """A WSGI application in front of Flask's."""

    def __init__(self, app: Flask) -> None:
        self._flask: Callable[..., Iterable[bytes]] = app.wsgi_app
        self._sdk: ClusterClient = app.extensions["myqueue"]
        self._guard: Guard = app.extensions["myqueue-guard"]
        requests = app.extensions.get("myqueue.requests")
        self._table = {
            (row.method, row.path): (row, OperationMetrics(requests, row) if requests else None)
            for row in OPERATIONS
            if "<" not in row.path
        }

    # -- in a thread of the pool ------------------------------------------------------------------

    def __call__(self, environ: Environment, start_response: Any) -> Iterable[bytes]:
        method_path = (environ["REQUEST_METHOD"], environ["PATH_INFO"])
        row, counts = self._table.get(method_path, (None, None))
        body = environ.get("myqueue.body")
        if row is None or body is None:  # not in the table, or served by another WSGI server
            return self._flask(environ, start_response)
        came_s = counts.begin() if counts else 0.0
        key = environ.get("HTTP_IDEMPOTENCY_KEY")
        try:
            principal = self._guard.check(row.role, row.changes, _WsgiHeaders(environ))
            query = environ["QUERY_STRING"]
            facts = perform(row, self._sdk, query, body, key, {}, principal.may_read)
            answer = self._success(facts)
        except Exception as error:
            answer = self._failure(row, error)
        status, headers, data = answer
        if counts:
            counts.end(came_s, status)
        start_response(OK if status == 200 else reason(status), headers)
        return (data,)

    # -- in the thread that reads -----------------------------------------------------------------

    def begin(self, head: Head, body: bytes, respond: Respond) -> bool:
        """Begin an operation without waiting. False: it has to wait, nothing was begun. True:
        `respond` is called once, perhaps by another thread.
        """
        row, counts = self._table.get((head.method, head.path), (None, None))
        if row is None or row.quick is None:
            return False
        came_s = counts.begin() if counts else 0.0

        def make_answer(answer: tuple[int, Headers, bytes]) -> Answer:
            status, headers, data = answer
            if counts:
                counts.end(came_s, status)
            first_line = OK if status == 200 else reason(status)
            return Answer(first_line, headers, data, not head.keep_alive)

        def reply(answer: tuple[int, Headers, bytes]) -> None:
            respond(make_answer(answer))

        try:
            self._guard.check(row.role, row.changes, HeaderFields(head.headers))
            key = head.headers.get("idempotency-key")
            ask, values = prepare(row, self._sdk, head.query, body, key, {})
            pending = row.quick(ask, **values)
        except Exception as error:
            reply(self._failure(row, error))
            return True
        if pending is None:
            if counts:
                counts.hand_to_pool()
            return False

        def on_result(future: Future[Any]) -> None:
            try:
                result = future.result()
                if _message_bytes(result) > LARGE_BYTES:
                    respond(partial(finish_in_pool, result))
                    return
                facts = pending.finish(result)
            except Exception as error:
                reply(self._failure(row, error))
                return
            if facts is not None:
                reply(self._success(facts))
                return
            if counts:
                counts.hand_to_pool()
            respond(None)

        def finish_in_pool(result: Any) -> Answer:
            try:
                return make_answer(self._success(pending.finish(result) or {}))
            except Exception as error:
                return make_answer(self._failure(row, error))

        pending.future.add_done_callback(on_result)
        return True

    # -- answers ----------------------------------------------------------------------------------

    def _success(self, facts: dict[str, Any]) -> tuple[int, Headers, bytes]:
        data = encoded({"status": "success"} | facts)
        return 200, [*JSON_HEADERS, ("Content-Length", str(len(data)))], data

    def _failure(self, row: Operation, error: Exception) -> tuple[int, Headers, bytes]:
        if not isinstance(error, MyQueueError):
            log.error("%s %s failed", row.method, row.path, exc_info=error)
            error = Internal(f"{type(error).__name__} in the gateway; its log says where")
        status, facts, more = failures.describe(error, self._sdk.name_of)
        data = dumps(facts).encode()
        fields = [*JSON_HEADERS, ("Content-Length", str(len(data))), *more.items()]
        return status, fields, data
