"""Futures of messages: `Delivery` for one, `BatchDelivery` for a list.

A producer makes a `Delivery` for each message, and most are never used. So it costs almost nothing:
it holds its batch and its place there, and reads the outcome from its batch. It is still a
`concurrent.futures.Future` (`wait`, `as_completed` and `asyncio.wrap_future` work), but a
`LazyFuture`: once it is a full one, its batch reports the outcome to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from copy import copy
from typing import Any, Final, NamedTuple

from myqueue.errors import DeliveryFailed, MyQueueError, TimedOut
from myqueue.producer.batch import STORED, Batch
from myqueue.producer.countdown import Countdown
from myqueue.producer.failures import failed_records, list_outcome
from myqueue.producer.lazy_future import LazyFuture


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


# The constructor of a NamedTuple is a Python function: 0.14 µs instead of 0.06.
_new: Final[Any] = tuple.__new__
_LATE: Final = "not delivered within {} s; it may still be"


class Delivery(LazyFuture[RecordMetadata]):
    """The future of one message: a RecordMetadata, or the error that made it fail.

    It cannot be cancelled, because the message may be sent already.

    >>> delivery = producer.send("orders", b"17 apples")  # doctest: +SKIP
    >>> delivery.add_done_callback(lambda done: print(done.result().offset))  # doctest: +SKIP
    >>> delivery.result(timeout=10).partition  # doctest: +SKIP
    0
    """

    # `Producer.send` sets both: an `__init__` in Python would cost 0.05 µs.
    __slots__ = ("_batch", "_index")
    _batch: Batch
    _index: int

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for at most `timeout` seconds (None: without limit) until the message is stored.

        Raises the error that made it fail, or TimedOut; then it may still be delivered.
        """
        batch = self._batch
        if batch.state is not STORED:
            error = self.exception(timeout)
            if error is not None:
                raise copy(error)  # one that is raised twice gathers foreign traces
        lane = batch.lane
        place = (lane.topic, lane.partition, batch.offset + self._index, batch.stored_ms)
        metadata: RecordMetadata = _new(RecordMetadata, place)
        return metadata

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Wait like `result`, and return the error; None if the message is stored."""
        batch = self._batch
        if not batch.is_settled and not Countdown([batch]).wait(timeout):
            raise TimedOut(_LATE.format(timeout))
        return batch.error

    def done(self) -> bool:
        return self._batch.is_settled

    def cancel(self) -> bool:
        return False

    def _became_full(self) -> None:
        self._batch.listen(self._settled)

    def _settled(self, batch: Batch) -> None:
        self.set_running_or_notify_cancel()
        if batch.error is not None:
            self.set_exception(batch.error)
        else:
            self.set_result(self.result())


class Part(NamedTuple):
    """The messages of a list that went into one batch: `messages`, from its place `first` on."""

    batch: Batch
    first: int
    messages: int


class BatchDelivery(Future[list[Stored]]):
    """The future of a list of messages: a Stored for each run, in the order of the list.

    With keys there are runs for each partition, in the order of the list within a partition. If
    messages were not delivered, the error is DeliveryFailed. Its outcome is "none" only if no
    message of the list is or may be stored. It cannot be cancelled.
    """

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._parts = parts
        self._parts_left = len(parts)
        self._counting = threading.Lock()
        if not parts:
            self._finish()
        for part in parts:
            part.batch.listen(self._settled)

    def __len__(self) -> int:
        return sum(part.messages for part in self._parts)

    def _settled(self, batch: Batch) -> None:
        with self._counting:
            self._parts_left -= 1
            is_last = not self._parts_left
        if is_last:
            self._finish()

    def _finish(self) -> None:
        errors = [part.batch.error for part in self._parts]
        first_error = next(filter(None, errors), None)
        if first_error is None:
            self.set_result(list(self._stored()))
            return
        failed = tuple(record for part in self._parts for record in failed_records(*part))
        text = f"{len(failed)} of {len(self)} messages were not delivered; first: {first_error}"
        error = DeliveryFailed(text, failed=failed)
        error.outcome = list_outcome(None if error is None else error.outcome for error in errors)
        self.set_exception(error)

    def _stored(self) -> Iterator[Stored]:
        for batch, first, messages in self._parts:
            lane, offset = batch.lane, batch.offset + first
            yield Stored(lane.topic, lane.partition, offset, messages, batch.stored_ms)

    def result(self, timeout: float | None = None) -> list[Stored]:
        """Wait for at most `timeout` seconds; raise DeliveryFailed or TimedOut."""
        error = self.exception(timeout)
        if error is not None:
            raise copy(error)  # one that is raised twice gathers foreign traces
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `result`, and return the error; None if all messages are stored."""
        try:
            return super().exception(timeout)
        except TimeoutError:
            raise TimedOut(_LATE.format(timeout)) from None

    def cancel(self) -> bool:
        return False
