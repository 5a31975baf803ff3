"""The process's one producer: messages of requests that arrive together share a batch.

A producer that was fenced, or lost its sequence, never works again and says so when it is called.
Then a new one takes its place, and the request goes to that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from myqueue import Delivery, Producer, Session
from myqueue.errors import UNKNOWN, Closed, DeliveryFailed, Fenced, MyQueueError, OutOfSequence

T = TypeVar("T")
Place = tuple[int, int]  # (partition, offset)
BUFFER_BYTES: Final = 64 << 20
DEAD: Final = (Fenced, OutOfSequence, Closed)  # a producer that says so never works again
SPARE_MS: Final = 5_000  # beyond a request's own deadline, which should have come first


class SharedProducer:
    """Stores messages of requests. Any number of threads may use it."""

    def __init__(self, session: Session, timeout_ms: int) -> None:
        self._session, self._timeout_ms = session, timeout_ms
        self._limit_s = (timeout_ms + SPARE_MS) / 1000
        self._producer: Producer | None = None
        self._making = threading.Lock()

    def has_room(self) -> bool:
        """True if `begin` would not wait."""
        producer = self._producer
        return producer is not None and producer.buffered_bytes < BUFFER_BYTES // 2

    def begin(
        self,
        topic: str,
        value: bytes,
        message_key: bytes | None,
        partition: int | None,
        request_id: bytes | None,
    ) -> Future[Any]:
        """Begin to store one message; with the id of a request, once however often it is repeated.

        The future is a RecordMetadata; with an id a list of one.
        """

        producer = self._producer or self._replace(None)
        try:
            return _send(producer, topic, value, message_key, partition, request_id)
        except DEAD:
            successor = self._replace(producer)
            return _send(successor, topic, value, message_key, partition, request_id)

    def store(
        self, topic: str, value: bytes, message_key: bytes | None, partition: int | None
    ) -> Place:
        """Store one message and wait for it."""
        stored = self.begin(topic, value, message_key, partition, None).result(self._limit_s)
        return stored.partition, stored.offset

    def store_list(
        self,
        topic: str,
        values: list[bytes],
        keys: list[bytes | None],
        partition: int | None,
        request_id: bytes | None,
    ) -> list[Place]:
        """Store a list and wait for it. Messages that go to the same partition keep their order."""
        some_keys = keys if any(key is not None for key in keys) else None
        if request_id is not None:
            stored = self._with_producer(
                lambda producer: producer.send_once(
                    topic, values, request_id=request_id, keys=some_keys, partition=partition
                )
            ).result(self._limit_s)
            return [(delivery.partition, delivery.offset) for delivery in stored]
        sent: list[Delivery] = []

        def send_each(producer: Producer) -> None:
            try:
                for value, key in zip(values, keys, strict=True):
                    sent.append(producer.send(topic, value, key=key, partition=partition))
            except MyQueueError as error:
                raise _of_a_part(error) if sent else error from None

        try:
            if some_keys is None:
                runs = self._with_producer(
                    lambda producer: producer.send_many(topic, values, partition=partition)
                ).result(self._limit_s)
                return [
                    (run.partition, run.offset + step)
                    for run in runs
                    for step in range(run.messages)
                ]
            self._with_producer(send_each)
            places = [delivery.result(self._limit_s) for delivery in sent]
            return [(place.partition, place.offset) for place in places]
        except MyQueueError as error:
            first = _first_of(error) if isinstance(error, DeliveryFailed) else error
            raise _of_a_part(first) if sent or first is not error else error from None

    def _with_producer(self, send: Callable[[Producer], T]) -> T:
        """Call `send` with the producer; if that never works again, with a new one. A list of which
        a part was accepted is not sent a second time.
        """
        producer = self._producer or self._replace(None)
        try:
            return send(producer)
        except DEAD as error:
            successor = self._replace(producer)
            if error.outcome == UNKNOWN:
                raise
            return send(successor)

    def _replace(self, before: Producer | None) -> Producer:
        with self._making:
            if self._producer is before:
                if self._session.closed:
                    raise Closed("this gateway is stopping")
                if before is not None:  # closing waits, and this may be the thread that reads
                    threading.Thread(target=_close, args=(before,), daemon=True).start()
                self._producer = Producer(
                    self._session,
                    linger_ms=1,
                    max_buffered_bytes=BUFFER_BYTES,
                    max_block_ms=1_000,
                    delivery_timeout_ms=self._timeout_ms,
                    request_timeout_ms=max(1_000, self._timeout_ms // 2),
                )
            if self._producer is None:
                raise Closed("this gateway is stopping")
            return self._producer

    def close(self) -> None:
        if self._producer is not None:
            _close(self._producer)


def _send(
    producer: Producer,
    topic: str,
    value: bytes,
    message_key: bytes | None,
    partition: int | None,
    request_id: bytes | None,
) -> Future[Any]:
    if request_id is None:
        return producer.send(topic, value, key=message_key, partition=partition)
    keys = None if message_key is None else [message_key]
    return producer.send_once(topic, [value], request_id=request_id, keys=keys, partition=partition)


def _close(producer: Producer) -> None:
    with suppress(MyQueueError):  # messages that failed; each request has had its error
        producer.close(1.0)


def _first_of(error: DeliveryFailed) -> MyQueueError:
    """Return why the first message of a list failed."""
    return error.failed[0].error if error.failed else error


def _of_a_part(error: MyQueueError) -> MyQueueError:
    """Return a copy of the error with outcome UNKNOWN, because other parts of the list may be
    stored. The original is shared with the other requests of the batch.
    """
    copy = type(error)(str(error), component=error.component, hint=error.hint)
    copy.outcome = UNKNOWN
    return copy
