"""The state of the cluster: which daemons are alive, which lead, where a message is; and its
settings.
"""

from __future__ import annotations

import re
from typing import Any

from myqueue.errors import InvalidRequest, MyQueueError, OffsetOutOfRange, Unreachable
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.api.parameters import some_settings

blueprint = ApiBlueprint("cluster")
_GROUP = re.compile(r"([A-Za-z0-9._-]{1,200})/([0-9]{1,9})")


@blueprint.operation(
    "GET",
    "/health",
    "Which daemons and clients are alive",
    adds={
        "brokers": catalog.ROWS,
        "managers": catalog.ROWS,
        "producers": catalog.ROWS,
        "consumers": catalog.ROWS,
        "inactive_ms": catalog.NUMBER,
        "omitted": catalog.NUMBER,
    },
)
def health(context: RequestContext) -> Facts:
    """List every broker, manager, producer and consumer: its last heartbeat, active or not.

    If there are very many producers and consumers, those seen last are listed; omitted says how
    many more there are.
    """
    reply = context.sdk.read("health")
    for kind in ("brokers", "managers", "producers", "consumers"):
        for row in reply[kind]:
            row["last_heartbeat_ms"] = row.pop("last_seen_ms")
    return reply


@blueprint.operation(
    "GET",
    "/raft_status",
    "State of a Raft group",
    parameters=(catalog.GROUP, catalog.RAFT_TOPIC, catalog.PARTITION),
    adds={
        "group": catalog.TEXT,
        "leader": catalog.nullable(catalog.NUMBER),
        "term": catalog.NUMBER,
        "members": catalog.ROWS,
        "commit": catalog.NUMBER,
        "applied": catalog.NUMBER,
    },
)
def raft_status(
    context: RequestContext, group: str, topic: str | None, partition: int | None
) -> Facts:
    """Show the managers' group, or a partition's: topic and partition, or group=TOPIC/NUMBER. The
    partition may be omitted if the topic has only one.
    """
    place = _place(context, group, topic, partition)
    if place is None:
        group, status = "managers", context.sdk.admin.raft_status()
    else:
        context.sdk.newest_partition(*place)
        group, status = f"{place[0]}/{place[1]}", context.sdk.admin.raft_status(*place)
    answered = [row for row in status["members"] if "error" not in row]
    _show_groups(status["members"])
    return {
        "group": group,
        "leader": status["leader"] or None,
        "term": status["term"],
        "members": status["members"],
        "commit": max((row.get("commit", 0) for row in answered), default=0),
        "applied": max((row.get("applied", 0) for row in answered), default=0),
    }


def _place(
    context: RequestContext, group: str, topic: str | None, partition: int | None
) -> tuple[str, int] | None:
    """Return the partition that is meant; None: the managers."""
    if group not in ("", "managers"):
        named = _GROUP.fullmatch(group)
        if named is None:
            raise InvalidRequest(f"group is {group[:220]!r}; it has to be TOPIC/NUMBER")
        place = named[1], int(named[2])
        if topic not in (None, place[0]) or partition not in (None, place[1]):
            raise InvalidRequest(f"group is {group}, and topic or partition another one")
        return place
    if topic is None:
        if partition is not None:
            raise InvalidRequest("partition is given without its topic")
        return None
    if group:
        raise InvalidRequest(f"group is {group}, and topic is {topic}: give one of them")
    if partition is None:
        count = len(context.sdk.topic(topic)["partitions"])
        if count > 1:
            raise InvalidRequest(f"{topic} has {count} partitions: say which one, with partition")
        partition = 0
    return topic, partition


@blueprint.operation(
    "GET",
    "/repairs",
    "Damage and repairs",
    adds={
        "repairs": catalog.ROWS,
        "scrubbers": catalog.ROWS,
        "silent": catalog.TEXTS,
    },
)
def repairs(context: RequestContext) -> Facts:
    """List the damage that daemons found on their disks, the state of its repair, and what
    scrubbers have read. Each daemon lists its last twenty repairs since its start.
    """
    return context.sdk.admin.repairs()


@blueprint.operation(
    "GET",
    "/where",
    "Where a message is",
    parameters=(
        catalog.TOPIC,
        catalog.NAMED_PARTITION,
        catalog.OFFSET,
    ),
    adds={"replicas": catalog.ROWS},
)
def where(context: RequestContext, topic: str, partition: int, offset: int) -> Facts:
    """Find a message on each replica: segment, bytes, Raft index and term, and the consumers past
    it.
    """
    context.sdk.newest_partition(topic, partition)
    location = context.sdk.admin.where(topic, partition, offset)
    if all("error" in row for row in location["replicas"]):
        raise _refusal(location["replicas"], offset)
    _show_groups([location, *location["replicas"]])
    return location


def _show_groups(rows: list[Facts]) -> None:
    """Write group numbers in hex, as everywhere: many JSON readers round 64-bit numbers."""
    for row in rows:
        if "group" in row:
            row["group"] = f"{row['group']:016x}"


def _refusal(replicas: list[Facts], offset: int) -> MyQueueError:
    """Make the error for a message that no replica has."""
    if any(row.get("code") == OffsetOutOfRange.name for row in replicas):
        return OffsetOutOfRange(f"offset {offset}: {replicas[0]['error']}")
    return Unreachable("; ".join(f"{row['address']}: {row['error']}" for row in replicas))


# -- settings -------------------------------------------------------------------------------------


@blueprint.operation(
    "GET", "/settings", "Settings of the cluster", adds={"settings": catalog.OBJECT}
)
def settings_of_cluster(context: RequestContext) -> Facts:
    """Show all settings with their values: how long a broker may be silent until it counts as dead,
    how many replicas move at a time, how many clients there may be.
    """
    return {"settings": context.sdk.read("cluster")["settings"]}


@blueprint.operation(
    "POST",
    "/settings",
    "Change settings of the cluster",
    role=ADMIN,
    keyed=True,
    parameters=(catalog.CLUSTER_SETTINGS,),
    takes_more="settings of the cluster",
    adds={"settings": catalog.OBJECT},
)
def alter_cluster(context: RequestContext, settings: dict[str, Any]) -> Facts:
    """Change settings; they apply at once. In `settings`, null restores a default. The answer has
    all settings.

    A parameter that is not listed is taken for a setting.
    """
    arguments = {"settings": some_settings(context.more, settings)}
    reply = context.sdk.update("alter_cluster", arguments, context.key("alter_cluster"))
    return {"settings": reply["settings"]}
