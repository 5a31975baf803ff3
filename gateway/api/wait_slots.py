"""Slots for requests that wait: long polls.

Each of them occupies a thread, so there are always fewer slots than threads. A pool in which all
threads wait answers nobody; other servers stop at that point. So a request takes a slot before it
waits; without a free one it is refused with 429 and Retry-After. A gateway that is stopping gives
out no slots.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from myqueue.errors import Stopping, TooManyWaiting


class WaitSlots:
    """A number of slots; a request may wait in one for at most `wait_ms_max`.

    `stopping` is set when the gateway stops; what waits has to end then.
    """

    def __init__(self, slots: int, wait_ms_max: int) -> None:
        self.slots, self.wait_ms_max = slots, wait_ms_max
        self.taken = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold a slot while waiting. A long wait checks `stopping` regularly. Raises
        TooManyWaiting, Stopping.
        """
        with self._lock:
            if self.stopping.is_set():
                raise Stopping("this gateway is stopping")
            if self.taken >= self.slots:
                raise TooManyWaiting(f"{self.taken} requests are already waiting here")
            self.taken += 1
        try:
            yield
        finally:
            with self._lock:
                self.taken -= 1

    @contextmanager
    def hold_for(self, wait_ms: int) -> Iterator[int]:
        """Hold a slot and yield how long to wait; a request that does not want to wait needs no
        slot.
        """
        if not wait_ms:
            yield 0
            return
        with self.hold():
            yield min(wait_ms, self.wait_ms_max)
