"""Heartbeats (BEAT) of this broker to every manager, and the managers' ORDERS.

Every broker sends each manager a heartbeat every 450 ms, and at once when leadership changed. So
each manager knows by itself which brokers live and which replica leads. A heartbeat carries the
groups that changed since the last one that this manager answered, or all groups if it asks
(`more`). Nothing is remembered over a restart: the first heartbeat to each manager is full.

A manager answers with ORDERS. This module reads them and notes what they acknowledge;
`FollowedOrders` decides which count.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from myqueue.daemons.broker.orders import OrdersMessage, OrdersParts, parse_orders
from myqueue.daemons.broker.rebuilds import MISSING
from myqueue.daemons.broker.reconcile_members import committed_members
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.types import incarnation_of
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.broker.manager_answers import ManagerAnswers
    from myqueue.daemons.broker.orders import FollowedOrders
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.replication.engine import Engine

HEARTBEAT_INTERVAL_MS: Final = 450
GROUPS_PER_HEARTBEAT_MAX: Final = 4096  # with `held` they fit; the rest goes with the next
URGENT_INTERVAL_MS: Final = 25  # between heartbeats for changes of leaders, after a burst
URGENT_BURST: Final = 5
ACTIVE_CLIENTS_MAX: Final = 10_000  # of each kind, in one heartbeat; the rest goes with the next
ACTIVE_CLIENTS_KEPT_MAX: Final = 1_000_000  # of each kind, that wait for a heartbeat
UNHEALTHY_REPORTED_MAX: Final = 1000  # replicas, in one heartbeat
Row = list[Any]


class _ManagerState:
    """The heartbeats to one manager, and what it has acknowledged of them."""

    __slots__ = (
        "heartbeat_number",
        "next_is_full",
        "orders_parts",
        "sent_groups",
        "unanswered_groups",
    )

    def __init__(self) -> None:
        self.heartbeat_number = 0  # of the last heartbeat sent
        self.next_is_full = True  # the next heartbeat lists all groups
        self.unanswered_groups: dict[int, None] = {}  # groups that it may not know as they are
        self.sent_groups: list[int] = []  # those of the last heartbeat, until it is answered
        self.orders_parts = OrdersParts()


class ManagerLink:
    """Send heartbeats, and read what managers answer."""

    def __init__(
        self, engine: Engine, config: DaemonConfig, answers: ManagerAnswers, orders: FollowedOrders
    ) -> None:
        self._engine, self._config = engine, config
        self._answers, self._orders = answers, orders
        self._managers = {node: _ManagerState() for node, _ in config.managers}
        self._changed_groups: dict[int, None] = {}  # since the last heartbeats
        self._next_heartbeat_at = 0
        # Clients that no heartbeat has named since they were active, the oldest first.
        self._active_producers: dict[int, None] = {}
        self._active_consumers: dict[int, None] = {}
        self._unreached: set[int] = set()  # managers without a connection at the last heartbeats
        self._is_heartbeat_urgent = False
        self._urgent_pause_ends_at = 0  # `URGENT_BURST` heartbeats ahead of it are allowed
        self._last_heartbeat_at = 0
        self._messages_stored = 0  # in groups that this broker leads, since the last heartbeats

    # -- heartbeats ----------------------------------------------------------------------------

    def note_changed(self, group: int) -> None:
        """Report this group with the next heartbeats."""
        self._changed_groups[group] = None

    def note_leadership_changed(self, group: int) -> None:
        """Report this group at once."""
        self._changed_groups[group] = None
        self._is_heartbeat_urgent = True

    def note_closed(self, group: int) -> None:
        """Report at once that this group is closed, and nothing else of it."""
        self._changed_groups.pop(group, None)
        for manager in self._managers.values():
            manager.unanswered_groups.pop(group, None)
        self._is_heartbeat_urgent = True

    def count_stored(self, messages: int) -> None:
        """Count messages that were stored in a group that this broker leads."""
        self._messages_stored += messages
        self._engine.counts["messages_stored_total"] += messages

    def is_due(self, now: int) -> bool:
        """True if it is time for heartbeats.

        They do not wait if a manager became reachable, as its answer has the addresses of the
        brokers, or if leadership changed. While thousands of groups elect leaders, turn after turn,
        some turns share a heartbeat.
        """
        burst_ms = URGENT_BURST * URGENT_INTERVAL_MS
        return (
            (self._is_heartbeat_urgent and self._urgent_pause_ends_at <= now + burst_ms)
            or now >= self._next_heartbeat_at
            or any(map(self._is_reached, self._unreached))
        )

    def _is_reached(self, manager: int) -> bool:
        return not self._engine.peer_problem(("manager", manager))

    def send_heartbeats(self, now: int, producers: set[int], consumers: set[int]) -> None:
        """Send one heartbeat to each manager: the clients were active since the last ones."""
        if self._is_heartbeat_urgent:
            pause_from = max(now, self._urgent_pause_ends_at)
            self._urgent_pause_ends_at = pause_from + URGENT_INTERVAL_MS
        _add_active(self._active_producers, producers)
        _add_active(self._active_consumers, consumers)
        common = self._common_fields() | {
            "producers": _pop_oldest(self._active_producers),
            "consumers": _pop_oldest(self._active_consumers),
            "load": self._pop_load(now),
        }
        changed, self._changed_groups = self._changed_groups, {}
        self._next_heartbeat_at, self._is_heartbeat_urgent = now + HEARTBEAT_INTERVAL_MS, False
        self._unreached = {node for node in self._managers if not self._is_reached(node)}
        rows: dict[int, Row] = {}  # made once for all managers
        for node, manager in self._managers.items():
            manager.unanswered_groups |= changed
            frame = self._encode_heartbeat(manager, common, rows)
            self._engine.counts["beat_bytes_total"] += len(frame)
            if not self._engine.send_to_peer(("manager", node), [frame]):
                self._engine.counts["beats_dropped_total"] += 1

    def _encode_heartbeat(
        self, manager: _ManagerState, common: dict[str, Any], rows: dict[int, Row]
    ) -> bytes:
        """Return the next heartbeat to this manager, with the groups that it may not know."""
        is_full = manager.next_is_full
        if is_full:
            manager.unanswered_groups |= dict.fromkeys(self._engine.replicas)
        manager.sent_groups = list(islice(manager.unanswered_groups, GROUPS_PER_HEARTBEAT_MAX))
        fields = common | {"full": is_full, "groups": self._rows(manager.sent_groups, rows)}
        if is_full:
            fields["held"] = self._held_rows()
        manager.heartbeat_number += 1
        return protocol.encode(protocol.BEAT, manager.heartbeat_number, fields)

    def _rows(self, groups: Iterable[int], made: dict[int, Row]) -> list[Row]:
        """Return the rows of the groups that are here; `made` has those of other heartbeats."""
        rows = []
        for group in groups:
            row = made.get(group) or self._row(group)
            if row is not None:
                made[group] = row
                rows.append(row)
        return rows

    def _pop_load(self, now: int) -> int:
        """Return the messages a second that were stored here since the last heartbeats."""
        passed = now - self._last_heartbeat_at if self._last_heartbeat_at else HEARTBEAT_INTERVAL_MS
        messages, self._messages_stored = self._messages_stored, 0
        self._last_heartbeat_at = now
        return messages * 1000 // max(passed, 1)

    def _common_fields(self) -> dict[str, Any]:
        """Return what all managers get alike, but for the load and the active clients."""
        engine, config = self._engine, self._config
        return {
            "disk": engine.log.identity.disk,
            "incarnation": engine.incarnation,
            "address": config.advertise,
            "peer": config.peer_advertise,
            "host": config.host,
            "version": self._orders.version,
            "disk_low": engine.log.journal.space_low,
            "used_bytes": engine.counts.get("disk_used_bytes", 0),
            "reads_changes": True,
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

    def _health_fields(self) -> dict[str, list[list[Any]]]:
        """Return `health`, for people, and `lost`: all replicas that can't take part any more.

        Managers plan by `lost`, so it is complete. It also has the replicas whose removal is not on
        the disk yet.
        """
        engine, missing = self._engine, self._orders.missing.incarnations
        lost = missing | {
            group: incarnation_of(replica_id)
            for group, replica_id in engine.removals_in_progress.items()
            if replica_id
        }
        unhealthy = engine.unhealthy()
        held = engine.held() if unhealthy else {}
        rows: list[list[Any]] = []
        for group, reported in unhealthy.items():
            incarnation = incarnation_of(held[group])
            rows.append([group, incarnation, reported.health])
            if reported.health.needs_rebuild:
                lost[group] = incarnation
        rows += [[group, incarnation, MISSING.health] for group, incarnation in missing.items()]
        return {
            "health": rows[:UNHEALTHY_REPORTED_MAX],
            "lost": [[*row] for row in sorted(lost.items())],
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

    # -- answers -------------------------------------------------------------------------------

    def read_answer(self, node: int, envelope: protocol.Envelope) -> OrdersMessage | None:
        """Read a manager's answer; return its orders, None if it has no valid or whole ones."""
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
        except ValueError as error:
            self._engine.counts["orders_invalid_total"] += 1
            self._answers.note_malformed_orders(node, str(error))
            return None
        self._answers.note_contents(node, message)
        if heartbeat_number == manager.heartbeat_number:
            # Answers to older heartbeats say nothing about what changed since. Several parts may
            # answer one heartbeat: the first of them acknowledges its groups.
            for group in manager.sent_groups:
                manager.unanswered_groups.pop(group, None)
            manager.sent_groups = []
            manager.next_is_full = False
        manager.next_is_full |= message.more
        return manager.orders_parts.join(message)


def _add_active(clients: dict[int, None], active: set[int]) -> None:
    """Add these clients after those that wait, as long as memory is allowed for them."""
    room = ACTIVE_CLIENTS_KEPT_MAX - len(clients)
    clients |= dict.fromkeys(sorted(active)[: max(room, 0)])


def _pop_oldest(clients: dict[int, None]) -> list[int]:
    """Remove and return the clients that wait longest, so many as fit into a heartbeat."""
    oldest = list(islice(clients, ACTIVE_CLIENTS_MAX))
    for client in oldest:
        del clients[client]
    return oldest
