"""Every failure in one form: what went wrong, whether it was done, and which component says so.

    {"status": "failure", "message": …, "code": …, "name": …, "retriable": …, "outcome": …,
     "component": …, "hint": …}

Beside these stand the facts of a `NotWell`, what /healthz has to tell most when it fails, and those
of a batch that nobody can unpack: where it is, and what else was taken with it.

The status code comes from the one table of `myqueue.errors`, with one distinction that HTTP makes
and the table can't: a deadline that passed with nothing done is 503 (repeat it), with an unknown
outcome 504 (it may have been done; repeat it with the same Idempotency-Key) (C1, H4). A component
is named by kind, number and address, "manager 2 at 127.0.0.1:9093", wherever it is known (R1).
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

# Where that of the table names flags and arguments that there are not here.
HINTS: Final[dict[type[MyQueueError], str]] = {
    BrokerInUse: "Have its partitions moved first (drain=1), or insist (force=1).",
    GroupInUse: "Stop its members first, or insist (force=1): they go on from the new positions.",
    OffsetOutOfRange: "Ask for an offset from the start on and before the end of the partition.",
}

Failure = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers


class NotWell(NotReady):
    """The cluster can't be used; `facts` are all that is known of why, and the text a summary."""

    hint = "The list 'problems' has them all; 'myq status' shows which daemons are down."

    def __init__(self, text: str, facts: dict[str, Any]) -> None:
        super().__init__(text)
        self.facts = facts


def status_of(error: MyQueueError) -> int:
    if isinstance(error, UnknownPartition | TooFewBrokers | Busy | BufferFull):
        return error.http_status
    if isinstance(error, Closed):  # the gateway's own client: it is about to end
        return SERVICE_UNAVAILABLE
    if error.http_status in (SERVICE_UNAVAILABLE, OUTCOME_UNKNOWN):
        return SERVICE_UNAVAILABLE if error.outcome == NONE else OUTCOME_UNKNOWN
    return error.http_status


def describe(error: MyQueueError, name_of: Callable[[str], str]) -> Failure:
    """`name_of` knows what runs at an address, and where a daemon is: of "tcp://…:9093" and of
    "manager 2" it makes "manager 2 at …:9093", of "gateway" "gateway at …:8080".
    """

    def named(match: re.Match[str]) -> str:
        return name_of(match[0])

    status = status_of(error)
    component = error.component
    if _DAEMON.fullmatch(component):
        component = name_of(component)
    if not component:  # of several that were asked, the one that was asked first
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
