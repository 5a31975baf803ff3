"""Run an operation: the one way from a request to its answer.

    role and origin ─▶ parameters ─▶ function of the operation ─▶ success or failure, counted once

A call runs in one of two ways. `run` does all of it in a thread that may wait. `begin` does as much
as needs no waiting, in the thread that reads; the rest is done by the thread that brings the
cluster's reply, or by a thread of the pool. Checks, parameters, function, errors and metrics are
the same in both. A function that has to wait where it must not raises `MustWait`, and is called
again, with the same parameters, in the pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from myqueue.errors import NONE, Internal, InvalidRequest, MyQueueError
from myqueue.gateway.api import parameters, responses
from myqueue.gateway.api.auth import Guard
from myqueue.gateway.api.browser_origins import Headers
from myqueue.gateway.api.large_json import LARGE_BYTES
from myqueue.gateway.api.operations import (
    Facts,
    MustWait,
    Operation,
    PendingResult,
    RequestContext,
)
from myqueue.gateway.api.responses import Reply

if TYPE_CHECKING:
    from myqueue.gateway.cluster_client import ClusterClient

log = logging.getLogger("myqueue.gateway")

KEY_CHARS_MAX: Final = 255
NO_VARIABLES: Final[Mapping[str, str]] = {}
# Called once for each request: with its reply, or with the function that makes it and may wait.
OnReply = Callable[[Reply | Callable[[], Reply]], None]


class OperationMetrics:
    """The metrics of one operation in this process."""

    __slots__ = ("_answered", "_labels", "_now", "_ok", "_took")

    def __init__(self, requests: Any, method: str, path: str) -> None:
        self._labels = (method, path)
        self._now, self._answered = requests.now, requests.answered
        self._took = requests.durations.labels(*self._labels)
        self._ok = self._answered.labels(*self._labels, "200")

    def begin(self) -> None:
        """Count a request under way."""
        self._now.inc()

    def end(self, took_s: float, status: int) -> None:
        """Count a request as answered with `status`."""
        self._now.dec()
        is_ok = status == 200
        (self._ok if is_ok else self._answered.labels(*self._labels, str(status))).inc()
        self._took.observe(took_s)


class OperationRunner:
    """What all calls share. `requests` has the metrics of this process."""

    def __init__(self, sdk: ClusterClient, guard: Guard, requests: Any) -> None:
        self.sdk, self.guard = sdk, guard
        self._requests = requests
        self.metrics: dict[tuple[str, str], OperationMetrics] = {}  # by method and path

    def add_metrics(self, method: str, path: str) -> OperationMetrics:
        return self.metrics.setdefault(
            (method, path), OperationMetrics(self._requests, method, path)
        )


class OperationCall:
    """One request of an operation. Call `run` or `begin`, once."""

    __slots__ = (
        "_context", "_began_s", "_body", "_headers", "_metrics", "_query", "_row", "_runner",
        "_values", "_variables",
    )  # fmt: skip

    def __init__(
        self,
        runner: OperationRunner,
        row: Operation,
        method: str,
        headers: Headers,
        query: str,
        body: bytes,
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        self._runner, self._row, self._headers = runner, row, headers
        self._query, self._body, self._variables = query, body, variables
        self._context: RequestContext | None = None
        self._values: Facts = {}
        path = row.path
        metrics = runner.metrics.get((method, path)) or runner.add_metrics(method, path)
        self._metrics, self._began_s = metrics, monotonic()
        metrics.begin()

    def run(self) -> Reply:
        """Do all of it in this thread, and wait as long as the operation may."""
        try:
            result = self._call_function(True)
            if isinstance(result, PendingResult):
                result = result.finish(self._runner.sdk.wait(result.future))
            return self._success(result)
        except Exception as error:
            return self._failure(error)

    def begin(self, on_reply: OnReply) -> None:
        """Do as much as needs no waiting; any thread may call `on_reply` later, once."""
        if not self._row.quick:
            on_reply(self.run)
            return
        try:
            result = self._call_function(False)
            if isinstance(result, PendingResult):
                result.future.add_done_callback(partial(self._on_result, on_reply, result.finish))
                return
            reply = self._success(result)
        except MustWait:
            on_reply(self.run)
            return
        except Exception as error:
            reply = self._failure(error)
        on_reply(reply)

    def _call_function(self, may_wait: bool) -> Facts | PendingResult:
        row, context = self._row, self._context
        if context is None:
            principal = self._runner.guard.check(row.role, row.changes, self._headers)
            key = self._headers.get("Idempotency-Key")
            if key is not None and not 1 <= len(key) <= KEY_CHARS_MAX:
                raise InvalidRequest(f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} characters")
            values, more = parameters.read(row.parameters, self._query, self._body, self._variables)
            self._values = values
            context = self._context = RequestContext(self._runner.sdk, key, more, principal)
        context.may_wait = may_wait
        if row.request is not None:
            return row.run(context, row.request._make(self._values.values()))
        return row.run(context, **self._values)

    def _on_result(
        self, on_reply: OnReply, finish: Callable[[Any], Facts], future: Future[Any]
    ) -> None:
        try:
            result = future.result()
            if _message_bytes(result) > LARGE_BYTES:  # writing it takes long
                on_reply(partial(self._finish, finish, result))
                return
            reply = self._success(finish(result))
        except MustWait:
            on_reply(self.run)
            return
        except Exception as error:
            reply = self._failure(error)
        on_reply(reply)

    def _finish(self, finish: Callable[[Any], Facts], result: Any) -> Reply:
        try:
            return self._success(finish(result))
        except Exception as error:
            return self._failure(error)

    def _success(self, facts: Facts) -> Reply:
        reply = responses.success(facts)
        self._metrics.end(monotonic() - self._began_s, reply.status)
        return reply

    def _failure(self, error: Exception) -> Reply:
        """Answer an error. A failure of an operation that only reads has outcome NONE, whatever its
        parts say.
        """
        row = self._row
        if not isinstance(error, MyQueueError):
            log.error("%s %s failed", row.method, row.path, exc_info=error)
            error = Internal(f"{type(error).__name__} in the gateway; its log says where")
        elif not row.changes:
            error.outcome = NONE
        reply = responses.failure(error, self._runner.sdk.name_of)
        self._metrics.end(monotonic() - self._began_s, reply.status)
        return reply


def _message_bytes(result: Any) -> int:
    """Return the size of the messages in a result of take; 0 for any other result."""
    return sum(len(message.value) for message in getattr(result, "messages", ()))
