"""Producers: register, produce, heartbeat."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from myqueue import RecordMetadata
from myqueue.errors import InvalidRequest
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.endpoints.registering import REGISTERED, heartbeat, register
from myqueue.gateway.api.operations import (
    WRITE,
    ApiBlueprint,
    Facts,
    MustWait,
    PendingResult,
    RequestContext,
)
from myqueue.gateway.api.parameters import to_bytes

blueprint = ApiBlueprint("producers")
MESSAGE_NAMES: Final = ("message", "log_message", "value")


@blueprint.operation(
    "POST",
    "/producer/register",
    "Register a producer",
    also=("/producers",),
    role=WRITE,
    keyed=True,
    makes=True,
    parameters=(catalog.TOPIC, catalog.OWN_PARTITION),
    adds={"producer_id": catalog.NUMBER, **REGISTERED},
)
def register_producer(context: RequestContext, topic: str, partition: int | None) -> Facts:
    """Register a producer of exactly this topic, which is created if it does not exist; the answer
    has its id. With a partition, which must exist, messages for which this producer names none go
    there.
    """
    return register(context, "producer", topic, partition)


@blueprint.operation(
    "POST",
    "/producer/heartbeat",
    "A producer is alive",
    role=WRITE,
    parameters=(catalog.ANY_PRODUCER_ID,),
    adds={"producer_id": catalog.NUMBER},
)
def heartbeat_of_producer(context: RequestContext, producer_id: int) -> Facts:
    """Tell that a producer is alive. Every request with a producer_id counts as a heartbeat."""
    return heartbeat(context, "producer", producer_id)


_PRODUCE: Final = (
    catalog.TOPIC_OF_ID,
    catalog.PRODUCER_ID,
    catalog.MESSAGE,
    catalog.MESSAGES,
    catalog.PARTITION,
    catalog.KEY,
    catalog.ENCODING,
)
_STORED: Final = {
    "partition": catalog.nullable(catalog.NUMBER),
    "offset": catalog.NUMBER,
    "offsets": catalog.NUMBERS,
    "partitions": catalog.NUMBERS,
}


class ProduceRequest(NamedTuple):
    """The parameters of a produce."""

    topic: str | None
    producer_id: int
    message: str | None
    messages: list[Any] | None
    partition: int | None
    key: str | None
    encoding: str


@blueprint.operation(
    "POST",
    "/producer/produce",
    "Produce messages",
    role=WRITE,
    keyed=True,
    parameters=_PRODUCE,
    request=ProduceRequest,
    adds=_STORED,
    quick=True,
)
def produce(context: RequestContext, request: ProduceRequest) -> Facts | PendingResult:
    """Store one message, or a list of them. The answer comes when they are on disk on a majority of
    the replicas.

    Without a partition, and if the producer was registered without one, the key decides; without a
    key all partitions get equally many.
    """
    return _store(context, request, False)


@blueprint.operation(
    "POST",
    "/logs",
    "Produce to a named partition",
    also=("/messages",),
    role=WRITE,
    keyed=True,
    parameters=(*_PRODUCE[:4], catalog.LOG_PARTITION, *_PRODUCE[5:]),
    request=ProduceRequest,
    adds=_STORED,
    quick=True,
)
def produce_to_partition(context: RequestContext, request: ProduceRequest) -> Facts | PendingResult:
    """Produce to a partition, which is named here or when the producer was registered."""
    return _store(context, request, True)


def _store(
    context: RequestContext, request: ProduceRequest, needs_partition: bool
) -> Facts | PendingResult:
    topic, partition = context.registered(
        "producer", request.producer_id, request.topic, request.partition, needs_partition
    )
    producer, encoding = context.sdk.producer, request.encoding
    request_id = context.key("produce", topic, request.producer_id)
    if (request.message is None) == (request.messages is None):
        raise InvalidRequest("give message, or a list of messages")
    if not context.may_wait and (request.messages is not None or not producer.has_room()):
        raise MustWait
    if request.messages is not None:
        values, keys = _unpacked(request.messages, request.key, encoding)
        return _of_list(producer.store_list(topic, values, keys, partition, request_id))
    value = to_bytes("message", request.message, encoding)
    key = None if request.key is None else to_bytes("key", request.key, encoding)
    return PendingResult(
        producer.begin(topic, value, key, partition, request_id),
        _of_one if request_id is None else _of_only_one,
    )


def _of_one(stored: RecordMetadata) -> Facts:
    return {"partition": stored.partition, "offset": stored.offset}


def _of_only_one(stored: list[RecordMetadata]) -> Facts:
    return _of_one(stored[0])


def _of_list(places: list[tuple[int, int]]) -> Facts:
    numbers = [at for at, _ in places]
    offsets = [offset for _, offset in places]
    alone = numbers.count(numbers[0]) == len(numbers)
    more: Facts = {} if alone else {"partitions": numbers}
    return {
        "partition": numbers[0] if alone else None,
        "offset": offsets[0],
        "offsets": offsets,
    } | more


def _unpacked(
    messages: list[Any], key: str | None, encoding: str
) -> tuple[list[bytes], list[bytes | None]]:
    """Read a list of messages: each is a text, or an object of message, key, encoding."""
    if len(messages) > catalog.MESSAGES_PRODUCED_MAX:
        raise InvalidRequest(
            f"{len(messages)} messages; one request takes {catalog.MESSAGES_PRODUCED_MAX}"
        )
    common = None if key is None else to_bytes("key", key, encoding)
    if encoding == catalog.UTF8 and set(map(type, messages)) == {str}:
        try:
            return list(map(str.encode, messages)), [common] * len(messages)
        except UnicodeEncodeError:
            pass  # the loop below says which one it is
    values: list[bytes] = []
    keys: list[bytes | None] = []
    for at, item in enumerate(messages):
        name = f"messages[{at}]"
        row = item if type(item) is dict else {"message": item}
        given = [row[word] for word in MESSAGE_NAMES if row.get(word) is not None]
        how = row.get("encoding", encoding)
        if len(given) != 1 or how not in catalog.ENCODINGS:
            raise InvalidRequest(
                f"{name} needs message, and encoding is one of {catalog.ENCODINGS}"
            )
        values.append(to_bytes(name, given[0], how))
        own = row.get("key")
        keys.append(common if own is None else to_bytes(f"key of {name}", own, how))
    return values, keys
