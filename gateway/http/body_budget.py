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
from collections.abc import Callable
from typing import Final

from myqueue.gateway.http.connection import BODY, Connection
from myqueue.gateway.http.eviction import slowness_order
from myqueue.gateway.settings import GatewayConfig

SMALL_BYTES_MAX: Final = 64 << 10
HEAVY_BYTES: Final = 4 << 20


class BodyReservation:
    """The room of one request body, from its head until its `release`. It has no bytes itself.

    The connection gives it back when a small body was received, when a large one was answered, or
    when either was dropped.
    """

    __slots__ = ("_give_back", "body_bytes", "connection")

    def __init__(
        self, give_back: Callable[[BodyReservation], None], connection: Connection, body_bytes: int
    ) -> None:
        self._give_back, self.connection, self.body_bytes = give_back, connection, body_bytes

    @property
    def is_small(self) -> bool:
        """True if it holds room only while the body is read."""
        return self.body_bytes <= SMALL_BYTES_MAX

    @property
    def is_heavy(self) -> bool:
        """True if the answer needs a slot of the pool."""
        return self.body_bytes >= HEAVY_BYTES

    def release(self) -> None:
        """Give the room back; once, from any thread."""
        self._give_back(self)


class BodyBudget:
    """The bytes held by request bodies. Only the reading thread uses it.

    `wake` wakes up the reading thread, which gives released room to the next body.

    Invariant: reservations of small bodies are in `_small`, those of large ones in `_queued` and
    then in `_large`, until they are released. Those in `_large` have at most `_large_max` bytes
    together.
    """

    def __init__(self, config: GatewayConfig, wake: Callable[[], None]) -> None:
        self._small_max = config.small_bodies_bytes_max
        self._large_max = config.large_bodies_bytes_max  # one body fits: `settings.check`
        self._wake = wake
        self._small: dict[BodyReservation, None] = {}  # in order of arrival, as the others
        self._large: dict[BodyReservation, None] = {}
        self._queued: dict[BodyReservation, None] = {}  # not read yet
        self._small_held = self._large_held = 0
        self._released: deque[BodyReservation] = deque()  # by any thread, and not taken back yet

    @property
    def needs_room(self) -> bool:
        """True if bodies have to be dropped, or others may have their room."""
        return self._small_held > self._small_max or bool(self._released)

    def reserve(self, connection: Connection, body_bytes: int) -> BodyReservation:
        """Reserve room for a reservation: at once (a small one always), or in the queue."""
        reservation = BodyReservation(self._give_back, connection, body_bytes)
        if reservation.is_small:
            self._small[reservation] = None
            self._small_held += body_bytes
        elif self._queued or not self._fits(reservation):
            self._queued[reservation] = None
        else:
            self._hold_large(reservation)
        return reservation

    def is_queued(self, reservation: BodyReservation) -> bool:
        """True if this body may not be read yet."""
        return reservation in self._queued

    def admit_next_queued(self) -> Connection | None:
        """Give room to the first body in the queue, and return its connection. Return None if the
        queue is empty or the body does not fit.
        """
        self._take_back()
        reservation = next(iter(self._queued), None)
        if reservation is None or not self._fits(reservation):
            return None
        del self._queued[reservation]
        self._hold_large(reservation)
        return reservation.connection

    def choose_to_drop(self) -> list[Connection]:
        """Return the connections whose bodies must be dropped to make room for others."""
        self._take_back()
        chosen = []
        excess = self._small_held - self._small_max
        if excess > 0:
            for reservation in sorted(self._small, key=lambda one: slowness_order(one.connection)):
                if excess <= 0:
                    break
                chosen.append(reservation.connection)
                excess -= reservation.body_bytes
        if self._queued:
            chosen += [one.connection for one in self._large if _is_read_slowly(one)]
        return chosen

    def _give_back(self, reservation: BodyReservation) -> None:
        self._released.append(reservation)  # first: the reading thread looks after it woke up
        self._wake()

    def _fits(self, reservation: BodyReservation) -> bool:
        return self._large_held + reservation.body_bytes <= self._large_max

    def _hold_large(self, reservation: BodyReservation) -> None:
        self._large[reservation] = None
        self._large_held += reservation.body_bytes

    def _take_back(self) -> None:
        while self._released:
            reservation = self._released.popleft()
            if reservation in self._small:
                del self._small[reservation]
                self._small_held -= reservation.body_bytes
            elif reservation in self._large:
                del self._large[reservation]
                self._large_held -= reservation.body_bytes
            else:
                self._queued.pop(reservation, None)


def _is_read_slowly(reservation: BodyReservation) -> bool:
    connection = reservation.connection
    is_read = connection.reservation is reservation and connection.state == BODY
    return is_read and connection.is_slow
