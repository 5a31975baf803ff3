"""Choose the connections to close for others.

For a *place*, when a new connection finds `connections_max` others: unfinished requests are dropped
first, the slowest of them first; only then connections between two requests, the longest idle
first. For *memory*: the answers that clients take slowly may hold `SLOW_ANSWERS_BYTES_MAX`
together, and a client that takes nothing of its answer loses it.

Pure: the server closes the connections. `body_budget.py` chooses among unfinished bodies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from myqueue.gateway.http import deadlines
from myqueue.gateway.http.connection import BODY, HEAD, IDLE, WAITS_FOR_ROOM, WRITING, Connection

SLOW_ANSWERS_BYTES_MAX: Final = 64 << 20
CLOSED_SHARE: Final = 64  # one of so many connections is closed at a time


def eviction_order(connection: Connection) -> tuple[float, int, float]:
    """Sort key: connections with the lowest value go first; the slowest, then those that received
    least.
    """
    bytes_per_s = connection.pace.bytes_per_s if connection.is_slow else math.inf
    return bytes_per_s, len(connection.received), connection.pace.begin_s


def choose_for_place(connections: Iterable[Connection]) -> list[Connection]:
    """Return the connections to close so that a new one has a place; none if all are busy."""
    candidates = list(connections)
    unfinished = [connection for connection in candidates if _is_unfinished(connection)]
    if unfinished:
        count = max(1, len(candidates) // CLOSED_SHARE)
        first, *others = heapq.nsmallest(count, unfinished, key=eviction_order)
        return [first, *(connection for connection in others if connection.is_slow)]
    idle = [connection for connection in candidates if connection.state == IDLE]
    return [min(idle, key=lambda connection: connection.deadline)] if idle else []


def _is_unfinished(connection: Connection) -> bool:
    """True if a request is being received, or the first one did not begin yet."""
    if connection.state == IDLE:
        return not connection.had_request
    return connection.state in (HEAD, BODY, WAITS_FOR_ROOM)


def choose_slow_readers(connections: Iterable[Connection], now: float) -> list[Connection]:
    """Return the connections to close because their clients take answers too slowly: those that
    took nothing for `SEND_TIMEOUT_S`, and the slowest of the others while all slow answers together
    hold too much.
    """
    chosen: list[Connection] = []
    others: list[Connection] = []
    for connection in connections:
        if connection.state == WRITING and connection.is_slow:
            is_stuck = now - connection.pace.last_progress_s > deadlines.SEND_TIMEOUT_S
            (chosen if is_stuck else others).append(connection)
    others.sort(key=lambda connection: connection.pace.bytes_per_s)
    held = sum(connection.unsent_bytes for connection in others)
    for connection in others:
        if held <= SLOW_ANSWERS_BYTES_MAX:
            break
        held -= connection.unsent_bytes
        chosen.append(connection)
    return chosen
