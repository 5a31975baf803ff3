"""What `send` returns: a future that costs almost nothing until somebody looks at it.

A producer makes one for every message, and most are never looked at. So a `Delivery` holds its
batch and its place in it, nothing else. It is a `concurrent.futures.Future` all the same (`wait`,
`as_completed`, `asyncio.wrap_future` work): the first time that something touches a part that only
a real one has, it becomes one, and its batch will tell it the outcome.

Whole lists share one `BatchDelivery`.
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
    """Where a message is."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # ms since 1970, of the broker that stored it


class Stored(NamedTuple):
    """Where a run of messages is: from `offset` on, `messages` of them."""

    topic: str
    partition: int
    offset: int
    messages: int
    timestamp: int


class FailedRecord(NamedTuple):
    """A message that was not delivered, or perhaps (`error.outcome` "unknown")."""

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
    """The future of one message. It can't be cancelled: what is sent is sent."""

    __slots__ = ("_batch", "_index", "_is_real")
    _is_real: bool

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index  # and not super().__init__: see the chapter's head

    def __getattr__(self, name: str) -> Any:
        if name == "_is_real":
            return False
        if name not in _PARTS:
            raise AttributeError(name)
        with _becoming:
            begins = not self._is_real
            if begins:
                super().__init__()
                self._is_real = True
        if begins:
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
        """Waits; raises what made it fail, or TimedOut (it may still be delivered then)."""
        if not self._batch.done:
            self._wait(timeout)
        if self._batch.error is not None:
            raise self._batch.error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        if not self._batch.done:
            self._wait(timeout)
        return self._batch.error

    def _wait(self, timeout: float | None) -> None:
        """One lock, instead of the condition, states and callbacks of a real future."""
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
    """For the end of it, whatever it is."""
    try:
        Future.exception(future, timeout)
    except TimeoutError:
        raise TimedOut(_LATE.format(timeout)) from None


class BatchDelivery(Future[list[Stored]]):
    """The future of a list of messages: where its runs are, in the order of the list.

    With keys the runs are those of each partition, in the order of the list within a partition.
    """

    def __init__(self, parts: list[tuple[Batch, int, int]]) -> None:
        super().__init__()
        self._parts = parts  # (batch, first, messages)
        self._left = len(parts)
        self._counting = threading.Lock()
        if not parts:
            self._finish()
        for batch, _, _ in parts:
            batch.listen(self._settled)

    def __len__(self) -> int:
        return sum(messages for _, _, messages in self._parts)

    def _settled(self, batch: Batch) -> None:
        with self._counting:
            self._left -= 1
            last = not self._left
        if last:
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
        error.outcome = errors[0][0].outcome
        self.set_exception(error)

    def _stored(self) -> Iterator[Stored]:
        for batch, first, messages in self._parts:
            lane, offset = batch.lane, batch.offset + first
            yield Stored(lane.topic, lane.partition, offset, messages, batch.stored_ms)

    def result(self, timeout: float | None = None) -> list[Stored]:
        if not self.done():
            _wait(self, timeout)
        return super().result(0)

    def cancel(self) -> bool:
        return False


def failed_records(batch: Batch) -> Iterator[FailedRecord]:
    error = batch.error
    if error is None:
        return
    lane, blank = batch.lane, [None] * batch.count
    for value, key, headers in zip(
        batch.values, [*(batch.keys or ()), *blank], [*(batch.headers or ()), *blank], strict=False
    ):
        yield FailedRecord(lane.topic, lane.partition, value, key, headers, error)


class Countdown:
    """Waits until all these batches have ended, one way or the other."""

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
        """In slices, so that Ctrl-C is heard wherever Python runs."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._zero.wait(0.1 if deadline is None else min(0.1, deadline - monotonic())):
            if deadline is not None and monotonic() >= deadline:
                return False
        return True


class Failures:
    """Batches that failed since somebody was told. Their bytes are kept, up to a limit."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self.messages = 0
        self._untold = 0  # in the log

    def add(self, batch: Batch) -> int:
        """How many messages are to be logged; 0: this is not the first, wait for `tell`."""
        with self._lock:
            self._batches.append(batch)
            self.messages += batch.count
            self._bytes += batch.size
            while self._bytes > self._bytes_max and len(self._batches) > 1:
                self._bytes -= self._batches.popleft().size
            self._untold += batch.count
            return self._untold if self._untold == batch.count else 0

    def tell(self) -> tuple[int, MyQueueError | None]:
        """Messages that failed since the log was told last, and the last error."""
        with self._lock:
            untold, self._untold = self._untold, 0
            return untold, self._batches[-1].error if self._batches else None

    def take(self) -> DeliveryFailed | None:
        """All since the last time, as one exception; None: there are none."""
        with self._lock:
            found, messages = list(self._batches), self.messages
            self._batches.clear()
            self.messages = self._bytes = 0
        if not found:
            return None
        failed = tuple(record for batch in found for record in failed_records(batch))
        first = found[0].error
        text = f"{messages} messages were not delivered; first: {first}"
        if len(failed) < messages:
            text += f" (.failed has the last {len(failed)})"
        error = DeliveryFailed(text, failed=failed)
        if all(batch.error is not None and batch.error.outcome == NONE for batch in found):
            error.outcome = NONE
        return error
