"""Consumer groups: members, assigned partitions and positions; resetting and deleting.

The managers know the members and their partitions, the partitions' leaders know the positions; the
public `Admin` asks both. `myq group` shows the same facts.
"""

from __future__ import annotations

from typing import Any, Final

from myqueue import TopicPartition
from myqueue.errors import InvalidRequest
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.cluster_snapshot import SnapshotReader

blueprint = ApiBlueprint("groups")
_TARGETS: Final = ("to", "offset", "time_ms", "shift")


@blueprint.operation(
    "GET",
    "/groups",
    "List consumer groups",
    parameters=(catalog.DETAIL,),
    adds={"groups": catalog.ROWS},
)
def list_groups(context: RequestContext, detail: bool) -> Facts:
    """List state (stable, moving, empty, resetting), members, topics and partitions of each group;
    with detail=1 also its lag, the messages left for it; null if that is not known in time.
    """
    rows = [dict(row) for row in context.sdk.read("groups")["groups"]]
    if detail:
        lags = SnapshotReader(context.sdk.session).group_lags(rows)
        for row in rows:
            of = lags.get(row["group"])
            row["lag"] = None if of is None else sum(of.values())
    return {"groups": rows}


@blueprint.operation(
    "GET",
    "/groups/<group>",
    "One consumer group",
    parameters=(catalog.NAMED_GROUP,),
    adds={
        "group": catalog.TEXT,
        "state": catalog.TEXT,
        "lag": catalog.nullable(catalog.NUMBER),
        "members": catalog.ROWS,
        "partitions": catalog.ROWS,
        "topics": {"type": "array", "items": catalog.TEXT},
    },
)
def describe_group(context: RequestContext, group: str) -> Facts:
    """Show the members of a group, each with its partitions; and the partitions, each with its
    member (null: none), position (null: nothing committed), start, end and lag; these are null
    where no leader answers.
    """
    description = context.sdk.admin.describe_group(group)
    owned: dict[int, list[Facts]] = {}
    for row in description["partitions"]:
        place = {"topic": row["topic"], "partition": row["partition"]}
        owned.setdefault(row["member"], []).append(place)
    members = [{**row, "assigned": owned.get(row["member"], [])} for row in description["members"]]
    partitions = [
        {**row, "member": row["member"] or None, "wanted": row["wanted"] or None}
        for row in description["partitions"]
    ]
    return {**description, "members": members, "partitions": partitions}


@blueprint.operation(
    "POST",
    "/groups/<group>/reset",
    "Reset the positions of a group",
    role=ADMIN,
    parameters=(
        catalog.NAMED_GROUP,
        catalog.TO,
        catalog.TO_OFFSET,
        catalog.TO_TIME,
        catalog.SHIFT,
        catalog.SOME_TOPIC,
        catalog.PARTITION,
        catalog.FORCE_RESET,
        catalog.DRY_RUN,
    ),
    adds={
        "group": catalog.TEXT,
        "executed": catalog.FLAG,
        "partitions": catalog.ROWS,
    },
)
def reset_group(
    context: RequestContext,
    group: str,
    to: str | None,
    offset: int | None,
    time_ms: int | None,
    shift: int | None,
    topic: str | None,
    partition: int | None,
    force: bool,
    dry_run: bool,
) -> Facts:
    """Set the positions to the earliest or latest message, an offset, a time, or by a number of
    messages; in all topics of the group, one topic, or one partition of it; never outside the
    messages that are kept. The answer has the positions before and after. 409 while the group has
    members, unless force=1. A group that has never had members may be given positions.
    """
    where: dict[str, Any] = {"to": to, "offset": offset, "time_ms": time_ms, "shift": shift}
    if sum(value is not None for value in where.values()) != 1:
        raise InvalidRequest(f"give exactly one of {', '.join(_TARGETS)}")
    if partition is not None and topic is None:
        raise InvalidRequest("partition is given without its topic")
    chosen: dict[str, Any] = {}
    if topic is not None and partition is not None:
        context.sdk.newest_partition(topic, partition)
        chosen["partitions"] = [TopicPartition(topic, partition)]
    elif topic is not None:
        context.sdk.topic(topic)
        chosen["topics"] = [topic]
    rows = context.sdk.admin.reset_group(group, **where, **chosen, force=force, execute=not dry_run)
    return {"group": group, "executed": not dry_run, "partitions": rows}


@blueprint.operation(
    "DELETE",
    "/groups/<group>",
    "Delete a consumer group",
    role=ADMIN,
    parameters=(catalog.NAMED_GROUP,),
    adds={"message": catalog.TEXT},
)
def delete_group(context: RequestContext, group: str) -> Facts:
    """Delete a group with its positions; a consumer that joins it later begins as in a new group.
    409 while it has members.
    """
    context.sdk.admin.delete_group(group)
    return {"message": f"Group '{group}' deleted"}
