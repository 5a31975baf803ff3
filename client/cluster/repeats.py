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


class Attempts:
    """The failed attempts of one request."""

    __slots__ = ("_chance", "_is_safe", "_pause_ms", "_rule", "is_unknown", "last")

    def __init__(self, rule: Rule, *, is_safe: bool = True, chance: Random = _chance) -> None:
        self._rule, self._chance, self._is_safe = rule, chance, is_safe
        self._pause_ms = rule.pause_ms_min
        self.is_unknown = False  # may an attempt have been done?
        self.last: MyQueueError | None = None

    def failed(self, error: MyQueueError) -> bool:
        """Note a failed attempt. Is the request sent again? Else it ends with this error."""
        self.last = error
        self.is_unknown = self.is_unknown or error.outcome != NONE
        advice = error.details.get("retry_ms")
        if type(advice) is int:
            self._pause_ms = max(self._pause_ms, min(advice, self._rule.pause_ms_max))
        return is_repeated(self._rule, error) and (self._is_safe or not self.is_unknown)

    def pause_ms(self) -> int:
        """Return the next pause; the one after it is twice as long."""
        pause, self._pause_ms = self._pause_ms, min(self._rule.pause_ms_max, self._pause_ms * 2)
        return max(1, round(pause * self._chance.uniform(0.7, 1.3)))
