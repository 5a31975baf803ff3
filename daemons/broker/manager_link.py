"""Heartbeats (BEAT) of this broker to every manager, and the managers' ORDERS.

Every broker sends each manager a heartbeat every 450 ms, and at once when leadership changed. So
each manager knows by itself which brokers live and which replica leads. A heartbeat carries the
groups that changed since the last one that this manager answered, or all groups if it asks
(`more`). Nothing is remembered over a restart: the first heartbeat to each manager is full.

Orders state what managers have committed. A broker follows those of the highest version that it has
seen, of managers that have applied the registration of this process (`life`). So it never follows
orders older than those that an earlier life of it followed. It creates replicas that it should
hold, and removes those that a committed entry names (group and incarnation). A group that is
neither wanted nor to be removed stays, and is reported. Addresses of brokers alone are accepted
from any manager: without them a restarted broker could reach no other as long as the managers have
no leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from myqueue.daemons.broker.orders import (
    BrokerOrders,
    OrdersMessage,
    WantedReplica,
    is_held,
    parse_orders,
)
from myqueue.daemons.broker.rebuilds import MISSING, MissingReplicas, StalledRecoveries
from myqueue.daemons.broker.reconcile_members import committed_members
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.health import Unhealthy
from myqueue.daemons.raft.types import incarnation_of
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.broker.manager_answers import ManagerAnswers
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.replication.engine import Engine

HEARTBEAT_INTERVAL_MS: Final = 450
GROUPS_PER_HEARTBEAT_MAX: Final = 8192  # in one heartbeat; the rest goes with the next
UNHEALTHY_REPORTED_MAX: Final = 1000  # replicas, in one heartbeat
Row = list[Any]


class _ManagerState:
    """What this broker sent to one manager, and what that manager has acknowledged."""

    __slots__ = ("heartbeat_number", "next_is_full", "unanswered_groups")

    def __init__(self) -> None:
        self.heartbeat_number = 0  # of the last heartbeat sent
        self.next_is_full = True  # the next heartbeat lists all groups
        self.unanswered_groups: dict[int, None] = {}  # groups that it may not know as they are


class ManagerLink:
    """Send heartbeats and read orders; the broker carries the orders out."""

    def __init__(self, engine: Engine, config: DaemonConfig, answers: ManagerAnswers) -> None:
        self._engine, self._config, self._answers = engine, config, answers
        self._managers = {node: _ManagerState() for node, _ in config.managers}
        self._touched: dict[int, None] = {}  # groups that changed since the last heartbeats
        self._next_heartbeat_at = 0
        self._unreached: set[int] = set()  # managers without a connection at the last heartbeats
        self._is_heartbeat_urgent = False
        self._last_heartbeat_at = 0
        self._messages_stored = 0  # in groups that this broker leads, since the last heartbeats
        self.version = 0  # of the orders that are followed
        self._addresses_version = 0
        self.wanted: dict[int, WantedReplica] = {}
        self._missing_replicas = MissingReplicas(engine)
        self._stalled_recoveries = StalledRecoveries()
        self.brokers: dict[int, str] = {}  # node -> address of its client listener

    # -- heartbeats ----------------------------------------------------------------------------

    def touch(self, group: int) -> None:
        self._touched[group] = None

    def note_leadership_changed(self, group: int) -> None:
        self._touched[group] = None
        self._is_heartbeat_urgent = True

    def closed(self, group: int) -> None:
        """Report a closed group with the next heartbeats, and nothing else of it."""
        self._touched.pop(group, None)
        for manager in self._managers.values():
            manager.unanswered_groups.pop(group, None)
        self._is_heartbeat_urgent = True

    def count_stored(self, messages: int) -> None:
        """Count messages that were stored in a group that this broker leads."""
        self._messages_stored += messages
        self._engine.counts["messages_stored_total"] += messages

    def is_due(self, now: int) -> bool:
        """True if heartbeats are due: at once if a manager became reachable, as its orders name the
        brokers.
        """
        return (
            self._is_heartbeat_urgent
            or now >= self._next_heartbeat_at
            or any(map(self._is_reached, self._unreached))
        )

    def _is_reached(self, manager: int) -> bool:
        return not self._engine.peer_problem(("manager", manager))

    def send_heartbeats(self, now: int, producers: list[int], consumers: list[int]) -> None:
        """Send one heartbeat to each manager."""
        self._stalled_recoveries.update(self._engine)
        common = self._take_common_fields(now, producers, consumers)
        touched, self._touched = self._touched, {}
        self._next_heartbeat_at, self._is_heartbeat_urgent = now + HEARTBEAT_INTERVAL_MS, False
        self._unreached = {node for node in self._managers if not self._is_reached(node)}
        rows: dict[int, Row] = {}  # made once for all managers
        for node, manager in self._managers.items():
            manager.heartbeat_number += 1
            manager.unanswered_groups |= touched
            if manager.next_is_full:
                manager.unanswered_groups |= dict.fromkeys(self._engine.replicas)
            groups = islice(manager.unanswered_groups, GROUPS_PER_HEARTBEAT_MAX)
            state = common | {"full": manager.next_is_full, "groups": self._rows(groups, rows)}
            if manager.next_is_full:
                state["held"] = self._held_rows()
            frame = protocol.encode(protocol.BEAT, manager.heartbeat_number, state)
            if not self._engine.send_to_peer(("manager", node), [frame]):
                self._engine.counts["beats_dropped_total"] += 1

    def _rows(self, groups: Iterable[int], made: dict[int, Row]) -> list[Row]:
        """Return the rows of the groups that are here; `made` has those of other heartbeats."""
        rows = []
        for group in groups:
            row = made.get(group) or self._row(group)
            if row is not None:
                made[group] = row
                rows.append(row)
        return rows

    def _take_common_fields(
        self, now: int, producers: list[int], consumers: list[int]
    ) -> dict[str, Any]:
        engine, config = self._engine, self._config
        passed = now - self._last_heartbeat_at if self._last_heartbeat_at else HEARTBEAT_INTERVAL_MS
        load = self._messages_stored * 1000 // max(passed, 1)
        self._last_heartbeat_at, self._messages_stored = now, 0
        return {
            "disk": engine.log.identity.disk,
            "incarnation": engine.incarnation,
            "address": config.advertise,
            "peer": config.peer_advertise,
            "host": config.host,
            "version": self.version,
            "producers": producers,
            "consumers": consumers,
            "disk_low": engine.log.journal.space_low,
            "load": load,
            "used_bytes": engine.counts.get("disk_used_bytes", 0),
            "free_bytes": engine.counts.get("disk_free_bytes", 0),
            "damaged": engine.repair.damage_report(),
            **self._health_fields(),
            **engine.closing.next_told(),
        }

    def _held_rows(self) -> list[list[int]]:
        """Return [group, incarnation] of all that a restart would find here.

        The managers forget a pending removal once its replica is not reported any more. If the
        broker is killed before the removal is on disk, it would keep the replica forever.
        """
        held = self._engine.removals_in_progress | self._engine.held()
        return [[group, incarnation_of(replica_id)] for group, replica_id in held.items()]

    def unhealthy(self) -> dict[int, Unhealthy]:
        """Group -> health of each replica that is not HEALTHY; some are not on this disk."""
        missing = dict.fromkeys(self._missing_replicas.incarnations, MISSING)
        return self._engine.unhealthy() | missing

    def _health_fields(self) -> dict[str, list[list[Any]]]:
        """Return `health`, and what an older manager reads instead: `lost` and `voteless`.

        `lost` also has the replicas whose removal is not on the disk yet.
        """
        engine, missing = self._engine, self._missing_replicas.incarnations
        unhealthy = engine.unhealthy()
        held = engine.held() if unhealthy else {}
        rows = [
            (group, incarnation_of(held[group]), reported.health)
            for group, reported in unhealthy.items()
        ]
        lost = missing | {
            group: incarnation_of(replica_id)
            for group, replica_id in engine.removals_in_progress.items()
            if replica_id
        }
        lost |= {group: incarnation for group, incarnation, health in rows if health.needs_rebuild}
        voteless = [[group, incarnation] for group, incarnation, health in rows if health.is_open]
        rows += [(group, incarnation, MISSING.health) for group, incarnation in missing.items()]
        return {
            "health": [[*row] for row in rows[:UNHEALTHY_REPORTED_MAX]],
            "lost": [[*row] for row in sorted(lost.items())],
            "voteless": voteless[:UNHEALTHY_REPORTED_MAX],
        }

    def _row(self, group: int) -> Row | None:
        replica = self._engine.replicas.get(group)
        if replica is None:
            return None
        machine = cast(PartitionMachine, replica.machine)
        return [
            group,
            incarnation_of(replica.replica_id),
            replica.is_leader,
            replica.raft.term,
            replica.leader_node,
            machine.start,
            machine.end,
            machine.bytes_kept,
            committed_members(replica),
        ]

    # -- orders --------------------------------------------------------------------------------

    def answered(self, node: int, envelope: protocol.Envelope) -> BrokerOrders | None:
        """Read a manager's answer; return its orders, None if it has no valid ones."""
        manager = self._managers.get(node)
        if manager is None:
            return None
        if envelope[protocol.KIND] == protocol.ERROR:
            self._answers.note_error(node, envelope[3], str(envelope[4]))
        if envelope[protocol.KIND] != protocol.ORDERS:
            return None
        _, _, heartbeat_number, contents = envelope
        self._answers.note_orders(node)
        try:
            message = parse_orders(contents)
        except (KeyError, TypeError, ValueError):  # of another version
            self._engine.counts["orders_invalid_total"] += 1
            return None
        self._answers.note_contents(node, message)
        if heartbeat_number == manager.heartbeat_number:
            # Answers to older heartbeats say nothing about what changed since.
            unsent = islice(manager.unanswered_groups, GROUPS_PER_HEARTBEAT_MAX, None)
            manager.unanswered_groups = dict.fromkeys(unsent)
            manager.next_is_full = False
        manager.next_is_full |= message.more
        return self._accept(message)

    # -- following orders ----------------------------------------------------------------------

    def _accept(self, message: OrdersMessage) -> BrokerOrders:
        """Store orders for this life that are not older; return what the broker must carry out."""
        version, transfers = message.version, message.transfers
        self._learn_addresses(version, message.brokers)
        if message.life != self._engine.incarnation or version < self.version:
            return BrokerOrders([], None, [])
        if message.wanted is None:
            # A manager that believes we follow newer orders has more to say than removals.
            gone = message.gone if version == self.version else []
            return BrokerOrders(self._groups_to_remove(gone), None, transfers)
        self.version = version
        self.wanted = {replica.group: replica for replica in message.wanted}
        self._missing_replicas.update(message.wanted, message.life_from)
        return BrokerOrders(self._groups_to_remove(message.gone), self.wanted, transfers)

    def _learn_addresses(self, version: int, rows: list[tuple[int, str, str]]) -> None:
        if version < self._addresses_version:
            return
        for node, address, peer in rows:
            self._addresses_version = version
            self.brokers[node] = address
            if node != self._engine.node:
                self._engine.set_peer_address(("broker", node), peer)

    def _groups_to_remove(self, gone: list[tuple[int, int]]) -> list[int]:
        """Return the groups of which `gone`, rows [group, incarnation], names the replica here.

        If the log lost the replica's id, any incarnation of its group names it.
        """
        if not gone:
            return []
        held = self._engine.held()
        named = (group for group, incarnation in gone if is_held(held, group, incarnation))
        return list(dict.fromkeys(named))

    def replicas_to_create(self) -> list[WantedReplica]:
        """Return the wanted replicas that are not here; missing ones are rebuilt under another id.

        A group of which any replica is here waits until that one is removed.
        """
        engine = self._engine
        return [
            replica
            for group, replica in self.wanted.items()
            if group not in engine.replicas
            and group not in engine.not_open
            and group not in self._missing_replicas.incarnations
            and replica.incarnation(engine.node)
        ]
