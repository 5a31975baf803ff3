"""Operations on consumer groups: who is in, who should read what, and who may.

How an operation is made is told in `operations.py`; what a team is, in `group_records.py`. Two
steps are kept apart, and that is all there is to a rebalance:

- *wanted*: who should read a partition, by `assignment.py`, decided anew when members come or go
and
  when partitions do. Joins are only noted; the leader asks for the decision when no more of them
  come (`daemons/manager/group_sessions.py`), so that members that start together are dealt out
  once.
- *owner*: who may. A partition without one goes to whom it is wanted for, at once. One that has an
  owner stays with it until it says that it let go, or is not a member any more (C8).

Each time a partition goes to somebody it gets a new epoch, the index of that entry.

A reset of positions is an owner of its own kind: from `begin_reset` to `end_reset` nobody has
anything, and its epoch lies between those of the owners before and after it.
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
    """The member's id is the index of this entry."""
    name, topics = args.name("group"), args.texts("topics")
    session_ms = args.number("session_ms", 10_000, SESSION_MS_MIN, SESSION_MS_MAX)
    label, host = args.text("name", ""), args.text("host", "")
    args.done()
    if not 0 < len(topics) <= TOPICS_MAX:
        raise InvalidRequest(f"a member reads 1 to {TOPICS_MAX} topics")
    topics = sorted({checked_name(one, "topic") for one in topics})
    known = call.tables.consumer_groups.get(name)
    if known is not None and len(known.members) >= MEMBERS_MAX:
        raise Busy(f"group {name} has {MEMBERS_MAX} members already")
    team = known or _make_group(call, name)
    member = GroupMember(call.index, label, host, session_ms, call.time_ms, topics, call.index)
    _note_known_partitions(call, team, topics)
    team.members[member.id] = member
    team.unbalanced = team.version = call.index
    call.tables.put_consumer_group(team)
    return {"member": member.id, "session_ms": session_ms}


def _note_known_partitions(
    call: OperationContext, team: ConsumerGroup, topics: Iterable[str]
) -> None:
    """What is there of these topics is old to the team, but for what a member waited for; all that
    comes later is new to it.
    """
    tables = call.tables
    there = [tables.topics[name] for name in topics if name in tables.topics]
    first = [topic for topic in there if topic.uid not in team.known_partition_counts]
    if first:
        awaited = {name for member in team.members.values() for name in member.topics}
        for topic in first:
            team.known_partition_counts[topic.uid] = (
                0 if topic.name in awaited else len(topic.partitions)
            )


def _make_group(call: OperationContext, name: str) -> ConsumerGroup:
    """One without members makes room, the one that rests for longest (S4)."""
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
    name, member = args.name("group"), args.number("member")
    args.done()
    team = _get_group(call.tables, name)
    if member not in team.members:
        raise UnknownMember(f"{name} has no member {member}")
    _remove_members(call, team, [member])
    return {"members": len(team.members)}


def expire_members(call: OperationContext, args: Arguments) -> OperationResult:
    """Their sessions ended, says the leader. Those that are gone already are no news."""
    name, members = args.name("group"), args.numbers("members")
    args.done()
    team = call.tables.consumer_groups.get(name)
    gone = sorted({one for one in members if team is not None and one in team.members})
    if team is not None and gone:
        _remove_members(call, team, gone)
    return {"gone": gone}


def _remove_members(call: OperationContext, team: ConsumerGroup, members: list[int]) -> None:
    for member in members:
        del team.members[member]
    for share in team.shares.values():
        share.owner = share.owner if share.owner in team.members else 0
    rebalance(call, team)


# -- who reads what -------------------------------------------------------------------------------


def balance_groups(call: OperationContext, args: Arguments) -> OperationResult:
    """Decided anew, since members joined, or partitions came or went."""
    names = args.texts("groups")
    args.done()
    for name in names:
        team = call.tables.consumer_groups.get(name)
        if team is not None:
            rebalance(call, team)
    return {}


def rebalance(call: OperationContext, team: ConsumerGroup) -> None:
    """Who should read what, and whatever has no owner goes there."""
    tables = call.tables
    partitions = _subscribed_partitions(tables, team)
    _drop_unsubscribed(call, team, {group for group, _, _ in partitions})
    for group, uid, number in partitions:
        if group not in team.shares:
            team.shares[group] = GroupPartition(group, uid, number)
        team.known_partition_counts.setdefault(
            uid, 0
        )  # made while a member waited for a topic of this name
    team.known_partition_counts = {
        uid: count for uid, count in team.known_partition_counts.items() if uid in tables.by_uid
    }
    uids = {name: topic.uid for name, topic in tables.topics.items()}
    wishes = {
        one.id: frozenset(uids[name] for name in one.topics if name in uids)
        for one in team.members.values()
    }
    before = {
        group: share.wanted if share.wanted in team.members else share.owner
        for group, share in team.shares.items()
    }
    wanted = [(group, uid) for group, uid, _ in partitions]
    decided, is_even = assign_partitions(wishes, wanted, before)
    for group, member in decided.items():
        share = team.shares[group]
        if share.wanted != member:
            share.wanted = member
            _mark_member_changed(call, team, share.owner)
        if not share.owner:
            _give_to_wanted(call, team, share)
    team.unbalanced, team.version = 0 if is_even else call.index, call.index
    tables.put_consumer_group(team)


def _subscribed_partitions(tables: Tables, team: ConsumerGroup) -> list[tuple[int, int, int]]:
    """(group, topic uid, number) of all that somebody wants."""
    names = sorted({name for member in team.members.values() for name in member.topics})
    return [
        (partition.group, topic.uid, number)
        for name in names
        if (topic := tables.topics.get(name)) is not None
        for number, partition in enumerate(topic.partitions)
    ]


def _drop_unsubscribed(call: OperationContext, team: ConsumerGroup, wanted: set[int]) -> None:
    """Partitions that were deleted, or that nobody wants any more."""
    for share in [one for one in team.shares.values() if one.group not in wanted]:
        _mark_member_changed(call, team, share.owner)
        call.tables.remove_group_partition(team, share)


def _give_to_wanted(call: OperationContext, team: ConsumerGroup, share: GroupPartition) -> None:
    """To whom it is wanted for, if that is anybody: a new epoch in any case."""
    share.owner = 0 if team.reset else share.wanted
    share.epoch = call.index
    _mark_member_changed(call, team, share.owner)


def _mark_member_changed(call: OperationContext, team: ConsumerGroup, member: int) -> None:
    if member in team.members:
        team.members[member].version = call.index


def release_shares(call: OperationContext, args: Arguments) -> OperationResult:
    """A member let go of (group, epoch); what it does not have in this epoch is no news."""
    name, member, pairs = args.name("group"), args.number("member"), args.pairs("shares")
    args.done()
    team = call.tables.consumer_groups.get(name)
    released = []
    for group, epoch in pairs:
        share = team.shares.get(group) if team is not None else None
        if team is None or share is None or (share.owner, share.epoch) != (member, epoch):
            continue
        released.append(group)
        _mark_member_changed(call, team, member)
        _give_to_wanted(call, team, share)
    if team is not None and released:
        team.version = call.index
        call.tables.put_consumer_group(team)
    return {"released": released}


# -- positions ------------------------------------------------------------------------------------


def begin_reset(call: OperationContext, args: Arguments) -> OperationResult:
    """An epoch under which positions may be set to anything; nobody reads until `end_reset`."""
    name, force = args.name("group"), args.flag("force", False)
    topics = [checked_name(one, "topic") for one in args.texts("topics")]
    args.done()
    team = call.tables.consumer_groups.get(name)
    if team is not None and team.members and not force:
        raise GroupInUse(f"group {name} has {len(team.members)} members")
    team = team or _make_group(call, name)
    _note_known_partitions(call, team, topics)  # it is told of what it has positions in
    team.reset = call.index
    for share in team.shares.values():
        _mark_member_changed(call, team, share.owner)
        share.owner, share.epoch = 0, call.index
    team.version = call.index
    call.tables.put_consumer_group(team)
    return {"epoch": call.index}


def end_reset(call: OperationContext, args: Arguments) -> OperationResult:
    """Members go on, from where they are now. A reset that was ended by another is no news."""
    name, epoch = args.name("group"), args.number("epoch")
    args.done()
    team = _get_group(call.tables, name)
    ended = team.reset == epoch
    if ended:
        team.reset = 0
        rebalance(call, team)
    return {"ended": ended}


def remove_group(call: OperationContext, args: Arguments) -> OperationResult:
    """After its positions were forgotten under this reset."""
    name, epoch = args.name("group"), args.number("epoch")
    args.done()
    team = _get_group(call.tables, name)
    if team.members:
        raise GroupInUse(f"group {name} has {len(team.members)} members")
    if team.reset != epoch:
        raise GroupInUse(f"group {name} is being changed by somebody else")
    call.tables.remove_consumer_group(team)
    return {}


def _get_group(tables: Tables, name: str) -> ConsumerGroup:
    found = tables.consumer_groups.get(name)
    if found is None:
        raise UnknownGroup(f"there is no group {name!r}")
    return found
