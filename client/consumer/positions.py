"""The positions of a consumer: read them, move them, compare them with the end of the log.

`ConsumerPositions` is the base class of `Consumer`, which hands out messages (`consumer.py`). Both
run in the application's thread and use the pure subscription under the fetcher's lock. They wait in
short slices, so that Ctrl-C is never late.

A consumer is for one thread at a time: each call holds `_exclusive_call`, and a call of a second
thread raises ConcurrentUse instead of corrupting positions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final, overload

from myqueue import arguments
from myqueue.cluster.offset_queries import read_offsets
from myqueue.cluster.session import Session
from myqueue.consumer.fetcher import Fetcher
from myqueue.consumer.message import TopicPartition
from myqueue.consumer.partition_state import Ownership, PartitionState, StartRule
from myqueue.consumer.subscription import Subscription
from myqueue.errors import Closed, ConcurrentUse, Forked, MyQueueError, TimedOut, TopicDeleted

# Some partitions, one, all of a topic (its name), or (None) all that are read.
Partitions = Iterable[TopicPartition] | TopicPartition | str | None
Callback = Callable[[list[TopicPartition]], object]
GRACE_MS: Final = 500
SLICE_S: Final = 0.1  # the longest wait in one step


def call_back(callback: Callback | None, names: list[TopicPartition]) -> None:
    if names and callback is not None:
        callback(names)


class ConsumerPositions:
    """The calls of a consumer about its positions; the base class of `Consumer`."""

    def __init__(
        self, session: Session, subscription: Subscription, request_timeout_ms: int
    ) -> None:
        self._session, self._subscription = session, subscription
        self._request_timeout_ms = request_timeout_ms
        self._fetcher = Fetcher(session.core, subscription, request_timeout_ms)
        self._changed = self._fetcher.changed
        self._pid = os.getpid()
        self._caller_lock = RLock()
        self._closed = False
        self._error: MyQueueError | None = None  # the next call raises it: its messages came first

    @property
    def is_member(self) -> bool:
        """Is this consumer a member of its group now? False without a group and before it joins."""
        assignment = self._subscription.assignment
        return assignment is not None and assignment.member > 0

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads now, sorted."""
        with self._exclusive_call(), self._changed:
            return sorted(state.name for state in self._subscription.select(None))

    @overload
    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, /) -> None: ...
    @overload
    def seek(self, topic: str, number: int, offset: int, /) -> None: ...
    @overload
    def seek(self, partition: TopicPartition | tuple[str, int], *, offset: int) -> None: ...
    def seek(self, partition: Any, *more: Any, offset: Any = None) -> None:
        """Go on from this offset: `seek(partition, offset)`, or `seek(topic, number, offset)`.

        Fetched messages of the partition are dropped. Raises MisuseError for a partition that is
        not read, TopicDeleted for one of a deleted topic.
        """
        name, rest = arguments.name_of_partition(partition, more)
        (at,) = rest if len(rest) == 1 else (offset,)
        at = arguments.whole(at, "an offset")
        with self._exclusive_call():
            with self._changed:
                self._subscription.seek(name, at)
                self._error = None
            self._fetcher.nudge()

    def seek_to_time(
        self, time_ms: int, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on from the first message of `time_ms` (since 1970) or later; return new positions.

        `partitions`: some of those that are read, one, a topic's name, or (None) all. A message's
        time is when its leader received it, exact to the batch; if there is none, go on at the end.
        Raises TimedOut if a position is not known after `timeout` seconds (default:
        `request_timeout_ms`).
        """
        return self._seek_by_rule(
            StartRule("time", arguments.milliseconds(time_ms)), partitions, timeout
        )

    def seek_to_beginning(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on from the oldest messages; return the new positions. See `seek_to_time`."""
        return self._seek_by_rule(StartRule("earliest"), partitions, timeout)

    def seek_to_end(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on after the newest messages; return the new positions. See `seek_to_time`."""
        return self._seek_by_rule(StartRule("latest"), partitions, timeout)

    def _seek_by_rule(
        self, find: StartRule, partitions: Partitions, timeout: float | None
    ) -> dict[TopicPartition, int]:
        names, timeout = arguments.partitions(partitions), arguments.seconds(timeout)
        with self._exclusive_call(timeout):
            with self._changed:
                states = self._subscription.select(names)
                for state in states:
                    self._subscription.seek(state.name, find)
                self._error = None
            self._fetcher.nudge()
            return self._positions(states, self._deadline(timeout))

    @overload
    def position(
        self, partition: TopicPartition | tuple[str, int], timeout: float | None = None
    ) -> int: ...
    @overload
    def position(self, topic: str, number: int, /, timeout: float | None = None) -> int: ...
    def position(self, partition: Any, *more: Any, timeout: Any = None) -> int:
        """Return the offset of the partition's next message: `position(partition)`, or
        `position(topic, number)`.

        Raises TimedOut if it is not known after `timeout` seconds (default: `request_timeout_ms`).
        """
        name, rest = arguments.name_of_partition(partition, more)
        limit_s = arguments.seconds(rest[0] if rest else timeout)
        with self._exclusive_call(limit_s):
            with self._changed:
                states = [self._subscription.partition(name)]
            for offset in self._positions(states, self._deadline(limit_s)).values():
                return offset
            raise TopicDeleted(f"{name} was deleted")

    def _positions(
        self, states: list[PartitionState], deadline: float
    ) -> dict[TopicPartition, int]:
        """Wait until all positions are known, and return them."""
        with self._changed:
            while True:
                present = [one for one in states if one.ownership is not Ownership.REMOVED]
                positions = {one.name: one.position for one in present}
                known = {name: at for name, at in positions.items() if at is not None}
                if len(known) == len(positions):
                    return known
                error = next((r.error for r in states if r.error is not None), None)
                if error is not None:
                    raise error
                if self._closed:
                    raise Closed("the consumer was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = ", ".join(str(name) for name in positions if name not in known)
                    raise TimedOut(f"positions are not known yet, no leader answered: {missing}")
                self._changed.wait(min(left, SLICE_S))

    def pause(self, partitions: Partitions = None) -> None:
        """Return no messages of these partitions until `resume`; keep what was fetched.

        `partitions`: some of those that are read, one, a topic's name, or (None) all.
        """
        names = arguments.partitions(partitions)
        with self._exclusive_call(), self._changed:
            for state in self._subscription.select(names):
                self._subscription.pause(state.name)

    def resume(self, partitions: Partitions = None) -> None:
        """Return messages of these partitions again; see `pause`."""
        names = arguments.partitions(partitions)
        with self._exclusive_call():
            with self._changed:
                for state in self._subscription.select(names):
                    self._subscription.resume(state.name)
            self._fetcher.nudge()

    def lag(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Ask the brokers how many messages of each partition are after its position.

        Messages that retention removed do not count. `lag(5)`: the number alone is the `timeout`,
        in seconds (default: `request_timeout_ms`). Raises TimedOut if a leader does not answer.
        """
        names, limit_s = arguments.partitions_and_timeout(partitions, timeout)
        with self._exclusive_call(limit_s):
            deadline = self._deadline(limit_s)
            states = self._select(names)
            positions = self._positions(states, deadline)
            present = [state for state in states if state.name in positions]
            offsets = read_offsets(
                self._session, [r.group for r in present], timeout_ms=self._left_ms(deadline)
            )
            out = {}
            for state in present:
                at = offsets[state.group]
                out[state.name] = max(0, at.end - max(at.start, positions[state.name]))
            return out

    def committed(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Ask the brokers for the committed position of each partition; None: nothing committed.

        `committed(5)`: the number alone is the `timeout`, in seconds (default:
        `request_timeout_ms`). Raises TimedOut if a leader does not answer.
        """
        names, limit_s = arguments.partitions_and_timeout(partitions, timeout)
        with self._exclusive_call(limit_s):
            deadline = self._deadline(limit_s)
            states, out = self._select(names), {}
            for who in sorted({state.committer for state in states}):
                mine = {r.group: r.name for r in states if r.committer == who}
                left_ms = self._left_ms(deadline)
                offsets = read_offsets(self._session, mine, who=who or None, timeout_ms=left_ms)
                out.update({mine[group]: row.position for group, row in offsets.items()})
            return out

    def skipped(self) -> dict[TopicPartition, int]:
        """Return the number of messages skipped with on_damaged="skip" so far, by partition."""
        return self._subscription.skips.counts.copy()  # one step of C code: it needs no lock

    def is_closed(self) -> bool:
        """Was `close` called?"""
        return self._closed

    # -- for Consumer, too -------------------------------------------------------------------------

    @contextmanager
    def _exclusive_call(self, limit_s: float | None = None) -> Iterator[None]:
        """Guard one call of the application; it may take `limit_s` seconds to start reading."""
        if self._pid != os.getpid():
            raise Forked("this consumer was made before a fork, by the parent process")
        if not self._caller_lock.acquire(blocking=False):
            raise ConcurrentUse("another thread is in a call of this consumer")
        try:
            if self._closed:
                raise Closed("the consumer was closed")
            self._ensure_started(limit_s)
            yield
        finally:
            self._caller_lock.release()

    def _ensure_started(self, limit_s: float | None) -> None:
        """Raise if the topics are not known within this time."""

    def _select(self, names: list[TopicPartition] | str | None) -> list[PartitionState]:
        with self._changed:
            return self._subscription.select(names)

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (
            self._request_timeout_ms / 1000 if timeout_s is None else timeout_s
        )

    def _left_ms(self, deadline: float) -> int:
        return max(1, round((deadline - time.monotonic()) * 1000))

    def _wait(self, future: Future[Any], deadline: float) -> Any:
        """Wait for an answer. Its request ends by the deadline itself; if not, raise soon after."""
        return self._session.wait(future, self._left_ms(deadline) + GRACE_MS)
