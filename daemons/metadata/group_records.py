"""Records of the tables of consumer groups; they have no behaviour.

A member's id is the index of the entry by which it joined. An assignment epoch is the index of the
entry by which a member got the partition. So both are never used twice and only rise, even if a
group was forgotten meanwhile: they fence the commits to a partition's positions.

Invariants of a `GroupPartition`: `owner` and `wanted` are members of the group, or 0. It goes to
another owner only through 0 or after the owner released it, and gets another epoch each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class GroupMember:
    """A consumer in a group; `version` is the index of the last entry that changed something for
    it.
    """

    id: int
    name: str  # for people
    host: str
    session_ms: int
    joined_ms: int
    topics: list[str]
    version: int = 0


@dataclass(slots=True)
class GroupPartition:
    """A partition, as this consumer group has it. `group` is its raft group."""

    group: int
    topic_uid: int
    number: int
    owner: int = 0  # the member that may read; 0: none
    wanted: int = 0  # the member that should
    epoch: int = 0  # of the owner


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group: its members and the partitions they read."""

    uid: int
    name: str
    version: int = 0  # index of the last entry that changed anything here
    unbalanced: int = 0  # index of the last join, or of an unfinished decision; 0: decided
    reset: int = 0  # its positions are being set under this epoch: no member gets a partition
    members: dict[int, GroupMember] = field(default_factory=dict)
    # Topic uid -> how many partitions it had when a member first asked for it; 0 if it was made
    # later. Those added since are new to all, and read from their start.
    known_partition_counts: dict[int, int] = field(default_factory=dict)
    shares: dict[int, GroupPartition] = field(default_factory=dict)  # by group


def pack_group(group: ConsumerGroup) -> list[object]:
    """Pack a group without its partitions into a row."""
    members = [
        [one.id, one.name, one.host, one.session_ms, one.joined_ms, one.topics, one.version]
        for _, one in sorted(group.members.items())
    ]
    known = [list(pair) for pair in sorted(group.known_partition_counts.items())]
    return [group.uid, group.name, group.version, group.unbalanced, group.reset, members, known]


def pack_group_partitions(group: ConsumerGroup, topic_uid: int) -> list[list[int]] | None:
    """Pack the group's partitions of one topic; None if there are none."""
    of = [one for one in group.shares.values() if one.topic_uid == topic_uid]
    of.sort(key=lambda one: one.number)
    return [[one.group, one.number, one.owner, one.wanted, one.epoch] for one in of] or None


def unpack_group(row: list[object]) -> ConsumerGroup:
    """Make a group, without its partitions, from its row."""
    uid, name, version, unbalanced, reset, members, known = row
    group = ConsumerGroup(uid, name, version, unbalanced, reset)  # type: ignore[arg-type]
    group.members = {
        fields[0]: GroupMember(*fields)
        for fields in members  # type: ignore[attr-defined]
    }
    group.known_partition_counts = dict(map(tuple, known))  # type: ignore[call-overload]
    return group
