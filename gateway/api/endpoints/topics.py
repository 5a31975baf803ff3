"""Topics: create, list, show, change settings, delete."""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import InvalidSetting
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.api.parameters import Parameter, all_settings, nearest, some_settings
from myqueue.wire.metadata_settings import TOPIC_SETTINGS

blueprint = ApiBlueprint("topics")
_ROW: Final = {
    "topic": catalog.TEXT, "topic_uid": catalog.NUMBER,
    "replication": catalog.NUMBER,
    "created_ms": catalog.NUMBER, "settings": catalog.OBJECT,
    "messages": catalog.NUMBER,
    "bytes": catalog.NUMBER, "partitions": catalog.rows({
        "partition": catalog.NUMBER, "group": catalog.NUMBER,
        "leader": catalog.NUMBER,
        "term": catalog.NUMBER, "replicas": catalog.NUMBERS,
        "preferred": catalog.NUMBER,
        "leaving": catalog.NUMBERS, "silent": catalog.NUMBERS,
        "start": catalog.NUMBER, "end": catalog.NUMBER,
        "bytes": catalog.NUMBER,
    }),
}  # fmt: skip


_CREATE: Final = (
    catalog.TOPIC,
    catalog.PARTITIONS,
    catalog.REPLICATION,
    catalog.SETTINGS,
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
        "message": catalog.TEXT,
        "topic": catalog.TEXT,
        "partitions": catalog.NUMBERS,
    },
)
def create_topic(
    context: RequestContext, topic: str, partitions: int, replication: int, settings: dict[str, Any]
) -> Facts:
    """Create a topic with this many partitions, each on this many brokers. 409 if the name exists.

    A parameter that is not listed is taken for a setting of the topic.
    """
    arguments = {
        "topic": topic,
        "partitions": partitions,
        "replication": replication,
        "settings": all_settings(context.more, settings),
    }
    try:
        made = context.sdk.update("create_topic", arguments, context.key("create_topic", topic))
    except InvalidSetting as error:
        raise _advised(error, (*context.more, *settings), _CREATE) from None
    return {
        "message": f"Topic '{topic}' created successfully",
        "topic": topic,
        "partitions": list(range(len(made["partitions"]))),
    }


def _advised(
    error: InvalidSetting, given: tuple[str, ...], wanted: tuple[Parameter, ...]
) -> InvalidSetting:
    """Add to the managers' error which name was probably meant, if a known one is similar to an
    unknown one. Newer managers may know more settings, so the table here only advises.
    """
    known_names = [
        *TOPIC_SETTINGS,
        *(name for parameter in wanted for name in parameter.names),
    ]
    for name in given:
        suggestion = "" if name in known_names else nearest(name, known_names)
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
    parameters=(catalog.DETAIL,),
    adds={"topics": {"type": "array"}},
)
def list_topics(context: RequestContext, detail: bool) -> Facts:
    """List the names; with detail=1 also partitions, leaders, sizes and settings of each topic."""
    return {"topics": context.sdk.read("topics", detail=detail)["topics"]}


@blueprint.operation("GET", "/topics/<topic>", "One topic", parameters=(catalog.TOPIC,), adds=_ROW)
def describe_topic(context: RequestContext, topic: str) -> Facts:
    """Show one topic, as the list does with detail=1: settings, sizes, and for each partition the
    brokers that hold it, by number, and which of them leads (0: none).
    """
    return context.sdk.topic(topic)


@blueprint.operation(
    "POST",
    "/topics/<topic>/settings",
    "Change settings of a topic",
    role=ADMIN,
    keyed=True,
    parameters=(catalog.TOPIC, catalog.SETTINGS),
    takes_more="settings of the topic",
    adds={"topic": catalog.TEXT, "settings": {"type": "object"}},
)
def alter_topic(context: RequestContext, topic: str, settings: dict[str, Any]) -> Facts:
    """Change settings, such as retention, while the topic is in use. In `settings`, null restores a
    default. The answer has all settings of the topic.

    A parameter that is not listed is taken for a setting of the topic.
    """
    arguments = {"topic": topic, "settings": some_settings(context.more, settings)}
    try:
        reply = context.sdk.update("alter_topic", arguments, context.key("alter_topic", topic))
    except InvalidSetting as error:
        given = (*context.more, *settings)
        raise _advised(error, given, (catalog.TOPIC, catalog.SETTINGS)) from None
    return {"topic": topic, "settings": reply["settings"]}


@blueprint.operation(
    "DELETE",
    "/topics/<topic>",
    "Delete a topic",
    role=ADMIN,
    keyed=True,
    parameters=(catalog.TOPIC,),
    adds={"message": catalog.TEXT},
)
def delete_topic(context: RequestContext, topic: str) -> Facts:
    """Delete a topic with all its messages, producers and consumers."""
    context.sdk.update("delete_topic", {"topic": topic}, context.key("delete_topic", topic))
    return {"message": f"Topic '{topic}' deleted"}
