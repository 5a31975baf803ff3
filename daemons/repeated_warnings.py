"""What is wrong for long is said again, but ever more seldom.

`LogPauses` remembers, for each thing that is wrong, when it may be logged again: at once, then
after a pause that doubles each time. A thing that was not wrong for the longest pause begins anew.
Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

PAUSE_MS_MIN: Final = 10_000
PAUSE_MS_MAX: Final = 300_000
THINGS_MAX: Final = 1000  # strangers can make up as many as they like


class LogPauses:
    """See the module's docstring."""

    def __init__(self, pause_ms: int = PAUSE_MS_MIN) -> None:
        self._pause_ms = pause_ms
        self._things: dict[Hashable, list[int]] = {}  # -> [pause, when it is due, left out]

    def due(self, thing: Hashable, now: int) -> int:
        """How many times it happened since it was logged last, if it is to be logged; else 0."""
        known = self._things.pop(thing, None)
        if known is None or now - known[1] > PAUSE_MS_MAX:
            if len(self._things) >= THINGS_MAX:
                del self._things[next(iter(self._things))]
            self._things[thing] = [self._pause_ms, now + self._pause_ms, 0]
            return 1
        self._things[thing] = known
        known[2] += 1
        if now < known[1]:
            return 0
        known[0] = min(2 * known[0], PAUSE_MS_MAX)
        known[1], times, known[2] = now + known[0], known[2], 0
        return times

    def forget(self, thing: Hashable) -> None:
        """It is well again."""
        self._things.pop(thing, None)
