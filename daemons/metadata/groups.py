"""Operations on consumer groups: members, the partitions they should read, and those they may read.

`operations.py` says how an operation is made, `group_records.py` what a group consists of. A
rebalance has two independent steps:

- *wanted*: the member that should read a partition. `assignment.py` decides it again when members
  or partitions come or go. Joins are only noted; the leader asks for the decision when no more of
  them come (`daemons/manager/group_sessions.py`), so members that start together are served once.
- *owner*: the member that may read it. A partition without an owner goes to the wanted member at
  once. A partition with an owner stays until the owner releases it or leaves the group.

Each time a partition goes to a member it gets a new epoch, the index of that entry.

A reset of positions is an owner of its own kind: from `begin_reset` to `end_reset` no member owns a
partition, and the epoch of the reset lies between those of the owners before and after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from myqueue.daemons.metadata.arguments import Arguments, checked_name
from myqueue.daemons.metadata.assignment import assign_partitions
from myqueue.daemons.metadata.group_records import ConsumerGroup, GroupMember, GroupPartition
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.metadata.topics import OperationContext, OperationResult
from myqueue.errors import Busy, GroupInUse, InvalidRequest, UnknownGroup, UnknownMember

MEMBERS_MAX = 1000
TOPICS_MAX = 1000  # that one member may name
SESSION_MS_MIN, SESSION_MS_MAX = 1000, 3_600_000

# -- members --------------------------------------------------------------------------------------


def join_group(call: OperationContext, args: Arguments) -> OperationResult:
    """Add a member; its id is the index of this entry."""
    name, topics = args.name("group"), args.texts("topics")
    session_ms = args.number("session_ms", 10_000, SESSION_MS_MIN, SESSION_MS_MAX)
    label, host = args.text("name", ""), args.text("host", "")
    args.done()
    if not 0 < len(topics) <= TOPICS_MAX:
        raise InvalidRequest(f"a member reads 1 to {TOPICS_MAX} topics")
    topics = sorted({checked_name(one, "topic") for one in topics})
    existing = call.tables.consumer_groups.get(name)
    if existing is not None and len(existing.members) >= MEMBERS_MAX:
        raise Busy(f"group {name} has {MEMBERS_MAX} members already")
    group = existing or _make_group(call, name)
    member = GroupMember(call.index, label, host, session_ms, call.time_ms, topics, call.index)
    _note_known_partitions(call, group, topics)
    group.members[member.id] = member
    group.unbalanced = group.version = call.index
    call.tables.put_consumer_group(group)
    return {"member": member.id, "session_ms": session_ms}


def _note_known_partitions(
    call: OperationContext, group: ConsumerGroup, topics: Iterable[str]
) -> None:
    """Note how many partitions each new topic has: later ones are new to the group.

    Existing partitions count as known, except those of a topic that a member was waiting for.
    """
    tables = call.tables
    there = [tables.topics[name] for name in topics if name in tables.topics]
    first = [topic for topic in there if topic.uid not in group.known_partition_counts]
    if first:
        awaited = {name for member in group.members.values() for name in member.topics}
        for topic in first:
            group.known_partition_counts[topic.uid] = (
                0 if topic.name in awaited else len(topic.partitions)
            )


def _make_group(call: OperationContext, name: str) -> ConsumerGroup:
    """Make a group. If there are too many, the empty one that is unchanged for longest is
    removed.
    """
    tables = call.tables
    if len(tables.consumer_groups) >= tables.settings["groups_max"]:
        empty = [
            one for one in tables.consumer_groups.values() if not one.members and not one.reset
        ]
        if not empty:
            raise Busy("as many groups as may be have members", hint="Raise groups_max.")
        tables.remove_consumer_group(min(empty, key=lambda one: one.version))
    return ConsumerGroup(call.index, name)


def leave_group(call: OperationContext, args: Arguments) -> OperationResult:
    """Remove one member at its own request."""
    name, member = args.name("group"), args.number("member")
    args.done()
    group = _get_group(call.tables, name)
    if member not in group.members:
        raise UnknownMember(f"{name} has no member {member}")
    _remove_members(call, group, [member])
    return {"members": len(group.members)}


def expire_members(call: OperationContext, args: Arguments) -> OperationResult:
    """Remove members whose sessions ended, as the leader says. Members that left already are
    ignored.
    """
    name, members = args.name("group"), args.numbers("members")
    args.done()
    group = call.tables.consumer_groups.get(name)
    gone = sorted({one for one in members if group is not None and one in group.members})
    if group is not None and gone:
        _remove_members(call, group, gone)
    return {"gone": gone}


def _remove_members(call: OperationContext, group: ConsumerGroup, members: list[int]) -> None:
    for member in members:
        del group.members[member]
    for partition in group.shares.values():
        partition.owner = partition.owner if partition.owner in group.members else 0
    rebalance(call, group)


# -- who reads what -------------------------------------------------------------------------------


def balance_groups(call: OperationContext, args: Arguments) -> OperationResult:
    """Decide again after members joined, or partitions came or went."""
    names = args.texts("groups")
    args.done()
    for name in names:
        group = call.tables.consumer_groups.get(name)
        if group is not None:
            rebalance(call, group)
    return {}


def rebalance(call: OperationContext, group: ConsumerGroup) -> None:
    """Decide which member should read each partition, and give it the ones without an owner."""
    tables = call.tables
    partitions = _subscribed_partitions(tables, group)
    _drop_unsubscribed(call, group, {raft_uid for raft_uid, _, _ in partitions})
    for raft_uid, uid, number in partitions:
        if raft_uid not in group.shares:
            group.shares[raft_uid] = GroupPartition(raft_uid, uid, number)
        group.known_partition_counts.setdefault(
            uid, 0
        )  # made while a member waited for a topic of this name
    group.known_partition_counts = {
        uid: count for uid, count in group.known_partition_counts.items() if uid in tables.by_uid
    }
    uids = {name: topic.uid for name, topic in tables.topics.items()}
    wishes = {
        one.id: frozenset(uids[name] for name in one.topics if name in uids)
        for one in group.members.values()
    }
    before = {
        raft_uid: partition.wanted if partition.wanted in group.members else partition.owner
        for raft_uid, partition in group.shares.items()
    }
    wanted = [(raft_uid, uid) for raft_uid, uid, _ in partitions]
    decided, is_even = assign_partitions(wishes, wanted, before)
    for raft_uid, member in decided.items():
        partition = group.shares[raft_uid]
        if partition.wanted != member:
            partition.wanted = member
            _mark_member_changed(call, group, partition.owner)
        if not partition.owner:
            _give_to_wanted(call, group, partition)
    group.unbalanced, group.version = 0 if is_even else call.index, call.index
    tables.put_consumer_group(group)


def _subscribed_partitions(tables: Tables, group: ConsumerGroup) -> list[tuple[int, int, int]]:
    """Return (raft uid, topic uid, number) of all partitions that a member wants."""
    names = sorted({name for member in group.members.values() for name in member.topics})
    return [
        (partition.group, topic.uid, number)
        for name in names
        if (topic := tables.topics.get(name)) is not None
        for number, partition in enumerate(topic.partitions)
    ]


def _drop_unsubscribed(call: OperationContext, group: ConsumerGroup, wanted: set[int]) -> None:
    """Remove partitions that were deleted, or that no member wants now."""
    for partition in [one for one in group.shares.values() if one.group not in wanted]:
        _mark_member_changed(call, group, partition.owner)
        call.tables.remove_group_partition(group, partition)


def _give_to_wanted(
    call: OperationContext, group: ConsumerGroup, partition: GroupPartition
) -> None:
    """Make the wanted member, if there is one, the owner. The epoch is new in any case."""
    partition.owner = 0 if group.reset else partition.wanted
    partition.epoch = call.index
    _mark_member_changed(call, group, partition.owner)


def _mark_member_changed(call: OperationContext, group: ConsumerGroup, member: int) -> None:
    if member in group.members:
        group.members[member].version = call.index


def release_shares(call: OperationContext, args: Arguments) -> OperationResult:
    """Release (raft uid, epoch) pairs of a member. Pairs that it does not own in this epoch are
    ignored.
    """
    name, member, pairs = args.name("group"), args.number("member"), args.pairs("shares")
    args.done()
    group = call.tables.consumer_groups.get(name)
    released = []
    for raft_uid, epoch in pairs:
        partition = group.shares.get(raft_uid) if group is not None else None
        if (
            group is None
            or partition is None
            or (partition.owner, partition.epoch) != (member, epoch)
        ):
            continue
        released.append(raft_uid)
        _mark_member_changed(call, group, member)
        _give_to_wanted(call, group, partition)
    if group is not None and released:
        group.version = call.index
        call.tables.put_consumer_group(group)
    return {"released": released}


# -- positions ------------------------------------------------------------------------------------


def begin_reset(call: OperationContext, args: Arguments) -> OperationResult:
    """Begin an epoch under which positions may be set; no member reads until `end_reset`."""
    name, force = args.name("group"), args.flag("force", False)
    topics = [checked_name(one, "topic") for one in args.texts("topics")]
    args.done()
    group = call.tables.consumer_groups.get(name)
    if group is not None and group.members and not force:
        raise GroupInUse(f"group {name} has {len(group.members)} members")
    group = group or _make_group(call, name)
    _note_known_partitions(call, group, topics)  # the topics in which it has positions
    group.reset = call.index
    for partition in group.shares.values():
        _mark_member_changed(call, group, partition.owner)
        partition.owner, partition.epoch = 0, call.index
    group.version = call.index
    call.tables.put_consumer_group(group)
    return {"epoch": call.index}


def end_reset(call: OperationContext, args: Arguments) -> OperationResult:
    """Let members go on from the new positions. If another reset ended this one, nothing
    changes.
    """
    name, epoch = args.name("group"), args.number("epoch")
    args.done()
    group = _get_group(call.tables, name)
    ended = group.reset == epoch
    if ended:
        group.reset = 0
        rebalance(call, group)
    return {"ended": ended}


def remove_group(call: OperationContext, args: Arguments) -> OperationResult:
    """Remove a group after its positions were forgotten under this reset."""
    name, epoch = args.name("group"), args.number("epoch")
    args.done()
    group = _get_group(call.tables, name)
    if group.members:
        raise GroupInUse(f"group {name} has {len(group.members)} members")
    if group.reset != epoch:
        raise GroupInUse(f"group {name} is being changed by another reset")
    call.tables.remove_consumer_group(group)
    return {}


def _get_group(tables: Tables, name: str) -> ConsumerGroup:
    found = tables.consumer_groups.get(name)
    if found is None:
        raise UnknownGroup(f"there is no group {name!r}")
    return found
