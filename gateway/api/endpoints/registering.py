"""Registration and heartbeat: the same for producers and for consumers."""

from __future__ import annotations

from myqueue.errors import UnknownTopic
from myqueue.gateway.api.operations import Facts, RequestContext


def register(ask: RequestContext, kind: str, topic: str, partition: int | None) -> Facts:
    """Register a "producer" or "consumer"; return its id and the partitions of the topic."""
    own = {} if partition is None else {"partition": partition}
    key = ask.key(f"register_{kind}", topic, *own.values())
    reply = ask.sdk.registrations.register(kind, topic, partition, key)
    partitions = reply.get("partitions")
    if partitions is None:
        partitions = _partitions(ask, topic)
    return {f"{kind}_id": reply[f"{kind}_id"], "partitions": partitions, "topic": topic, **own}


def _partitions(ask: RequestContext, topic: str) -> list[int]:
    try:
        return list(range(len(ask.sdk.topic(topic)["partitions"])))
    except UnknownTopic:  # deleted in between
        return []


def heartbeat(ask: RequestContext, kind: str, number: int) -> Facts:
    ask.sdk.client(kind, number)
    ask.sdk.registrations.report_alive(kind, number)
    return {f"{kind}_id": number}
