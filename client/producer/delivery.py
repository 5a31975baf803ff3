"""Futures of messages: `Delivery` for one, `BatchDelivery` for a list; and what failed.

A producer makes a `Delivery` for each message, and most are never used. So it costs almost nothing:
it holds its batch and its place there. It is still a `concurrent.futures.Future` (`wait`,
`as_completed` and `asyncio.wrap_future` work). It becomes a full one when a caller first needs a
part that only a full one has; from then on its batch reports the outcome to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from time import monotonic
from typing import Any, Final, NamedTuple

from myqueue.errors import NONE, DeliveryFailed, MyQueueError, TimedOut
from myqueue.producer.accumulator import Batch


class RecordMetadata(NamedTuple):
    """Where a message is stored. `timestamp`: ms since 1970, by the broker that stored it.

    >>> RecordMetadata("orders", 2, 17, 1_700_000_000_000).offset
    17
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Stored(NamedTuple):
    """Where a run of consecutive messages is stored: `messages` of them, from `offset` on."""

    topic: str
    partition: int
    offset: int
    messages: int
    timestamp: int


class FailedRecord(NamedTuple):
    """A message that was not delivered; with `error.outcome` "unknown" it may be stored."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    error: MyQueueError


_becoming: Final = threading.Lock()
_LATE: Final = "not delivered within {} s; it may still be"
_PARTS: Final = frozenset(
    ("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks")
)


class Delivery(Future[RecordMetadata]):
    """The future of one message: a RecordMetadata, or the error that made it fail.

    It cannot be cancelled, because the message may be sent already.

    >>> delivery = producer.send("orders", b"17 apples")  # doctest: +SKIP
    >>> delivery.add_done_callback(lambda done: print(done.result().offset))  # doctest: +SKIP
    >>> delivery.result(timeout=10).partition  # doctest: +SKIP
    0
    """

    __slots__ = ("_batch", "_index", "_is_real")
    _is_real: bool

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index  # super().__init__ comes later: it costs 2 µs

    def __getattr__(self, name: str) -> Any:
        if name == "_is_real":
            return False
        if name not in _PARTS:
            raise AttributeError(name)
        with _becoming:
            is_first = not self._is_real
            if is_first:
                super().__init__()
                self._is_real = True
        if is_first:
            self._batch.listen(self._settled)
        return object.__getattribute__(self, name)

    def _settled(self, batch: Batch) -> None:
        self.set_running_or_notify_cancel()
        if batch.error is not None:
            self.set_exception(batch.error)
        else:
            self.set_result(self._metadata())

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        lane = batch.lane
        return RecordMetadata(
            lane.topic, lane.partition, batch.offset + self._index, batch.stored_ms
        )

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for at most `timeout` seconds (None: without limit) until the message is stored.

        Raises the error that made it fail, or TimedOut; then it may still be delivered.
        """
        if not self._batch.done:
            self._wait(timeout)
        if self._batch.error is not None:
            raise self._batch.error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Wait like `result`, and return the error; None if the message is stored."""
        if not self._batch.done:
            self._wait(timeout)
        return self._batch.error

    def _wait(self, timeout: float | None) -> None:
        """Wait on one lock instead of a full future's condition, states and callbacks."""
        gate = threading.Lock()
        gate.acquire()

        def opened(batch: Batch) -> None:
            gate.release()

        self._batch.listen(opened)
        # A lock's wait is interruptible, so Ctrl-C works.
        limit = -1.0 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not gate.acquire(timeout=limit):
            self._batch.unlisten(opened)
            raise TimedOut(_LATE.format(timeout))

    def done(self) -> bool:
        return self._batch.done

    def cancel(self) -> bool:
        return False


def _wait(future: Future[Any], timeout: float | None) -> None:
    """Wait until the future has a result or an error; raise TimedOut."""
    try:
        Future.exception(future, timeout)
    except TimeoutError:
        raise TimedOut(_LATE.format(timeout)) from None


class BatchDelivery(Future[list[Stored]]):
    """The future of a list of messages: a Stored for each run, in the order of the list.

    With keys there are runs for each partition, in the order of the list within a partition. If
    messages were not delivered, the error is DeliveryFailed. Its outcome is "none" only if no
    message of the list is or may be stored. It cannot be cancelled.
    """

    def __init__(self, parts: list[tuple[Batch, int, int]]) -> None:
        super().__init__()
        self._parts = parts  # (batch, first, messages)
        self._batches_left = len(parts)
        self._counting = threading.Lock()
        if not parts:
            self._finish()
        for batch, _, _ in parts:
            batch.listen(self._settled)

    def __len__(self) -> int:
        return sum(messages for _, _, messages in self._parts)

    def _settled(self, batch: Batch) -> None:
        with self._counting:
            self._batches_left -= 1
            is_last = not self._batches_left
        if is_last:
            self._finish()

    def _finish(self) -> None:
        self.set_running_or_notify_cancel()
        errors = [(batch.error, n) for batch, _, n in self._parts if batch.error is not None]
        if not errors:
            self.set_result(list(self._stored()))
            return
        failed = sum(n for _, n in errors)
        text = f"{failed} of {len(self)} messages were not delivered; first: {errors[0][0]}"
        error = DeliveryFailed(text, failed=tuple(error for error, _ in errors))
        is_certain = len(errors) == len(self._parts)  # else another batch of the list is stored
        if is_certain and all(error.outcome == NONE for error, _ in errors):
            error.outcome = NONE
        self.set_exception(error)

    def _stored(self) -> Iterator[Stored]:
        for batch, first, messages in self._parts:
            lane, offset = batch.lane, batch.offset + first
            yield Stored(lane.topic, lane.partition, offset, messages, batch.stored_ms)

    def result(self, timeout: float | None = None) -> list[Stored]:
        """Wait for at most `timeout` seconds; raise DeliveryFailed or TimedOut."""
        if not self.done():
            _wait(self, timeout)
        return super().result(0)

    def cancel(self) -> bool:
        return False


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


class Countdown:
    """Wait until all these batches are stored or failed."""

    def __init__(self, batches: list[Batch]) -> None:
        self._left, self._lock = len(batches), threading.Lock()
        self._zero = threading.Event()
        for batch in batches:
            batch.listen(self._one_less)

    def _one_less(self, batch: Batch) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._zero.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait in slices, so that Ctrl-C works on every platform."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._zero.wait(0.1 if deadline is None else min(0.1, deadline - monotonic())):
            if deadline is not None and monotonic() >= deadline:
                return False
        return True


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
