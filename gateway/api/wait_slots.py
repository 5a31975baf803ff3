"""Who waits: long polls and streams hold a thread each, so there are never as many as threads.

A thread pool in which all threads wait answers nobody (ECOSYSTEM: every server that was measured
stopped at that point). So a place is taken before waiting; without a free one the request is
refused with 429 and Retry-After, and a gateway that is stopping lets nobody wait any more (H5).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from myqueue.errors import Stopping, TooManyWaiting


class WaitSlots:
    """So many places; each may be held so long."""

    def __init__(self, slots: int, wait_ms_max: int) -> None:
        self.slots, self.wait_ms_max = slots, wait_ms_max
        self.taken = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """To be held while waiting. Who holds one for long looks at `stopping` now and then."""
        with self._lock:
            if self.stopping.is_set():
                raise Stopping("this gateway is about to end")
            if self.taken >= self.slots:
                raise TooManyWaiting(f"{self.taken} requests are waiting here already")
            self.taken += 1
        try:
            yield
        finally:
            with self._lock:
                self.taken -= 1

    @contextmanager
    def hold_for(self, wait_ms: int) -> Iterator[int]:
        """How long this request may wait; who does not want to needs no place."""
        if not wait_ms:
            yield 0
            return
        with self.hold():
            yield min(wait_ms, self.wait_ms_max)
