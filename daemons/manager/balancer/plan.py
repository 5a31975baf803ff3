"""Which replicas should move, by the tables, the reports of brokers, and the time. Pure.

The reasons, the most pressing first:

1. *to rebuild*: a replica that its broker reports as unusable, or whose disk is gone, is rebuilt
   there;
2. *dead*: replicas of a broker that has been silent for `replace_after_ms` are rebuilt on others,
   and so are those of a broker that was removed when no other broker could take them;
3. *full*: a move to a disk that ran out of room, or to a broker that the group's leader does not
   reach (`backoff`), goes to another broker. In all these cases a replica that was to leave and
   still exists stays instead of the one that does not come;
4. *drained*: a draining broker gives its replicas away;
5. *too few*: a partition that lost a replica when there was no broker for another one gets one;
6. *together*: replicas that had to share a host are separated when there is another host;
7. *uneven*: replicas go from the fullest broker to the emptiest, down to 10 % from even.

The last two happen only while nothing else moves and all brokers are ready. A full disk does not
stop them: a broker is often added to relieve the others. No broker takes or gives more than
`moves_per_broker` replicas at a time; a dead broker gives nothing.

An order is no proof that something happened: the members of a group are those of the committed
configuration that its leader reports. A group without a leader cannot change its members, so it is
not moved; if it lost its leader while it moved, it does not block other moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from myqueue.daemons.manager.balancer import balance
from myqueue.daemons.manager.balancer.backoff import BrokerBackoff
from myqueue.daemons.manager.cluster_view import ClusterView
from myqueue.daemons.metadata import placement
from myqueue.daemons.metadata.records import ACTIVE, DRAINING, PartitionRow
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.metadata.topics import host_label

TARGET_ALIVE_MS_MIN: Final = 5000  # a broker is alive for so long before it gets replicas
MOVES_PER_ENTRY_MAX: Final = 100  # in one entry

Move = list[int]  # group, node, incarnation, target; node 0: one more replica


class MovePlan:
    """The brokers' replicas and current moves, and the moves that should follow.

    `stalled_groups` are moving groups that have lost their leader.
    """

    def __init__(
        self,
        tables: Tables,
        cluster_view: ClusterView,
        stalled_groups: set[int],
        now: int,
        backoff: BrokerBackoff,
    ) -> None:
        self.tables, self.cluster_view, self.now = tables, cluster_view, now
        self.stuck_moves, self.recent_targets = backoff.stuck_moves, backoff.recent_targets
        self.moves_per_broker_max = tables.settings["moves_per_broker"]
        self.dead_brokers = self._find_dead_brokers()
        self.moving_groups = tables.moving - stalled_groups
        self.moves_by_broker: dict[int, int] = dict.fromkeys(tables.brokers, 0)
        for group in self.moving_groups:
            self._count_moves(tables.partition(group))
        self.ready_brokers = {
            node
            for node, row in tables.brokers.items()
            if row.state == ACTIVE
            and cluster_view.broker_alive_ms(node, now) >= TARGET_ALIVE_MS_MIN
        }
        low = {node for node in self.ready_brokers if cluster_view.brokers[node].disk_low}
        self.possible_targets = self.ready_brokers - low - backoff.unreachable_brokers
        self.preferred_targets = self.possible_targets - backoff.low_disk_brokers
        self.replica_counts = {node: len(tables.held[node]) for node in tables.brokers}
        self.host_by_broker = {node: host_label(row) for node, row in tables.brokers.items()}
        self.planned_moves: list[Move] = []
        self.planned_groups: set[int] = set()  # groups

    @property
    def are_all_brokers_ready(self) -> bool:
        """Whether every active broker is ready, except those that count as dead."""
        wanted = {node for node, row in self.tables.brokers.items() if row.state == ACTIVE}
        return wanted - self.dead_brokers == self.ready_brokers

    def _find_dead_brokers(self) -> set[int]:
        """Brokers silent for `replace_after_ms`; none if most brokers are silent.

        Then this manager is more likely cut off itself. Brokers that died long ago and hold nothing
        any more do not count for that.
        """
        tables, cluster_view, now = self.tables, self.cluster_view, self.now
        silent = {
            node
            for node, row in tables.brokers.items()
            if cluster_view.broker_silent_ms(node, row.disk, now)
            >= tables.settings["replace_after_ms"]
        }
        alive = {node for node in tables.brokers if cluster_view.is_broker_alive(node, now)}
        counted = alive | {node for node in tables.brokers if tables.held.get(node)}
        return silent if 2 * len(alive) >= len(counted) else set()

    def _count_moves(self, partition: PartitionRow | None) -> None:
        """Count the move of this partition for each broker that gives or takes a replica."""
        if partition is None:
            return
        arriving = self._replicas_not_voting_yet(partition)
        for node in {node for node, _ in (*arriving, *partition.leaving)}:
            if node in self.moves_by_broker:
                self.moves_by_broker[node] += 1

    def _replicas_not_voting_yet(self, partition: PartitionRow) -> list[tuple[int, int]]:
        """Wanted replicas that do not vote yet."""
        members = self.cluster_view.members_of(partition.group) or {}
        return [one for one in partition.replicas if not members.get(one)]

    # -- what moves ----------------------------------------------------------------------------

    def make_moves(self, *, look_at_hosts: bool = True) -> list[Move]:
        tables = self.tables
        for node in sorted(tables.brokers):
            if self.cluster_view.is_broker_alive(node, self.now):
                for group in self._lost_replicas_on(node):
                    self._rebuild(group, node)
            if node in self.dead_brokers:
                for group in sorted(tables.held[node]):
                    self._move_away(group, node, is_source_alive=False)
        for node in sorted(set(tables.held) - set(tables.brokers)):
            for group in sorted(tables.held[node]):  # removed when no broker could take it
                self._move_away(group, node, is_source_alive=False)
        self._move_off_full_disks()
        for group, node in self.stuck_moves:
            self._move_away(group, node, is_source_alive=False)
        for node, row in sorted(tables.brokers.items()):
            if row.state == DRAINING and node not in self.dead_brokers:
                for group in sorted(tables.held[node]):
                    self._move_away(group, node)
        for group in sorted(tables.under_replicated):
            self._add_replica(group)
        if not self.moving_groups and self.are_all_brokers_ready:
            if look_at_hosts and not self.planned_moves:
                self._separate_hosts()
            if not self.planned_moves:
                self._even_out()
        return self.planned_moves

    def _lost_replicas_on(self, node: int) -> list[int]:
        life, row = self.cluster_view.brokers[node], self.tables.brokers[node]
        is_known = (life.disk, life.incarnation) == (row.disk, row.life)
        if (
            not is_known
            or not life.full_heartbeat_at
            or not (row.disk_first_incarnation or life.unusable)
        ):
            return []
        lost = []
        for group in sorted(self.tables.held[node]):
            incarnation = self._incarnation(group, node)
            known = life.unusable.get(group, -1)
            is_away = (
                incarnation < row.disk_first_incarnation and life.held.get(group) != incarnation
            )
            if is_away or known in (0, incarnation):
                lost.append(group)
        return lost

    def _incarnation(self, group: int, node: int) -> int:
        partition = self.tables.partition(group)
        return dict(partition.replicas)[node] if partition is not None else 0

    def _has_room(self, *nodes: int) -> bool:
        room = all(self.moves_by_broker.get(node, 0) < self.moves_per_broker_max for node in nodes)
        return room and len(self.planned_moves) < MOVES_PER_ENTRY_MAX

    def _can_change_members(self, group: int) -> bool:
        """Whether the group has a leader with known members, and no other move is planned for it.

        Without a leader no member changes. Moreover, replicas that should found the group and were
        never created must not be mistaken for later ones, which do not vote by themselves.
        """
        if group in self.planned_groups or not self.cluster_view.leader_of(group, self.now)[0]:
            return False
        return self.cluster_view.members_of(group) is not None

    def _rebuild(self, group: int, node: int) -> None:
        """Rebuild on the same broker with a new incarnation; elsewhere if that one is draining."""
        if self.tables.brokers[node].state == DRAINING:
            partition = self.tables.partition(group)
            if partition is not None and self.preferred_targets - set(partition.all_node_ids):
                self._move_away(group, node, is_source_alive=False)
                return
        if self._can_change_members(group) and (
            self._is_already_arriving(group, node) or self._has_room(node)
        ):
            self._plan_move(group, node, node)

    def _is_already_arriving(self, group: int, node: int) -> bool:
        """Whether a replica was already on its way there; it needs no further room then.

        Otherwise moves that were lost with a disk would wait for each other for ever.
        """
        partition = self.tables.partition(group)
        if partition is None or group not in self.moving_groups:
            return False
        return any(one == node for one, _ in self._replicas_not_voting_yet(partition))

    def _move_away(self, group: int, node: int, *, is_source_alive: bool = True) -> None:
        """Move to another broker, if there is one. `is_source_alive`: the broker still has it."""
        partition = self.tables.partition(group)
        if partition is None or not self._can_change_members(group):
            return
        if is_source_alive and (partition.is_moving or not self._has_room(node)):
            return
        to = (not is_source_alive and self._returning_node(partition)) or self._best_target(
            partition, node
        )
        if to:
            self._plan_move(group, node, to)

    def _returning_node(self, partition: PartitionRow) -> int:
        """The broker of a leaving replica that still exists and can stay; 0: there is none."""
        lives, group = self.cluster_view.brokers, partition.group
        for node, incarnation in partition.leaving:
            is_here = node in self.ready_brokers and node not in partition.nodes
            if is_here and lives[node].has(group) and lives[node].held[group] == incarnation:
                return node
        return 0

    def _best_target(self, partition: PartitionRow, instead_of: int = 0) -> int:
        """The best broker for one more replica; 0: none can take it now."""
        not_there = {node for group, node in self.recent_targets if group == partition.group}
        not_there |= set(partition.all_node_ids)
        fit = self.preferred_targets - not_there or self.possible_targets - not_there
        spare = [one for one in sorted(fit) if self._has_room(one)]
        hosts = [
            self.host_by_broker[one]
            for one in partition.nodes
            if one != instead_of and one in self.host_by_broker
        ]
        loads = [
            placement.BrokerLoad(one, self.host_by_broker[one], self.replica_counts[one])
            for one in spare
        ]
        return placement.best_broker_for_replica(loads, hosts)

    def _move_off_full_disks(self) -> None:
        """Move arriving replicas off full disks, which need their last room for votes."""
        lives = self.cluster_view.brokers
        full = {one for one in self.tables.brokers if one in lives and lives[one].disk_low}
        for group in sorted(self.moving_groups) if full else ():
            partition = self.tables.partition(group)
            for node, _ in (
                self._replicas_not_voting_yet(partition) if partition is not None else ()
            ):
                if node in full:
                    self._move_away(group, node, is_source_alive=False)

    def _add_replica(self, group: int) -> None:
        partition = self.tables.partition(group)
        if partition is None or partition.is_moving or not self._can_change_members(group):
            return
        to = self._best_target(partition)
        if to:
            self._plan_move(group, 0, to)

    def _plan_move(self, group: int, node: int, to: int) -> None:
        self.planned_moves.append([group, node, self._incarnation(group, node) if node else 0, to])
        self.planned_groups.add(group)
        for one in {node, to} & self.moves_by_broker.keys():
            self.moves_by_broker[one] += 1
        if node in self.replica_counts:
            self.replica_counts[node] -= 1
        self.replica_counts[to] += 1

    # -- balance -------------------------------------------------------------------------------

    def _separate_hosts(self) -> None:
        """Move one of two replicas on one host to a host without one, from the fuller broker."""
        if len(set(self.host_by_broker.values())) == len(self.host_by_broker):
            return
        for group, nodes in self._movable_among(self.tables.groups.keys(), self._has_shared_host):
            count = Counter(self.host_by_broker[one] for one in nodes)
            spare = [
                one
                for one in sorted(self.preferred_targets - set(nodes))
                if not count[self.host_by_broker[one]] and self._has_room(one)
            ]
            givers = [
                one for one in nodes if count[self.host_by_broker[one]] > 1 and self._has_room(one)
            ]
            if spare and givers:
                giver = max(givers, key=lambda one: (self.replica_counts[one], -one))
                self._plan_move(
                    group, giver, min(spare, key=lambda one: (self.replica_counts[one], one))
                )

    def _has_shared_host(self, partition: PartitionRow) -> bool:
        hosts = [self.host_by_broker.get(node, "") for node in partition.nodes]
        return len(set(hosts)) < len(hosts)

    def _even_out(self) -> None:
        """Move from the fullest to the emptiest broker as long as that makes them more even."""
        held, there = self.replica_counts, sorted(self.ready_brokers)
        while len(there) > 1 and self.preferred_targets:
            most, least = (pick(held[one] for one in there) for pick in (max, min))
            mean = sum(held[one] for one in there) / len(there)
            if not balance.is_uneven(most, least, mean):
                return
            step = balance.next_move(
                lambda node: self._movable_among(self.tables.held[node]),
                held,
                self.host_by_broker,
                there,
                sorted(self.preferred_targets),
            )
            if step is None or not self._has_room(step[1], step[2]):
                return
            self._plan_move(*step)

    def _movable_among(
        self, groups: AbstractSet[int], wanted: Callable[[PartitionRow], bool] = lambda _: True
    ) -> Iterable[tuple[int, list[int]]]:
        """Those of these groups whose members are exactly the wanted replicas, all on live
        brokers.
        """
        tried = {group for group, _ in self.recent_targets}
        for group in sorted(groups - self.planned_groups - tried):
            partition = self.tables.partition(group)
            if partition is not None and wanted(partition):
                members = self.cluster_view.members_of(group)
                whole = members == dict.fromkeys(partition.replicas, True)
                if whole and all(
                    self.cluster_view.is_broker_alive(one, self.now) for one in partition.nodes
                ):
                    yield group, partition.nodes
