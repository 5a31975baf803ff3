"""Bound the bytes that request bodies hold together.

Bodies that are being read, or are large and not answered yet, hold at most `bodies_bytes_max`
bytes, whatever clients send and however slowly.

A *small* body (up to 64 KiB) is read at once. Small bodies have a quarter of the bytes; when that
is full, the slowest of them are dropped (`slowness_order`). A *large* body is read only if the
remaining three quarters have room for all of it; otherwise nothing is read from its client until
they have, in order of arrival. So well-behaved clients wait a little, and no client can hold much
memory by sending nothing: while others wait, a large body that arrives slowly is dropped too. A
*heavy* body (4 MiB and more), once received, also waits for a slot of the pool (`worker_pool.py`).

It chooses connections; the server drops their bodies.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from myqueue.gateway.http.connection import BODY, Connection
from myqueue.gateway.http.eviction import slowness_order
from myqueue.gateway.settings import GatewayConfig

SMALL_BYTES_MAX: Final = 64 << 10
HEAVY_BYTES: Final = 4 << 20


class HeldBody:
    """The room of one request body: from its head, which reserves it, until its `release`.

    The connection has it, and gives it up before the release: when a small body was received, a
    large one was answered, or either was dropped.
    """

    __slots__ = ("_released", "body_bytes", "connection")

    def __init__(self, released: deque[HeldBody], connection: Connection, body_bytes: int) -> None:
        self._released, self.connection, self.body_bytes = released, connection, body_bytes

    @property
    def is_small(self) -> bool:
        """True if it holds room only while it is read."""
        return self.body_bytes <= SMALL_BYTES_MAX

    @property
    def is_heavy(self) -> bool:
        """True if its answer needs a slot of the pool."""
        return self.body_bytes >= HEAVY_BYTES

    def release(self) -> None:
        """Give the room back; once, from any thread. The reading thread then looks who gets it."""
        self._released.append(self)


class BodyBudget:
    """The bytes held by request bodies. Only the reading thread uses it.

    Invariant: small bodies are in `_small`, large ones in `_queued` and then in `_large`, until
    they are released. Those in `_large` have at most `_large_max` bytes together.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._small_max = config.small_bodies_bytes_max
        self._large_max = config.large_bodies_bytes_max  # one body fits: `settings.check`
        self._small: dict[HeldBody, None] = {}  # in order of arrival, as the others
        self._large: dict[HeldBody, None] = {}
        self._queued: dict[HeldBody, None] = {}  # not read yet
        self._small_held = self._large_held = 0
        self._released: deque[HeldBody] = deque()  # by any thread, and not taken back yet

    @property
    def needs_room(self) -> bool:
        """True if bodies have to be dropped, or others may have their room."""
        return self._small_held > self._small_max or bool(self._released)

    def reserve(self, connection: Connection, body_bytes: int) -> HeldBody:
        """Reserve room for a body: at once (a small one always), or in the queue."""
        body = HeldBody(self._released, connection, body_bytes)
        if body.is_small:
            self._small[body] = None
            self._small_held += body_bytes
        elif self._queued or not self._fits(body):
            self._queued[body] = None
        else:
            self._hold_large(body)
        return body

    def is_queued(self, body: HeldBody) -> bool:
        """True if this body may not be read yet."""
        return body in self._queued

    def begin_next_queued(self) -> Connection | None:
        """Return the first queued connection if its body may be read now; None otherwise."""
        self._take_back()
        body = next(iter(self._queued), None)
        if body is None or not self._fits(body):
            return None
        del self._queued[body]
        self._hold_large(body)
        return body.connection

    def choose_to_drop(self) -> list[Connection]:
        """Return the connections whose bodies must be dropped to make room for others."""
        self._take_back()
        chosen = []
        excess = self._small_held - self._small_max
        if excess > 0:
            for body in sorted(self._small, key=lambda body: slowness_order(body.connection)):
                if excess <= 0:
                    break
                chosen.append(body.connection)
                excess -= body.body_bytes
        if self._queued:
            chosen += [body.connection for body in self._large if _is_read_slowly(body)]
        return chosen

    def _fits(self, body: HeldBody) -> bool:
        return self._large_held + body.body_bytes <= self._large_max

    def _hold_large(self, body: HeldBody) -> None:
        self._large[body] = None
        self._large_held += body.body_bytes

    def _take_back(self) -> None:
        while self._released:
            body = self._released.popleft()
            if body in self._small:
                del self._small[body]
                self._small_held -= body.body_bytes
            elif body in self._large:
                del self._large[body]
                self._large_held -= body.body_bytes
            else:
                self._queued.pop(body, None)


def _is_read_slowly(body: HeldBody) -> bool:
    connection = body.connection
    return connection.body is body and connection.state == BODY and connection.is_slow
