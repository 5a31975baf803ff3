"""Topics: create, list, show, change settings, delete (Q1, Q2)."""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import InvalidSetting
from myqueue.gateway import names
from myqueue.gateway.parameters import Parameter, all_settings, nearest, some_settings
from myqueue.gateway.routes import ADMIN, Ask, Facts, Noun

blueprint = Noun("topics")
_ROW: Final = {
    "topic": names.TEXT, "topic_uid": names.NUMBER, "replication": names.NUMBER,
    "created_ms": names.NUMBER, "settings": names.OBJECT, "messages": names.NUMBER,
    "bytes": names.NUMBER, "partitions": names.rows({
        "partition": names.NUMBER, "group": names.NUMBER, "leader": names.NUMBER,
        "term": names.NUMBER, "replicas": names.NUMBERS, "preferred": names.NUMBER,
        "leaving": names.NUMBERS, "silent": names.NUMBERS,
        "start": names.NUMBER, "end": names.NUMBER, "bytes": names.NUMBER,
    }),
}  # fmt: skip


_CREATE: Final = (names.TOPIC, names.PARTITIONS, names.REPLICATION, names.SETTINGS)


@blueprint.operation(
    "POST", "/topics", "Create a topic", role=ADMIN, keyed=True, parameters=_CREATE,
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
        "settings": all_settings(ask.more, settings),
    }  # fmt: skip
    try:
        made = ask.sdk.update("create_topic", arguments, ask.key("create_topic", topic))
    except InvalidSetting as error:
        raise _advised(error, (*ask.more, *settings), _CREATE) from None
    return {
        "message": f"Topic '{topic}' created successfully", "topic": topic,
        "partitions": list(range(len(made["partitions"]))),
    }  # fmt: skip


def _advised(
    error: InvalidSetting, given: tuple[str, ...], wanted: tuple[Parameter, ...]
) -> InvalidSetting:
    """What the managers said, and which name was meant, if one is like what they do not know."""
    known = [*names.TOPIC_SETTINGS, *(name for one in wanted for name in one.names)]
    for name in given:
        like = "" if name in known else nearest(name, known)
        if like:
            hint = f"It takes {', '.join(one.name for one in wanted)}, and settings of a topic."
            return InvalidSetting(
                f"there is no parameter or setting {name!r}{like}",
                component=error.component, hint=hint,
            )  # fmt: skip
    return error


@blueprint.operation(
    "GET", "/topics", "List topics", parameters=(names.DETAIL,),
    adds={"topics": {"type": "array"}},
)  # fmt: skip
def list_topics(ask: Ask, detail: bool) -> Facts:
    """Their names; with detail=1 also partitions, leaders, sizes and settings of each."""
    return {"topics": ask.sdk.read("topics", detail=detail)["topics"]}


@blueprint.operation(
    "GET", "/topics/<topic>", "One topic", parameters=(names.TOPIC,), adds=_ROW
)  # fmt: skip
def describe_topic(ask: Ask, topic: str) -> Facts:
    """The same of one as of each with detail=1: settings, sizes, and of each partition the brokers
    that hold it, by number, and which of them leads (0: none).
    """
    return ask.sdk.topic(topic)


@blueprint.operation(
    "POST", "/topics/<topic>/settings", "Change settings of a topic", role=ADMIN, keyed=True,
    parameters=(names.TOPIC, names.SETTINGS), takes_more="settings of the topic",
    adds={"topic": names.TEXT, "settings": {"type": "object"}},
)  # fmt: skip
def alter_topic(ask: Ask, topic: str, settings: dict[str, Any]) -> Facts:
    """Retention, for one, while it is in use. In `settings`, null brings a default back. The
    answer has all settings of the topic.

    A parameter that is not listed is taken for a setting of the topic.
    """
    arguments = {"topic": topic, "settings": some_settings(ask.more, settings)}
    try:
        found = ask.sdk.update("alter_topic", arguments, ask.key("alter_topic", topic))
    except InvalidSetting as error:
        given = (*ask.more, *settings)
        raise _advised(error, given, (names.TOPIC, names.SETTINGS)) from None
    return {"topic": topic, "settings": found["settings"]}


@blueprint.operation(
    "DELETE", "/topics/<topic>", "Delete a topic", role=ADMIN, keyed=True,
    parameters=(names.TOPIC,), adds={"message": names.TEXT},
)  # fmt: skip
def delete_topic(ask: Ask, topic: str) -> Facts:
    """With all its messages, producers and consumers."""
    ask.sdk.update("delete_topic", {"topic": topic}, ask.key("delete_topic", topic))
    return {"message": f"Topic '{topic}' deleted"}
