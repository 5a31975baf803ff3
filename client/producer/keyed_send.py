"""`send_once`: messages with an id are stored once, however often and by whichever process sent.

Brokers recognise a producer's own repeats by its sequences, as long as it lives. A process that may
end between sending and the answer (a gateway, a job that is restarted) gives its request an *id*
instead. The batch carries it (PROTOCOL.md, section 4), and the partition remembers for 15 minutes
where it stored the batch. Each partition that knows the id refuses it with other messages
(`KeyReused`); a partition that does not know it stores them.

The id alone decides the partition of a message without key and partition, so that a repeat finds
the same one. The hash moves as few ids as possible when a topic grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, Final

from myqueue.cluster.leader_request import ask_leader
from myqueue.cluster.partitioner import jump_hash, partition_of
from myqueue.cluster.session import Session
from myqueue.errors import NONE, UNKNOWN, InvalidRequest, MyQueueError
from myqueue.producer.delivery import RecordMetadata
from myqueue.producer.input import check_size, plain
from myqueue.producer.topic_lanes import TopicLanes
from myqueue.settings import ProducerSettings
from myqueue.wire import batch
from myqueue.wire.clock import wall_ms
from myqueue.wire.protocol import PRODUCE

ID_BYTES: Final = 16
FIRST_BIT: Final = 1 << 63
Messages = tuple[
    list[int], list[bytes], list[bytes | None] | None
]  # indexes in the list, values, keys


def send_once(
    session: Session,
    topic_lanes: TopicLanes,
    values: list[bytes],
    keys: Sequence[bytes | str | None] | None,
    partition: int | None,
    request_id: bytes,
    settings: ProducerSettings,
) -> Future[list[RecordMetadata]]:
    """Store messages once. The future has where each message is, in the order of the list."""
    if type(request_id) is not bytes or len(request_id) != ID_BYTES:
        raise InvalidRequest(f"an id is {ID_BYTES} bytes")
    if not values or (keys is not None and len(keys) != len(values)):
        raise InvalidRequest(f"{len(values)} messages, {len(keys or ())} keys")
    given = None if keys is None else [None if key is None else plain(key, "key") for key in keys]
    wanted = _by_partition(topic_lanes, values, given, partition, request_id)
    parts = _Parts(topic_lanes.topic.name, len(values), len(wanted))
    for number, messages in wanted.items():
        asked = _ask(session, topic_lanes, number, messages, request_id, settings)
        asked.add_done_callback(partial(parts.done, number, messages[0]))
    return parts.future


class _Parts:
    """Joins the answers of several partitions to one future."""

    def __init__(self, topic: str, messages: int, parts: int) -> None:
        self.future: Future[list[RecordMetadata]] = Future()
        self._topic, self._left, self._count = topic, parts, parts
        self._found: list[Any] = [None] * messages
        self._errors: list[MyQueueError] = []
        self._lock = Lock()

    def done(self, number: int, at: list[int], future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, MyQueueError):
            self._errors.append(error)
        else:
            offset, stored_ms = future.result()
            for step, index in enumerate(at):
                self._found[index] = RecordMetadata(self._topic, number, offset + step, stored_ms)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if not self._errors:
            self.future.set_result(self._found)
            return
        error = self._errors[0]
        if len(self._errors) < self._count or any(other.outcome != NONE for other in self._errors):
            error.outcome = UNKNOWN  # of the list
        self.future.set_exception(error)


def _by_partition(
    topic_lanes: TopicLanes,
    values: list[bytes],
    keys: list[bytes | None] | None,
    partition: int | None,
    request_id: bytes,
) -> dict[int, Messages]:
    count = len(topic_lanes.lanes)
    if partition is not None and not 0 <= partition < count:
        raise InvalidRequest(
            f"{topic_lanes.topic.name} has partitions 0 to {count - 1}, not {partition}"
        )
    others = jump_hash(request_id, count) if partition is None else partition
    if keys is None:
        return {others: (list(range(len(values))), values, None)}
    found: dict[int, Messages] = {}
    for index, (value, key) in enumerate(zip(values, keys, strict=True)):
        number = others if partition is not None or key is None else partition_of(key, count)
        at, some, theirs = found.setdefault(number, ([], [], []))
        at.append(index)
        some.append(value)
        if theirs is not None:
            theirs.append(key)
    return found


def _ask(
    session: Session,
    topic_lanes: TopicLanes,
    number: int,
    messages: Messages,
    request_id: bytes,
    settings: ProducerSettings,
) -> Future[Any]:
    _, values, keys = messages
    data = batch.make(
        (values, keys, None, None),
        wall_ms(),
        codec=batch.CODECS[settings.compression],
        producer=int.from_bytes(request_id[:8], "big") | FIRST_BIT,
        epoch=batch.KEYED_EPOCH,
        sequence=int.from_bytes(request_id[8:], "big"),
    )
    check_size(batch.header(data).body_bytes, topic_lanes.limit + 64, topic_lanes.topic.name)
    partition = topic_lanes.topic.partitions[number]
    return ask_leader(
        session,
        partition,
        PRODUCE,
        ([partition.group],),
        [data],
        timeout_ms=settings.delivery_timeout_ms,
    )
