"""`Countdown`: the one way in which callers wait for batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from myqueue.producer.batch import Batch


class Countdown:
    """Wait once until all these batches are stored or failed.

    It waits on a plain lock, which is cheaper than an Event or a future's condition. On Linux
    Ctrl-C ends such a wait, with or without a limit, so it needs no short slices.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches, self._left = batches, len(batches)
        self._counting, self._zero = threading.Lock(), threading.Lock()
        if batches:
            self._zero.acquire()
        for batch in batches:
            batch.listen(self._one_less)

    def _one_less(self, batch: Batch) -> None:
        with self._counting:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._zero.release()

    def wait(self, timeout: float | None) -> bool:
        """Wait for at most `timeout` seconds (None: no limit); False if batches are unsettled."""
        limit = -1.0 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        is_zero = False
        try:
            is_zero = self._zero.acquire(timeout=limit)
        finally:
            if not is_zero:  # too late, or Ctrl-C: no listener stays behind
                for batch in self._batches:
                    batch.unlisten(self._one_less)
        return is_zero
