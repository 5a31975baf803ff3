"""The table of operations: method, path, parameters, role and function of each in one row.

A noun (topics, consumers, …) is a blueprint that adds its operations to the table. The routes, the
checks of requests and the OpenAPI document are all made from these rows.

    topics = ApiBlueprint("topics")

    @topics.operation("GET", "/topics", "List topics", parameters=(DETAIL,), adds={…})
    def list_topics(context: RequestContext, detail: bool) -> Facts: ...

A function gets a `RequestContext`, and each parameter by its name, or all of them in one object of
the class `request`. It returns what the success says besides "status"; it raises an exception of
`myqueue.errors` for a failure. `call.py` calls it. Flask only has the routes, for 404 and 405.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flask import Blueprint

from myqueue.errors import InvalidRequest
from myqueue.gateway.api.browser_origins import SAFE
from myqueue.gateway.api.parameter_catalog import LOG_PARTITION
from myqueue.gateway.api.parameters import (
    HANDED_ON,
    IGNORED,
    REFUSED,
    Parameter,
    ParameterSet,
    Schema,
)

if TYPE_CHECKING:
    from myqueue.gateway.api.auth import Principal
    from myqueue.gateway.cluster_client import ClusterClient

READ, WRITE, ADMIN = "read", "write", "admin"
KEY_BYTES: Final = 16
Facts = dict[str, Any]


class MustWait(Exception):
    """This part of a quick operation has to wait, and `RequestContext.may_wait` is false."""


class RequestContext:
    """What an operation may use of a request, besides its parameters."""

    __slots__ = ("_key", "may_wait", "more", "sdk", "sender")

    def __init__(self, sdk: ClusterClient, key: str | None, more: Facts, sender: Principal) -> None:
        self.sdk, self._key, self.more = sdk, key, more  # more: parameters not listed
        self.sender = sender
        self.may_wait = True  # false in the thread that reads, for quick operations only

    def key(self, *scope: object) -> bytes | None:
        """Return the request's Idempotency-Key as the cluster stores it; None if none was sent.

        `scope` is what the key belongs to: the same word sent for another client is another key.
        """
        if self._key is None:
            return None
        words = "\0".join((self._key, *map(str, scope)))
        return hashlib.sha256(words.encode()).digest()[:KEY_BYTES]

    def registered(
        self,
        kind: str,
        number: int,
        topic: str | None,
        partition: int | None,
        needs_partition: bool = False,
    ) -> tuple[str, int | None]:
        """Return the topic and partition that a request of this producer or consumer is about;
        raise what is wrong with them. It counts as a heartbeat of this client.
        """
        place = self.sdk.registrations.find(kind, number, topic, partition)
        if place is None:
            if not self.may_wait:
                raise MustWait
            place = self.sdk.registrations.check(kind, number, topic, partition)
        if needs_partition and place[1] is None:
            raise InvalidRequest(f"partition is missing: {LOG_PARTITION.about}")
        return place


class PendingResult(NamedTuple):
    """What a function may return instead of facts: they can be made when the future is done.

    `finish` may raise MustWait, if the request was not in a thread that may wait.
    """

    future: Future[Any]
    finish: Callable[[Any], Facts]


class Operation(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    name: str
    endpoint: str  # Flask's name of the route
    summary: str
    about: str
    parameters: ParameterSet
    request: Any  # the NamedTuple that has them, in this order; None: each by its name
    role: str | None  # that a token needs; None: no token is needed
    adds: dict[str, Schema]  # what a success says besides "status"
    beside: dict[str, Schema]  # what a 503 says besides the form of failures
    takes_more: str  # what parameters that are not listed mean; "": nothing
    keyed: bool  # an Idempotency-Key makes a repeat harmless
    # It takes or changes something. A GET whose repeat an Idempotency-Key makes safe does.
    changes: bool
    run: Callable[..., Facts | PendingResult]
    quick: bool  # usually needs no waiting, so it is tried in the thread that reads


OPERATIONS: list[Operation] = []
F = TypeVar("F", bound=Callable[..., Facts | PendingResult])


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
        request: Any = None,
        role: str | None = READ,
        adds: dict[str, Schema] | None = None,
        beside: dict[str, Schema] | None = None,
        takes_more: str = "",
        keyed: bool = False,
        also: tuple[str, ...] = (),
        makes: bool | None = None,
        quick: bool = False,
    ) -> Callable[[F], F]:
        """Add a function to the table, as a decorator.

        `method`: one, or several with blanks between. `also`: other paths of the same operation.
        `makes`: it creates or removes something, so an unknown parameter is refused; by default
        true for operations that need `admin`.
        """
        is_strict = role == ADMIN if makes is None else makes
        others = HANDED_ON if takes_more else REFUSED if is_strict else IGNORED
        wanted = ParameterSet(parameters, others)

        def add(function: F) -> F:
            for verb, spelling in product(method.split(), (path, *also)):
                name = f"{function.__name__}-{verb}-{spelling}".replace("/", "-")
                row = Operation(
                    verb,
                    spelling,
                    function.__name__,
                    f"{self.name}.{name}",
                    summary,
                    (function.__doc__ or "").strip(),
                    wanted,
                    request,
                    role,
                    adds or {},
                    beside or {},
                    takes_more,
                    keyed,
                    keyed or verb not in SAFE,
                    function,
                    quick,
                )
                OPERATIONS.append(row)
                self.add_url_rule(spelling, name, methods=[verb], provide_automatic_options=False)
            return function

        return add
