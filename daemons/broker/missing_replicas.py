"""Wanted replicas that a hole of this broker's log may have held.

A replica id is used once. If recovery found a hole in the log that may have held any group, a
wanted replica that is not on disk may have been in it. If it was named in an earlier life of this
broker, it is not created but reported as missing (`ReplicaHealth.MISSING`), and the managers give
it a new id. Once nothing is in doubt, the note of the hole is cleared: a later start can't see the
hole again, and would take every replica named meanwhile for a missing one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from myqueue.daemons.broker.orders import WantedReplica, is_held
from myqueue.daemons.raft.health import START, ReplicaHealth, Unhealthy
from myqueue.daemons.replication.replica import report_health

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine

MISSING: Final = Unhealthy(ReplicaHealth.MISSING, "it may have been in a hole of the log")


class MissingReplicas:
    """Decide with each new orders which wanted replicas are missing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.incarnations: dict[int, int] = {}  # group -> incarnation of its missing replica
        self._is_loss_cleared = False

    def update(self, wanted: list[WantedReplica], life_from: int) -> None:
        """Judge these replicas. Incarnations below `life_from` are of earlier lives."""
        engine = self._engine
        held, before = engine.held(), self.incarnations
        self.incarnations = {
            replica.group: replica.incarnation(engine.node)
            for replica in wanted
            if self._may_be_missing(replica, held, life_from)
        }
        for group in self.incarnations.keys() - before.keys():
            report_health(engine.report, group, START, *MISSING)
        if not self.incarnations and self._has_unknown_loss():
            self._clear_unknown_loss(wanted, life_from)

    def _may_be_missing(self, replica: WantedReplica, held: dict[int, int], life_from: int) -> bool:
        incarnation = replica.incarnation(self._engine.node)
        return (
            self._has_unknown_loss()
            and 0 < incarnation < life_from
            and not is_held(held, replica.group, incarnation)
        )

    def _has_unknown_loss(self) -> bool:
        """True if recovery found a hole that may have held any group."""
        return self._engine.log.journal.recovered.unknown_loss

    def _clear_unknown_loss(self, wanted: list[WantedReplica], life_from: int) -> None:
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
