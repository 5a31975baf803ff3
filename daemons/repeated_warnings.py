"""When a lasting problem is logged again.

`LogPauses` remembers for each problem when it may be logged again: at once, then after a pause that
doubles each time. A problem that did not occur for the longest pause starts with the shortest one.
Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

PAUSE_MS_MIN: Final = 10_000
PAUSE_MS_MAX: Final = 300_000
PROBLEMS_MAX: Final = 1000  # peers that are refused can cause any number


class LogPauses:
    """Limits how often each problem is logged."""

    def __init__(self, pause_ms: int = PAUSE_MS_MIN) -> None:
        self._pause_ms = pause_ms
        self._problems: dict[Hashable, list[int]] = {}  # -> [pause, when due, not logged]

    def due(self, problem: Hashable, now: int) -> int:
        """Count an occurrence. Return how many to log now, itself included; 0: not now."""
        state = self._problems.pop(problem, None)
        if state is None or now - state[1] > PAUSE_MS_MAX:
            if len(self._problems) >= PROBLEMS_MAX:
                del self._problems[next(iter(self._problems))]
            self._problems[problem] = [self._pause_ms, now + self._pause_ms, 0]
            return 1
        self._problems[problem] = state
        state[2] += 1
        if now < state[1]:
            return 0
        state[0] = min(2 * state[0], PAUSE_MS_MAX)
        state[1], times, state[2] = now + state[0], state[2], 0
        return times

    def forget(self, problem: Hashable) -> None:
        """The problem is over: its next occurrence is logged at once."""
        self._problems.pop(problem, None)
