"""The leader of a group brings it to the members that the managers want, one at a time.

Input: the group's configuration, the wanted replicas, the status of each member. Output: the next
configuration to propose, or the replica that should lead instead. `next_step` is pure and keeps no
memory: in whatever state a dead leader or changed orders left a group, the next step leads on from
there. The first rule that applies counts:

1. A learner that is not wanted is removed.
2. A member whose node shall hold another replica of this group is lost and is removed: a node can't
   hold both.
3. A wanted replica that is no member becomes a learner.
4. A member that is not wanted is removed when there are more voters than wanted; or, if it is
   silent, as soon as a learner can take its place: so a group is never without a voter that it
   could have.
5. If that member leads, leadership goes to a wanted voter first.
6. A learner that has everything becomes a voter.

After no step the reachable and caught-up members are less than a majority. A removed member is not
asked to remove its data: the managers order that when the leader reported its removal.
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

CHECK_INTERVAL_MS: Final = 50
STEPS_PER_CHECK_MAX: Final = 64  # groups changed in one check
TRANSFER_RETRY_MS: Final = 5000  # who did not take over; a group takes nothing while it is asked


class MemberStatus(NamedTuple):
    """A member as its leader knows it."""

    is_heard: bool  # its node speaks
    is_whole: bool  # it has all committed entries, or almost (`leader.is_whole`)


UNREACHABLE: Final = MemberStatus(False, False)


def next_step(
    config: Config, me: int, wanted: Sequence[int], standing: Mapping[int, MemberStatus]
) -> Config | int | None:
    """Return the configuration to propose, or the replica to transfer to; None: wait, or all is
    done.
    """
    voters, learners = config
    group = _Quorum(me, standing)
    for one in learners:
        if one not in wanted:
            return Config(voters, _all_but(learners, one))
    nodes = {node_of(one): one for one in wanted}
    for one in voters:
        if nodes.get(node_of(one), one) != one and one != me:
            rest = _all_but(voters, one)
            return Config(rest, learners) if group.has_majority(rest) else None
    if nodes.get(node_of(me), me) != me:
        return _usable_voter(wanted, voters, group)
    taken = {node_of(one) for one in config.members}
    for one in wanted:
        if one not in config.members and node_of(one) not in taken:
            return Config(voters, (*learners, one))
    ready = [one for one in wanted if one in learners and group.is_usable(one)]
    unwanted = [one for one in voters if one not in wanted]
    leaving = sorted(unwanted, key=lambda one: (one == me, group.is_usable(one)))
    if leaving and (len(voters) > len(wanted) or (ready and not group.is_usable(leaving[0]))):
        if leaving[0] == me:
            return _usable_voter(wanted, voters, group)
        rest = _all_but(voters, leaving[0])
        if group.has_majority(rest):
            return Config(rest, learners)
    for one in ready:
        if group.has_majority((*voters, one)):
            return Config((*voters, one), _all_but(learners, one))
    return None


def _usable_voter(wanted: Sequence[int], voters: Sequence[int], group: _Quorum) -> int | None:
    """Return a voter that can lead instead."""
    return next((one for one in wanted if one in voters and group.is_usable(one)), None)


class _Quorum:
    def __init__(self, me: int, standing: Mapping[int, MemberStatus]) -> None:
        self._own_id, self._statuses = me, standing

    def is_usable(self, replica: int) -> bool:
        return replica == self._own_id or all(self._statuses.get(replica, UNREACHABLE))

    def has_majority(self, voters: tuple[int, ...]) -> bool:
        return bool(voters) and sum(map(self.is_usable, voters)) >= majority(len(voters))


def _all_but(members: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(other for other in members if other != one)


def member_statuses(replica: Replica, now: int) -> dict[int, MemberStatus]:
    node = replica.node
    return {
        member: MemberStatus(node.is_heard(member, now), node.leading.is_whole(member, now))
        for member in node.leading.followers
    }


class MemberReconciler:
    """Reconcile the groups that are led here and do not have their wanted members."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: dict[int, tuple[int, ...]] = {}
        self._groups_to_reconcile: dict[int, None] = {}  # groups to look at
        self._transfer_retry_at: dict[int, int] = {}  # group -> when that may be tried again
        self._next_check_at = 0

    def set_wanted(self, wanted: dict[int, tuple[int, ...]]) -> None:
        """All that is wanted of this broker's groups, as the managers decided last."""
        self._wanted = wanted
        self._groups_to_reconcile = dict.fromkeys(wanted)

    def changed(self, group: int) -> None:
        """It is led by another one, or from here."""
        if group in self._wanted:
            self._groups_to_reconcile[group] = None

    def tick(self, now: int) -> None:
        if not self._groups_to_reconcile or now < self._next_check_at:
            return
        self._next_check_at = now + CHECK_INTERVAL_MS
        self._transfer_retry_at = {
            one: at for one, at in self._transfer_retry_at.items() if at > now
        }
        steps = 0
        for group in list(self._groups_to_reconcile):
            replica, wanted = self._engine.replicas.get(group), self._wanted.get(group)
            if replica is None or wanted is None or not replica.is_leader:
                del self._groups_to_reconcile[
                    group
                ]  # its leader does it; `changed` adds it if that is us again
            elif replica.is_ready and steps < STEPS_PER_CHECK_MAX:
                steps += self._step(replica, wanted, now)

    def _step(self, replica: Replica, wanted: tuple[int, ...], now: int) -> bool:
        """Take one step. True if something was proposed or transferred."""
        node = replica.node
        if node.role != Role.LEADER or node.configs.current_index > node.commit_index:
            return False  # a change is under way
        config = node.config
        if not config.learners and set(config.voters) == set(wanted):
            del self._groups_to_reconcile[replica.uid]
            return False
        step = next_step(config, node.replica, wanted, member_statuses(replica, now))
        try:
            if isinstance(step, Config):
                self._engine.change(replica, step)
                self._engine.counts["members_changed_total"] += 1
            elif step is not None:
                if replica.uid in self._transfer_retry_at:
                    return False
                self._engine.transfer(replica, node_of(step))
                self._transfer_retry_at[replica.uid] = now + TRANSFER_RETRY_MS
        except MyQueueError:
            self._engine.counts["members_postponed_total"] += 1  # tried again at another check
        return step is not None


def committed_members(replica: Replica) -> list[list[int | bool]] | None:
    """Return [node, incarnation, votes] of each member; None if not led here or a change is under
    way.
    """
    node = replica.node
    if not replica.is_ready or node.configs.current_index > node.commit_index:
        return None
    config = node.config
    return [
        [node_of(one), one & INCARNATION_MASK, votes]
        for members, votes in ((config.voters, True), (config.learners, False))
        for one in members
    ]


INCARNATION_MASK: Final = (1 << 32) - 1
