"""Measure how fast connections move, choose the ones to close, and say how long they may take.

There are at most `connections_max` connections. When a new one finds no free place, unfinished
requests are dropped first, the slowest of them first; only then connections between two requests,
the longest idle first. Clients that take their answers slowly are closed when these answers
together hold too much memory, or when a client takes nothing.

It notes the `Pace` in the connections, and does no IO: the server closes the connections.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from myqueue.gateway.http.connection import BODY, HEAD, IDLE, WAITS_FOR_ROOM, WRITING, Connection
from myqueue.gateway.settings import GatewayConfig

FRESH_S: Final = 0.5  # a request younger than this is not judged slow
SLOW_BYTES_PER_S: Final = 256 << 10
ANSWERS_BYTES_MAX: Final = 64 << 20  # together, of all answers that clients take slowly
# An answer may take this long, plus one second for each SLOW_BYTES_PER_S; and a client that takes
# nothing of it is given this long.
SEND_TIMEOUT_S: Final = 30.0
CLOSED_SHARE: Final = 64  # one of so many connections is closed at a time
SPARE_S: Final = 60.0  # added to the longest time of a request
CLUSTER_REQUESTS_MAX: Final = 10  # that one HTTP request may need


def update_pace(connections: Iterable[Connection], now: float) -> None:
    """Measure how fast each connection moved since it was measured last. Call it regularly."""
    for connection in connections:
        if now - connection.pace.measured_s >= FRESH_S:
            connection.pace.measure(now, connection.progress)


def is_slow(connection: Connection) -> bool:
    return connection.pace.bytes_per_s < SLOW_BYTES_PER_S and connection.state != WAITS_FOR_ROOM


def closing_order(connection: Connection) -> tuple[float, int, float]:
    """Sort key: connections with the lowest value are closed first; the slowest, then those that
    received least.
    """
    bytes_per_s = connection.pace.bytes_per_s if is_slow(connection) else math.inf
    return bytes_per_s, connection.progress, connection.pace.begin_s


def choose_to_close(connections: Iterable[Connection]) -> list[Connection]:
    """Return the connections to close so that a new one has a place; none if all are busy."""
    candidates = list(connections)
    unfinished = [
        connection
        for connection in candidates
        if connection.state in (HEAD, BODY, WAITS_FOR_ROOM)
        or (connection.state == IDLE and not connection.had_request)
    ]
    if unfinished:
        count = max(1, len(candidates) // CLOSED_SHARE)
        slowest = heapq.nsmallest(count, unfinished, key=closing_order)
        return [
            connection for connection in slowest if connection is slowest[0] or is_slow(connection)
        ]
    idle = [connection for connection in candidates if connection.state == IDLE]
    return [min(idle, key=lambda connection: connection.deadline)] if idle else []


def choose_slow_readers(connections: Iterable[Connection], now: float) -> list[Connection]:
    """Return the connections to close because their clients take answers too slowly.

    These are clients that took nothing for `SEND_TIMEOUT_S`, and the slowest ones while all slow
    answers together hold more than `ANSWERS_BYTES_MAX`.
    """
    slow = [
        connection
        for connection in connections
        if connection.state == WRITING and is_slow(connection)
    ]
    chosen = [
        connection for connection in slow if now - connection.pace.last_progress_s > SEND_TIMEOUT_S
    ]
    excess = sum(connection.unsent_bytes for connection in slow) - sum(
        connection.unsent_bytes for connection in chosen
    )
    excess -= ANSWERS_BYTES_MAX
    for connection in sorted(
        set(slow).difference(chosen), key=lambda connection: connection.pace.bytes_per_s
    ):
        if excess <= 0:
            break
        excess -= connection.unsent_bytes
        chosen.append(connection)
    return chosen


def seconds_to_take(answer_bytes: int) -> float:
    """Return how long sending an answer may take at most."""
    return SEND_TIMEOUT_S + answer_bytes / SLOW_BYTES_PER_S


def request_limit_ms(config: GatewayConfig) -> float:
    """Return more time than making any answer takes that works as designed.

    Everything that a request waits for has a deadline of its own, so a request exceeds this limit
    only because of a defect in this program. Then its client must not wait forever, and the log
    needs the stack of every thread to find the defect (`thread_stacks.py`).
    """
    return config.wait_ms_max + CLUSTER_REQUESTS_MAX * config.request_timeout_ms + SPARE_S * 1000
