"""Topics: create, list, delete (Q1, Q2)."""

from __future__ import annotations

from typing import Any

from myqueue.gateway import names
from myqueue.gateway.routes import ADMIN, Ask, Facts, Noun

blueprint = Noun("topics")


@blueprint.operation(
    "POST", "/topics", "Create a topic", role=ADMIN, keyed=True,
    parameters=(names.TOPIC, names.PARTITIONS, names.REPLICATION, names.SETTINGS),
    takes_more="settings of the topic",
    adds={"message": names.TEXT, "topic": names.TEXT, "partitions": names.NUMBERS},
)  # fmt: skip
def create_topic(
    ask: Ask, topic: str, partitions: int, replication: int, settings: dict[str, Any]
) -> Facts:
    """With so many partitions, each on so many brokers. A name is given once: 409 if it exists.

    A parameter that is not listed is taken for a setting of the topic.
    """
    arguments = {
        "topic": topic, "partitions": partitions, "replication": replication,
        "settings": {**ask.more, **settings},
    }  # fmt: skip
    ask.sdk.update("create_topic", arguments, ask.key("create_topic", topic))
    return {
        "message": f"Topic '{topic}' created successfully", "topic": topic,
        "partitions": list(range(partitions)),
    }  # fmt: skip


@blueprint.operation(
    "GET", "/topics", "List topics", parameters=(names.DETAIL,),
    adds={"topics": {"type": "array"}},
)  # fmt: skip
def list_topics(ask: Ask, detail: bool) -> Facts:
    """Their names; with detail=1 also partitions, leaders, sizes and settings of each."""
    return {"topics": ask.sdk.read("topics", detail=detail)["topics"]}


@blueprint.operation(
    "DELETE", "/topics/<topic>", "Delete a topic", role=ADMIN, keyed=True,
    parameters=(names.TOPIC,), adds={"message": names.TEXT},
)  # fmt: skip
def delete_topic(ask: Ask, topic: str) -> Facts:
    """With all its messages, producers and consumers."""
    ask.sdk.update("delete_topic", {"topic": topic}, ask.key("delete_topic", topic))
    return {"message": f"Topic '{topic}' deleted"}
