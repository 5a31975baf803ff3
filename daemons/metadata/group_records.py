"""What stands in the tables of consumer groups; no behaviour.

In the daemons' code a consumer group is a *team*, since a group is one of Raft there. Users' words
are group, member, partition.

A member is named by the index of the entry by which it joined, and an assignment epoch is the index
of the entry by which a member got the partition. Both are therefore never used twice, and only
rise, whatever is forgotten between: a partition's positions are fenced by them (C7).

Invariants of a `GroupPartition`: `owner` and `wanted` are members of the team, or 0; it goes to
another owner only through 0 or by the owner's own word (C8), and with another epoch each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class GroupMember:
    """Somebody who reads; `version` is the index of the last entry that is news for it."""

    id: int
    name: str  # for people
    host: str
    session_ms: int
    joined_ms: int
    topics: list[str]
    version: int = 0


@dataclass(slots=True)
class GroupPartition:
    """A partition, as this team has it."""

    group: int
    topic_uid: int
    number: int
    owner: int = 0  # may read; 0: nobody
    wanted: int = 0  # should
    epoch: int = 0  # of the owner


@dataclass(slots=True)
class ConsumerGroup:
    uid: int
    name: str
    version: int = 0  # index of the last entry that changed anything here
    unbalanced: int = 0  # of the last join, or of a decision that has to go on; 0: decided
    reset: int = 0  # its positions are being set under this epoch: nobody gets anything
    members: dict[int, GroupMember] = field(default_factory=dict)
    # Topic uid -> how many partitions it had when a member first asked for it; 0 if it was made
    # later. Those added since are new to all, and read from their start.
    known_partition_counts: dict[int, int] = field(default_factory=dict)
    shares: dict[int, GroupPartition] = field(default_factory=dict)  # by group


def pack_group(team: ConsumerGroup) -> list[object]:
    """A team without its shares, as a row."""
    members = [
        [one.id, one.name, one.host, one.session_ms, one.joined_ms, one.topics, one.version]
        for _, one in sorted(team.members.items())
    ]
    known = [list(pair) for pair in sorted(team.known_partition_counts.items())]
    return [team.uid, team.name, team.version, team.unbalanced, team.reset, members, known]


def pack_group_partitions(team: ConsumerGroup, topic_uid: int) -> list[list[int]] | None:
    """Those of one topic; None if there are none."""
    of = [one for one in team.shares.values() if one.topic_uid == topic_uid]
    of.sort(key=lambda one: one.number)
    return [[one.group, one.number, one.owner, one.wanted, one.epoch] for one in of] or None


def unpack_group(row: list[object]) -> ConsumerGroup:
    uid, name, version, unbalanced, reset, members, known = row
    team = ConsumerGroup(uid, name, version, unbalanced, reset)  # type: ignore[arg-type]
    team.members = {
        fields[0]: GroupMember(*fields)
        for fields in members  # type: ignore[attr-defined]
    }
    team.known_partition_counts = dict(map(tuple, known))  # type: ignore[call-overload]
    return team
