"""Choose the connections to close for others.

For a *place*, when a new connection finds `connections_max` others: slow unfinished requests go
first, the slowest of them before the others. Then connections between two requests go, the one that
is idle longest first: their clients lose nothing. Other unfinished requests go last. A connection
keeps its place for `YOUNG_S` after it was accepted, because its client could not send a request in
no time: otherwise many that arrive together would evict each other. If all are young, new ones wait
in the backlog of the listening socket.

For *memory*, answers that clients take slowly may hold `SLOW_ANSWERS_BYTES_MAX` together, and a
client that takes nothing of its answer loses it.

Pure: the server closes the connections. `body_budget.py` chooses among unfinished bodies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from myqueue.gateway.http import deadlines
from myqueue.gateway.http.connection import BODY, HEAD, IDLE, WAITS_FOR_ROOM, WRITING, Connection

EVICTABLE: Final = (IDLE, HEAD, WAITS_FOR_ROOM, BODY)  # no answer is under way
SLOW_ANSWERS_BYTES_MAX: Final = 64 << 20
YOUNG_S: Final = 0.25  # less than it takes to find out that a connection is slow
CHOSEN_MAX: Final = 64  # connections that are chosen at once: choosing looks at all


def slowness_order(connection: Connection) -> tuple[float, int, float]:
    """Sort key: the slowest connection first; of those whose pace is not known or not slow, the one
    that received least.
    """
    bytes_per_s = connection.pace.bytes_per_s if connection.is_slow else math.inf
    return bytes_per_s, len(connection.received), connection.pace.begin_s


def choose_for_places(connections: Iterable[Connection], now: float) -> list[Connection]:
    """Return the connections that may be closed for new ones, in the order in which they go."""
    candidates = (
        connection
        for connection in connections
        if connection.state in EVICTABLE and now - connection.accepted_s >= YOUNG_S
    )
    return heapq.nsmallest(CHOSEN_MAX, candidates, key=_place_order)


def may_evict_later(connections: Iterable[Connection]) -> bool:
    """True if some connection may be closed for a new one, now or when it is old enough."""
    return any(connection.state in EVICTABLE for connection in connections)


def _place_order(connection: Connection) -> tuple[int, float, int, float]:
    if connection.state == IDLE and connection.had_request:
        return 1, connection.deadline, 0, 0.0  # its deadline passes first: it is idle longest
    return (0 if connection.is_slow else 2, *slowness_order(connection))


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
