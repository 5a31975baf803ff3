"""Replicas that the managers have to rebuild under another id, since nothing here can mend them.

*Missing* (`ReplicaHealth.MISSING`): a wanted replica that a hole of this broker's log may have
held. A replica id is used once. If recovery found a hole in the log that may have held any group, a
wanted replica that is not on disk may have been in it. If it was named in an earlier life of this
broker, it is not created but reported as missing, and the managers give it a new id. Once nothing
is in doubt, the note of the hole is cleared: a later start can't see the hole again, and would take
every replica named meanwhile for a missing one.

*Stalled* (`ReplicaHealth.RECOVERY_STALLED`): a recovering replica waits for a term that is newer
than its start. Of two voters the other one leads, and can't be elected again without this one: so
the term never comes. Rebuilt under another id, the replica counts as soon as it has the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from myqueue.daemons.raft.health import START, ReplicaHealth, Unhealthy
from myqueue.daemons.raft.types import incarnation_of
from myqueue.daemons.replication.replica import report_health

if TYPE_CHECKING:
    from myqueue.daemons.broker.orders import WantedReplica
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

MISSING: Final = Unhealthy(ReplicaHealth.MISSING, "it may have been in a hole of the log")
STALLED_AFTER_MS: Final = 30_000  # a leader that can transfer to another voter does so at once
STALLED: Final = "of two voters the other one leads, so no newer term can end its recovery"


class MissingReplicas:
    """Decide with each new orders which wanted replicas are missing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.incarnations: dict[int, int] = {}  # group -> incarnation of its missing replica
        self._is_loss_cleared = False

    def update(self, wanted: Collection[WantedReplica], life_from: int) -> None:
        """Judge these replicas. Incarnations below `life_from` are of earlier lives."""
        engine = self._engine
        if not self._has_unknown_loss():
            self.incarnations = {}
            return
        held, before = engine.held(), self.incarnations
        self.incarnations = {
            replica.group: replica.incarnation(engine.node)
            for replica in wanted
            if self._may_be_missing(replica, held, life_from)
        }
        for group in self.incarnations.keys() - before.keys():
            report_health(engine.report, group, START, *MISSING)
        if not self.incarnations:
            self._clear_unknown_loss(wanted, life_from)

    def _may_be_missing(self, replica: WantedReplica, held: dict[int, int], life_from: int) -> bool:
        incarnation = replica.incarnation(self._engine.node)
        return 0 < incarnation < life_from and not is_held(held, replica.group, incarnation)

    def _has_unknown_loss(self) -> bool:
        """True if recovery found a hole that may have held any group."""
        return self._engine.log.journal.recovered.unknown_loss

    def _clear_unknown_loss(self, wanted: Collection[WantedReplica], life_from: int) -> None:
        """Clear the note of the hole, unless a replica is still in doubt."""
        engine = self._engine
        if self._is_loss_cleared:
            return
        if engine.not_open:
            return  # in doubt themselves; without a store nothing else would say so
        held = engine.held()
        for replica in wanted:  # one that is to leave and is wanted again keeps its id
            for node, incarnation in replica.leaving:
                if (
                    node == engine.node
                    and incarnation < life_from
                    and not is_held(held, replica.group, incarnation)
                ):
                    return
        with suppress(OSError):  # on a disk that fails it is tried again
            engine.log.clear_unknown_loss()
            self._is_loss_cleared = True


def is_held(held: Mapping[int, int], group: int, incarnation: int) -> bool:
    """True if `held` (group -> replica id) has this replica, or one of an unknown incarnation."""
    return group in held and incarnation_of(held[group]) in (incarnation, 0)


class StalledRecoveries:
    """Measure how long each replica waits in vain."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting_since: dict[int, int] = {}  # group -> time

    def update(self) -> None:
        """Mark the replicas that wait too long as stalled, and unmark the others."""
        engine = self._engine
        before, self._waiting_since = self._waiting_since, {}
        for group, replica in engine.replicas.items():
            problem = ""
            if _waits_in_vain(replica):
                since = self._waiting_since[group] = before.get(group, engine.now)
                if engine.now - since >= STALLED_AFTER_MS:
                    problem = STALLED
            if problem != replica.recovery_problem:
                replica.recovery_problem = problem
                replica.note_health(engine.report)


def _waits_in_vain(replica: Replica) -> bool:
    raft = replica.raft
    return (
        raft.health is ReplicaHealth.RECOVERING
        and bool(replica.leader_node)
        and raft.term == raft.started_term
        and len(raft.config.voters) == 2
    )
