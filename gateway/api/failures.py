"""Every failure in one form: what went wrong, whether it was done, and which component reports it.

    {"status": "failure", "message": …, "code": …, "name": …, "retriable": …, "outcome": …,
     "component": …, "hint": …}

The facts of a `NotWell` are added (the problems that /healthz lists when it fails), and those of a
batch that can't be unpacked: where it is, and what else was taken with it.

The status code comes from the one table of `myqueue.errors`, with one distinction that only HTTP
makes: a deadline that passed with nothing done is 503 (repeat the request), with an unknown outcome
504 (it may have been done; repeat it with the same Idempotency-Key). A component is named by kind,
number and address, "manager 2 at 127.0.0.1:9093", wherever it is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from myqueue.errors import (
    NONE,
    BatchUnreadable,
    BrokerInUse,
    BufferFull,
    Busy,
    Closed,
    GroupInUse,
    MyQueueError,
    NotReady,
    OffsetOutOfRange,
    TooFewBrokers,
    UnknownPartition,
)

GATEWAY: Final = "gateway"
SERVICE_UNAVAILABLE, OUTCOME_UNKNOWN = 503, 504
RETRY_AFTER_S: Final = 1
_DAEMON = re.compile(r"(manager|broker) \d+")
_ADDRESS = re.compile(r"tcp://([^\s,;'\"()]+:\d+)")

# Hints for errors whose hint in the table names flags and arguments that HTTP does not have.
HINTS: Final[dict[type[MyQueueError], str]] = {
    BrokerInUse: "Move its partitions first (drain=1), or remove it all the same (force=1).",
    GroupInUse: "Stop its members first, or use force=1: they continue from the new positions.",
    OffsetOutOfRange: "Use an offset that is at least the partition's start and less than its end.",
}

Failure = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers


class NotWell(NotReady):
    """The cluster can't be used; `facts` are the known problems, and the text is their summary."""

    hint = "The list 'problems' has all of them; 'myq status' shows which daemons are down."

    def __init__(self, text: str, facts: dict[str, Any]) -> None:
        super().__init__(text)
        self.facts = facts


def status_of(error: MyQueueError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, UnknownPartition | TooFewBrokers | Busy | BufferFull):
        return error.http_status
    if isinstance(error, Closed):  # the gateway's own client: the gateway is stopping
        return SERVICE_UNAVAILABLE
    if error.http_status in (SERVICE_UNAVAILABLE, OUTCOME_UNKNOWN):
        return SERVICE_UNAVAILABLE if error.outcome == NONE else OUTCOME_UNKNOWN
    return error.http_status


def describe(error: MyQueueError, name_of: Callable[[str], str]) -> Failure:
    """Return status, body and headers for an error.

    `name_of` names what runs at an address: it makes "manager 2 at …:9093" of "tcp://…:9093" and of
    "manager 2", and "gateway at …:8080" of "gateway".
    """

    def named(match: re.Match[str]) -> str:
        return name_of(match[0])

    status = status_of(error)
    component = error.component
    if _DAEMON.fullmatch(component):
        component = name_of(component)
    if not component:  # the first one of those that were asked
        first = _ADDRESS.search(str(error))
        component = first[0] if first else GATEWAY
    if component == GATEWAY:
        component = name_of(GATEWAY)
    body = {
        "status": "failure",
        "message": _ADDRESS.sub(named, str(error)),
        "code": error.code,
        "name": error.name,
        "retriable": error.retriable,
        "outcome": error.outcome,
        "component": _ADDRESS.sub(named, component),
        "hint": error.own_hint or HINTS.get(type(error), error.hint),
    }
    if isinstance(error, NotWell | BatchUnreadable):
        body |= error.facts
    headers = {}
    if status in (429, SERVICE_UNAVAILABLE):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return status, body, headers
