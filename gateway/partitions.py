"""Partitions: where they are, and more of them (P1, P2, C6)."""

from __future__ import annotations

from typing import Any, Final

from myqueue.gateway import names
from myqueue.gateway.routes import ADMIN, Ask, Facts, Noun

blueprint = Noun("partitions")
_BROKER: Final = names.OBJECT | {
    "properties": {"id": names.NUMBER, "address": names.nullable(names.TEXT)}
}
_ROW: Final = {
    "partition": names.NUMBER, "brokers": {"type": "array", "items": _BROKER},
    "leader": names.nullable(_BROKER), "term": names.NUMBER, "preferred": names.NUMBER,
    "leaving": names.NUMBERS, "silent": names.NUMBERS,
    "start": names.NUMBER, "end": names.NUMBER, "bytes": names.NUMBER,
}  # fmt: skip


@blueprint.operation(
    "GET", "/partitions", "Where partitions are", parameters=(names.TOPIC, names.PARTITION),
    adds={"topic": names.TEXT, "partitions": names.rows(_ROW), **_ROW},
)  # fmt: skip
def where_partitions_are(ask: Ask, topic: str, partition: int | None) -> Facts:
    """The brokers that hold it, which of them leads, and since which term; by number: the one that
    is to lead if it can (preferred), those that are silent, and those that others are about to
    replace (leaving). Of all partitions if none is named.
    """
    if partition is not None:
        ask.sdk.newest_partition(topic, partition)
    found = ask.sdk.topic(topic)
    addresses = {row["node"]: row["address"] for row in ask.sdk.read("brokers")["brokers"]}
    rows = [_row(one, addresses) for one in found["partitions"]]
    if partition is None:
        return {"topic": topic, "partitions": rows}
    return {"topic": topic, **rows[partition]}


def _row(found: dict[str, Any], addresses: dict[int, str]) -> Facts:
    def broker(node: int) -> Facts:
        return {"id": node, "address": addresses.get(node)}

    return {
        "partition": found["partition"], "brokers": [broker(node) for node in found["replicas"]],
        "leader": broker(found["leader"]) if found["leader"] else None,
        "term": found["term"], "preferred": found["preferred"],
        "leaving": found["leaving"], "silent": found["silent"],
        "start": found["start"], "end": found["end"], "bytes": found["bytes"],
    }  # fmt: skip


@blueprint.operation(
    "POST", "/partitions", "Add partitions", role=ADMIN, keyed=True,
    parameters=(names.TOPIC, names.SOME_PRODUCER_ID, names.COUNT),
    adds={"partition": names.NUMBER, "partitions": names.NUMBERS},
)  # fmt: skip
def add_partitions(ask: Ask, topic: str, producer_id: int | None, count: int) -> Facts:
    """Consumers that are there read a new partition from its first message on."""
    if producer_id is not None:
        ask.sdk.check("producer", producer_id, topic)
    key = ask.key("add_partitions", topic)
    added = ask.sdk.update("grow_topic", {"topic": topic, "count": count}, key)["partitions"]
    ask.sdk.session.refresh((topic,))
    return {"partition": added[0], "partitions": added}
