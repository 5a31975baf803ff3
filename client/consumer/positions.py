"""Where a consumer stands: its positions, how to move them, how far they are from the end.

One half of `Consumer`, in the application's thread; the other half (`consumer.py`) hands out
messages. Both work on the pure subscription under the fetcher's lock, and wait for its news in
slices, so that Ctrl-C is never late.

A consumer is for one thread at a time: each call holds `_mine`, and a call of a second thread
meanwhile raises ConcurrentUse instead of tearing its positions.
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
from myqueue.consumer.partition_state import PartitionState, StartRule
from myqueue.consumer.subscription import Subscription
from myqueue.errors import Closed, ConcurrentUse, Forked, MyQueueError, TimedOut, TopicDeleted

# Some partitions, all of a topic, or all that are read.
Partitions = Iterable[TopicPartition] | TopicPartition | str | None
Callback = Callable[[list[TopicPartition]], object]
GRACE_MS: Final = 500
SLICE_S: Final = 0.1  # nobody waits longer in one go


def call_back(callback: Callback | None, names: list[TopicPartition]) -> None:
    if names and callback is not None:
        callback(names)


class ConsumerPositions:
    """Positions of a consumer."""

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
        self._error: MyQueueError | None = None  # met behind messages that were returned first

    @property
    def is_member(self) -> bool:
        """Whether the managers know it as a member of its group."""
        shares = self._subscription.assignment
        return shares is not None and shares.member > 0

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        with self._exclusive_call(), self._changed:
            return sorted(state.name for state in self._subscription.select(None))

    @overload
    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, /) -> None: ...
    @overload
    def seek(self, topic: str, number: int, offset: int, /) -> None: ...
    @overload
    def seek(self, partition: TopicPartition | tuple[str, int], *, offset: int) -> None: ...
    def seek(self, partition: Any, *more: Any, offset: Any = None) -> None:
        """Goes on from this offset: `seek(partition, offset)`, or `seek(topic, number, offset)`."""
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
        """Goes on from the first message of that time (ms since 1970) or later, and says where
        that is. The time is when its leader got it, exact to the batch.
        """
        return self._seek_by_rule(
            StartRule("time", arguments.milliseconds(time_ms)), partitions, timeout
        )

    def seek_to_beginning(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        return self._seek_by_rule(StartRule("earliest"), partitions, timeout)

    def seek_to_end(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
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
        """The offset behind the last message of it that was returned: of `position(partition)`,
        or `position(topic, number)`.
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
        """As soon as all are known."""
        with self._changed:
            while True:
                found = {r.name: r.position for r in states if not r.is_removed}
                known = {name: at for name, at in found.items() if at is not None}
                if len(known) == len(found):
                    return known
                error = next((r.error for r in states if r.error is not None), None)
                if error is not None:
                    raise error
                if self._closed:
                    raise Closed("the consumer was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = ", ".join(str(name) for name in found if name not in known)
                    raise TimedOut(f"positions are not known yet, no leader answered: {missing}")
                self._changed.wait(min(left, SLICE_S))

    def pause(self, partitions: Partitions = None) -> None:
        """Returns nothing of them until `resume`; what was fetched is kept."""
        names = arguments.partitions(partitions)
        with self._exclusive_call(), self._changed:
            for state in self._subscription.select(names):
                self._subscription.pause(state.name)

    def resume(self, partitions: Partitions = None) -> None:
        names = arguments.partitions(partitions)
        with self._exclusive_call():
            with self._changed:
                for state in self._subscription.select(names):
                    self._subscription.resume(state.name)
            self._fetcher.nudge()

    def lag(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """How many messages of each partition are still to come, asked for now. What retention took
        does not count. A number alone is the time-out.
        """
        names, limit_s = arguments.partitions_and_timeout(partitions, timeout)
        with self._exclusive_call(limit_s):
            deadline = self._deadline(limit_s)
            states = self._select(names)
            positions = self._positions(states, deadline)
            there = [one for one in states if one.name in positions]
            found = read_offsets(
                self._session, [r.group for r in there], timeout_ms=self._left_ms(deadline)
            )
            out = {}
            for state in there:
                at = found[state.group]
                out[state.name] = max(0, at.end - max(at.start, positions[state.name]))
            return out

    def committed(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """What is committed for each partition, asked for now; None: nothing so far. A number alone
        is the time-out.
        """
        names, limit_s = arguments.partitions_and_timeout(partitions, timeout)
        with self._exclusive_call(limit_s):
            deadline = self._deadline(limit_s)
            states, out = self._select(names), {}
            for who in sorted({state.committer for state in states}):
                mine = {r.group: r.name for r in states if r.committer == who}
                left_ms = self._left_ms(deadline)
                found = read_offsets(self._session, mine, who=who or None, timeout_ms=left_ms)
                out.update({mine[group]: row.position for group, row in found.items()})
            return out

    def skipped(self) -> dict[TopicPartition, int]:
        """Messages that were passed over with on_damaged="skip", by partition, since it began."""
        return self._subscription.skips.counts.copy()  # at once: it needs no lock

    def is_closed(self) -> bool:
        return self._closed

    # -- for both halves --------------------------------------------------------------------------

    @contextmanager
    def _exclusive_call(self, limit_s: float | None = None) -> Iterator[None]:
        """For one call of the application, that may take so long."""
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
        """Raises if what is read is not known in this time."""

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
        """Each request has a deadline of its own; this one is for when that does not work."""
        return self._session.wait(future, self._left_ms(deadline) + GRACE_MS)
