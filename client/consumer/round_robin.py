"""Choose the partition whose messages are handed out next. Pure.

Partitions with output stand in a queue. Each hands out the rest of one batch and goes to the end of
the queue, so a partition with a million messages does not hold up one with a single message. An
error has its turn in the same queue, after the messages that came before it: it neither overtakes
them, nor do partitions that always have more hide it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from myqueue.consumer.message import Message
from myqueue.consumer.partition_state import BACKOFF_MS_MAX, PartitionState
from myqueue.errors import BatchUnreadable, OffsetOutOfRange


class RoundRobin:
    """The queue of partitions with output. For one thread at a time."""

    def __init__(self) -> None:
        self._queue: OrderedDict[PartitionState, None] = OrderedDict()
        self.current: PartitionState | None = None  # its messages were handed out last
        # The last `next_run` dropped batches without any message to hand out.
        self.has_dropped_batches = False

    def add(self, partition: PartitionState) -> None:
        """Queue a partition if it has output; one that is queued already keeps its place."""
        if not partition.is_withheld and partition.has_output:
            self._queue.setdefault(partition)

    @property
    def has_news(self) -> bool:
        """Would `next_run` return or raise something?"""
        current = self.current
        if current is not None and current.has_output and not current.is_withheld:
            return True
        return any(partition.has_output and not partition.is_withheld for partition in self._queue)

    def next_run(self, now: int) -> Iterator[Message] | None:
        """Return messages of one partition, or None if no partition has any.

        Messages that are taken from the iterator count as handed out; later calls return the rest.
        Raises the error of a partition when its turn comes.
        """
        self.has_dropped_batches = False
        if self.current is not None:
            self.add(self.current)
            self.current = None
        while self._queue:
            partition, _ = self._queue.popitem(last=False)
            if partition.is_withheld:
                continue
            buffer = partition.buffer
            has_packed = bool(buffer.packed)
            if buffer.opened_count or (has_packed and partition.open_next(now)):
                self.current = partition
                return buffer.opened
            self.has_dropped_batches = self.has_dropped_batches or has_packed
            if buffer.packed:  # that batch had no message from the position on: try the next one
                self.add(partition)
            elif partition.error is not None:
                self._raise(partition, now)
        return None

    def _raise(self, partition: PartitionState, now: int) -> None:
        """Raise the partition's error.

        OffsetOutOfRange and BatchUnreadable stay until a seek. After any other error the partition
        is requested again one second later.
        """
        error = partition.error
        if isinstance(error, OffsetOutOfRange | BatchUnreadable):
            self.current = partition  # `next_run` queues it again
        else:
            partition.error, partition.retry_at = None, now + BACKOFF_MS_MAX
        if error is not None:
            raise error
