"""Measure how fast numbers grow that are looked at only now and then, mostly ends of topics.

A rate is measured between two looks of this gateway, so the first look has none. After a long pause
measuring starts again, because an average over an hour does not answer "how fast now".
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

BETWEEN_MS_MIN: Final = 900  # two pages at the same moment count as one look
BETWEEN_MS_MAX: Final = 15_000
KEPT_MAX: Final = 5_000


class Measurement(NamedTuple):
    at_ms: int
    value: int
    rate: float | None


class GrowthRates:
    """Rates by any key; any number of threads may call it."""

    def __init__(self) -> None:
        self._seen: dict[int, Measurement] = {}
        self._lock = threading.Lock()

    def seen(self, key: int, value: int, at_ms: int) -> float | None:
        """Note the value; return its growth per second since the previous look, if known."""
        with self._lock:
            before = self._seen.get(key)
            if before is not None and 0 <= at_ms - before.at_ms < BETWEEN_MS_MIN:
                return before.rate
            rate = None
            if before is not None and at_ms - before.at_ms <= BETWEEN_MS_MAX:
                passed = at_ms - before.at_ms
                rate = max(0, value - before.value) * 1000 / passed if passed > 0 else None
            if len(self._seen) >= KEPT_MAX and key not in self._seen:
                self._seen.clear()
            self._seen[key] = Measurement(at_ms, value, rate)
            return rate
