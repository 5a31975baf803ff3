"""Bound what all requests under way hold together, and choose which connections are dropped.

Bodies that are being read, or are large and not answered yet, hold at most `bodies_bytes_max`
bytes, whatever clients send and however slowly. There are at most `connections_max` connections.

A *small* body (up to 64 KiB) is read at once. Small bodies have a quarter of the bytes; when that
is full, the body that received least for its time is dropped. A *large* body is read only if the
remaining three quarters have room for all of it; otherwise nothing is read from its client until
they have, in order of arrival. So well-behaved clients wait a little, and no client can hold much
memory by sending nothing: while others wait, a large body that arrives slowly is dropped too. A
*heavy* body (4 MiB and more), once received, also waits for one of two slots, because its decoded
JSON is several times as large.

When a new connection finds no free place, unfinished requests are dropped first, the slowest of
them first; only then connections between two requests, the longest idle first.

Pure but for the clock that it is given: it chooses the connections, and the server closes them.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from myqueue.gateway.drop_reasons import REASONS
from myqueue.gateway.http.connection import BODY, HEAD, IDLE, QUEUED, WRITING, Connection
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

SMALL_BYTES_MAX: Final = 64 << 10
HEAVY_BYTES: Final = 4 << 20
HEAVY_AT_ONCE: Final = 2
FRESH_S: Final = 0.5  # a request younger than this is not judged slow
SLOW_BYTES_PER_S: Final = 256 << 10
ANSWERS_BYTES_MAX: Final = 64 << 20  # together, of all answers that clients take slowly
# An answer may take this long, plus one second for each SLOW_BYTES_PER_S; and a client that takes
# nothing of it is given this long.
SEND_TIMEOUT_S: Final = 30.0
CLOSED_SHARE: Final = 64  # one of so many connections is closed at a time
LOG_INTERVAL_S: Final = 10.0  # at most one log line for each reason in this time


class BodyBudget:
    """The bytes held by request bodies. Only the reading thread uses it.

    Invariant: large bodies hold at most `_large_max` bytes, from `admit` until `release`; `small`,
    `large` and `queue` never share a connection.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._small_max = config.bodies_bytes_max // 4
        self._large_max = max(config.bodies_bytes_max - self._small_max, config.body_bytes_max)
        self.small: dict[Connection, int] = {}  # size of each small body that is being read
        self.large: dict[Connection, int] = {}
        self.queue: dict[Connection, int] = {}  # large bodies whose reading has not begun, in order
        self._small_held = self._large_held = 0
        self._heavy = 0

    @property
    def needs_room(self) -> bool:
        """True if bodies have to be dropped or are waiting."""
        return self._small_held > self._small_max or bool(self.queue)

    def admit(self, connection: Connection, length: int) -> bool:
        """Return True if this body may be read now, else put it in the queue. A small body always
        may.
        """
        if length <= SMALL_BYTES_MAX:
            self.small[connection] = length
            self._small_held += length
            return True
        if self.queue or not self._fits(length):
            self.queue[connection] = length
            return False
        self._read_large(connection, length)
        return True

    def _fits(self, length: int) -> bool:
        return self._large_held + length <= self._large_max

    def _read_large(self, connection: Connection, length: int) -> None:
        self.large[connection] = length
        self._large_held += length

    def admit_next(self) -> Connection | None:
        """Take the first connection from the queue if its body has room now; None otherwise."""
        connection, length = next(iter(self.queue.items()), (None, 0))
        if connection is None or not self._fits(length):
            return None
        del self.queue[connection]
        self._read_large(connection, length)
        return connection

    def drop(self, connection: Connection) -> None:
        """Forget a body that will not be received completely."""
        self._large_held -= self.large.pop(connection, 0)
        self._small_held -= self.small.pop(connection, 0)
        self.queue.pop(connection, None)

    def body_received(self, connection: Connection) -> int:
        """Note that a body was received; return what a large one holds until `release`."""
        self._small_held -= self.small.pop(connection, 0)
        return self.large.pop(connection, 0)

    def release(self, held: int) -> None:
        """Free the bytes of a large body that was answered."""
        self._large_held -= held

    def try_begin_heavy(self) -> bool:
        """Take a slot for a heavy body, if one is free; `end_heavy` gives it back."""
        if self._heavy >= HEAVY_AT_ONCE:
            return False
        self._heavy += 1
        return True

    def end_heavy(self) -> None:
        self._heavy -= 1

    def choose_to_drop(self) -> list[Connection]:
        """Return the connections whose bodies must be dropped to make room for others."""
        chosen = []
        excess = self._small_held - self._small_max
        if excess > 0:
            for connection in sorted(self.small, key=closing_order):
                if excess <= 0:
                    break
                chosen.append(connection)
                excess -= self.small[connection]
        if self.queue:
            chosen += [large for large in self.large if is_slow(large)]
        return chosen


def update_pace(connections: Iterable[Connection], now: float) -> None:
    """Measure how fast each connection moved since it was measured last. Call it regularly."""
    for connection in connections:
        seconds = now - connection.pace_checked_s
        if seconds >= FRESH_S:
            progress = connection.progress
            connection.bytes_per_s = (progress - connection.pace_checked_bytes) / seconds
            if connection.bytes_per_s > 0:
                connection.last_progress_s = now
            connection.pace_checked_s, connection.pace_checked_bytes = now, progress


def is_slow(connection: Connection) -> bool:
    return connection.bytes_per_s < SLOW_BYTES_PER_S and connection.state != QUEUED


def closing_order(connection: Connection) -> tuple[float, int, float]:
    """Sort key: connections with the lowest value are closed first; the slowest, then those that
    received least.
    """
    pace = connection.bytes_per_s if is_slow(connection) else math.inf
    return pace, connection.progress, connection.phase_begin_s


def choose_to_close(connections: Iterable[Connection]) -> list[Connection]:
    """Return the connections to close so that a new one has a place; none if all are busy."""
    candidates = list(connections)
    unfinished = [
        connection
        for connection in candidates
        if connection.state in (HEAD, BODY, QUEUED)
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
        connection for connection in slow if now - connection.last_progress_s > SEND_TIMEOUT_S
    ]
    excess = sum(connection.unsent_bytes for connection in slow) - sum(
        connection.unsent_bytes for connection in chosen
    )
    excess -= ANSWERS_BYTES_MAX
    for connection in sorted(
        set(slow).difference(chosen), key=lambda connection: connection.bytes_per_s
    ):
        if excess <= 0:
            break
        excess -= connection.unsent_bytes
        chosen.append(connection)
    return chosen


def seconds_to_take(answer_bytes: int) -> float:
    """Return how long sending an answer may take at most."""
    return SEND_TIMEOUT_S + answer_bytes / SLOW_BYTES_PER_S


class DropCounter:
    """Counts what was dropped, by reason: in a metric, and in the log now and then."""

    def __init__(self, count: Callable[[str], None] | None) -> None:
        self._count = count
        self._not_logged: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}

    def add(self, reason: str) -> None:
        self._not_logged[reason] += 1
        if self._count is not None:
            self._count(reason)

    def log_due(self, now: float) -> None:
        for reason, number in tuple(self._not_logged.items()):
            if now - self._logged_s.get(reason, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
                self._logged_s[reason] = now
                del self._not_logged[reason]
                log.warning("%d %s", number, REASONS[reason])
