"""Consumers: register, consume, size, heartbeat."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from myqueue import Message
from myqueue.errors import BatchUnreadable
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.endpoints.registering import REGISTERED, heartbeat, register
from myqueue.gateway.api.operations import (
    ApiBlueprint,
    Facts,
    MustWait,
    PendingResult,
    RequestContext,
)
from myqueue.gateway.api.parameters import BASE64, from_bytes

blueprint = ApiBlueprint("consumers")
FAILURE: Final = "failure"


@blueprint.operation(
    "POST",
    "/consumer/register",
    "Register a consumer",
    also=("/consumers",),
    keyed=True,
    makes=True,
    parameters=(catalog.TOPIC, catalog.OWN_PARTITION),
    adds={"consumer_id": catalog.NUMBER, **REGISTERED},
)
def register_consumer(context: RequestContext, topic: str, partition: int | None) -> Facts:
    """Register a consumer of this topic, which must exist; the answer has its id. It begins with
    the first message that is kept. With a partition, which must exist, its requests that name none
    read from there.
    """
    return register(context, "consumer", topic, partition)


@blueprint.operation(
    "POST",
    "/consumer/heartbeat",
    "A consumer is alive",
    parameters=(catalog.ANY_CONSUMER_ID,),
    adds={"consumer_id": catalog.NUMBER},
)
def heartbeat_of_consumer(context: RequestContext, consumer_id: int) -> Facts:
    """Tell that a consumer is alive. Every request with a consumer_id counts as a heartbeat."""
    return heartbeat(context, "consumer", consumer_id)


_CONSUME: Final = (
    catalog.TOPIC_OF_ID,
    catalog.CONSUMER_ID,
    catalog.PARTITION,
    catalog.MAX,
    catalog.WAIT_MS,
    catalog.ENCODING,
    catalog.EMPTY,
    catalog.ON_DAMAGED,
)
_TAKEN: Final = {
    "status": {"enum": ["success", "failure"]},
    "message": catalog.nullable(catalog.TEXT),
    "log_message": catalog.TEXT,
    "partition": catalog.nullable(catalog.NUMBER),
    "offset": catalog.nullable(catalog.NUMBER),
    "key": catalog.nullable(catalog.TEXT),
    "timestamp": catalog.NUMBER,
    "encoding": catalog.TEXT,
    "empty": catalog.FLAG,
    "messages": catalog.ROWS,
    "skipped": catalog.SKIPPED,
}


class ConsumeRequest(NamedTuple):
    """The parameters of a consume."""

    topic: str | None
    consumer_id: int
    partition: int | None
    max: int
    wait_ms: int
    encoding: str
    empty: str | None
    on_damaged: str


@blueprint.operation(
    "GET POST",
    "/consumer/consume",
    "Take the next message",
    keyed=True,
    parameters=_CONSUME,
    request=ConsumeRequest,
    adds=_TAKEN,
    quick=True,
)
def consume(context: RequestContext, request: ConsumeRequest) -> Facts | PendingResult:
    """Take the next message for this consumer, once; every consumer gets every message.

    Without a partition, and if the consumer was registered without one, all partitions are asked in
    turn; each gives its messages in order. If no message is left, status is failure, with HTTP 200,
    message is null and empty is true; empty=success asks for the status success. With wait_ms it
    waits for a message for at most this time. With max > 1 the answer has messages, a list, which
    may be empty.

    A batch that can't be unpacked is the error BATCH_UNREADABLE, which says where it ends and has
    the other messages that were taken. With on_damaged=skip exactly its messages are skipped, and
    skipped lists them; if that took long, messages after them may not be found yet.
    """
    return _take(context, request, False)


@blueprint.operation(
    "GET",
    "/logs",
    "Take from a named partition",
    also=("/messages",),
    keyed=True,
    parameters=(*_CONSUME[:2], catalog.LOG_PARTITION, *_CONSUME[3:]),
    request=ConsumeRequest,
    adds=_TAKEN,
    quick=True,
)
def consume_from_partition(
    context: RequestContext, request: ConsumeRequest
) -> Facts | PendingResult:
    """Take from a partition, which is named here or when the consumer was registered."""
    return _take(context, request, True)


def _take(
    context: RequestContext, request: ConsumeRequest, needs_partition: bool
) -> Facts | PendingResult:
    """Take what is there now; if nothing is, and the request waits for a message, wait in the
    pool.
    """
    sdk, number = context.sdk, request.consumer_id
    topic, partition = context.registered(
        "consumer", number, request.topic, request.partition, needs_partition
    )
    key = context.key("consume", topic, number)
    empty_status = request.empty or sdk.empty_status
    if context.may_wait:
        with sdk.wait_slots.hold_for(request.wait_ms) as may_wait_ms:
            result = sdk.taker.take_all(
                topic,
                number,
                partition=partition,
                max_messages=request.max,
                wait_ms=may_wait_ms,
                key=key,
                timeout_ms=None,
                on_damaged=request.on_damaged,
                ended=sdk.wait_slots.stopping.is_set,
            )
        return _facts(result, request, empty_status)
    routes = sdk.session.routes.topic(topic)
    # With a key a take that finds nothing is remembered, so it has to wait before.
    if routes is None or (request.wait_ms and key is not None):
        raise MustWait

    def finish(result: Any) -> Facts:
        if request.wait_ms and not (result.messages or result.skipped or result.damaged):
            raise MustWait
        return _facts(result, request, empty_status)

    taking = sdk.taker.begin(
        routes,
        number,
        partition=partition,
        max_messages=request.max,
        key=key,
        on_damaged=request.on_damaged,
    )
    return PendingResult(taking, finish)


def _facts(result: Any, request: ConsumeRequest, empty_status: str) -> Facts:
    encoding = request.encoding
    if result.damaged is not None:
        raise _unreadable(result.damaged, [_row(message, encoding) for message in result.messages])
    facts = _of_messages(result.messages, request.max, encoding, empty_status)
    if result.skipped:
        facts["skipped"] = [run._asdict() for run in result.skipped]
    return facts


def _unreadable(error: BatchUnreadable, rows: list[Facts]) -> BatchUnreadable:
    """Add to the error how to continue, and the other messages that were taken: no other request
    gets them.
    """
    error.facts = {
        "topic": error.topic,
        "partition": error.partition,
        "offset": error.offset,
        "next_offset": error.next_offset,
        "messages": rows,
    }
    error.hint = (
        "Repeat it with on_damaged=skip, and with its Idempotency-Key if it had one: exactly this"
        f" batch is skipped, up to offset {error.next_offset}."
    )
    return error


def _of_messages(taken: list[Message], most: int, encoding: str, empty_status: str) -> Facts:
    if most > 1:
        rows = [_row(message, encoding) for message in taken]
        return {"messages": rows} if rows else {"messages": [], "message": None, "empty": True}
    if taken:
        row = _row(taken[0], encoding)
        row["log_message"] = row["message"]  # its name in some of the documents
        return row
    if empty_status == FAILURE:
        return {"status": FAILURE, "message": None, "empty": True}
    return {"message": None, "partition": None, "offset": None, "empty": True}


def _row(message: Message, encoding: str) -> Facts:
    """Return a message as JSON: as text if it is text and base64 was not asked for."""
    row: Facts = {}
    try:
        row["message"] = from_bytes(message.value, encoding)
        key = from_bytes(message.key, encoding)
    except UnicodeDecodeError:
        encoding = BASE64
        row["message"], key = from_bytes(message.value, BASE64), from_bytes(message.key, BASE64)
    row["partition"], row["offset"], row["timestamp"] = (
        message.partition,
        message.offset,
        message.timestamp,
    )
    if key is not None:
        row["key"] = key
    if encoding == BASE64:
        row["encoding"] = BASE64
    return row


@blueprint.operation(
    "GET",
    "/size",
    "Messages left",
    parameters=(
        catalog.TOPIC_OF_ID,
        catalog.CONSUMER_ID,
        catalog.PARTITION,
    ),
    adds={"size": catalog.NUMBER},
)
def size(
    context: RequestContext, topic: str | None, consumer_id: int, partition: int | None
) -> Facts:
    """Count the messages that this consumer has not taken yet, in all its partitions or in one."""
    topic, partition = context.registered("consumer", consumer_id, topic, partition)
    return {"size": context.sdk.taker.left(topic, consumer_id, partition)}
