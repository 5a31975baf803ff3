"""What the leader of the managers does without a request: it compares, and returns commands.

`next_operations` decides, the manager proposes. Everything here may be proposed twice without harm,
so nothing waits for an outcome: what was proposed is not proposed again for a while, and is
proposed once more if the tables still do not show it then.

- Daemons that send heartbeats are registered, with their first disk, and their addresses.
- Activity of clients is logged in batches.
- A topic whose partitions hold more than `partition_growth` messages on average gets one more.
- Removed replicas are forgotten when the broker certainly no longer has them.
- Replicas move away from dead and draining brokers and towards emptier ones (`moves`).
- Leadership returns to the preferred replicas (the first with room on its disk), a few at a time,
  when their brokers have been alive for some time. These are no commands but `transfers` in the
  orders to the broker that leads now.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from myqueue.daemons.manager.balancer.moves import MoveScheduler
from myqueue.daemons.manager.cluster_view import (
    BROKER_SILENT_AFTER_MS,
    BrokerStatus,
    ClientActivity,
    ClusterView,
    ManagerStatus,
)
from myqueue.daemons.metadata.records import BrokerRow, ManagerRow
from myqueue.daemons.metadata.tables import Tables

PROPOSE_RETRY_MS: Final = 2000
GROWTH_CHECK_INTERVAL_MS: Final = 500
ACTIVITY_LOG_INTERVAL_MS: Final = 5000
ACTIVITY_CLIENTS_MAX: Final = 10_000  # clients of each kind in one entry
FORGET_GROUPS_MAX: Final = 5000
FORGET_CHECK_INTERVAL_MS: Final = 500
LEADER_ALIVE_MS_MIN: Final = 5000  # a broker is alive for so long before it leads again
BALANCE_CHECK_INTERVAL_MS: Final = 1000
TRANSFERS_PER_REPLY_MAX: Final = 4  # in one answer to a heartbeat
TRANSFERS_IN_PROGRESS_MAX: Final = 8
TRANSFER_DURATION_MS_MAX: Final = 2000  # a transfer has succeeded or failed by then
TRANSFER_RETRY_MS: Final = 10_000


class DueOperation(NamedTuple):
    """An operation to propose."""

    operation: str
    arguments: dict[str, Any]


class ClusterController:
    """Finds what is due. It remembers pace only, so a new leader starts without it."""

    def __init__(self, cluster_view: ClusterView, activity: ClientActivity) -> None:
        self._cluster_view, self._activity = cluster_view, activity
        self._move_scheduler = MoveScheduler(cluster_view)
        self.become_leader(0)

    def become_leader(self, now: int) -> None:
        """Begin to lead: forget the pace of an earlier time."""
        self._move_scheduler.become_leader(now)
        self._retry_at: dict[tuple[Any, ...], int] = {}  # attempt key -> its next time
        self._next_growth_check_at, self._next_activity_at, self._next_forget_check_at = (
            now,
            now + ACTIVITY_LOG_INTERVAL_MS,
            now,
        )
        self._next_balance_at: dict[int, int] = {}  # broker -> its next check
        self._transferred_at: dict[int, int] = {}  # group -> its last transfer
        # Broker -> the state in which it led only what it should
        self._well_led: dict[int, tuple[Tables, tuple[int, ...]]] = {}

    def next_operations(
        self, tables: Tables, managers: dict[int, ManagerStatus], now: int
    ) -> list[DueOperation]:
        """Operations to propose now. `managers`: those that are configured, this one included."""
        todo = self._registration_operations(tables, managers, now)
        todo += self._forget_operations(tables, now)
        todo += [
            DueOperation(*command) for command in self._move_scheduler.next_commands(tables, now)
        ]
        if now >= self._next_growth_check_at:
            self._next_growth_check_at = now + GROWTH_CHECK_INTERVAL_MS
            todo += self._growth_operations(tables, now)
        if now >= self._next_activity_at:
            self._next_activity_at = now + ACTIVITY_LOG_INTERVAL_MS
            batch = self._activity.take(ACTIVITY_CLIENTS_MAX, direct_only=False)
            if any(batch.values()):
                todo.append(DueOperation("seen", batch))
        return todo

    @property
    def unreachable_brokers(self) -> set[int]:
        """Brokers that group leaders do not reach, although their heartbeats arrive."""
        return self._move_scheduler.backoff.unreachable_brokers

    def _claim_attempt(self, now: int, *attempt_key: Any) -> bool:
        """Whether it may be proposed now; if so, it is blocked for `PROPOSE_RETRY_MS`."""
        if now < self._retry_at.get(attempt_key, 0):
            return False
        if len(self._retry_at) > 10_000:
            self._retry_at = {key: until for key, until in self._retry_at.items() if until > now}
        self._retry_at[attempt_key] = now + PROPOSE_RETRY_MS
        return True

    def _registration_operations(
        self, tables: Tables, managers: dict[int, ManagerStatus], now: int
    ) -> list[DueOperation]:
        todo = []
        kinds: tuple[tuple[str, dict[int, Any], dict[int, Any]], ...] = (
            ("register_manager", managers, tables.managers),
            ("register_broker", self._cluster_view.brokers, tables.brokers),
        )
        for operation, lives, rows in kinds:
            for node, life in sorted(lives.items()):
                if isinstance(life, BrokerStatus) and tables.removed.get(node) == life.disk:
                    continue  # its last heartbeat came before it was removed
                news = _needs_registration(life, rows.get(node), now)
                if news and self._claim_attempt(now, operation, node):
                    arguments = {
                        "node": node,
                        "disk": life.disk,
                        "address": life.address,
                        "peer": life.peer,
                        "host": life.host,
                    }
                    if isinstance(life, BrokerStatus):
                        arguments["life"] = life.incarnation
                    todo.append(DueOperation(operation, arguments))
        return todo

    def _forget_operations(self, tables: Tables, now: int) -> list[DueOperation]:
        # A broker that is away may have many.
        if not tables.gone or now < self._next_forget_check_at:
            return []
        self._next_forget_check_at = now + FORGET_CHECK_INTERVAL_MS
        todo = []
        for node, life in sorted(self._cluster_view.brokers.items()):
            groups = confirmed_removals(tables, node, life)[:FORGET_GROUPS_MAX]
            if groups and self._claim_attempt(now, "forget_gone", node):
                arguments = {"node": node, "groups": groups, "version": life.full_heartbeat_version}
                todo.append(DueOperation("forget_gone", arguments))
        for node in sorted(node for node, groups in tables.gone_by_node.items() if groups):
            if node not in tables.brokers and self._claim_attempt(now, "forget_gone", node):
                # The broker was removed by force before the topic was deleted: it reports no more.
                rows = tables.pending_removals_of(node)[:FORGET_GROUPS_MAX]
                arguments = {
                    "node": node,
                    "groups": sorted({group for group, _, _ in rows}),
                    "version": max(index for _, _, index in rows),
                }
                todo.append(DueOperation("forget_gone", arguments))
        return todo

    def _growth_operations(self, tables: Tables, now: int) -> list[DueOperation]:
        todo = []
        for _, topic in sorted(tables.topics.items()):
            threshold, count = topic.settings["partition_growth"], len(topic.partitions)
            if not threshold:
                continue
            reports = (self._cluster_view.best_report(one.group) for one in topic.partitions)
            messages = sum(report.end for report in reports if report is not None)
            if messages >= threshold * count and self._claim_attempt(now, "grow", topic.uid, count):
                grow = {"topic_uid": topic.uid, "partitions": count}
                todo.append(DueOperation("grow_by_threshold", grow))
        return todo

    # -- leadership returns to preferred replicas ----------------------------------------------

    def next_transfers(self, tables: Tables, node: int, now: int) -> list[list[int]]:
        """[group, preferred node] of groups that this broker leads and another should."""
        if now < self._next_balance_at.get(node, 0):
            return []
        self._next_balance_at[node] = now + BALANCE_CHECK_INTERVAL_MS
        state = self._leading_state(tables, node)
        known = self._well_led.get(node)
        if known is not None and known[0] is tables and known[1] == state:
            return []
        recent = self._transferred_at
        for group in [one for one, at in recent.items() if now - at >= TRANSFER_RETRY_MS]:
            del recent[group]
        room = TRANSFERS_IN_PROGRESS_MAX - sum(
            now - at < TRANSFER_DURATION_MS_MAX for at in recent.values()
        )
        out: list[list[int]] = []
        is_well_led = True
        for group in self._cluster_view.groups_led_by(node):
            preferred = self._preferred_leader(tables, group)
            if preferred == node:
                continue
            is_well_led = False
            if len(out) >= min(room, TRANSFERS_PER_REPLY_MAX):
                break
            if not preferred or group in recent:
                continue
            settled = self._cluster_view.broker_alive_ms(preferred, now) >= LEADER_ALIVE_MS_MIN
            settled = settled and self._holds_wanted_replica(tables, group, preferred)
            if settled and self._cluster_view.leader_of(group, now)[0] == node:
                recent[group] = now
                out.append([group, preferred])
        if is_well_led:
            self._well_led[node] = tables, state
        return out

    def _leading_state(self, tables: Tables, node: int) -> tuple[int, ...]:
        """Numbers that change whenever this broker may lead what another one should."""
        view, life = self._cluster_view, self._cluster_view.brokers.get(node)
        changes = (life.incarnation, life.leader_changes) if life is not None else ()
        return *changes, tables.replica_changes.get(node, 0), view.disk_low_changes

    def _holds_wanted_replica(self, tables: Tables, group: int, node: int) -> bool:
        """Whether the broker has the wanted replica, not one that was lost with its disk."""
        partition, life = tables.partition(group), self._cluster_view.brokers.get(node)
        drawn = dict(partition.replicas).get(node, 0) if partition is not None else 0
        return life is not None and life.has(group) and life.holds_replica(group, drawn)

    def _preferred_leader(self, tables: Tables, group: int) -> int:
        """The broker that should lead: that of the first replica whose disk has room, else of the
        first replica; 0 if this one is known not to vote yet.
        """
        partition = tables.partition(group)
        if partition is None:
            return 0
        members, lives = self._cluster_view.members_of(group), self._cluster_view.brokers
        low = {one for one in partition.nodes if one in lives and lives[one].disk_low}
        first = next(
            (one for one in partition.replicas if one[0] not in low), partition.replicas[0]
        )
        return first[0] if members is None or members.get(first) else 0


def _needs_registration(
    life: BrokerStatus | ManagerStatus, row: BrokerRow | ManagerRow | None, now: int
) -> bool:
    """Whether a daemon's row differs from what it reports.

    A broker that is alive may register a new life and disk. A manager may never register a new
    disk: that is a mistake.
    """
    if row is None:
        return True
    here = (life.address, life.peer, life.host)
    if isinstance(life, BrokerStatus) and isinstance(row, BrokerRow):
        known = (row.disk, row.life, row.address, row.peer, row.host)
        is_alive = now - life.beat_at <= BROKER_SILENT_AFTER_MS
        return is_alive and (life.disk, life.incarnation, *here) != known
    return row.disk == life.disk and here != (row.address, row.peer, row.host)


def confirmed_removals(tables: Tables, node: int, life: BrokerStatus) -> list[int]:
    """Groups whose removed replicas this broker certainly does not have and will not create.

    It does not have them: its full heartbeat does not name them. It will not create them: at that
    heartbeat it followed orders made after the removal.
    """
    remaining: set[int] = set()
    groups = set()
    for group, incarnation, index in tables.pending_removals_of(node):
        groups.add(group)
        if life.holds_replica(group, incarnation) or life.full_heartbeat_version < index:
            remaining.add(group)
    return sorted(groups - remaining)
