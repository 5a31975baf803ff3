"""Registration and heartbeat: the same for producers and for consumers."""

from __future__ import annotations

from typing import Final

from myqueue.errors import UnknownTopic
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.operations import Facts, RequestContext

REGISTERED: Final = {
    "partitions": catalog.NUMBERS,
    "topic": catalog.TEXT,
    "partition": catalog.NUMBER,
}


def register(context: RequestContext, kind: str, topic: str, partition: int | None) -> Facts:
    """Register a "producer" or "consumer"; return its id and the partitions of the topic."""
    own = {} if partition is None else {"partition": partition}
    key = context.key(f"register_{kind}", topic, *own.values())
    reply = context.sdk.registrations.register(kind, topic, partition, key)
    partitions = reply.get("partitions")
    if partitions is None:
        partitions = _partitions(context, topic)
    return {f"{kind}_id": reply[f"{kind}_id"], "partitions": partitions, "topic": topic, **own}


def _partitions(context: RequestContext, topic: str) -> list[int]:
    try:
        return list(range(len(context.sdk.topic(topic)["partitions"])))
    except UnknownTopic:  # deleted in between
        return []


def heartbeat(context: RequestContext, kind: str, number: int) -> Facts:
    context.sdk.client(kind, number)
    context.sdk.registrations.report_alive(kind, number)
    return {f"{kind}_id": number}
