"""`MyProducer` and `MyConsumer` over the HTTP endpoints of gateways, for `http://` addresses.

`http_requests` sends the requests and repeats them with their `Idempotency-Key`, so no message is
stored or taken twice. Messages keep their order, because each topic has one unanswered request at a
time, and each request names its partition.

It is slow compared with ZeroMQ, and a message that `get_next` returned counts as consumed at once.
It is for places that only HTTP reaches.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from secrets import token_hex
from typing import Final, NamedTuple
from weakref import WeakSet

from myqueue.cluster.partitioner import partition_of
from myqueue.consumer.message import Message, TopicPartition
from myqueue.errors import (
    BufferFull,
    Closed,
    DeliveryFailed,
    FailedRecord,
    MyQueueError,
)
from myqueue.finalizers import DELIVER_S, Parting, unclosed, wait_for_partings
from myqueue.http_requests import Gateways, partition_count, register
from myqueue.producer.delivery import RecordMetadata

log = logging.getLogger("myqueue.client")

HEARTBEAT_TRY_S: Final = 1.0
BATCH_MESSAGES, BATCH_BYTES = 500, 1 << 20
BUFFER_BYTES: Final = 64 << 20
BLOCK_S: Final = 60.0
HEARTBEAT_S: Final = 10.0
WAIT_MS: Final = 1_000  # of a consumer that finds nothing
_producers: WeakSet[HttpProducer] = WeakSet()


def _row(value: bytes, key: bytes | None) -> str | dict[str, str]:
    """Return a message as JSON: text where it is UTF-8, else base64."""
    try:
        return value.decode() if key is None else {"message": value.decode(), "key": key.decode()}
    except UnicodeDecodeError:
        row = {"message": base64.b64encode(value).decode(), "encoding": "base64"}
        return row if key is None else row | {"key": base64.b64encode(key).decode()}


class _Waiting(NamedTuple):
    """A message that is not delivered yet."""

    value: bytes
    key: bytes | None
    future: Future[RecordMetadata]


class HttpProducerParting(Parting):
    """Finalizer: has the thread deliver what was accepted, then end."""

    def __init__(self, producer: HttpProducer) -> None:
        super().__init__("MyProducer", "stop")
        self._producer = producer

    @property
    def waiting(self) -> int:
        return self._producer.waiting

    def begin(self) -> None:
        self._producer.end()


class HttpProducer:
    """`MyProducer` over gateways. One thread sends, topic by topic."""

    def __init__(self, broker: str) -> None:
        self.producer_ids: dict[str, int] = {}
        self._register_at = Gateways(broker)
        self._registering = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}
        self._partitions: dict[str, tuple[int, float]] = {}  # count, and when it is too old
        self._turns: dict[str, int] = {}
        self._bytes = self.waiting = 0  # bytes and number of undelivered messages
        self._changed = threading.Condition()
        self._stopping = False
        self._failed: list[FailedRecord] = []
        self._gateways = Gateways(broker)  # for the thread
        self.parting = HttpProducerParting(self)
        self._thread = threading.Thread(target=self._run, name="myqueue-http", daemon=True)
        self._thread.start()
        _producers.add(self)

    def register(self, topic: str, limit_s: float) -> None:
        with self._registering:
            if topic not in self.producer_ids:
                answer = register(self._register_at, "producer", topic, limit_s)
                self.producer_ids[topic] = int(answer["producer_id"])

    def can_send(self) -> bool:
        return self._bytes < BUFFER_BYTES

    def send(self, topic: str, value: bytes, key: bytes | None = None) -> Future[RecordMetadata]:
        message = _Waiting(bytes(value), None if key is None else bytes(key), Future())
        with self._changed:
            room = self._changed.wait_for(lambda: self._bytes < BUFFER_BYTES, BLOCK_S)
            if not room:
                raise BufferFull(f"{self._bytes} bytes wait to be delivered")
            self._bytes += len(message.value)
            self.waiting += 1
            self._queues.setdefault(topic, deque()).append(message)
            self._changed.notify_all()
        return message.future

    def stop(self) -> None:
        self.parting.is_closed = True
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        self._register_at.close()
        if self._failed:
            failed = tuple(self._failed)
            text = f"{len(failed)} messages were not delivered; first: {failed[0].error}"
            raise DeliveryFailed(text, failed=failed)

    def end(self) -> None:
        """Stop without waiting for it; deliver for DELIVER_S at most."""
        self._gateways.ends_at = time.monotonic() + DELIVER_S
        with self._changed:  # reentrant, as a finalizer runs in any thread; held for moments only
            self._stopping = True
            self._changed.notify_all()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        gateways = self._gateways
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or any(self._queues.values()), HEARTBEAT_S
                )
                ready = [topic for topic, queue in self._queues.items() if queue]
                if not ready and self._stopping:
                    break
            if not ready:
                self._heartbeat(gateways)
            for topic in ready:
                self._send_some(gateways, topic)
        gateways.close()
        if not self.parting.is_closed:
            self._register_at.close()
            if self._failed:
                reason, first = unclosed("MyProducer", "stop"), self._failed[0].error
                text = "%s: %d messages were not delivered; first: %s"
                log.error(text, reason, len(self._failed), first)
            self.parting.finished()

    def _heartbeat(self, gateways: Gateways) -> None:
        """Send heartbeats while nothing is sent; every other request counts as one."""
        for number in tuple(self.producer_ids.values()):
            with contextlib.suppress(MyQueueError):
                gateways.ask(
                    "POST", "/producer/heartbeat", {"producer_id": number}, try_s=HEARTBEAT_TRY_S
                )

    def _send_some(self, gateways: Gateways, topic: str) -> None:
        try:
            count = partition_count(gateways, topic, self._partitions)
        except MyQueueError as error:
            self._failed_all(topic, -1, self._cut(topic, -1, 0), error)
            return
        partition = self._partition(topic, self._queues[topic][0].key, count)
        batch = self._cut(topic, partition, count)
        values = {
            "topic": topic,
            "producer_id": self.producer_ids[topic],
            "partition": partition,
            "messages": [_row(message.value, message.key) for message in batch],
        }
        try:
            answer = gateways.ask("POST", "/producer/produce", values, key=token_hex(16))
        except MyQueueError as error:
            self._failed_all(topic, partition, batch, error)
            return
        for message, offset in zip(batch, answer["offsets"], strict=True):
            # HTTP does not report when a message was stored.
            message.future.set_result(RecordMetadata(topic, partition, int(offset), 0))
        self._make_room(batch)

    def _cut(self, topic: str, partition: int, count: int) -> list[_Waiting]:
        """Remove and return messages for one request: up to its size, or another partition's key.

        `count` is the number of partitions; 0: not known.
        """
        queue, some, size = self._queues[topic], list[_Waiting](), 0
        while queue and len(some) < BATCH_MESSAGES and size < BATCH_BYTES:
            key = queue[0].key
            if count and key is not None and partition_of(key, count) != partition:
                break
            some.append(queue.popleft())
            size += len(some[-1].value)
        return some

    def _failed_all(
        self, topic: str, partition: int, some: list[_Waiting], error: MyQueueError
    ) -> None:
        for one in some:
            one.future.set_exception(error)
            record = FailedRecord(topic, partition, one.value, one.key, None, error)
            self._failed.append(record)
        self._make_room(some)

    def _make_room(self, some: list[_Waiting]) -> None:
        with self._changed:
            self._bytes -= sum(len(one.value) for one in some)
            self.waiting -= len(some)
            self._changed.notify_all()

    def _partition(self, topic: str, key: bytes | None, count: int) -> int:
        """Choose the partition by key, else the next one. A repeat names the same one."""
        if key is not None:
            return partition_of(key, count)
        self._turns[topic] = turn = (self._turns.get(topic, -1) + 1) % count
        return turn


class HttpConsumerParting(Parting):
    """Finalizer: closes the connection."""

    def __init__(self, gateways: Gateways) -> None:
        super().__init__("MyConsumer", "stop")
        self._gateways = gateways

    def begin(self) -> None:
        self._gateways.close()
        self.finished()


class HttpConsumer:
    """`MyConsumer` over gateways. One thread at a time."""

    def __init__(
        self,
        topics: list[str],
        broker: str,
        idle_timeout: float | None,
        consumer_ids: Mapping[str, int],
        limit_s: float,
        on_damaged: str = "raise",
    ) -> None:
        self.skipped: Counter[TopicPartition] = Counter()
        self._on_damaged = {} if on_damaged == "raise" else {"on_damaged": on_damaged}
        self._gateways = Gateways(broker)
        self._idle_s = idle_timeout
        self.parting = HttpConsumerParting(self._gateways)
        self._stopped = threading.Event()
        self._using = threading.Lock()
        self._partitions: dict[str, tuple[int, float]] = {}
        end = time.monotonic() + limit_s
        try:
            self.consumer_ids = {
                topic: consumer_ids[topic] if topic in consumer_ids else self._register(topic, end)
                for topic in topics
            }
        except BaseException:
            self.parting.is_closed = True
            self._gateways.close()
            raise

    def _register(self, topic: str, end: float) -> int:
        answer = register(self._gateways, "consumer", topic, end - time.monotonic())
        return int(answer["consumer_id"])

    def get_next(self) -> Iterator[Message]:
        """Yield messages of all partitions in turn, until `stop` or the idle timeout."""
        last_at, got_any = time.monotonic(), True
        while not self._stopped.is_set():
            # Wait at empty partitions only when all are empty: it would delay other messages.
            idle, got_any = not got_any and time.monotonic() - last_at > 0.1, False
            for topic, partition, wait_ms in self._round(idle):
                message = self._take(topic, partition, 0 if got_any else wait_ms)
                if message is not None:
                    yield message
                    got_any, last_at = True, time.monotonic()
                if self._stopped.is_set():
                    return
            silent_s = time.monotonic() - last_at
            if not got_any and self._idle_s is not None and silent_s >= self._idle_s:
                return

    def _round(self, idle: bool) -> list[tuple[str, int, int]]:
        """Return (topic, partition, wait_ms) of all partitions; `idle` shares out a wait."""
        places = [
            (topic, partition)
            for topic in self.consumer_ids
            for partition in range(partition_count(self._gateways, topic, self._partitions))
        ]
        wait_ms = WAIT_MS // len(places) if idle and places else 0
        if self._idle_s is not None:
            wait_ms = min(wait_ms, round(self._idle_s * 1000))
        return [(*place, wait_ms) for place in places]

    def _take(self, topic: str, partition: int, wait_ms: int) -> Message | None:
        """Take the next message of a partition; None: there is none."""
        values = {
            "topic": topic,
            "consumer_id": self.consumer_ids[topic],
            "partition": partition,
            "wait_ms": wait_ms,
            **self._on_damaged,
        }
        with self._using:
            if self._stopped.is_set():
                return None
            try:
                answer = self._gateways.ask(
                    "GET", "/consumer/consume", values, key=token_hex(16), stopped=self._stopped
                )
            except Closed:
                return None
        for run in answer.get("skipped", ()):
            place = TopicPartition(topic, int(run["partition"]))
            first, count = int(run["offset"]), int(run["count"])
            self.skipped[place] += count
            log.warning(
                "passed over: %s/%d: offsets %d to %d can't be read",
                *place,
                first,
                first + count - 1,
            )
        if answer.get("message") is None:
            return None
        as_base64 = answer.get("encoding") == "base64"

        def plain(text: str) -> bytes:
            return base64.b64decode(text) if as_base64 else text.encode()

        key = answer.get("key")
        return Message(
            topic,
            int(answer["partition"]),
            int(answer["offset"]),
            None if key is None else plain(key),
            plain(answer["message"]),
            None,
            int(answer["timestamp"]),
        )

    def stop(self) -> None:
        self.parting.is_closed = True
        self._stopped.set()
        with self._using:
            self._gateways.close()


def _at_exit() -> None:
    """Deliver what is left when the program ends without `stop`."""
    for producer in tuple(_producers):
        producer.parting.at_exit()
    wait_for_partings(time.monotonic() + DELIVER_S)


atexit.register(_at_exit)


def is_http(broker: str) -> bool:
    return broker.lstrip().startswith(("http://", "https://"))
