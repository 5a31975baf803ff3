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
        self._ready: deque[PartitionState] = deque()
        self.current: PartitionState | None = None  # whose messages were handed out last
        self.dropped = False  # batches without any message to hand out, by the last `next_run`

    def add(self, reading: PartitionState) -> None:
        """It may have news now; one that is queued already stays where it is."""
        if not (reading.queued or reading.silent) and reading.has_news:
            reading.queued = True
            self._ready.append(reading)

    @property
    def has_news(self) -> bool:
        """Would `next_run` give or raise something?"""
        current = self.current
        if current is not None and current.has_news and not current.silent:
            return True
        return any(reading.has_news and not reading.silent for reading in self._ready)

    def next_run(self, now: int) -> Iterator[Message] | None:
        """Messages of one partition: what is taken from the iterator counts as handed out, the
        rest comes again. None: there is nothing. Raises what is wrong with a partition.
        """
        self.dropped = False
        if self.current is not None:
            self.add(self.current)
            self.current = None
        while self._ready:
            reading = self._ready.popleft()
            reading.queued = False
            if reading.silent:
                continue
            if not reading.left and reading.buffered:
                reading.open_next(now)
                self.dropped = self.dropped or not reading.left
            if reading.left:
                self.current = reading
                return reading.opened
            if reading.buffered:  # nothing behind the position in this batch: see the next
                self.add(reading)
            elif reading.error is not None:
                self._raise(reading, now)
        return None

    def _raise(self, reading: PartitionState, now: int) -> None:
        """What no repeat mends stays until the application seeks; the rest is tried again later."""
        error = reading.error
        if isinstance(error, OffsetOutOfRange | BatchUnreadable):
            self.current = reading  # in the queue again as soon as the next run is asked for
        else:
            reading.error, reading.retry_at = None, now + BACKOFF_MS_MAX
        if error is not None:
            raise error
