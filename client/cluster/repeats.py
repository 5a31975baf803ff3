"""Decide whether a request is sent again, after which pause, and what is known at its end.

Pure: callers have the clock, the timers and the connections. These are `request` (one request),
`offset_queries` (one to several leaders), the producer's `sender`, and `http_requests` (HTTP).

- A retriable error repeats the request; with outcome "unknown" only if a repeat is safe: it has a
  key or a sequence by which it is recognised, or it changes nothing.
- Any other error ends it, except one with an unknown outcome where the rule asks `until_known`.
- Pauses double up to a maximum, each longer or shorter by up to 30 %, so that clients that failed
  together do not return together. A daemon's advice (`retry_ms`) lengthens the next ones.
- The request as a whole has the outcome "none" only if every attempt had it.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple, TypeVar

from myqueue.errors import (
    NONE,
    UNKNOWN,
    Busy,
    DiskFull,
    JournalBusy,
    MyQueueError,
    TooFewBrokers,
    UnknownPartition,
)

Error = TypeVar("Error", bound=MyQueueError)
# The right broker refused it for now, so looking for another leader would not help.
RIGHT_PLACE: Final = (Busy, DiskFull, JournalBusy)
_chance: Final = Random()


class Rule(NamedTuple):
    """How requests of one kind are repeated."""

    pause_ms_min: int
    pause_ms_max: int
    final: tuple[type[MyQueueError], ...] = ()  # ends the request although it is retriable
    until_known: bool = False  # repeat every error with an unknown outcome: it has a key


# Brokers and partitions come by an operator's work, too late for this request.
MANAGERS: Final = Rule(20, 1_000, final=(TooFewBrokers, UnknownPartition))
LEADER: Final = Rule(10, 500, until_known=True)
LEADERS: Final = Rule(20, 500)
GATEWAYS: Final = Rule(20, 1_000)


def is_repeated(rule: Rule, error: MyQueueError) -> bool:
    """May the request be sent again after this error, if a repeat is safe?"""
    if rule.until_known and error.outcome != NONE:
        return True
    return error.retriable and not isinstance(error, rule.final)


def with_outcome(error: Error, is_unknown: bool) -> Error:
    error.outcome = UNKNOWN if is_unknown else NONE
    return error


class Pauses:
    """The pauses between attempts that fail one after another."""

    __slots__ = ("_chance", "_has_begun", "_next_ms", "_rule")

    def __init__(self, rule: Rule, chance: Random = _chance) -> None:
        self._rule, self._chance = rule, chance
        self.reset()

    def reset(self) -> None:
        """Begin again with the shortest pause, because an attempt succeeded."""
        self._next_ms, self._has_begun = self._rule.pause_ms_min, False

    def advise(self, error: MyQueueError) -> None:
        """Take in a daemon's advice (`retry_ms`); it lengthens the next pause."""
        advice = error.details.get("retry_ms")
        if type(advice) is int:
            self._next_ms = max(self._next_ms, min(advice, self._rule.pause_ms_max))

    def next_ms(self, *, at_once: bool = False) -> int:
        """Return the next pause; the one after it is twice as long.

        `at_once`: 0 if it is the first since `reset`. Hints may go in circles, so only the first.
        """
        if at_once and not self._has_begun:
            self._has_begun = True
            return 0
        pause, self._next_ms = self._next_ms, min(self._rule.pause_ms_max, self._next_ms * 2)
        self._has_begun = True
        return max(1, round(pause * self._chance.uniform(0.7, 1.3)))


class Attempts:
    """The failed attempts of one request, and their pauses."""

    __slots__ = ("_is_safe", "_pauses", "_rule", "is_unknown", "last")

    def __init__(self, rule: Rule, *, is_safe: bool = True, chance: Random = _chance) -> None:
        self._rule, self._is_safe = rule, is_safe
        self._pauses = Pauses(rule, chance)
        self.is_unknown = False  # may an attempt have been done?
        self.last: MyQueueError | None = None

    def failed(self, error: MyQueueError) -> bool:
        """Note a failed attempt. Is the request sent again? Else it ends with this error."""
        self.last = error
        self.is_unknown = self.is_unknown or error.outcome != NONE
        self._pauses.advise(error)
        return is_repeated(self._rule, error) and (self._is_safe or not self.is_unknown)

    def pause_ms(self) -> int:
        """Return the next pause; the one after it is twice as long."""
        return self._pauses.next_ms()
