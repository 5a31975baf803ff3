"""`send_once`: a list that is stored once, however often and by whichever process it is sent.

Brokers recognise a producer's own repeats by its sequences, as long as it lives. A process that may
end between sending and the answer (a gateway, a job that is restarted) gives its list a
*request_id* instead. Each batch of the list carries it in place of producer and sequence
(PROTOCOL.md, section 4, calls it the batch's key), and the partition remembers for 15 minutes where
it stored the batch. A partition that knows the request_id refuses it with other messages
(`KeyReused`); one that does not know it stores them.

The request_id alone decides the partition of a message without key and partition, so that a repeat
finds the same one. The hash moves as few of them as possible when a topic grows.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple

from myqueue.arguments import wrong
from myqueue.cluster.leader_request import ask_leader
from myqueue.cluster.partitioner import jump_hash
from myqueue.cluster.session import Session
from myqueue.errors import InvalidRequest, MessageTooLarge, MyQueueError, OutcomeUnknown
from myqueue.producer.delivery import RecordMetadata
from myqueue.producer.failures import list_outcome
from myqueue.producer.topic_lanes import TopicLanes
from myqueue.settings import ProducerSettings
from myqueue.wire import batch
from myqueue.wire.clock import wall_ms
from myqueue.wire.protocol import PRODUCE

REQUEST_ID_BYTES: Final = 16
FIRST_BIT: Final = 1 << 63
PACKING_BYTES: Final = 64  # that packing may add to a message of the largest size


class Messages(NamedTuple):
    """The messages of a list that go to one partition."""

    indexes: list[int]  # in the list
    values: list[bytes]
    keys: list[bytes | None] | None


def send_once(
    session: Session,
    topic_lanes: TopicLanes,
    values: list[bytes],
    keys: list[bytes | None] | None,
    partition: int | None,
    request_id: bytes,
    settings: ProducerSettings,
) -> Future[list[RecordMetadata]]:
    """Store messages once. The future has where each message is, in the order of the list.

    Every batch is packed and its size checked before the first one is sent: an error that says
    "nothing was done" must be true for the whole list.
    """
    if type(request_id) is not bytes or len(request_id) != REQUEST_ID_BYTES:
        raise wrong("request_id", f"{REQUEST_ID_BYTES} bytes", request_id)
    if not values:
        raise InvalidRequest("send_once needs at least one message")
    by_partition = _by_partition(topic_lanes, values, keys, partition, request_id)
    packed = {
        partition: _pack(topic_lanes, partition, messages, request_id, settings.compression)
        for partition, messages in by_partition.items()
    }
    joined = _JoinedAnswers(topic_lanes.topic.name, len(values), len(packed))
    for partition, data in packed.items():
        target = topic_lanes.topic.partitions[partition]
        try:
            answer = ask_leader(
                session,
                target,
                PRODUCE,
                ([target.group],),
                [data],
                timeout_ms=settings.delivery_timeout_ms,
            )
        except MyQueueError as error:  # the session was closed: parts may be on their way
            answer = Future()
            answer.set_exception(error)
        indexes = by_partition[partition].indexes
        answer.add_done_callback(partial(joined.part_answered, partition, indexes))
    return joined.future


class _JoinedAnswers:
    """Joins the answers of several partitions to one future."""

    def __init__(self, topic: str, messages: int, parts: int) -> None:
        self.future: Future[list[RecordMetadata]] = Future()
        self.future.set_running_or_notify_cancel()  # no cancel: a part may be sent already
        self._topic, self._parts, self._parts_left = topic, parts, parts
        self._metadata: list[Any] = [None] * messages
        self._errors: list[MyQueueError] = []
        self._lock = Lock()

    def part_answered(self, partition: int, indexes: list[int], future: Future[Any]) -> None:
        error: BaseException | None = None
        try:
            offset, stored_ms = future.result()
            for step, index in enumerate(indexes):
                self._metadata[index] = RecordMetadata(
                    self._topic, partition, offset + step, stored_ms
                )
        except BaseException as unexpected:  # also a result of another form
            error = unexpected
        with self._lock:
            if error is not None:  # a part that fails in any way counts, else the caller waits on
                if not isinstance(error, MyQueueError):
                    error = OutcomeUnknown(repr(error))
                self._errors.append(error)
            self._parts_left -= 1
            if self._parts_left:
                return
        if not self._errors:
            self.future.set_result(self._metadata)
            return
        error = self._errors[0]
        stored = [None] * (self._parts - len(self._errors))
        error.outcome = list_outcome([*(error.outcome for error in self._errors), *stored])
        self.future.set_exception(error)


def _by_partition(
    topic_lanes: TopicLanes,
    values: list[bytes],
    keys: list[bytes | None] | None,
    partition: int | None,
    request_id: bytes,
) -> dict[int, Messages]:
    lanes = topic_lanes.lanes
    unkeyed = lanes[jump_hash(request_id, len(lanes))]
    indexes = topic_lanes.by_lane(keys or [None] * len(values), partition, unkeyed)
    return {
        lane.partition: Messages(
            at, [values[index] for index in at], keys and [keys[index] for index in at]
        )
        for lane, at in indexes.items()
    }


def _pack(
    topic_lanes: TopicLanes, partition: int, messages: Messages, request_id: bytes, compression: str
) -> bytes:
    """Pack a partition's messages as one batch; raise MessageTooLarge if it is too large."""
    data = batch.make(
        (messages.values, messages.keys, None, None),
        wall_ms(),
        codec=batch.CODECS[compression],
        producer=int.from_bytes(request_id[:8], "big") | FIRST_BIT,
        epoch=batch.KEYED_EPOCH,
        sequence=int.from_bytes(request_id[8:], "big"),
    )
    size, limit = batch.header(data).body_bytes, topic_lanes.limit + PACKING_BYTES
    if size > limit:
        raise MessageTooLarge(
            f"the list's part for {topic_lanes.topic.name}/{partition} packs to {size} bytes;"
            f" {limit} at most, because send_once stores it as one batch"
        )
    return data
