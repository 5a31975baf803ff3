"""Partitions: where they are; and adding more."""

from __future__ import annotations

from typing import Final

from myqueue.errors import InvalidRequest, PartitionExists
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext

blueprint = ApiBlueprint("partitions")
_BROKER: Final = catalog.OBJECT | {
    "properties": {
        "id": catalog.NUMBER,
        "address": catalog.nullable(catalog.TEXT),
    }
}
_ROW: Final = {
    "topic": catalog.TEXT,
    "partition": catalog.NUMBER,
    "brokers": {"type": "array", "items": _BROKER},
    "leader": catalog.nullable(_BROKER),
    "term": catalog.NUMBER,
    "preferred": catalog.NUMBER,
    "leaving": catalog.NUMBERS,
    "silent": catalog.NUMBERS,
    "start": catalog.NUMBER,
    "end": catalog.NUMBER,
    "bytes": catalog.NUMBER,
}


@blueprint.operation(
    "GET",
    "/partitions",
    "Where partitions are",
    parameters=(catalog.ANY_TOPIC, catalog.PARTITION),
    adds={"partitions": catalog.rows(_ROW), **_ROW},
)
def where_partitions_are(
    context: RequestContext, topic: str | None, partition: int | None
) -> Facts:
    """Show the brokers that hold each partition, which of them leads, and since which term; by
    number: the preferred leader (preferred), brokers that are silent (silent), and brokers that
    others are replacing (leaving). All partitions of the topic if none is named, and of all topics
    without one.
    """
    if topic is None and partition is not None:
        raise InvalidRequest("partition is given without its topic")
    if topic is not None and partition is not None:
        context.sdk.newest_partition(topic, partition)
    description = None if topic is None else context.sdk.topic(topic)
    topics = [description] if description else context.sdk.read("topics", detail=True)["topics"]
    addresses = {row["node"]: row["address"] for row in context.sdk.read("brokers")["brokers"]}
    rows = [row for facts in topics for row in _rows(facts, addresses)]
    if topic is None:
        return {"partitions": rows}
    return {"topic": topic, "partitions": rows} if partition is None else rows[partition]


def _rows(topic: Facts, addresses: dict[int, str]) -> list[Facts]:
    def broker(node: int) -> Facts:
        return {"id": node, "address": addresses.get(node)}

    return [
        {
            "topic": topic["topic"],
            "partition": row["partition"],
            "brokers": [broker(node) for node in row["replicas"]],
            "leader": broker(row["leader"]) if row["leader"] else None,
            "term": row["term"],
            "preferred": row["preferred"],
            "leaving": row["leaving"],
            "silent": row["silent"],
            "start": row["start"],
            "end": row["end"],
            "bytes": row["bytes"],
        }
        for row in topic["partitions"]
    ]


@blueprint.operation(
    "POST",
    "/partitions",
    "Add partitions",
    role=ADMIN,
    keyed=True,
    parameters=(
        catalog.TOPIC,
        catalog.NEW_PARTITION,
        catalog.SOME_PRODUCER_ID,
        catalog.COUNT,
    ),
    adds={"partition": catalog.NUMBER, "partitions": catalog.NUMBERS},
)
def add_partitions(
    context: RequestContext, topic: str, partition: int | None, producer_id: int | None, count: int
) -> Facts:
    """Add partitions; the topic's consumers read a new one from its first message. With a number:
    that partition, which must be the next one; 409 if it already exists.
    """
    if producer_id is not None:
        context.registered("producer", producer_id, topic, None)
    if partition is None:
        wanted: Facts = {"topic": topic, "count": count}
        key = context.key("add_partitions", topic)
    elif count != 1:
        raise InvalidRequest(f"partition names one, and count is {count}: give only one of both")
    else:
        _check_is_next(context, topic, partition)
        wanted = {"topic": topic, "to": partition + 1}
        key = context.key("add_partitions", topic, partition)
    added = context.sdk.update("grow_topic", wanted, key)["partitions"]
    if not added:
        raise PartitionExists(f"partition {partition} of {topic} already exists")
    context.sdk.session.refresh((topic,))
    return {"partition": added[0], "partitions": added}


def _check_is_next(context: RequestContext, topic: str, partition: int) -> None:
    """Refuse a number that leaves a gap. A repeat with a key may name a partition that already
    exists, so the managers decide about those.
    """
    count = len(context.sdk.topic(topic)["partitions"])
    if partition > count:
        count = len(context.sdk.newest("topic", topic=topic)["partitions"])
    if partition > count:
        raise InvalidRequest(
            f"{topic} has {count} partitions, so the next one is {count}, not {partition}",
            hint=f"Add {count} first, or several at once with count.",
        )
