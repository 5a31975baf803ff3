"""Partitions: where they are; and adding more."""

from __future__ import annotations

from typing import Final

from myqueue.errors import InvalidRequest, PartitionExists
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext

blueprint = ApiBlueprint("partitions")
_BROKER: Final = parameter_catalog.OBJECT | {
    "properties": {
        "id": parameter_catalog.NUMBER,
        "address": parameter_catalog.nullable(parameter_catalog.TEXT),
    }
}
_ROW: Final = {
    "topic": parameter_catalog.TEXT,
    "partition": parameter_catalog.NUMBER,
    "brokers": {"type": "array", "items": _BROKER},
    "leader": parameter_catalog.nullable(_BROKER),
    "term": parameter_catalog.NUMBER,
    "preferred": parameter_catalog.NUMBER,
    "leaving": parameter_catalog.NUMBERS,
    "silent": parameter_catalog.NUMBERS,
    "start": parameter_catalog.NUMBER,
    "end": parameter_catalog.NUMBER,
    "bytes": parameter_catalog.NUMBER,
}


@blueprint.operation(
    "GET",
    "/partitions",
    "Where partitions are",
    parameters=(parameter_catalog.ANY_TOPIC, parameter_catalog.PARTITION),
    adds={"partitions": parameter_catalog.rows(_ROW), **_ROW},
)
def where_partitions_are(ask: RequestContext, topic: str | None, partition: int | None) -> Facts:
    """Show the brokers that hold each partition, which of them leads, and since which term; by
    number: the preferred leader (preferred), brokers that are silent (silent), and brokers that
    others are replacing (leaving). All partitions of the topic if none is named, and of all topics
    without one.
    """
    if topic is None and partition is not None:
        raise InvalidRequest("partition is given without its topic")
    if topic is not None and partition is not None:
        ask.sdk.newest_partition(topic, partition)
    description = None if topic is None else ask.sdk.topic(topic)
    topics = [description] if description else ask.sdk.read("topics", detail=True)["topics"]
    addresses = {row["node"]: row["address"] for row in ask.sdk.read("brokers")["brokers"]}
    rows = [row for one in topics for row in _rows(one, addresses)]
    if topic is None:
        return {"partitions": rows}
    return {"topic": topic, "partitions": rows} if partition is None else rows[partition]


def _rows(topic: Facts, addresses: dict[int, str]) -> list[Facts]:
    def broker(node: int) -> Facts:
        return {"id": node, "address": addresses.get(node)}

    return [
        {
            "topic": topic["topic"],
            "partition": found["partition"],
            "brokers": [broker(node) for node in found["replicas"]],
            "leader": broker(found["leader"]) if found["leader"] else None,
            "term": found["term"],
            "preferred": found["preferred"],
            "leaving": found["leaving"],
            "silent": found["silent"],
            "start": found["start"],
            "end": found["end"],
            "bytes": found["bytes"],
        }
        for found in topic["partitions"]
    ]


@blueprint.operation(
    "POST",
    "/partitions",
    "Add partitions",
    role=ADMIN,
    keyed=True,
    parameters=(
        parameter_catalog.TOPIC,
        parameter_catalog.NEW_PARTITION,
        parameter_catalog.SOME_PRODUCER_ID,
        parameter_catalog.COUNT,
    ),
    adds={"partition": parameter_catalog.NUMBER, "partitions": parameter_catalog.NUMBERS},
)
def add_partitions(
    ask: RequestContext, topic: str, partition: int | None, producer_id: int | None, count: int
) -> Facts:
    """Add partitions; the topic's consumers read a new one from its first message. With a number:
    that partition, which must be the next one; 409 if it already exists.
    """
    if producer_id is not None:
        ask.registered("producer", producer_id, topic, None)
    if partition is None:
        wanted: Facts = {"topic": topic, "count": count}
        key = ask.key("add_partitions", topic)
    elif count != 1:
        raise InvalidRequest(f"partition names one, and count is {count}: give only one of both")
    else:
        _check_is_next(ask, topic, partition)
        wanted = {"topic": topic, "to": partition + 1}
        key = ask.key("add_partitions", topic, partition)
    added = ask.sdk.update("grow_topic", wanted, key)["partitions"]
    if not added:
        raise PartitionExists(f"partition {partition} of {topic} already exists")
    ask.sdk.session.refresh((topic,))
    return {"partition": added[0], "partitions": added}


def _check_is_next(ask: RequestContext, topic: str, partition: int) -> None:
    """Refuse a number that leaves a gap. A repeat with a key may name a partition that already
    exists, so the managers decide about those.
    """
    count = len(ask.sdk.topic(topic)["partitions"])
    if partition > count:
        count = len(ask.sdk.newest("topic", topic=topic)["partitions"])
    if partition > count:
        raise InvalidRequest(
            f"{topic} has {count} partitions, so the next one is {count}, not {partition}",
            hint=f"Add {count} first, or several at once with count.",
        )
