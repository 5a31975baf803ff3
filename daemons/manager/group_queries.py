"""READ's answers about consumer groups: who is in, who has what. Positions are with the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from myqueue.daemons.metadata.arguments import Arguments
from myqueue.daemons.metadata.group_records import ConsumerGroup
from myqueue.errors import UnknownGroup

if TYPE_CHECKING:
    from myqueue.daemons.manager.queries import View

Answer = dict[str, Any]


def state_of(team: ConsumerGroup) -> str:
    """resetting, empty, moving (somebody has what is wanted for somebody else), or stable."""
    if team.reset:
        return "resetting"
    if not team.members:
        return "empty"
    moves = team.unbalanced or any(one.owner != one.wanted for one in team.shares.values())
    return "moving" if moves else "stable"


def _topics(view: View, team: ConsumerGroup) -> list[str]:
    """Those that it reads, or read last, as far as they are there."""
    wanted = {name for member in team.members.values() for name in member.topics}
    names = {
        view.tables.by_uid[uid].name
        for uid in team.known_partition_counts
        if uid in view.tables.by_uid
    }
    return sorted(names | wanted)


def _seen(view: View, member: int) -> int | None:
    """When its last heartbeat came; the managers' leader alone knows."""
    at = view.heard.get(member)
    return None if at is None else view.wall_ms - (view.now - at)


def groups(view: View, args: Arguments) -> Answer:
    args.done()
    return {
        "groups": [
            {
                "group": name, "state": state_of(team), "members": len(team.members),
                "topics": _topics(view, team), "partitions": len(team.shares),
            }
            for name, team in sorted(view.tables.consumer_groups.items())
        ]
    }  # fmt: skip


def group(view: View, args: Arguments) -> Answer:
    name = args.name("group")
    args.done()
    team = view.tables.consumer_groups.get(name)
    if team is None:
        raise UnknownGroup(f"there is no group {name!r}")
    by_uid = view.tables.by_uid
    shares = [one for one in team.shares.values() if one.topic_uid in by_uid]
    return {
        "group": name, "state": state_of(team), "topics": _topics(view, team),
        "members": [
            {
                "member": one.id, "name": one.name, "host": one.host, "topics": one.topics,
                "session_ms": one.session_ms, "joined_ms": one.joined_ms,
                "last_seen_ms": _seen(view, one.id),
                "partitions": sum(share.owner == one.id for share in shares),
            }
            for _, one in sorted(team.members.items())
        ],
        "partitions": [
            {
                "topic": by_uid[one.topic_uid].name, "partition": one.number, "group": one.group,
                "member": one.owner, "wanted": one.wanted, "epoch": one.epoch,
            }
            for one in sorted(shares, key=lambda one: (by_uid[one.topic_uid].name, one.number))
        ],
    }  # fmt: skip
