"""Producers: register, produce, heartbeat."""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import InvalidRequest, UnknownTopic
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.operations import WRITE, ApiBlueprint, Facts, PendingResult, RequestContext
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
    parameters=(parameter_catalog.TOPIC, parameter_catalog.OWN_PARTITION),
    adds={
        "producer_id": parameter_catalog.NUMBER,
        "partitions": parameter_catalog.NUMBERS,
        "topic": parameter_catalog.TEXT,
        "partition": parameter_catalog.NUMBER,
    },
)
def register_producer(ask: RequestContext, topic: str, partition: int | None) -> Facts:
    """Register a producer of exactly this topic, which is created if it does not exist; the answer
    has its id. With a partition, which must exist, messages for which this producer names none go
    there.
    """
    own = () if partition is None else (partition,)
    key = ask.key("register_producer", topic, *own)
    reply = ask.sdk.register("producer", topic, partition, key)
    return {
        "producer_id": reply["producer_id"],
        "partitions": _partitions(ask, topic),
        "topic": topic,
    } | ({} if partition is None else {"partition": partition})


def _partitions(ask: RequestContext, topic: str) -> list[int]:
    try:
        return list(range(len(ask.sdk.topic(topic)["partitions"])))
    except UnknownTopic:  # deleted in between
        return []


@blueprint.operation(
    "POST",
    "/producer/heartbeat",
    "A producer is alive",
    role=WRITE,
    parameters=(parameter_catalog.ANY_PRODUCER_ID,),
    adds={"producer_id": parameter_catalog.NUMBER},
)
def heartbeat_of_producer(ask: RequestContext, producer_id: int) -> Facts:
    """Tell that a producer is alive. Every request with a producer_id counts as a heartbeat."""
    ask.sdk.client("producer", producer_id)
    ask.sdk.heard_of("producer", producer_id)
    return {"producer_id": producer_id}


_PRODUCE: Final = (
    parameter_catalog.TOPIC_OF_ID,
    parameter_catalog.PRODUCER_ID,
    parameter_catalog.MESSAGE,
    parameter_catalog.MESSAGES,
    parameter_catalog.PARTITION,
    parameter_catalog.KEY,
    parameter_catalog.ENCODING,
)
_STORED: Final = {
    "partition": parameter_catalog.nullable(parameter_catalog.NUMBER),
    "offset": parameter_catalog.NUMBER,
    "offsets": parameter_catalog.NUMBERS,
    "partitions": parameter_catalog.NUMBERS,
}


def _quick(
    ask: RequestContext,
    topic: str | None,
    producer_id: int,
    message: str | None,
    messages: list[Any] | None,
    partition: int | None,
    key: str | None,
    encoding: str,
) -> PendingResult | None:
    """Produce one message of a producer that is known here; None if that has to wait."""
    sdk = ask.sdk
    producer = sdk.ready_producer()
    is_one = message is not None and messages is None
    route = sdk.find_registered("producer", producer_id, topic, partition)
    if producer is None or not is_one or route is None:
        return None
    topic, partition = route[0].name, route[1]
    value = to_bytes("message", message, encoding)
    its_key = None if key is None else to_bytes("key", key, encoding)
    request_id = ask.key("produce", topic, producer_id)
    if request_id is None:
        sent = producer.send(topic, value, key=its_key, partition=partition)
        return PendingResult(sent, lambda one: {"partition": one.partition, "offset": one.offset})
    keys = None if its_key is None else [its_key]
    stored = producer.send_once(
        topic, [value], request_id=request_id, keys=keys, partition=partition
    )
    return PendingResult(
        stored, lambda all_: {"partition": all_[0].partition, "offset": all_[0].offset}
    )


@blueprint.operation(
    "POST",
    "/producer/produce",
    "Produce messages",
    role=WRITE,
    keyed=True,
    parameters=_PRODUCE,
    adds=_STORED,
    quick=_quick,
)
def produce(
    ask: RequestContext,
    topic: str | None,
    producer_id: int,
    message: str | None,
    messages: list[Any] | None,
    partition: int | None,
    key: str | None,
    encoding: str,
) -> Facts:
    """Store one message, or a list of them. The answer comes when they are on disk on a majority of
    the replicas.

    Without a partition, and if the producer was registered without one, the key decides; without a
    key all partitions get equally many.
    """
    topic, partition = ask.sdk.check("producer", producer_id, topic, partition)
    request_id = ask.key("produce", topic, producer_id)
    if (message is None) == (messages is None):
        raise InvalidRequest("give message, or a list of messages")
    if messages is None:
        value = to_bytes("message", message, encoding)
        its_key = None if key is None else to_bytes("key", key, encoding)
        if request_id is None:
            at, offset = ask.sdk.produce(topic, value, its_key, partition)
        else:
            ((at, offset),) = ask.sdk.produce_once(topic, [value], [its_key], partition, request_id)
        return {"partition": at, "offset": offset}
    values, keys = _unpacked(messages, key, encoding)
    if request_id is None:
        places = ask.sdk.produce_many(topic, values, keys, partition)
    else:
        places = ask.sdk.produce_once(topic, values, keys, partition, request_id)
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
    if len(messages) > parameter_catalog.MESSAGES_PRODUCED_MAX:
        raise InvalidRequest(
            f"{len(messages)} messages; one request takes {parameter_catalog.MESSAGES_PRODUCED_MAX}"
        )
    common = None if key is None else to_bytes("key", key, encoding)
    if encoding == parameter_catalog.UTF8 and set(map(type, messages)) == {str}:
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
        if len(given) != 1 or how not in parameter_catalog.ENCODINGS:
            raise InvalidRequest(
                f"{name} needs message, and encoding is one of {parameter_catalog.ENCODINGS}"
            )
        values.append(to_bytes(name, given[0], how))
        own = row.get("key")
        keys.append(common if own is None else to_bytes(f"key of {name}", own, how))
    return values, keys


def _quick_named(
    ask: RequestContext, producer_id: int, partition: int | None, **values: Any
) -> PendingResult | None:
    """Produce to a named partition; without one, the pool checks if the producer has its own."""
    if partition is None:
        return None
    return _quick(ask, producer_id=producer_id, partition=partition, **values)


@blueprint.operation(
    "POST",
    "/logs",
    "Produce to a named partition",
    also=("/messages",),
    role=WRITE,
    keyed=True,
    parameters=(*_PRODUCE[:4], parameter_catalog.LOG_PARTITION, *_PRODUCE[5:]),
    adds=_STORED,
    quick=_quick_named,
)
def produce_to_partition(
    ask: RequestContext, topic: str | None, producer_id: int, partition: int | None, **values: Any
) -> Facts:
    """Produce to a partition, which is named here or when the producer was registered."""
    topic, partition = ask.sdk.check("producer", producer_id, topic, partition)
    if partition is None:
        raise InvalidRequest(f"partition is missing: {parameter_catalog.LOG_PARTITION.about}")
    return produce(ask, topic=topic, producer_id=producer_id, partition=partition, **values)
