"""Decides when managers with empty logs may found the metadata: only all of them together.

A manager whose log is empty cannot know whether its disk is new because the cluster is new, or
because the old disk was lost. If a majority of such managers were enough, a manager that lost its
disk and one that never joined could found the metadata a second time while the third manager, which
has the metadata, is away. So a manager with an empty log does not campaign, and does not vote for a
candidate with an empty log, unless the current heartbeats of *every* manager in its configuration
say that their logs are empty, too. As soon as there is one entry, Raft's rules alone hold: a
manager that joins later follows managers that have entries, and votes for them.

Candidate and voter both check this, each by the heartbeats it received since its own start. So a
second foundation is only possible when no manager has an entry, and then there is nothing to lose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from myqueue.daemons.raft.health import ReplicaHealth

if TYPE_CHECKING:
    from myqueue.daemons.manager.cluster_view import ClusterView
    from myqueue.daemons.replication.replica import Replica

EMPTY_LOG_HEARTBEAT_INTERVAL_MS: Final = 100  # to the other managers, until the log has an entry
LOG_AFTER_MS: Final = 2_000  # of waiting; logged again after fifteen times as long


class MetadataFounding:
    """Allows or forbids this manager to found the metadata; the manager calls it at each tick."""

    def __init__(self, own_id: int, managers: list[int], log_event: Callable[..., None]) -> None:
        self._others = [node for node in managers if node != own_id]
        self._log_event = log_event
        self._next_log_at = 0
        self.missing_managers: list[int] = []  # managers that are not known to have an empty log

    def update(self, replica: Replica, cluster_view: ClusterView, now: int) -> None:
        """Set `replica.raft.may_found` and `missing_managers`; log while it waits."""
        if not is_log_empty(replica):
            replica.raft.may_found, self.missing_managers = True, []
            return
        self.missing_managers = [
            node
            for node in self._others
            if not (cluster_view.is_manager_alive(node, now) and cluster_view.managers[node].blank)
        ]
        replica.raft.may_found = not self.missing_managers
        self._next_log_at = self._next_log_at or now + LOG_AFTER_MS
        if self.missing_managers and now >= self._next_log_at:
            self._next_log_at = now + 15 * LOG_AFTER_MS
            self._log_event("warning", "waits-for-managers", why=self.waiting_reason)

    @property
    def waiting_reason(self) -> str:
        names = ", ".join(map(str, self.missing_managers))
        return (
            f"this manager's log is empty, and it founds the metadata only together with all"
            f" managers; it waits for {names}: start them. If the metadata is there already, one of"
            " them that has it leads, and this one follows"
        )


def is_log_empty(replica: Replica) -> bool:
    """Whether its log has no entry and never had one."""
    return replica.raft.log.last_index == 0 and replica.raft.health is not ReplicaHealth.RECOVERING
