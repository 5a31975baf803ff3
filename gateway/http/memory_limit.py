"""What all requests under way hold together, and who gives way when there is too little for all.

Bodies that are being read, or are large and not answered yet, hold at most
`bodies_bytes_max` bytes, however many clients send however slowly. Places for connections are at
most `connections_max`.

A *small* body (64 KiB) is read at once. Small bodies have a quarter of the bytes; when that is
full, the one that brought least for its time gives way. A *large* body asks before any of it is
read: if the other three quarters have no room for all of it, its client is not read from until
they have, in order. So honest clients wait a little, and nobody can hold much by sending nothing:
while others wait, a large body that comes slowly gives way too. A *heavy* body (4 MiB) also waits
for one of two places when it is whole, since what its JSON becomes is several times as large.

When a place for a new connection is missing, unfinished requests give way first, the slowest of
them, and only then connections between two requests, the one that is idle longest.

Pure but for the clock that it is given: it says who gives way, and the server closes them.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from myqueue.gateway.http.connection import BODY, HEAD, IDLE, QUEUED, WRITING, Connection
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

SMALL_BYTES_MAX: Final = 64 << 10
HEAVY_BYTES: Final = 4 << 20
HEAVY_AT_ONCE: Final = 2
FRESH_S: Final = 0.5  # a request that began so lately is not called slow
SLOW_BYTES_PER_S: Final = 256 << 10
ANSWERS_BYTES_MAX: Final = 64 << 20  # of all answers that are taken slowly
# For an answer to be taken, and for each SLOW_BYTES_PER_S of it a second more; if nothing of it is
# taken, no longer than this.
SEND_TIMEOUT_S: Final = 30.0
CLOSED_SHARE: Final = 64  # of all connections: so many slow ones give way together
LOG_INTERVAL_S: Final = 10.0  # at most one line of the log for each reason in so long

PLACES, BYTES, ANSWERS, REFUSED = "places", "bytes", "answers", "refused"
REASONS: Final = {
    PLACES: "unfinished or idle connections gave way to new ones: connections_max is reached",
    BYTES: "unfinished bodies gave way to others: bodies_bytes_max is reached",
    ANSWERS: "connections whose clients do not take their answers were closed",
    REFUSED: "connections were not taken: all are at work, and connections_max is reached",
}


class BodyBudget:
    """The bytes of bodies. Used by the thread that reads, alone."""

    def __init__(self, config: GatewayConfig) -> None:
        self._small_max = config.bodies_bytes_max // 4
        self._large_max = max(config.bodies_bytes_max - self._small_max, config.body_bytes_max)
        self.small: dict[Connection, int] = {}  # that are being read: how many bytes
        self.large: dict[Connection, int] = {}
        self.queue: dict[Connection, int] = {}  # large ones that are not read yet, in order
        self._small_held = self._large_held = 0
        self._heavy = 0

    @property
    def needs_room(self) -> bool:
        return self._small_held > self._small_max or bool(self.queue)

    def admit(self, connection: Connection, length: int) -> bool:
        """May this body be read now? Else it is in the queue. A small one always may."""
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
        """Of the queue: the one that may be read now."""
        connection, length = next(iter(self.queue.items()), (None, 0))
        if connection is None or not self._fits(length):
            return None
        del self.queue[connection]
        self._read_large(connection, length)
        return connection

    def drop(self, connection: Connection) -> None:
        """It will not become whole."""
        self._large_held -= self.large.pop(connection, 0)
        self._small_held -= self.small.pop(connection, 0)
        self.queue.pop(connection, None)

    def body_received(self, connection: Connection) -> int:
        """All of it is there. Of a large one: the bytes that it holds until it is `answered`."""
        self._small_held -= self.small.pop(connection, 0)
        return self.large.pop(connection, 0)

    def release(self, held: int) -> None:
        self._large_held -= held

    def try_begin_heavy(self) -> bool:
        """One of the places for heavy bodies, if there is one; `end_heavy` gives it back."""
        if self._heavy >= HEAVY_AT_ONCE:
            return False
        self._heavy += 1
        return True

    def end_heavy(self) -> None:
        self._heavy -= 1

    def choose_to_drop(self) -> list[Connection]:
        """Whose bodies give way, so that the others have room."""
        found = []
        excess = self._small_held - self._small_max
        if excess > 0:
            for connection in sorted(self.small, key=slowness):
                if excess <= 0:
                    break
                found.append(connection)
                excess -= self.small[connection]
        if self.queue:
            found += [one for one in self.large if is_slow(one)]
        return found


def update_pace(connections: Iterable[Connection], now: float) -> None:
    """To be called now and then: how fast each of them went on since it was looked at before."""
    for one in connections:
        seconds = now - one.pace_checked_s
        if seconds >= FRESH_S:
            progress = one.progress
            one.bytes_per_s = (progress - one.pace_checked_bytes) / seconds
            if one.bytes_per_s > 0:
                one.last_progress_s = now
            one.pace_checked_s, one.pace_checked_bytes = now, progress


def is_slow(connection: Connection) -> bool:
    return connection.bytes_per_s < SLOW_BYTES_PER_S and connection.state != QUEUED


def slowness(connection: Connection) -> tuple[float, int, float]:
    """The least gives way first: the slowest, then, of the quick ones, who brought least."""
    pace = connection.bytes_per_s if is_slow(connection) else math.inf
    return pace, connection.progress, connection.phase_begin_s


def choose_to_close(connections: Iterable[Connection]) -> list[Connection]:
    """Who goes so that a new connection has a place; nobody, if all are at work."""
    everybody = list(connections)
    unfinished = [
        one
        for one in everybody
        if one.state in (HEAD, BODY, QUEUED) or (one.state == IDLE and not one.had_request)
    ]
    if unfinished:
        count = max(1, len(everybody) // CLOSED_SHARE)
        found = heapq.nsmallest(count, unfinished, key=slowness)
        return [one for one in found if one is found[0] or is_slow(one)]
    idle = [one for one in everybody if one.state == IDLE]
    return [min(idle, key=lambda one: one.deadline)] if idle else []


def choose_slow_readers(connections: Iterable[Connection], now: float) -> list[Connection]:
    """Who took nothing of an answer for `SEND_TIMEOUT_S`; and who gives way because answers that
    are taken slowly hold more than `ANSWERS_BYTES_MAX`.
    """
    slow = [one for one in connections if one.state == WRITING and is_slow(one)]
    found = [one for one in slow if now - one.last_progress_s > SEND_TIMEOUT_S]
    excess = sum(one.unsent_bytes for one in slow) - sum(one.unsent_bytes for one in found)
    excess -= ANSWERS_BYTES_MAX
    for one in sorted(set(slow).difference(found), key=lambda one: one.bytes_per_s):
        if excess <= 0:
            break
        excess -= one.unsent_bytes
        found.append(one)
    return found


def seconds_to_take(answer_bytes: int) -> float:
    """How long the sending of an answer may last at most."""
    return SEND_TIMEOUT_S + answer_bytes / SLOW_BYTES_PER_S


class DropCounter:
    """How many had to go, and why: a metric, and a line in the log now and then."""

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
