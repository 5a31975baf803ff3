"""Consumers: register, consume, size, heartbeat (Q3, Q6, Q7, R5)."""

from __future__ import annotations

from typing import Any, Final

from myqueue import Message
from myqueue.gateway import names
from myqueue.gateway.parameters import BASE64, from_bytes
from myqueue.gateway.routes import Ask, Facts, Later, Noun

blueprint = Noun("consumers")


@blueprint.operation(
    "POST", "/consumer/register", "Register a consumer", also=("/consumers",), keyed=True,
    parameters=(names.TOPIC,),
    adds={"consumer_id": names.NUMBER, "partitions": names.NUMBERS, "topic": names.TEXT},
)  # fmt: skip
def register_consumer(ask: Ask, topic: str) -> Facts:
    """Gives an id for this topic, which must exist. It begins with the first message kept."""
    found = ask.sdk.register("consumer", topic, ask.key("register_consumer", topic))
    return {"consumer_id": found["consumer_id"], "partitions": found["partitions"], "topic": topic}


@blueprint.operation(
    "POST", "/consumer/heartbeat", "A consumer is alive",
    parameters=(names.ANY_CONSUMER_ID,), adds={"consumer_id": names.NUMBER},
)  # fmt: skip
def heartbeat_of_consumer(ask: Ask, consumer_id: int) -> Facts:
    """Every request with a consumer_id counts as one."""
    ask.sdk.client("consumer", consumer_id)
    ask.sdk.heard_of("consumer", consumer_id)
    return {"consumer_id": consumer_id}


_CONSUME: Final = (
    names.TOPIC, names.CONSUMER_ID, names.PARTITION, names.MAX, names.WAIT_MS, names.ENCODING,
)  # fmt: skip
_TAKEN: Final = {
    "message": names.nullable(names.TEXT), "partition": names.nullable(names.NUMBER),
    "offset": names.nullable(names.NUMBER), "key": names.nullable(names.TEXT),
    "timestamp": names.NUMBER, "encoding": names.TEXT, "empty": names.FLAG, "messages": names.ROWS,
}  # fmt: skip


def _quick(
    ask: Ask, topic: str, consumer_id: int, partition: int | None, max: int, wait_ms: int,
    encoding: str,
) -> Later | None:  # fmt: skip
    """What is there now; who wants to wait, and finds nothing, does so in a thread."""
    known = ask.sdk.knows("consumer", consumer_id, topic, partition)
    key = ask.key("consume", topic, consumer_id)
    if known is None or (wait_ms and key is not None):
        return None
    taken = ask.sdk.taker.begin(known, consumer_id, partition=partition, max_messages=max, key=key)

    def finish(found: Any) -> Facts | None:
        return None if wait_ms and not found.messages else _facts(found.messages, max, encoding)

    return Later(taken, finish)


@blueprint.operation(
    "GET", "/consumer/consume", "Take the next message", keyed=True, parameters=_CONSUME,
    adds=_TAKEN, quick=_quick,
)  # fmt: skip
@blueprint.operation(
    "POST",
    "/consumer/consume",
    "Take the next message",
    keyed=True,
    parameters=_CONSUME,
    adds=_TAKEN,
    quick=_quick,
)
def consume(
    ask: Ask, topic: str, consumer_id: int, partition: int | None, max: int, wait_ms: int,
    encoding: str,
) -> Facts:  # fmt: skip
    """The next message for this consumer, once; every consumer gets every message.

    Without a partition all are asked in turn, each gives its messages in order. If nothing is left,
    message is null and empty is true; with wait_ms it waits so long for one. With max > 1:
    messages, a list.
    """
    ask.sdk.check("consumer", consumer_id, topic)
    if partition is not None:
        ask.sdk.check_partition(topic, partition)
    key = ask.key("consume", topic, consumer_id)
    with ask.sdk.room.waiting(wait_ms) as may_wait_ms:
        found = ask.sdk.take(topic, consumer_id, partition, max, may_wait_ms, key)
    return _facts(found, max, encoding)


def _facts(found: list[Message], most: int, encoding: str) -> Facts:
    if most > 1:
        rows = [_row(message, encoding) for message in found]
        return {"messages": rows} if rows else {"messages": [], "message": None, "empty": True}
    if found:
        return _row(found[0], encoding)
    return {"message": None, "partition": None, "offset": None, "empty": True}


def _row(message: Message, encoding: str) -> Facts:
    """As text if it is text, and base64 was not asked for."""
    row: Facts = {}
    try:
        row["message"] = from_bytes(message.value, encoding)
        key = from_bytes(message.key, encoding)
    except UnicodeDecodeError:
        encoding = BASE64
        row["message"], key = from_bytes(message.value, BASE64), from_bytes(message.key, BASE64)
    row["partition"], row["offset"], row["timestamp"] = (
        message.partition, message.offset, message.timestamp,
    )  # fmt: skip
    if key is not None:
        row["key"] = key
    if encoding == BASE64:
        row["encoding"] = BASE64
    return row


@blueprint.operation(
    "GET", "/logs", "Take from a named partition", also=("/messages",), keyed=True,
    parameters=(*_CONSUME[:2], names.NAMED_PARTITION, *_CONSUME[3:]), adds=_TAKEN, quick=_quick,
)  # fmt: skip
def consume_from_partition(ask: Ask, **values: Any) -> Facts:
    """As /consumer/consume, with the partition named."""
    return consume(ask, **values)


@blueprint.operation(
    "GET", "/size", "Messages that are left",
    parameters=(names.TOPIC, names.CONSUMER_ID, names.PARTITION), adds={"size": names.NUMBER},
)  # fmt: skip
def size(ask: Ask, topic: str, consumer_id: int, partition: int | None) -> Facts:
    """How many messages this consumer has not taken yet, in all partitions or in one."""
    ask.sdk.check("consumer", consumer_id, topic)
    if partition is not None:
        ask.sdk.check_partition(topic, partition)
    return {"size": ask.sdk.taker.left(topic, consumer_id, partition)}
