"""The table of operations: method, path, parameters, role and function of each in one row.

A noun (topics, consumers, …) is a Flask blueprint that adds its operations to the table. Flask's
routes, the checks of requests and the OpenAPI document are all made from these rows.

    topics = ApiBlueprint("topics")

    @topics.operation("GET", "/topics", "List topics", parameters=(DETAIL,), adds={…})
    def list_topics(ask: RequestContext, detail: bool) -> Facts: ...

A function gets a `RequestContext`, and each parameter by its name. It returns what the success says
besides "status"; it raises an exception of `myqueue.errors` for a failure. It never looks at
Flask's request, so where the parameters came from does not matter to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flask import Blueprint, Response, current_app, g, request

from myqueue.errors import NONE, InvalidRequest, MyQueueError
from myqueue.gateway.api import parameters
from myqueue.gateway.api.browser_origins import SAFE
from myqueue.gateway.api.parameters import (
    HANDED_ON,
    IGNORED,
    REFUSED,
    Parameter,
    ParameterSet,
    Schema,
)
from myqueue.gateway.api.responses import success

if TYPE_CHECKING:
    from myqueue.gateway.cluster_client import ClusterClient

READ, WRITE, ADMIN = "read", "write", "admin"
KEY_CHARS_MAX: Final = 255
KEY_BYTES: Final = 16
Facts = dict[str, Any]


class RequestContext:
    """What an operation may use of a request, besides its parameters."""

    __slots__ = ("_key", "may_read", "more", "sdk")

    def __init__(self, sdk: ClusterClient, key: str | None, more: Facts) -> None:
        self.sdk, self._key, self.more = sdk, key, more  # more: parameters not listed
        self.may_read = True  # whether the answer may name topics and daemons

    def key(self, *scope: object) -> bytes | None:
        """Return the request's Idempotency-Key as the cluster stores it; None if none was sent.

        `scope` is what the key belongs to: the same word sent for another client is another key.
        """
        if self._key is None:
            return None
        words = "\0".join((self._key, *map(str, scope)))
        return hashlib.sha256(words.encode()).digest()[:KEY_BYTES]


class PendingResult(NamedTuple):
    """What a quick form returns: the facts can be made when the future is done."""

    future: Future[Any]
    finish: Callable[[Any], Facts | None]  # None: the request has to wait after all


class Operation(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    name: str
    summary: str
    about: str
    parameters: ParameterSet
    role: str | None  # that a token needs; None: no token is needed
    adds: dict[str, Schema]  # what a success says besides "status"
    beside: dict[str, Schema]  # what a 503 says besides the form of failures
    takes_more: str  # what parameters that are not listed mean; "": nothing
    keyed: bool  # an Idempotency-Key makes a repeat harmless
    run: Callable[..., Facts]
    quick: (
        Callable[..., PendingResult | None] | None
    )  # runs it without waiting; returns None if that is not possible

    @property
    def changes(self) -> bool:
        """True if it takes or changes something. A GET whose repeat an Idempotency-Key makes safe
        does.
        """
        return self.keyed or self.method not in SAFE


OPERATIONS: list[Operation] = []


class ApiBlueprint(Blueprint):
    """A blueprint whose routes are operations."""

    def __init__(self, name: str) -> None:
        super().__init__(name, __name__)

    def operation(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        parameters: tuple[Parameter, ...] = (),
        role: str | None = READ,
        adds: dict[str, Schema] | None = None,
        beside: dict[str, Schema] | None = None,
        takes_more: str = "",
        keyed: bool = False,
        also: tuple[str, ...] = (),
        makes: bool | None = None,
        quick: Callable[..., PendingResult | None] | None = None,
    ) -> Callable[[Callable[..., Facts]], Callable[..., Facts]]:
        """Add a function to the table, as a decorator.

        `also`: other paths of the same operation. `makes`: it creates or removes something, so an
        unknown parameter is refused; by default true for operations that need `admin`.
        """
        is_strict = role == ADMIN if makes is None else makes
        others = HANDED_ON if takes_more else REFUSED if is_strict else IGNORED
        wanted = ParameterSet(parameters, others)

        def add(function: Callable[..., Facts]) -> Callable[..., Facts]:
            for spelling in (path, *also):
                row = Operation(
                    method,
                    spelling,
                    function.__name__,
                    summary,
                    (function.__doc__ or "").strip(),
                    wanted,
                    role,
                    adds or {},
                    beside or {},
                    takes_more,
                    keyed,
                    function,
                    quick,
                )
                OPERATIONS.append(row)
                name = f"{function.__name__}-{method}-{spelling}".replace("/", "-")
                self.add_url_rule(
                    spelling, name, _view(row), methods=[method], provide_automatic_options=False
                )
            return function

        return add


def _view(row: Operation) -> Callable[..., Response]:
    def view(**path: str) -> Response:
        sdk: ClusterClient = current_app.extensions["myqueue"]
        query = request.query_string.decode("latin-1")
        key = request.headers.get("Idempotency-Key")
        body = request.environ.get("myqueue.body")
        if body is None:  # served by another WSGI server
            body = request.get_data()
        may_read = g.get("myqueue_may_read", True)
        return success(perform(row, sdk, query, body, key, path, may_read))

    # The guard reads both attributes.
    view.role, view.changes = row.role, row.changes  # type: ignore[attr-defined]
    return view


def perform(
    row: Operation,
    sdk: ClusterClient,
    query: str,
    body: bytes,
    key: str | None,
    path: dict[str, str],
    may_read: bool = True,
) -> Facts:
    """Check a request and run its operation. A failure of one that only reads has outcome NONE,
    whatever its parts say.
    """
    ask, values = prepare(row, sdk, query, body, key, path)
    ask.may_read = may_read
    try:
        return row.run(ask, **values)
    except MyQueueError as error:
        if not row.changes:
            error.outcome = NONE
        raise


def prepare(
    row: Operation,
    sdk: ClusterClient,
    query: str,
    body: bytes,
    key: str | None,
    path: dict[str, str],
) -> tuple[RequestContext, Facts]:
    """Read and check the parameters; return what the function gets. Raises InvalidRequest."""
    if key is not None and not 1 <= len(key) <= KEY_CHARS_MAX:
        raise InvalidRequest(f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} characters")
    values, more = parameters.read(row.parameters, query, body, path)
    return RequestContext(sdk, key, more), values
