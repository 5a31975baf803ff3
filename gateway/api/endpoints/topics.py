"""Topics: create, list, show, change settings, delete."""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import InvalidSetting
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.api.parameters import Parameter, all_settings, nearest, some_settings

blueprint = ApiBlueprint("topics")
_ROW: Final = {
    "topic": parameter_catalog.TEXT, "topic_uid": parameter_catalog.NUMBER,
    "replication": parameter_catalog.NUMBER,
    "created_ms": parameter_catalog.NUMBER, "settings": parameter_catalog.OBJECT,
    "messages": parameter_catalog.NUMBER,
    "bytes": parameter_catalog.NUMBER, "partitions": parameter_catalog.rows({
        "partition": parameter_catalog.NUMBER, "group": parameter_catalog.NUMBER,
        "leader": parameter_catalog.NUMBER,
        "term": parameter_catalog.NUMBER, "replicas": parameter_catalog.NUMBERS,
        "preferred": parameter_catalog.NUMBER,
        "leaving": parameter_catalog.NUMBERS, "silent": parameter_catalog.NUMBERS,
        "start": parameter_catalog.NUMBER, "end": parameter_catalog.NUMBER,
        "bytes": parameter_catalog.NUMBER,
    }),
}  # fmt: skip


_CREATE: Final = (
    parameter_catalog.TOPIC,
    parameter_catalog.PARTITIONS,
    parameter_catalog.REPLICATION,
    parameter_catalog.SETTINGS,
)


@blueprint.operation(
    "POST",
    "/topics",
    "Create a topic",
    role=ADMIN,
    keyed=True,
    parameters=_CREATE,
    takes_more="settings of the topic",
    adds={
        "message": parameter_catalog.TEXT,
        "topic": parameter_catalog.TEXT,
        "partitions": parameter_catalog.NUMBERS,
    },
)
def create_topic(
    ask: RequestContext, topic: str, partitions: int, replication: int, settings: dict[str, Any]
) -> Facts:
    """Create a topic with this many partitions, each on this many brokers. 409 if the name exists.

    A parameter that is not listed is taken for a setting of the topic.
    """
    arguments = {
        "topic": topic,
        "partitions": partitions,
        "replication": replication,
        "settings": all_settings(ask.more, settings),
    }
    try:
        made = ask.sdk.update("create_topic", arguments, ask.key("create_topic", topic))
    except InvalidSetting as error:
        raise _advised(error, (*ask.more, *settings), _CREATE) from None
    return {
        "message": f"Topic '{topic}' created successfully",
        "topic": topic,
        "partitions": list(range(len(made["partitions"]))),
    }


def _advised(
    error: InvalidSetting, given: tuple[str, ...], wanted: tuple[Parameter, ...]
) -> InvalidSetting:
    """Add to the managers' error which name was probably meant, if a known one is similar to an
    unknown one.
    """
    known = [
        *parameter_catalog.TOPIC_SETTINGS,
        *(name for parameter in wanted for name in parameter.names),
    ]
    for name in given:
        suggestion = "" if name in known else nearest(name, known)
        if suggestion:
            names = ", ".join(parameter.name for parameter in wanted)
            hint = f"It takes {names}, and settings of a topic."
            return InvalidSetting(
                f"there is no parameter or setting {name!r}{suggestion}",
                component=error.component,
                hint=hint,
            )
    return error


@blueprint.operation(
    "GET",
    "/topics",
    "List topics",
    parameters=(parameter_catalog.DETAIL,),
    adds={"topics": {"type": "array"}},
)
def list_topics(ask: RequestContext, detail: bool) -> Facts:
    """List the names; with detail=1 also partitions, leaders, sizes and settings of each topic."""
    return {"topics": ask.sdk.read("topics", detail=detail)["topics"]}


@blueprint.operation(
    "GET", "/topics/<topic>", "One topic", parameters=(parameter_catalog.TOPIC,), adds=_ROW
)
def describe_topic(ask: RequestContext, topic: str) -> Facts:
    """Show one topic, as the list does with detail=1: settings, sizes, and for each partition the
    brokers that hold it, by number, and which of them leads (0: none).
    """
    return ask.sdk.topic(topic)


@blueprint.operation(
    "POST",
    "/topics/<topic>/settings",
    "Change settings of a topic",
    role=ADMIN,
    keyed=True,
    parameters=(parameter_catalog.TOPIC, parameter_catalog.SETTINGS),
    takes_more="settings of the topic",
    adds={"topic": parameter_catalog.TEXT, "settings": {"type": "object"}},
)
def alter_topic(ask: RequestContext, topic: str, settings: dict[str, Any]) -> Facts:
    """Change settings, such as retention, while the topic is in use. In `settings`, null restores a
    default. The answer has all settings of the topic.

    A parameter that is not listed is taken for a setting of the topic.
    """
    arguments = {"topic": topic, "settings": some_settings(ask.more, settings)}
    try:
        reply = ask.sdk.update("alter_topic", arguments, ask.key("alter_topic", topic))
    except InvalidSetting as error:
        given = (*ask.more, *settings)
        raise _advised(
            error, given, (parameter_catalog.TOPIC, parameter_catalog.SETTINGS)
        ) from None
    return {"topic": topic, "settings": reply["settings"]}


@blueprint.operation(
    "DELETE",
    "/topics/<topic>",
    "Delete a topic",
    role=ADMIN,
    keyed=True,
    parameters=(parameter_catalog.TOPIC,),
    adds={"message": parameter_catalog.TEXT},
)
def delete_topic(ask: RequestContext, topic: str) -> Facts:
    """Delete a topic with all its messages, producers and consumers."""
    ask.sdk.update("delete_topic", {"topic": topic}, ask.key("delete_topic", topic))
    return {"message": f"Topic '{topic}' deleted"}
