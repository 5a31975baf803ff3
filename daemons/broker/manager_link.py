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

A replica's name is used once. If recovery found a hole in the log that may have held any group, a
wanted replica that is not on disk may have been in it. If it was named in an earlier life, it is
not created but reported as missing, and gets a new name.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from myqueue.daemons.broker.reconcile_members import INCARNATION_MASK, committed_members
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.health import START, ReplicaHealth, Unhealthy
from myqueue.daemons.raft.types import node_of, replica_id
from myqueue.daemons.replication.replica import report_health
from myqueue.errors import IdentityMismatch
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

HEARTBEAT_INTERVAL_MS: Final = 450
GROUPS_PER_HEARTBEAT_MAX: Final = 8192  # in one heartbeat; the rest goes with the next
RECOVERY_STALLED_AFTER_MS: Final = (
    30_000  # a leader that can transfer to another voter does so at once
)
RECOVERY_STALLED: Final = "of two voters the other one leads, so no newer term can end its recovery"
UNHEALTHY_REPORTED_MAX: Final = 1000  # replicas, in one heartbeat
_MISSING: Final = Unhealthy(ReplicaHealth.MISSING, "it may have been in a hole of the log")
ANSWER_CURRENT_MS: Final = 5000  # an answer older than that may be of another time
_IDENTITY_MISMATCH: Final = IdentityMismatch.code
Row = list[Any]


class WantedReplica(NamedTuple):
    """One group that this broker should hold."""

    group: int
    topic: str
    number: int
    topic_uid: int
    replicas: list[list[int]]  # [node, incarnation]; the first is the preferred leader
    settings: dict[str, Any]
    leaving: list[list[int]]  # may be members still
    moved: int  # 0: the wanted replicas are the group's founders
    founders: tuple[tuple[int, int], ...] = ()  # as it was created, if it may not be founded yet

    def incarnation(self, node: int) -> int:
        """Return the incarnation of the replica that this node should hold; 0: none."""
        return next((drawn for at, drawn in self.replicas if at == node), 0)

    def members(self) -> tuple[int, ...]:
        """Return the replica ids of all that are wanted."""
        return tuple(replica_id(node, incarnation) for node, incarnation in self.replicas)

    def about(self) -> bytes:
        return protocol.pack([self.topic, self.number, self.topic_uid, self.settings])


class _ManagerState:
    """What this broker knows of one manager, and the manager of it."""

    __slots__ = (
        *(
            "followed_at",
            "beat",
            "full",
            "last_seen_at",
            "refusal_text",
            "refused_at",
            "unanswered_groups",
        ),
        *("unconfigured_managers", "wall_ms"),
    )

    def __init__(self) -> None:
        self.beat = 0  # number of the last one
        self.followed_at = -ANSWER_CURRENT_MS  # when its orders were followed last
        self.wall_ms = 0  # what its clock said then; 0: it did not tell
        self.last_seen_at = -ANSWER_CURRENT_MS  # when orders came last, for whatever life
        self.refusal_text = ""  # an error that it answered with, unless orders came since
        self.unconfigured_managers: list[int] = []  # managers that it names and our settings do not
        self.refused_at = -ANSWER_CURRENT_MS  # when it did not want to hear us; unless it did since
        self.full = True  # the next one is to be full
        self.unanswered_groups: dict[int, None] = {}  # groups that it may not know as they are


class BrokerOrders(NamedTuple):
    """What a broker has to do after an answer of a manager."""

    remove: list[int]
    wanted: dict[int, WantedReplica] | None  # None: as before
    transfers: list[tuple[int, int]]


class ManagerLink:
    """Send heartbeats and read orders; the broker carries the orders out."""

    def __init__(self, engine: Engine, config: DaemonConfig) -> None:
        self._engine, self._config = engine, config
        self._managers = {node: _ManagerState() for node, _ in config.managers}
        self._touched: dict[int, None] = {}  # groups that changed since the last beats
        self._due = 0
        self._unreached: set[int] = set()  # managers to which no link stood at the last beat
        self._is_heartbeat_urgent = False
        self._last_heartbeat_at, self._messages = 0, 0
        self.version = 0  # of the orders that are followed
        self._addresses_version = 0
        self.wanted: dict[int, WantedReplica] = {}
        self._missing_replicas: dict[int, int] = {}  # wanted; perhaps lost with the log
        self._waits: dict[int, int] = {}  # replicas that can't count in this term, since when
        self._is_loss_cleared = (
            False  # nothing is missing any more that a hole in the log may have held
        )
        self.brokers: dict[int, str] = {}  # node -> address of its client listener
        self.rejection_reason = ""  # the last manager's text

    # -- beats ---------------------------------------------------------------------------------

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

    def count(self, messages: int) -> None:
        """Stored in groups that this broker leads."""
        self._messages += messages
        self._engine.counts["messages_stored_total"] += messages

    def is_due(self, now: int) -> bool:
        """True if heartbeats are due: at once if a manager became reachable, as its orders name the
        brokers.
        """
        return (
            self._is_heartbeat_urgent
            or now >= self._due
            or any(map(self._is_reached, self._unreached))
        )

    def _is_reached(self, manager: int) -> bool:
        return not self._engine.peer_problem(("manager", manager))

    def beat(self, now: int, producers: list[int], consumers: list[int]) -> None:
        """Send one heartbeat to each manager."""
        common = self._take_common_fields(now, producers, consumers)
        touched, self._touched = self._touched, {}
        self._due, self._is_heartbeat_urgent = now + HEARTBEAT_INTERVAL_MS, False
        self._unreached = {node for node in self._managers if not self._is_reached(node)}
        rows: dict[int, Row] = {}  # made once for all managers
        for node, manager in self._managers.items():
            manager.beat += 1
            manager.unanswered_groups |= touched
            groups, held = manager.unanswered_groups, None
            if manager.full:
                groups = manager.unanswered_groups
                groups |= dict.fromkeys(self._engine.replicas)
                held = self._held_rows()
            told = []
            for group in list(groups)[:GROUPS_PER_HEARTBEAT_MAX]:
                row = rows.get(group) or self._row(group)
                if row is not None:
                    rows[group] = row
                    told.append(row)
            state = common | {"full": manager.full, "groups": told}
            if held is not None:
                state["held"] = held
            frame = protocol.encode(protocol.BEAT, manager.beat, state)
            if not self._engine.send_to_peer(("manager", node), [frame]):
                self._engine.counts["beats_dropped_total"] += 1

    def _take_common_fields(
        self, now: int, producers: list[int], consumers: list[int]
    ) -> dict[str, Any]:
        engine, config = self._engine, self._config
        passed = now - self._last_heartbeat_at if self._last_heartbeat_at else HEARTBEAT_INTERVAL_MS
        load = self._messages * 1000 // max(passed, 1)
        self._last_heartbeat_at, self._messages = now, 0
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
        found = self._engine.removals_in_progress | self._engine.held()
        return [[group, name & INCARNATION_MASK] for group, name in found.items()]

    def unhealthy(self) -> dict[int, Unhealthy]:
        """Group -> health of each replica that is not HEALTHY; some are not on this disk."""
        missing = dict.fromkeys(self._missing_replicas, _MISSING)
        return self._engine.unhealthy() | missing

    def _health_fields(self) -> dict[str, list[list[Any]]]:
        """Return `health`, and what an older manager reads instead: `lost` and `voteless`.

        `lost` also has the replicas whose removal is not on the disk yet.
        """
        self._update_stalled_recoveries()
        engine, missing = self._engine, self._missing_replicas
        unhealthy = engine.unhealthy()
        held = engine.held() if unhealthy else {}
        rows = [(uid, held[uid] & INCARNATION_MASK, one.health) for uid, one in unhealthy.items()]
        removed = engine.removals_in_progress.items()
        lost = missing | {uid: name & INCARNATION_MASK for uid, name in removed if name}
        lost |= {uid: number for uid, number, health in rows if health.needs_rebuild}
        voteless = [[uid, number] for uid, number, health in rows if health.is_open]
        rows += [(uid, number, _MISSING.health) for uid, number in missing.items()]
        return {
            "health": [[*row] for row in rows[:UNHEALTHY_REPORTED_MAX]],
            "lost": [[*row] for row in sorted(lost.items())],
            "voteless": voteless[:UNHEALTHY_REPORTED_MAX],
        }

    def _update_stalled_recoveries(self) -> None:
        """Mark the replicas that wait in vain for a newer term.

        Of two voters the other one leads and can't be elected again without this one. Under another
        name the replica counts as soon as it is filled.
        """
        since, now, self._waits = self._waits, self._engine.now, {}
        for uid, one in self._engine.replicas.items():
            node = one.node
            if (
                node.health is ReplicaHealth.RECOVERING
                and one.leader_node
                and node.term == node.started_term
                and len(node.config.voters) == 2
            ):
                self._waits[uid] = since.get(uid, now)
            is_stalled = now - self._waits.get(uid, now) >= RECOVERY_STALLED_AFTER_MS
            problem = RECOVERY_STALLED if is_stalled else ""
            if problem != one.recovery_problem:
                one.recovery_problem = problem
                one.note_health(self._engine.report)

    def _row(self, group: int) -> Row | None:
        replica = self._engine.replicas.get(group)
        if replica is None:
            return None
        machine = cast(PartitionMachine, replica.machine)
        return [
            group,
            replica.replica_id & INCARNATION_MASK,
            replica.is_leader,
            replica.node.term,
            replica.leader_node,
            machine.start,
            machine.end,
            machine.bytes_kept,
            committed_members(replica),
        ]

    # -- orders --------------------------------------------------------------------------------

    def answered(self, node: int, envelope: protocol.Envelope) -> BrokerOrders | None:
        """Read a manager's answer; None if there is nothing to do."""
        manager = self._managers.get(node)
        if manager is None:
            return None
        if envelope[protocol.KIND] != protocol.ORDERS:
            if envelope[protocol.KIND] == protocol.ERROR:
                manager.refusal_text = str(envelope[4])
                if envelope[3] == _IDENTITY_MISMATCH:
                    manager.refused_at, self.rejection_reason = (
                        self._engine.now,
                        manager.refusal_text,
                    )
            return None
        _, _, beat, orders = envelope
        manager.refused_at, manager.refusal_text = -ANSWER_CURRENT_MS, ""
        manager.last_seen_at = self._engine.now
        try:
            done = self._follow(orders)
            more, wall_ms = orders["more"], int(orders.get("wall_ms", 0))
            named = orders.get("managers", ())  # an older manager does not tell
            manager.unconfigured_managers = [one for one in named if one not in self._managers]
        except (KeyError, TypeError, ValueError):  # of another version
            self._engine.counts["orders_invalid_total"] += 1
            return None
        if orders["life"] == self._engine.incarnation:
            manager.followed_at, manager.wall_ms = self._engine.now, wall_ms
        if beat == manager.beat:  # older answers say nothing about what changed since
            told = list(manager.unanswered_groups)
            manager.unanswered_groups = dict.fromkeys(told[GROUPS_PER_HEARTBEAT_MAX:])
            manager.full = False
        manager.full |= more
        return done

    def has_current_orders(self, now: int) -> bool:
        """True if a majority of managers that know this life answered lately.

        The orders that this broker follows are then what the managers have committed.
        """
        lately = sum(now - one.followed_at < ANSWER_CURRENT_MS for one in self._managers.values())
        return lately > len(self._managers) // 2

    # -- whether managers know this broker -----------------------------------------------------

    def managers(self) -> tuple[tuple[int, str], ...]:
        """Return number and address of each manager in the settings."""
        return self._config.managers

    def managers_knowing_us(self, now: int) -> list[int]:
        """Return the managers whose orders for this life of the process came lately."""
        return [
            node
            for node, one in self._managers.items()
            if now - one.followed_at < ANSWER_CURRENT_MS
        ]

    def has_recent_reply(self, node: int, now: int) -> bool:
        """True if this manager sends orders, even for an earlier life or for none."""
        return now - self._managers[node].last_seen_at < ANSWER_CURRENT_MS

    def refusal_of(self, node: int) -> str:
        """Return the error in its last answer; "" if that was none."""
        return self._managers[node].refusal_text

    def unconfigured_managers(self) -> list[int]:
        """Return managers that other managers name and our settings do not."""
        return sorted(
            {one for manager in self._managers.values() for one in manager.unconfigured_managers}
        )

    def agreed_wall_ms(self, now: int) -> int:
        """Return ms since 1970 by this machine's clock, but not ahead of the managers' clocks.

        Their time is the lower median of those that answered lately, so one wrong clock can't
        advance it.
        """
        told = sorted(
            one.wall_ms + now - one.followed_at
            for one in self._managers.values()
            if one.wall_ms and now - one.followed_at < ANSWER_CURRENT_MS
        )
        own = self._engine.wall_ms()
        return min(own, told[(len(told) - 1) // 2]) if told else own

    def is_rejected(self, now: int) -> bool:
        """True if a majority of managers rejects this broker.

        It was removed, or another broker has its number now. No client is sent here, and no orders
        come.
        """
        refused = sum(now - one.refused_at < ANSWER_CURRENT_MS for one in self._managers.values())
        return refused > len(self._managers) // 2

    def _follow(self, orders: dict[str, Any]) -> BrokerOrders:
        """Return what is not true yet. Malformed orders raise before anything is changed."""
        engine, version = self._engine, int(orders["version"])
        founders = {
            int(group): tuple((int(node), int(drawn)) for node, drawn in names)
            for group, names in orders.get("founders") or ()
        }
        rows = [
            WantedReplica(*row)._replace(founders=founders.get(row[0], ()))
            for row in orders["wanted"] or ()
        ]
        self._learn_addresses(version, orders["brokers"] or ())
        transfers = [(group, node) for group, node in orders["transfers"]]
        if orders["life"] != engine.incarnation or version < self.version:
            return BrokerOrders([], None, [])
        if orders["wanted"] is None:
            # A manager that believes we follow newer orders has more to say than removals.
            gone = orders["gone"] if version == self.version else []
            return BrokerOrders(self._gone(gone), None, transfers)
        self.version = version
        self.wanted = {row.group: row for row in rows}
        held = engine.held()
        known, self._missing_replicas = (
            self._missing_replicas,
            {
                row.group: row.incarnation(engine.node)
                for row in rows
                if self._may_be_missing(row, held.get(row.group, -1), orders["life_from"])
            },
        )
        for group in self._missing_replicas.keys() - known.keys():
            report_health(engine.report, group, START, *_MISSING)
        self._clear_unknown_loss(rows, orders["life_from"])
        return BrokerOrders(self._gone(orders["gone"]), self.wanted, transfers)

    def _learn_addresses(self, version: int, rows: Iterable[Any]) -> None:
        if version < self._addresses_version:
            return
        for node, address, peer, _host in rows:
            self._addresses_version = version
            self.brokers[node] = address
            if node != self._engine.node:
                self._engine.set_peer_address(("broker", node), peer)

    def _gone(self, named: list[list[int]]) -> list[int]:
        """Groups of which exactly the replica here is named; or it can't be told which one it is,
        and then several names may be.
        """
        if not named:
            return []
        held = self._engine.held()
        here = {
            group: None
            for group, incarnation in named
            if group in held and held[group] & INCARNATION_MASK in (incarnation, 0)
        }
        return list(here)

    def _may_be_missing(self, row: WantedReplica, there: int, life_from: int) -> bool:
        """`there`: what is here of the group, perhaps one that was before the missing one."""
        drawn = row.incarnation(self._engine.node)
        unsure = self._engine.log.journal.recovered.unknown_loss
        is_there = there != -1 and there & INCARNATION_MASK in (drawn, 0)
        return unsure and not is_there and 0 < drawn < life_from

    def _clear_unknown_loss(self, rows: list[WantedReplica], life_from: int) -> None:
        """Clear the note of an unknown loss when all is known; a later start can't see the hole
        again.
        """
        engine = self._engine
        if (
            self._is_loss_cleared
            or self._missing_replicas
            or not engine.log.journal.recovered.unknown_loss
        ):
            return
        if engine.not_open:
            return  # in doubt themselves; without a store nothing else would say so
        held = engine.held()
        for row in rows:  # one that is to leave and is wanted again keeps its name
            there = held.get(row.group, -1)
            for at, drawn in row.leaving:
                is_there = there != -1 and there & INCARNATION_MASK in (drawn, 0)
                if at == engine.node and drawn < life_from and not is_there:
                    return
        with suppress(OSError):  # on a disk that fails it is tried again
            engine.log.clear_unknown_loss()
            self._is_loss_cleared = True

    def missing(self) -> list[WantedReplica]:
        """Return the replicas that this broker should hold and does not."""
        engine = self._engine
        return [
            row
            for group, row in self.wanted.items()
            if group not in engine.replicas
            and group not in engine.not_open
            and group not in self._missing_replicas
            and row.incarnation(engine.node)
        ]

    def create(self, wanted: WantedReplica) -> Replica:
        """Create the replica that was named for this broker. Raises what `Engine.create` raises.

        Founders know each other. A replica that comes later, or finds the group changed already,
        learns from its log which members vote; until then it neither votes for itself nor counts.
        But a founder that is made late, of a group that may not be founded yet, founds it with the
        others of its time: it was never made, so it is like a founder that received nothing yet.
        """
        engine = self._engine
        names = [replica_id(node, number) for node, number in (*wanted.replicas, *wanted.leaving)]
        own = replica_id(engine.node, wanted.incarnation(engine.node))
        if (engine.node, wanted.incarnation(engine.node)) in wanted.founders:
            voters = [replica_id(node, drawn) for node, drawn in wanted.founders]
            replica = engine.create(wanted.group, own, voters, (), wanted.about())
        elif wanted.moved:
            others = [name for name in names if node_of(name) != engine.node]
            replica = engine.create(wanted.group, own, others, [own], wanted.about())
        else:
            replica = engine.create(wanted.group, own, names, (), wanted.about())
            if names[0] == own:
                engine.campaign_soon(replica)
        self.touch(wanted.group)
        return replica
