"""Recoveries that no newer term can end (`ReplicaHealth.RECOVERY_STALLED`).

A recovering replica waits for a term that is newer than its start. Of two voters the other one
leads, and can't be elected again without this one: so the term never comes. Rebuilt under another
id, the replica counts as soon as it has the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from myqueue.daemons.raft.health import ReplicaHealth

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

STALLED_AFTER_MS: Final = 30_000  # a leader that can transfer to another voter does so at once
STALLED: Final = "of two voters the other one leads, so no newer term can end its recovery"


class StalledRecoveries:
    """Measure how long each replica waits in vain."""

    def __init__(self) -> None:
        self._waiting_since: dict[int, int] = {}  # group -> time

    def update(self, engine: Engine) -> None:
        """Mark the replicas that wait too long as stalled, and unmark the others."""
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
