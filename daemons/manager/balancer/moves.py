"""The pace of replica moves, and the time when a replica that left may be removed.

`plan` says which replicas should move; this file decides when that is proposed. It remembers pace
only, so a new leader starts without it. It returns commands that may be repeated or late without
harm (`daemons/metadata/brokers.py`). First it *settles* moves by the reports of group leaders:
leaving replicas that are no members any more may be removed, and when all wanted replicas are
members and no others, the move is over. When nothing is to be moved, it makes preferred leaders
even.

A replica that left may be removed only when no leader can take it back. A leader that follows older
orders could make it a voter again and remove the new one. So every member and every wanted replica
must follow orders that are not older than the move, and none may know a later term than that of the
report: a leader in between, by older orders, would have left such a term (`settled_replicas`).
"""

from __future__ import annotations

from typing import Any, Final

from myqueue.daemons.manager.balancer import balance
from myqueue.daemons.manager.balancer.backoff import BrokerBackoff
from myqueue.daemons.manager.balancer.plan import MovePlan
from myqueue.daemons.manager.cluster_view import ClusterView
from myqueue.daemons.metadata.records import PartitionRow
from myqueue.daemons.metadata.tables import Tables

CHECK_INTERVAL_MS: Final = 500
PROPOSE_RETRY_MS: Final = 2000  # an unfinished proposal is repeated after that
STALLED_AFTER_MS: Final = 10_000  # without a leader for so long, a group copies nothing
SHARED_HOST_CHECK_INTERVAL_MS: Final = 5000  # between two checks for replicas that share a host
SETTLES_MAX: Final = 100
PREFERS_MAX: Final = 20

ManagerCommand = tuple[str, dict[str, Any]]


class MoveScheduler:
    """Proposes moves, settles finished ones, makes preferred leaders even."""

    def __init__(self, cluster_view: ClusterView) -> None:
        self._cluster_view = cluster_view
        self.become_leader(0)

    def become_leader(self, now: int) -> None:
        """Begin to lead: forget the pace of an earlier time."""
        self._next_check_at = now + CHECK_INTERVAL_MS
        self._incarnation_at_moves = self._moves_proposed_at = -1  # of the last proposed moves
        self._settle_retry_at: dict[int, int] = {}  # group -> when settling may be proposed again
        self._leaderless_since: dict[int, int] = {}  # moving group -> since when it has no leader
        self._next_host_check_at = now
        self.backoff = BrokerBackoff()

    def next_commands(self, tables: Tables, now: int) -> list[ManagerCommand]:
        if now < self._next_check_at:
            return []
        self._next_check_at = now + CHECK_INTERVAL_MS
        out = self._settle_commands(tables, now)
        if (
            self._incarnation_at_moves == tables.counters.incarnation
            and now < self._moves_proposed_at + PROPOSE_RETRY_MS
        ):
            return out  # the last proposal is on its way
        self.backoff.update(tables, self._cluster_view, now)
        still = self._stalled_groups(tables, now) | {group for group, _ in self.backoff.stuck_moves}
        plan = MovePlan(tables, self._cluster_view, still, now, self.backoff)
        is_time = now >= self._next_host_check_at
        self._next_host_check_at = (
            now + SHARED_HOST_CHECK_INTERVAL_MS if is_time else self._next_host_check_at
        )
        moves = plan.make_moves(look_at_hosts=is_time)
        if moves:
            self._incarnation_at_moves, self._moves_proposed_at = tables.counters.incarnation, now
            out.append(("move_replicas", {"moves": moves}))
        elif not plan.moving_groups:
            out += self._prefer_commands(tables, plan)
        return out

    def _stalled_groups(self, tables: Tables, now: int) -> set[int]:
        """Moving groups without a leader for 10 s: they wait, and block no other move."""
        since = self._leaderless_since
        self._leaderless_since = {
            group: since.get(group, now)
            for group in tables.moving
            if not self._cluster_view.leader_of(group, now)[0]
        }
        return {
            group for group, at in self._leaderless_since.items() if now - at >= STALLED_AFTER_MS
        }

    def _settle_commands(self, tables: Tables, now: int) -> list[ManagerCommand]:
        self._settle_retry_at = {
            group: at
            for group, at in self._settle_retry_at.items()
            if at > now and group in tables.moving
        }
        out: list[ManagerCommand] = []
        for group in sorted(tables.moving - set(self._settle_retry_at)):
            partition = tables.partition(group)
            if partition is None or len(out) >= SETTLES_MAX:
                continue
            gone, done = settled_replicas(tables, self._cluster_view, partition)
            if gone or done:
                self._settle_retry_at[group] = now + PROPOSE_RETRY_MS
                arguments = {
                    "group": group,
                    "moved": partition.moved,
                    "gone": [list(one) for one in gone],
                    "done": done,
                }
                out.append(("settle_replicas", arguments))
        return out

    def _prefer_commands(self, tables: Tables, plan: MovePlan) -> list[ManagerCommand]:
        there, led = plan.ready_brokers, tables.led
        if not there or not plan.are_all_brokers_ready:
            return []  # a broker is away: wait until it is back or replaced
        if max(led.values(), default=0) - min(led[node] for node in there) < 2:
            return []
        partitions = [
            (group, topic.partitions[number].nodes)
            for group, (topic, number) in sorted(tables.groups.items())
        ]
        return [
            ("prefer_replica", {"group": group, "node": node})
            for group, node in balance.better_leaders(partitions, sorted(there), PREFERS_MAX)[
                :PREFERS_MAX
            ]
        ]


def settled_replicas(
    tables: Tables, cluster_view: ClusterView, partition: PartitionRow
) -> tuple[list[tuple[int, int]], bool]:
    """(leaving replicas that are certainly no members, whether the move is over)."""
    # A dead member may have led by older orders, and only its own report shows that term.
    members = cluster_view.members_of(partition.group, include_dead=True)
    if members is None:
        return [], False
    for node, _ in {*members, *partition.replicas}:
        row, life = tables.brokers.get(node), cluster_view.brokers.get(node)
        if row is None or life is None or life.incarnation != row.life:
            return [], False
        if life.version < partition.moved or not life.full_heartbeat_at:
            return [], False
    gone = [one for one in partition.leaving if one not in members]
    done = len(gone) == len(partition.leaving) and members == dict.fromkeys(
        partition.replicas, True
    )
    return gone, done
