"""A group becomes what the managers want it to be, one member at a time; its leader sees to that.

In: the group's configuration, the replicas that are wanted, how each member fares. Out: the next
configuration to propose, or who should lead instead. `next_step` is pure, knows no step before and
assumes nothing: whatever state a group was left in, by a leader that died or by orders that
changed, the next step leads from there. The rules, the first that applies counts:

1. a learner that is not wanted goes;
2. a member whose node shall hold another replica of this group is lost, and goes: a node can't
   hold both;
3. a wanted replica that is no member becomes a learner;
4. a member that is not wanted goes when there are more voters than wanted; or, if it is silent, as
   soon as a learner can take its place: so a group is never without a voter that it could have;
5. if that member leads, leadership goes to a wanted voter first;
6. a learner that has everything becomes a voter.

No step leaves a group in which those who are there and whole are no majority. A member that was
removed is not asked to remove its data: the managers say so when they know it from us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from myqueue.daemons.raft.quorum import majority
from myqueue.daemons.raft.types import Config, Role, node_of
from myqueue.errors import MyQueueError

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

LOOK_MS: Final = 50
STEPS_MAX: Final = 64  # groups changed at one look
HAND_OVER_AGAIN_MS: Final = 5000  # who did not take over; a group takes nothing while it is asked


class Standing(NamedTuple):
    """A member as its leader knows it."""

    is_heard: bool  # its node speaks
    is_whole: bool  # it has everything that is committed, or almost (`leader.is_whole`)


NOWHERE: Final = Standing(False, False)


def next_step(
    config: Config, me: int, wanted: Sequence[int], standing: Mapping[int, Standing]
) -> Config | int | None:
    """The configuration to propose; or the replica to hand over to; None: wait, or all is done."""
    voters, learners = config
    group = _Group(me, standing)
    for one in learners:
        if one not in wanted:
            return Config(voters, _without(learners, one))
    nodes = {node_of(one): one for one in wanted}
    for one in voters:
        if nodes.get(node_of(one), one) != one and one != me:
            rest = _without(voters, one)
            return Config(rest, learners) if group.can_work(rest) else None
    if nodes.get(node_of(me), me) != me:
        return _able_of(wanted, voters, group)
    taken = {node_of(one) for one in config.members}
    for one in wanted:
        if one not in config.members and node_of(one) not in taken:
            return Config(voters, (*learners, one))
    ready = [one for one in wanted if one in learners and group.is_able(one)]
    unwanted = [one for one in voters if one not in wanted]
    leaving = sorted(unwanted, key=lambda one: (one == me, group.is_able(one)))
    if leaving and (len(voters) > len(wanted) or (ready and not group.is_able(leaving[0]))):
        if leaving[0] == me:
            return _able_of(wanted, voters, group)
        rest = _without(voters, leaving[0])
        if group.can_work(rest):
            return Config(rest, learners)
    for one in ready:
        if group.can_work((*voters, one)):
            return Config((*voters, one), _without(learners, one))
    return None


def _able_of(wanted: Sequence[int], voters: Sequence[int], group: _Group) -> int | None:
    """Who can lead instead."""
    return next((one for one in wanted if one in voters and group.is_able(one)), None)


class _Group:
    def __init__(self, me: int, standing: Mapping[int, Standing]) -> None:
        self._me, self._standing = me, standing

    def is_able(self, replica: int) -> bool:
        return replica == self._me or all(self._standing.get(replica, NOWHERE))

    def can_work(self, voters: tuple[int, ...]) -> bool:
        return bool(voters) and sum(map(self.is_able, voters)) >= majority(len(voters))


def _without(members: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(other for other in members if other != one)


def standings(replica: Replica, now: int) -> dict[int, Standing]:
    node = replica.node
    return {
        member: Standing(node.is_heard(member, now), node.leading.is_whole(member, now))
        for member in node.leading.followers
    }


class Members:
    """The groups that are led here and are not as they should be."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: dict[int, tuple[int, ...]] = {}
        self._unlike: dict[int, None] = {}  # groups to look at
        self._handed_over: dict[int, int] = {}  # group -> when that may be tried again
        self._look_at = 0

    def ordered(self, wanted: dict[int, tuple[int, ...]]) -> None:
        """All that is wanted of this broker's groups, as the managers decided last."""
        self._wanted = wanted
        self._unlike = dict.fromkeys(wanted)

    def changed(self, group: int) -> None:
        """It is led by another one, or from here."""
        if group in self._wanted:
            self._unlike[group] = None

    def tick(self, now: int) -> None:
        if not self._unlike or now < self._look_at:
            return
        self._look_at = now + LOOK_MS
        self._handed_over = {one: at for one, at in self._handed_over.items() if at > now}
        steps = 0
        for group in list(self._unlike):
            replica, wanted = self._engine.replicas.get(group), self._wanted.get(group)
            if replica is None or wanted is None or not replica.is_leader:
                del self._unlike[group]  # whoever leads sees to it; if that is us again: `changed`
            elif replica.is_ready and steps < STEPS_MAX:
                steps += self._step(replica, wanted, now)

    def _step(self, replica: Replica, wanted: tuple[int, ...], now: int) -> bool:
        """True if something was asked of the group."""
        node = replica.node
        if node.role != Role.LEADER or node.configs.current_index > node.commit_index:
            return False  # a change is under way
        config = node.config
        if not config.learners and set(config.voters) == set(wanted):
            del self._unlike[replica.uid]
            return False
        step = next_step(config, node.replica, wanted, standings(replica, now))
        try:
            if isinstance(step, Config):
                self._engine.change(replica, step)
                self._engine.counts["members_changed_total"] += 1
            elif step is not None:
                if replica.uid in self._handed_over:
                    return False
                self._engine.transfer(replica, node_of(step))
                self._handed_over[replica.uid] = now + HAND_OVER_AGAIN_MS
        except MyQueueError:
            self._engine.counts["members_postponed_total"] += 1  # not now: at another look
        return step is not None


def committed_members(replica: Replica) -> list[list[int | bool]] | None:
    """[node, incarnation, votes] of each, for who leads; None while a change is under way."""
    node = replica.node
    if not replica.is_ready or node.configs.current_index > node.commit_index:
        return None
    config = node.config
    return [
        [node_of(one), one & INCARNATIONS, votes]
        for members, votes in ((config.voters, True), (config.learners, False))
        for one in members
    ]


INCARNATIONS: Final = (1 << 32) - 1
