"""Bound the bytes that request bodies hold together.

Bodies that are being read, or are large and not answered yet, hold at most `bodies_bytes_max`
bytes, whatever clients send and however slowly.

A *small* body (up to 64 KiB) is read at once. Small bodies have a quarter of the bytes; when that
is full, the slowest of them are dropped (`eviction_order`). A *large* body is read only if the
remaining three quarters have room for all of it; otherwise nothing is read from its client until
they have, in order of arrival. So well-behaved clients wait a little, and no client can hold much
memory by sending nothing: while others wait, a large body that arrives slowly is dropped too. A
*heavy* body (4 MiB and more), once received, also waits for a slot of the pool (`worker_pool.py`).

Pure: it chooses the connections, and the server drops their bodies.
"""

from __future__ import annotations

from typing import Final

from myqueue.gateway.http.connection import Connection
from myqueue.gateway.http.eviction import eviction_order
from myqueue.gateway.settings import GatewayConfig

SMALL_BYTES_MAX: Final = 64 << 10
HEAVY_BYTES: Final = 4 << 20


class BodyBudget:
    """The bytes held by request bodies. Only the reading thread uses it.

    A body goes through `begin_or_queue`, `begin_next_queued` if it had to wait, and `end_reading`;
    a large one then through `release`. `forget` ends it before `end_reading`.

    Invariant: large bodies hold at most `_large_max` bytes, from `begin_or_queue` until `release`;
    `_small`, `_large` and `_queued` never share a connection.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._small_max = config.small_bodies_bytes_max
        self._large_max = config.large_bodies_bytes_max  # one body fits: `settings.check`
        self._small: dict[Connection, int] = {}  # size of each small body that is being read
        self._large: dict[Connection, int] = {}
        self._queued: dict[Connection, int] = {}  # large bodies that are not read yet, in order
        self._small_held = self._large_held = 0

    @property
    def needs_room(self) -> bool:
        """True if bodies have to be dropped or are waiting."""
        return self._small_held > self._small_max or bool(self._queued)

    def begin_or_queue(self, connection: Connection, length: int) -> bool:
        """Return True if this body may be read now, as a small one always may; else queue it."""
        if length <= SMALL_BYTES_MAX:
            self._small[connection] = length
            self._small_held += length
            return True
        if self._queued or not self._fits(length):
            self._queued[connection] = length
            return False
        self._hold_large(connection, length)
        return True

    def _fits(self, length: int) -> bool:
        return self._large_held + length <= self._large_max

    def _hold_large(self, connection: Connection, length: int) -> None:
        self._large[connection] = length
        self._large_held += length

    def begin_next_queued(self) -> Connection | None:
        """Return the first queued connection if its body may be read now; None otherwise."""
        connection, length = next(iter(self._queued.items()), (None, 0))
        if connection is None or not self._fits(length):
            return None
        del self._queued[connection]
        self._hold_large(connection, length)
        return connection

    def forget(self, connection: Connection) -> None:
        """Forget a body that will not be received completely."""
        self._large_held -= self._large.pop(connection, 0)
        self._small_held -= self._small.pop(connection, 0)
        self._queued.pop(connection, None)

    def end_reading(self, connection: Connection) -> int:
        """Note that a body was received; return what a large one holds until `release`."""
        self._small_held -= self._small.pop(connection, 0)
        return self._large.pop(connection, 0)

    def release(self, body_bytes: int) -> None:
        """Free the bytes of a large body that was answered."""
        self._large_held -= body_bytes

    def choose_to_drop(self) -> list[Connection]:
        """Return the connections whose bodies must be dropped to make room for others."""
        chosen = []
        excess = self._small_held - self._small_max
        if excess > 0:
            for connection in sorted(self._small, key=eviction_order):
                if excess <= 0:
                    break
                chosen.append(connection)
                excess -= self._small[connection]
        if self._queued:
            chosen += [connection for connection in self._large if connection.is_slow]
        return chosen
