"""Messages that were not delivered: kept until `flush` or `close` reports them, and for the log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from myqueue.errors import NONE, DeliveryFailed, MyQueueError
from myqueue.producer.accumulator import Batch


class FailedRecord(NamedTuple):
    """A message that was not delivered; with `error.outcome` "unknown" it may be stored."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    error: MyQueueError


def failed_records(batch: Batch) -> Iterator[FailedRecord]:
    """Make a record of each message of a failed batch."""
    error = batch.error
    if error is None:
        return
    lane, blank = batch.lane, [None] * batch.count
    for value, key, headers in zip(
        batch.values, [*(batch.keys or ()), *blank], [*(batch.headers or ()), *blank], strict=False
    ):
        yield FailedRecord(lane.topic, lane.partition, value, key, headers, error)


class Failures:
    """Batches that failed and are not yet reported. Their messages are kept, up to a limit."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self.messages = 0
        self._unlogged = 0  # messages
        self._first_unlogged: MyQueueError | None = None

    def add(self, batch: Batch) -> bool:
        """Add a batch; True if it is the first since `take_unlogged`, which is then due."""
        with self._lock:
            self._batches.append(batch)
            self.messages += batch.count
            self._bytes += batch.size
            while self._bytes > self._bytes_max and len(self._batches) > 1:
                self._bytes -= self._batches.popleft().size
            is_first = not self._unlogged
            if is_first:
                self._first_unlogged = batch.error
            self._unlogged += batch.count
            return is_first

    def take_unlogged(self) -> tuple[int, MyQueueError | None]:
        """Take the number of messages that are not yet logged, and the first error among them."""
        with self._lock:
            messages, first_error = self._unlogged, self._first_unlogged
            self._unlogged, self._first_unlogged = 0, None
            return messages, first_error

    def take(self) -> DeliveryFailed | None:
        """Take all failures since the last call, as one exception; None if there are none."""
        with self._lock:
            batches, messages = list(self._batches), self.messages
            self._batches.clear()
            self.messages = self._bytes = 0
        if not batches:
            return None
        failed = tuple(record for batch in batches for record in failed_records(batch))
        first = batches[0].error
        text = f"{messages} messages were not delivered; first: {first}"
        if len(failed) < messages:
            text += f" (.failed has the last {len(failed)})"
        error = DeliveryFailed(text, failed=failed)
        if all(batch.error is not None and batch.error.outcome == NONE for batch in batches):
            error.outcome = NONE
        return error
