"""Futures of messages: `Delivery` for one, `BatchDelivery` for a list.

A producer makes a `Delivery` for each message, and most are never used. So it costs almost nothing:
it holds its batch and its place there. It is still a `concurrent.futures.Future` (`wait`,
`as_completed` and `asyncio.wrap_future` work). It becomes a full one when a caller first needs a
part that only a full one has; from then on its batch reports the outcome to it.
"""

from __future__ import annotations

import threading
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


_initialising: Final = threading.Lock()
_LATE: Final = "not delivered within {} s; it may still be"
_FUTURE_FIELDS: Final = frozenset(vars(Future()))


class Delivery(Future[RecordMetadata]):
    """The future of one message: a RecordMetadata, or the error that made it fail.

    It cannot be cancelled, because the message may be sent already.

    >>> delivery = producer.send("orders", b"17 apples")  # doctest: +SKIP
    >>> delivery.add_done_callback(lambda done: print(done.result().offset))  # doctest: +SKIP
    >>> delivery.result(timeout=10).partition  # doctest: +SKIP
    0
    """

    __slots__ = ("_batch", "_index", "_is_initialised")
    _is_initialised: bool

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index  # super().__init__ comes later: it costs 2 µs

    # Python calls this only for attributes that do not exist, so the first access to Future's own
    # state initialises it.
    def __getattr__(self, name: str) -> Any:
        if name == "_is_initialised":
            return False
        if name not in _FUTURE_FIELDS:
            raise AttributeError(name)
        with _initialising:
            is_first = not self._is_initialised
            if is_first:
                super().__init__()
                self._is_initialised = True
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
