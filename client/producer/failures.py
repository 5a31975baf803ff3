"""Messages that were not delivered: kept until `flush` or `close` reports them, and for the log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from myqueue.errors import NONE, UNKNOWN, DeliveryFailed, FailedRecord, MyQueueError
from myqueue.producer.batch import Batch

KEPT_BYTES_MAX: Final = 8 << 20


def list_outcome(outcomes: Iterable[str | None]) -> str:
    """Find the outcome of a list from those of its parts; None: the part is stored.

    "none" only if each part failed and is certainly not stored.
    """
    return NONE if all(outcome == NONE for outcome in outcomes) else UNKNOWN


def failed_records(batch: Batch, first: int, messages: int) -> Iterator[FailedRecord]:
    """Make a record of each of some messages of a batch, if it failed."""
    if batch.error is None:
        return
    lane, end = batch.lane, first + messages
    values, keys, headers, _ = batch.columns()
    for at in range(first, end):
        key = None if keys is None else keys[at]
        header_map = None if headers is None else headers[at]
        yield FailedRecord(lane.topic, lane.partition, values[at], key, header_map, batch.error)


class Failures:
    """Messages that failed and are not yet reported, and those that are not yet logged.

    A process that never calls `flush` would gather them forever. So only the latest are kept, up to
    KEPT_BYTES_MAX; the others are only counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()  # the latest that are not reported
        self._bytes = 0  # of these
        self._messages = 0  # all that are not reported
        self._first: MyQueueError | None = None  # error of the first of these
        self._outcome = NONE  # of all these together
        self._unlogged = 0  # messages
        self._first_unlogged: MyQueueError | None = None

    def add(self, batch: Batch) -> bool:
        """Add a failed batch; True if it is the first since `take_unlogged`, which is then due."""
        error = batch.error
        if error is None:
            raise ValueError("a batch that did not fail")
        with self._lock:
            self._batches.append(batch)
            self._bytes += batch.size
            while self._bytes > KEPT_BYTES_MAX and len(self._batches) > 1:
                self._bytes -= self._batches.popleft().size
            self._messages += batch.count
            self._first = self._first or error
            self._outcome = list_outcome((self._outcome, error.outcome))
            is_first = not self._unlogged
            if is_first:
                self._first_unlogged = error
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
            batches, messages, first = tuple(self._batches), self._messages, self._first
            outcome = self._outcome
            self._batches.clear()
            self._bytes = self._messages = 0
            self._first, self._outcome = None, NONE
        if not batches:
            return None
        failed = tuple(
            record for batch in batches for record in failed_records(batch, 0, batch.count)
        )
        text = f"{messages} messages were not delivered; first: {first}"
        if len(failed) < messages:
            text += f" (.failed has the last {len(failed)})"
        error = DeliveryFailed(text, failed=failed, messages=messages)
        error.outcome = outcome
        return error
