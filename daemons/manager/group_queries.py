"""READ's answers about consumer groups: members and assignments. Brokers have the positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from myqueue.daemons.metadata.arguments import Arguments
from myqueue.daemons.metadata.group_records import ConsumerGroup
from myqueue.errors import UnknownGroup

if TYPE_CHECKING:
    from myqueue.daemons.manager.queries import QueryContext

QueryResult = dict[str, Any]


def group_state(team: ConsumerGroup) -> str:
    """resetting, empty, moving (a partition waits for its owner to release it), or stable."""
    if team.reset:
        return "resetting"
    if not team.members:
        return "empty"
    moves = team.unbalanced or any(share.owner != share.wanted for share in team.shares.values())
    return "moving" if moves else "stable"


def _topics(context: QueryContext, team: ConsumerGroup) -> list[str]:
    """Existing topics that the group reads or read last, and topics that its members want."""
    wanted = {name for member in team.members.values() for name in member.topics}
    names = {
        context.tables.by_uid[uid].name
        for uid in team.known_partition_counts
        if uid in context.tables.by_uid
    }
    return sorted(names | wanted)


def _last_seen_wall_ms(context: QueryContext, member: int) -> int | None:
    """When its last heartbeat came; None where it is not known: only the leader knows it."""
    seen_at = context.members_last_seen.get(member)
    return None if seen_at is None else context.wall_ms - (context.now - seen_at)


def groups(context: QueryContext, args: Arguments) -> QueryResult:
    args.done()
    return {
        "groups": [
            {
                "group": name,
                "state": group_state(team),
                "members": len(team.members),
                "topics": _topics(context, team),
                "partitions": len(team.shares),
            }
            for name, team in sorted(context.tables.consumer_groups.items())
        ]
    }


def group(context: QueryContext, args: Arguments) -> QueryResult:
    name = args.name("group")
    args.done()
    team = context.tables.consumer_groups.get(name)
    if team is None:
        raise UnknownGroup(f"there is no group {name!r}")
    by_uid = context.tables.by_uid
    shares = [share for share in team.shares.values() if share.topic_uid in by_uid]
    return {
        "group": name,
        "state": group_state(team),
        "topics": _topics(context, team),
        "members": [
            {
                "member": one.id,
                "name": one.name,
                "host": one.host,
                "topics": one.topics,
                "session_ms": one.session_ms,
                "joined_ms": one.joined_ms,
                "last_seen_ms": _last_seen_wall_ms(context, one.id),
                "partitions": sum(share.owner == one.id for share in shares),
            }
            for _, one in sorted(team.members.items())
        ],
        "partitions": [
            {
                "topic": by_uid[one.topic_uid].name,
                "partition": one.number,
                "group": one.group,
                "member": one.owner,
                "wanted": one.wanted,
                "epoch": one.epoch,
            }
            for one in sorted(shares, key=lambda one: (by_uid[one.topic_uid].name, one.number))
        ],
    }
