"""The leader of a group brings it to the members that the managers want, one at a time.

Input: the group's configuration, the wanted replicas, the status of each member. Output: the next
configuration to propose, or the replica that should lead instead. `next_step` is pure and keeps no
memory: in whatever state a dead leader or changed orders left a group, the next step leads on from
there. The first rule that applies counts:

1. A learner that is not wanted is removed.
2. A member is removed if its node shall hold another replica of this group: a node can't hold both,
   so this one is lost.
3. A wanted replica that is no member becomes a learner.
4. A member that is not wanted is removed when there are more voters than wanted; or, if it is
   silent, as soon as a learner can take its place: so a group is never without a voter that it
   could have.
5. If that member leads, leadership goes to a wanted voter first.
6. A learner that has everything becomes a voter.

No step leaves fewer reachable, caught-up members than a majority. A removed member is not asked to
remove its data: the managers order that when the leader reported its removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from myqueue.daemons.raft.quorum import majority
from myqueue.daemons.raft.types import Config, incarnation_of, node_of
from myqueue.errors import MyQueueError

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

CHECK_INTERVAL_MS: Final = 50
STEPS_PER_CHECK_MAX: Final = 64  # groups changed in one check
TRANSFER_RETRY_MS: Final = 5000  # a group accepts no writes while a transfer is tried


class MemberStatus(NamedTuple):
    """A member as its leader knows it."""

    is_heard: bool  # its node speaks
    is_caught_up: bool  # it has all committed entries, or almost (`Leader.is_caught_up`)


UNREACHABLE: Final = MemberStatus(False, False)


class ChangeMembers(NamedTuple):
    """The step: propose this configuration."""

    config: Config


class TransferTo(NamedTuple):
    """The step: transfer leadership to this replica."""

    replica_id: int


Step = ChangeMembers | TransferTo


def next_step(
    config: Config, own_id: int, wanted: Sequence[int], statuses: Mapping[int, MemberStatus]
) -> Step | None:
    """Return the step to take; None: nothing to do, or nothing that is safe now."""
    voters, learners = config
    quorum = _Quorum(own_id, statuses)
    # Rule 1
    for learner in learners:
        if learner not in wanted:
            return ChangeMembers(Config(voters, _all_but(learners, learner)))
    # Rule 2 for the others
    wanted_on = {node_of(replica_id): replica_id for replica_id in wanted}
    for voter in voters:
        if wanted_on.get(node_of(voter), voter) != voter and voter != own_id:
            rest = _all_but(voters, voter)
            return ChangeMembers(Config(rest, learners)) if quorum.has_majority(rest) else None
    # Rule 2 for ourselves: only another leader can remove us
    if wanted_on.get(node_of(own_id), own_id) != own_id:
        return _transfer(wanted, voters, quorum)
    # Rule 3
    occupied_nodes = {node_of(member) for member in config.members}
    for replica_id in wanted:
        if replica_id not in config.members and node_of(replica_id) not in occupied_nodes:
            return ChangeMembers(Config(voters, (*learners, replica_id)))
    # Rule 4: silent voters first, ourselves last
    ready = [learner for learner in wanted if learner in learners and quorum.is_usable(learner)]
    unwanted = [voter for voter in voters if voter not in wanted]
    leaving = sorted(unwanted, key=lambda voter: (voter == own_id, quorum.is_usable(voter)))
    if leaving and (len(voters) > len(wanted) or (ready and not quorum.is_usable(leaving[0]))):
        # Rule 5
        if leaving[0] == own_id:
            return _transfer(wanted, voters, quorum)
        rest = _all_but(voters, leaving[0])
        if quorum.has_majority(rest):
            return ChangeMembers(Config(rest, learners))
    # Rule 6
    for learner in ready:
        if quorum.has_majority((*voters, learner)):
            return ChangeMembers(Config((*voters, learner), _all_but(learners, learner)))
    return None


def _transfer(wanted: Sequence[int], voters: Sequence[int], quorum: _Quorum) -> TransferTo | None:
    """Return the transfer to a wanted voter that can lead; None: no such voter now."""
    usable = (voter for voter in wanted if voter in voters and quorum.is_usable(voter))
    successor = next(usable, None)
    return None if successor is None else TransferTo(successor)


class _Quorum:
    """Which members count toward a majority now: the leader itself, and usable ones."""

    def __init__(self, own_id: int, statuses: Mapping[int, MemberStatus]) -> None:
        self._own_id, self._statuses = own_id, statuses

    def is_usable(self, replica_id: int) -> bool:
        return replica_id == self._own_id or all(self._statuses.get(replica_id, UNREACHABLE))

    def has_majority(self, voters: tuple[int, ...]) -> bool:
        return bool(voters) and sum(map(self.is_usable, voters)) >= majority(len(voters))


def _all_but(members: tuple[int, ...], leaving: int) -> tuple[int, ...]:
    return tuple(member for member in members if member != leaving)


def member_statuses(replica: Replica, now: int) -> dict[int, MemberStatus]:
    raft = replica.raft
    return {
        member: MemberStatus(raft.is_heard(member, now), raft.leading.is_caught_up(member, now))
        for member in raft.leading.followers
    }


class MemberReconciler:
    """Reconcile the groups that are led here and do not have their wanted members."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: dict[int, tuple[int, ...]] = {}
        self._groups_to_reconcile: dict[int, None] = {}
        self._transfer_retry_at: dict[int, int] = {}  # group -> when that may be tried again
        self._next_check_at = 0

    def set_wanted(self, wanted: dict[int, tuple[int, ...]]) -> None:
        """Take over the members that the managers want of this broker's groups."""
        self._wanted = wanted
        self._groups_to_reconcile = dict.fromkeys(wanted)

    def update_wanted(self, changed: dict[int, tuple[int, ...]], unwanted: Iterable[int]) -> None:
        """Take over the members of groups that changed; the others are as before."""
        self._wanted |= changed
        for group in unwanted:
            self._wanted.pop(group, None)
        self._groups_to_reconcile |= dict.fromkeys(changed)

    def changed(self, group: int) -> None:
        """Check this group again: its leader changed."""
        if group in self._wanted:
            self._groups_to_reconcile[group] = None

    def tick(self, now: int) -> None:
        if not self._groups_to_reconcile or now < self._next_check_at:
            return
        self._next_check_at = now + CHECK_INTERVAL_MS
        self._transfer_retry_at = {
            group: at for group, at in self._transfer_retry_at.items() if at > now
        }
        steps = 0
        for group in list(self._groups_to_reconcile):
            replica, wanted = self._engine.replicas.get(group), self._wanted.get(group)
            if replica is None or wanted is None or not replica.is_leader:
                # Its leader reconciles it; `changed` adds it when this replica leads again.
                del self._groups_to_reconcile[group]
            elif replica.is_ready and steps < STEPS_PER_CHECK_MAX:
                steps += self._step(replica, wanted, now)

    def _step(self, replica: Replica, wanted: tuple[int, ...], now: int) -> bool:
        """Do the group's next step; True if there was one to do."""
        raft = replica.raft
        if raft.configs.current_index > raft.commit_index:
            return False  # a change is under way
        config = raft.config
        if not config.learners and set(config.voters) == set(wanted):
            del self._groups_to_reconcile[replica.uid]
            return False
        step = next_step(config, raft.replica, wanted, member_statuses(replica, now))
        try:
            if isinstance(step, ChangeMembers):
                self._engine.change(replica, step.config)
                self._engine.counts["members_changed_total"] += 1
            elif isinstance(step, TransferTo):
                if replica.uid in self._transfer_retry_at:
                    return False
                self._engine.transfer(replica, node_of(step.replica_id))
                self._transfer_retry_at[replica.uid] = now + TRANSFER_RETRY_MS
        except MyQueueError:
            self._engine.counts["members_postponed_total"] += 1  # tried again at another check
        return step is not None


def committed_members(replica: Replica) -> list[list[int | bool]] | None:
    """Return [node, incarnation, votes] of each member; None if not settled or not led here."""
    raft = replica.raft
    if not replica.is_ready or raft.configs.current_index > raft.commit_index:
        return None
    config = raft.config
    return [
        [node_of(member), incarnation_of(member), votes]
        for members, votes in ((config.voters, True), (config.learners, False))
        for member in members
    ]
