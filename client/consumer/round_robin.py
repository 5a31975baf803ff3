"""Whose turn it is: the partitions that have something to hand out, one after the other.

Each gives what is left of one batch and goes to the end of the queue, so a partition with a
million messages waiting does not keep one with a single message from being heard. An error of a
partition has its turn as well, behind the messages that came before it: it neither overtakes
them nor is it hidden by partitions that always have more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from myqueue.consumer.message import Message
from myqueue.consumer.partition_state import BACKOFF_MS_MAX, PartitionState
from myqueue.errors import BatchUnreadable, OffsetOutOfRange


class RoundRobin:
    """The queue of partitions with news. Pure; for one thread at a time."""

    def __init__(self) -> None:
        self._queue: deque[PartitionState] = deque()
        self.current: PartitionState | None = None  # whose messages were handed out last
        self.has_dropped_batches = (
            False  # batches without any message to hand out, by the last `next_run`
        )

    def add(self, partition: PartitionState) -> None:
        """It may have news now; one that is queued already stays where it is."""
        if not (partition.is_queued or partition.is_withheld) and partition.has_output:
            partition.is_queued = True
            self._queue.append(partition)

    @property
    def has_news(self) -> bool:
        """Would `next_run` give or raise something?"""
        current = self.current
        if current is not None and current.has_output and not current.is_withheld:
            return True
        return any(partition.has_output and not partition.is_withheld for partition in self._queue)

    def next_run(self, now: int) -> Iterator[Message] | None:
        """Messages of one partition: what is taken from the iterator counts as handed out, the
        rest comes again. None: there is nothing. Raises what is wrong with a partition.
        """
        self.has_dropped_batches = False
        if self.current is not None:
            self.add(self.current)
            self.current = None
        while self._queue:
            partition = self._queue.popleft()
            partition.is_queued = False
            if partition.is_withheld:
                continue
            if not partition.opened_count and partition.buffered_batches:
                partition.open_next(now)
                self.has_dropped_batches = self.has_dropped_batches or not partition.opened_count
            if partition.opened_count:
                self.current = partition
                return partition.opened_batch
            if (
                partition.buffered_batches
            ):  # nothing behind the position in this batch: see the next
                self.add(partition)
            elif partition.error is not None:
                self._raise(partition, now)
        return None

    def _raise(self, partition: PartitionState, now: int) -> None:
        """What no repeat mends stays until the application seeks; the rest is tried again later."""
        error = partition.error
        if isinstance(error, OffsetOutOfRange | BatchUnreadable):
            self.current = partition  # in the queue again as soon as the next run is asked for
        else:
            partition.error, partition.retry_at = None, now + BACKOFF_MS_MAX
        if error is not None:
            raise error
