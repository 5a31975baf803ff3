"""`Producer`: the class with which applications send messages.

Comes in: messages, from any thread. Goes out: a future for each message or list; the messages
themselves go into the buffer (`accumulator`), from which the I/O thread sends them (`sender`). This
module limits the buffer and waits; `topic_lanes` chooses the partition.

Invariant: an accepted message ends in exactly one way. Either it is stored on a majority of its
partition's replicas, or it fails, and the error says whether it may have been stored all the same.
The failure is in the future, in the next `flush` or `close`, and in the log.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Final
from weakref import WeakSet

from myqueue.arguments import seconds, text, wrong
from myqueue.cluster.session import Session, SessionCore
from myqueue.constructors import lists_settings, named_arguments
from myqueue.errors import (
    UNKNOWN,
    BufferFull,
    Closed,
    ConcurrentUse,
    Forked,
    MyQueueError,
    TimedOut,
    TopicDeleted,
)
from myqueue.finalizers import wait_for_partings, weakly
from myqueue.producer.accumulator import Accumulator
from myqueue.producer.batch import COUNT_MAX, MESSAGE_OVERHEAD_BYTES, Batch
from myqueue.producer.conversion import (
    Runs,
    check_size,
    check_time,
    plain_headers,
    plain_key,
    plain_keys,
    plain_value,
    plain_values,
)
from myqueue.producer.countdown import Countdown
from myqueue.producer.delivery import BatchDelivery, Delivery, Part, RecordMetadata
from myqueue.producer.failures import Failures
from myqueue.producer.lane import Lane
from myqueue.producer.parting import ProducerParting
from myqueue.producer.send_once import send_once
from myqueue.producer.sender import Sender
from myqueue.producer.topic_lanes import TopicLanes
from myqueue.settings import ProducerSettings
from myqueue.wire.clock import now_ms, wall_ms

log = logging.getLogger("myqueue.client")

AT_EXIT_S: Final = 5.0
LOG_MS: Final = 200  # failures within this time become one line in the log
_producers: WeakSet[Producer] = WeakSet()


@lists_settings(ProducerSettings)
class Producer:
    """Send messages to topics, in the background, with a future for each.

    >>> with Producer("127.0.0.1:9092", create_topics=True) as producer:  # doctest: +SKIP
    ...     delivery = producer.send("orders", b"17 apples", key=b"customer 4")
    ...     stored = delivery.result(10)  # seconds
    ...     batch = producer.send_many("orders", [b"1 pear", b"2 plums"])
    >>> stored.topic, stored.offset, batch.done()  # doctest: +SKIP
    ('orders', 0, True)

    `send` puts a message into a buffer and returns at once. Messages of one partition keep their
    order. Each is stored once on a majority of the partition's replicas, or fails. Leaving the
    `with` block (or `close`) waits for all messages and raises DeliveryFailed if some failed.

    Any number of threads may use one producer. In a forked child every call raises Forked: make
    the producer after the fork.

    `cluster`: the managers' addresses, "host:port[,host:port…]" or a list of them, or a Session to
    share. Nothing is connected yet, so a wrong address fails in the first `send`. The constructor
    raises InvalidSetting for a setting that does not exist or is out of range.
    """

    @named_arguments
    def __init__(
        self,
        cluster: str | Iterable[str] | Session,
        *,
        linger_ms: int = ProducerSettings.linger_ms,
        batch_bytes: int = ProducerSettings.batch_bytes,
        compression: str = ProducerSettings.compression,
        idempotent: bool = ProducerSettings.idempotent,
        delivery_timeout_ms: int = ProducerSettings.delivery_timeout_ms,
        request_timeout_ms: int = ProducerSettings.request_timeout_ms,
        max_buffered_bytes: int = ProducerSettings.max_buffered_bytes,
        max_block_ms: int = ProducerSettings.max_block_ms,
        max_in_flight: int = ProducerSettings.max_in_flight,
        retry_backoff_ms: int = ProducerSettings.retry_backoff_ms,
        create_topics: bool = ProducerSettings.create_topics,
        name: str = ProducerSettings.name,
    ) -> None:
        self.settings = ProducerSettings.of(locals())
        self._owns_session = not isinstance(cluster, Session)
        self.session = (
            cluster
            if isinstance(cluster, Session)
            else Session.of("", cluster, name=self.settings.name)
        )
        self._refusal: MyQueueError | None = None  # why no message is accepted any more
        self._buffer_bytes = self.settings.max_buffered_bytes
        self._lock = threading.Lock()
        # Notified when there is room, and when the producer ends.
        self._room = threading.Condition(self._lock)
        self._accumulator = Accumulator(
            linger_ms=self.settings.linger_ms,
            max_in_flight=self.settings.max_in_flight,
            delivery_timeout_ms=self.settings.delivery_timeout_ms,
            backoff_ms=self.settings.retry_backoff_ms,
        )
        self._topics: dict[str, TopicLanes] = {}
        self._failures = Failures()
        self._sender = Sender(
            self.session.core,
            self._accumulator,
            self._room,
            self.settings,
            partial(_note_failure, self.session.core, self._failures),
            weakly(self._died),
        )
        self._on_routes = weakly(self._routes_changed)
        self.session.on_routes(self._on_routes)
        _producers.add(self)
        self.parting = ProducerParting(
            self.session,
            self._owns_session,
            self._sender,
            self._accumulator,
            self._lock,
            self._failures,
        )
        self.parting.watch(self)

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Put one message into the buffer. The future is a RecordMetadata, or what failed.

        `partition` chooses the partition. Without it, messages of equal `key` go to the same one,
        and messages without a key are spread evenly. `headers`: names with bytes or texts.
        `timestamp_ms`: ms since 1970, default now.

        The first message to a topic waits for its partitions, and every message for room in the
        buffer, both up to `max_block_ms`. Raises UnknownTopic, BufferFull (the message was not
        accepted), InvalidRequest, MessageTooLarge, Fenced or Closed.
        """
        if self._refusal is not None:
            self._refuse_if_ended()
        try:
            topic_lanes = self._topics.get(topic)
        except TypeError:  # a topic that cannot be hashed
            raise wrong("topic", "a text", topic) from None
        if topic_lanes is None:
            topic_lanes = self._lanes_of(topic)
        header_map, header_bytes = None, 0
        if type(value) is not bytes or headers is not None or timestamp_ms is not None:
            value, (header_map, header_bytes) = plain_value(value), plain_headers(headers)
            check_time(timestamp_ms)
        size = len(value) + header_bytes + MESSAGE_OVERHEAD_BYTES
        lane: Lane | None = None
        if key is not None or partition is not None:
            if key is not None:
                key = key if type(key) is bytes else plain_key(key)
                size += len(key)
            lane = topic_lanes.lane_of(key, partition)
        batch: Batch | None = None
        # Most messages need nothing but a place in an open batch. For these `_put`, and all that
        # `_put` calls, is written out: 0.8 instead of 2.0 µs CPU of the process for each message.
        # `with lock` alone would cost 0.06 of these. `_put` says why this is enough.
        accumulator, lock = self._accumulator, self._lock
        lock.acquire()
        try:
            opened = (lane or topic_lanes.sticky).open
            if (
                opened is not None
                and opened.size + size < opened.size_max
                and opened.count < COUNT_MAX
                and accumulator.buffered + size <= self._buffer_bytes
                and not topic_lanes.spread.avoided
            ):
                batch, index = opened, opened.count
                if key is not None or header_map is not None or timestamp_ms is not None:
                    batch.describe_next(key, header_map, timestamp_ms)
                batch.values.append(value)
                batch.count = index + 1
                batch.size += size
                accumulator.buffered += size
        finally:
            lock.release()
        if batch is None:
            batch, index = self._put(topic_lanes, lane, size, value, key, header_map, timestamp_ms)
        delivery: Delivery = Delivery()
        delivery._batch, delivery._index = batch, index
        return delivery

    def send_many(
        self,
        topic: str,
        values: Iterable[bytes],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        partition: int | None = None,
    ) -> BatchDelivery:
        """Send a list in its order, much faster than one `send` for each message.

        The future is a list of Stored(topic, partition, offset, messages, timestamp), one for each
        run of messages. Without `keys` (one or None for each value) or `partition` the list may be
        cut into runs for several partitions. Raises the same errors as `send`. If a part of the
        list was accepted before the error, that part is delivered and the outcome is "unknown".
        """
        topic_lanes = self._lanes_of(topic)
        payloads = plain_values(values, "send_many")
        parts: list[Part] = []
        try:
            if keys is None:
                lane = None if partition is None else topic_lanes.lane_of(None, partition)
                self._put_list(topic_lanes, lane, payloads, None, parts)
            else:
                all_keys = plain_keys(keys, len(payloads))
                for lane, at in topic_lanes.by_lane(all_keys, partition, None).items():
                    lane_values, lane_keys = [payloads[i] for i in at], [all_keys[i] for i in at]
                    self._put_list(topic_lanes, lane, lane_values, lane_keys, parts)
        except MyQueueError as error:
            if parts:
                error.outcome = UNKNOWN  # of the list
                accepted = sum(part.messages for part in parts)
                error.add_note(f"{accepted} of {len(payloads)} messages were taken before")
            raise
        return BatchDelivery(parts)

    def send_once(
        self,
        topic: str,
        values: Iterable[bytes],
        *,
        request_id: bytes,
        keys: Sequence[bytes | str | None] | None = None,
        partition: int | None = None,
    ) -> Future[list[RecordMetadata]]:
        """Store messages once, however often and by whichever process they are sent.

        `request_id`: 16 bytes that name this list. Each partition remembers it for 15 minutes; a
        repeat returns where the messages were stored. The same one with other messages raises
        KeyReused. The future is a list with a RecordMetadata for each message. The list does not
        pass through the buffer; it is tried for `delivery_timeout_ms` and cannot be cancelled.
        """
        topic_lanes = self._lanes_of(topic)
        payloads = plain_values(values, "send_once")
        key_list = None if keys is None else plain_keys(keys, len(payloads))
        return send_once(
            self.session, topic_lanes, payloads, key_list, partition, request_id, self.settings
        )

    # -- the buffer -------------------------------------------------------------------------------

    def _put(
        self,
        topic_lanes: TopicLanes,
        lane: Lane | None,
        size: int,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        timestamp_ms: int | None,
    ) -> tuple[Batch, int]:
        """Put one message into the buffer; its batch, and its place there.

        `send` itself puts a message into an open batch with room. That is the same, because:

        - A lane has an open batch only while producer and topic take messages: the end of either
          first refuses messages, then seals or fails what is open.
        - The sender was kicked when the batch was opened and needs no other kick until the batch is
          sealed. So a message that fills its batch exactly comes here.
        - A message that fits into a batch is not larger than the topic allows.
        """
        check_size(size - MESSAGE_OVERHEAD_BYTES, topic_lanes.limit, topic_lanes.topic.name)
        with self._lock:
            batch = self._batch_for(topic_lanes, lane, size)
            index = batch.count
            batch.describe_next(key, headers, timestamp_ms)
            self._accumulator.put(batch, [value], size)
        self._sender.kick()
        return batch, index

    def _put_list(
        self,
        topic_lanes: TopicLanes,
        lane: Lane | None,
        values: list[bytes],
        keys: list[bytes | None] | None,
        parts: list[Part],
    ) -> None:
        """Put a list into the buffer, in runs that fit into batches; add a part for each run."""
        runs, at = Runs(values, keys), 0
        check_size(runs.largest, topic_lanes.limit, topic_lanes.topic.name)
        while at < runs.count:
            with self._lock:
                batch = self._batch_for(topic_lanes, lane, runs.size(at, at + 1))
                room = min(
                    batch.size_max - batch.size, self._buffer_bytes - self._accumulator.buffered
                )
                end = runs.fitting(at, room, COUNT_MAX - batch.count)
                run = values if end - at == runs.count else values[at:end]
                run_keys = None if keys is None else keys[at:end]
                parts.append(Part(batch, batch.count, end - at))
                self._accumulator.put(batch, run, runs.size(at, end), run_keys)
            self._sender.kick()
            at = end

    def _batch_for(self, topic_lanes: TopicLanes, lane: Lane | None, size: int) -> Batch:
        """Find or open the batch for a message of this size; wait for room. Under the lock."""
        if not self._has_room(size):
            self._wait_for_room(size)
        self._refuse_if_ended()  # perhaps while we waited
        if topic_lanes.is_gone:
            raise TopicDeleted(f"the topic {topic_lanes.topic.name!r} was deleted")
        if lane is None:
            lane = topic_lanes.lane_for_unkeyed(size, self._accumulator)
        return self._accumulator.open_batch_for(lane, size, now_ms(), wall_ms())

    def _has_room(self, size: int) -> bool:
        """Is there room in the buffer? A single message has room in an empty one."""
        buffered = self._accumulator.buffered
        return not buffered or buffered + size <= self._buffer_bytes

    def _wait_for_room(self, size: int) -> None:
        limit_ms = 0 if self.session.in_io_thread() else self.settings.max_block_ms
        deadline = monotonic() + limit_ms / 1000
        while not self._has_room(size):
            left = deadline - monotonic()
            if left <= 0:
                why = self._sender.last_problem
                raise BufferFull(
                    f"the buffer is full: {self._accumulator.buffered} bytes wait to be"
                    f" delivered, and no room came within {limit_ms} ms; "
                    + (why or "messages come faster than the cluster stores them")
                )
            self._room.wait(left)
            self._refuse_if_ended()

    # -- topics -----------------------------------------------------------------------------------

    def _lanes_of(self, topic: str) -> TopicLanes:
        """Find the topic's lanes; the first call for it waits for its partitions."""
        self._refuse_if_ended()
        topic_lanes = self._topics.get(text(topic, "topic"))
        if topic_lanes is not None:
            return topic_lanes
        limit_ms = self.settings.max_block_ms
        looking = self.session.ensure_topics(
            [topic], create=self.settings.create_topics, timeout_ms=limit_ms
        )
        (answer,) = self.session.wait(looking)
        with self._lock:
            topic_lanes = self._topics.get(topic)
            if topic_lanes is None:
                # The topic may have grown since the answer; later news reaches its lanes itself.
                newest = self.session.routes.topic(topic) or answer
                topic_lanes = TopicLanes(newest, self._accumulator, self.settings.batch_bytes)
                self._topics[topic] = topic_lanes
        return topic_lanes

    def _routes_changed(self) -> None:
        """Add new partitions and abandon deleted topics. In the I/O thread."""
        deleted: list[Lane] = []
        with self._lock:
            for name, topic_lanes in tuple(self._topics.items()):
                topic = self.session.routes.topic(name)
                if topic is not None and topic.uid == topic_lanes.topic.uid:
                    if len(topic.partitions) > len(topic_lanes.lanes):
                        topic_lanes.grow(topic, self._accumulator, self.settings.batch_bytes)
                elif topic is not None or self.session.routes.is_unknown(name):
                    topic_lanes.is_gone = True
                    deleted += topic_lanes.lanes
                    del self._topics[name]
        if deleted:
            names = ", ".join(sorted({lane.topic for lane in deleted}))
            self._sender.abandon(TopicDeleted(f"deleted before it was delivered: {names}"), deleted)

    # -- outcomes ---------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message sent so far is delivered or failed.

        Raises DeliveryFailed if messages failed since the last `flush`; its `failed` has each of
        them, or the latest if they have more than 8 MiB. Raises TimedOut after `timeout` seconds
        (None: no limit); the remaining messages are still tried. No message is tried for longer
        than `delivery_timeout_ms`. Raises ConcurrentUse in a callback of a future, which runs in
        the I/O thread.
        """
        timeout = seconds(timeout)
        if isinstance(self._refusal, Forked):
            self._refuse_if_ended()
        self._refuse_io_thread()
        self._deliver(timeout)
        failed = self._failures.take()
        if failed is not None:
            raise failed

    def close(self, timeout: float | None = None) -> None:
        """Deliver the messages in the buffer, then end the producer.

        Waits for at most `timeout` seconds (None: until each message is delivered or failed) and
        two more. Then the remaining messages fail with Closed. Raises DeliveryFailed with all that
        failed. A second `close` does nothing. Raises ConcurrentUse in a callback of a future, which
        runs in the I/O thread; then the producer stays open.
        """
        timeout = seconds(timeout)
        if self.parting.is_closed or isinstance(self._refusal, Forked):
            return
        self._refuse_io_thread()
        self.parting.is_closed = True
        if self._refusal is None:
            self._refusal = Closed("this producer was closed")
            with self._lock:
                self._room.notify_all()
        problem: MyQueueError | None = None
        try:
            self._deliver(timeout)
        except TimedOut as error:
            problem = error
        finally:
            self._end()
        problem = self._failures.take() or problem
        if problem is not None:
            raise problem

    def _deliver(self, timeout: float | None) -> None:
        """Wait until every message sent so far is delivered or failed; or raise TimedOut."""
        with self._lock:
            batches = self._accumulator.seal_all()
        if not batches:
            return
        self._sender.kick()
        if not Countdown(batches).wait(timeout):
            messages = sum(batch.count for batch in batches if not batch.is_settled)
            raise TimedOut(f"{messages} messages are not delivered yet after {timeout} s")

    def _refuse_io_thread(self) -> None:
        if self.session.in_io_thread():
            raise ConcurrentUse("callbacks run in the I/O thread and must not wait for it")

    def _end(self) -> None:
        """Stop the sender, which fails the remaining messages; then our own session."""
        self.session.off_routes(self._on_routes)
        if not self.session.closed:
            stopped = threading.Event()
            self.session.on_io(self._sender.stop)
            self.session.on_io(stopped.set)
            stopped.wait(1.0)
        if self._owns_session:
            self.session.close(1_000)
        _producers.discard(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except MyQueueError:
            if kind is None:
                raise
            log.exception("closing a producer, because of another error")

    @property
    def producer_id(self) -> int:
        """The id that the managers gave this producer with its first message; 0 before."""
        return self._sender.producer_id

    @property
    def buffered_bytes(self) -> int:
        """Bytes of all messages that are not delivered yet."""
        return self._accumulator.buffered

    def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has. Waits up to `max_block_ms`; raises UnknownTopic."""
        return len(self._lanes_of(topic).lanes)

    def _refuse_if_ended(self) -> None:
        """Raise why the producer refuses calls, if it does.

        Each time a new exception: one that is raised twice gathers foreign traces.
        """
        if (refusal := self._refusal) is not None:
            raise type(refusal)(str(refusal), component=refusal.component)

    def _died(self, error: MyQueueError) -> None:
        self._refusal = self._refusal or error

    def _mark_forked(self) -> None:
        self._refusal = Forked("this producer was made before a fork, by the parent process")

    def _close_at_exit(self, timeout: float) -> None:
        """Deliver for `timeout` seconds, because the program ends without `close`."""
        waiting = self.parting.waiting
        try:
            self.close(timeout)
        except MyQueueError as error:
            log.warning("a producer was not closed, %d messages waited: %s", waiting, error)


def _note_failure(core: SessionCore, failures: Failures, batch: Batch) -> None:
    if failures.add(batch) and not core.closed:
        core.after(LOG_MS, partial(_log_failures, failures))


def _log_failures(failures: Failures) -> None:
    messages, error = failures.take_unlogged()
    if messages:  # else they were logged when their producer was dropped
        log.error("%d messages were not delivered; first: %s", messages, error)


def _after_fork() -> None:
    for producer in tuple(_producers):
        producer._mark_forked()


def _at_exit() -> None:
    deadline = monotonic() + AT_EXIT_S
    for producer in tuple(_producers):
        producer._close_at_exit(max(0.0, deadline - monotonic()))
    wait_for_partings(deadline)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
