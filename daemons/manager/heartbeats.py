"""Heartbeats (BEAT) that a manager receives, answers and sends.

Brokers send heartbeats to every manager and receive their orders in the answer. Managers send them
to each other once a second; the heartbeat to the leader also carries the clients that this manager
has seen, which the leader logs for all. A manager that comes with another disk than the registered
one is refused: it may have forgotten what it promised. A broker with a new disk is accepted,
because its replicas can be replaced.

Without keys any broker may join: an unknown broker is registered with what it reports. So reports
are checked before they are believed: the broker's address must be one that the other brokers can
connect to, and the numbers of brokers and groups are limited.

Here the soft state meets the tables: `cluster_view` says which daemons are alive, `broker_orders`
what a broker should hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from myqueue.daemons.manager.broker_orders import OrdersBuilder, in_parts
from myqueue.daemons.manager.cluster_view import (
    ClientActivity,
    ClusterView,
    ManagerStatus,
    client_url,
)
from myqueue.daemons.metadata.arguments import TEXT_MAX
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.daemons.metadata.tables import Tables
from myqueue.errors import Busy, IdentityMismatch, InvalidRequest, Unsupported
from myqueue.wire import protocol
from myqueue.wire.program_settings import is_unspecified

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.replication.engine import Engine

ACTIVITY_MEMORY_MS: Final = 120_000  # how long a follower remembers clients
CLIENTS_PER_HEARTBEAT_MAX: Final = 5000  # of each kind, in one heartbeat to the leader
DISK_TAKEOVER_SILENCE_MS: Final = 10_000  # silence before another disk gets a number
BROKERS_MAX: Final = 1000  # registered or not
GROUPS_PER_BROKER_MAX: Final = 16_384  # in reports of one broker; it holds 10,000 at most
# (tables, broker, now) -> transfers of leadership that its orders are to bring
NextTransfers = Callable[[Tables, int, int], list[list[int]]]
_ADDRESS_PATTERN: Final = re.compile(r"(?:tcp://)?[^\s/;@]{1,255}:[0-9]{1,5}")


class ManagerHeartbeats:
    """Receives, answers and sends heartbeats. The manager sets `engine` and `metadata`."""

    engine: Engine

    def __init__(self, config: DaemonConfig, metadata: MetadataMachine) -> None:
        self._config, self.metadata = config, metadata
        self.cluster_view, self.activity = ClusterView(), ClientActivity()
        self._orders_builder = OrdersBuilder()
        self._next_forget_at = 0
        # Broker -> its process, and version of the orders that it was sent unasked
        self._pushed_versions: dict[int, tuple[int, int]] = {}

    def tick(self, now: int) -> None:
        self.cluster_view.note_tick(now)
        if now >= self._next_forget_at:
            self._next_forget_at = now + ACTIVITY_MEMORY_MS // 4
            self.activity.forget_before(self.engine.wall_ms() - ACTIVITY_MEMORY_MS)

    # -- daemons -------------------------------------------------------------------------------

    def refusal_reason(self, kind: str, node: int, disk: str) -> str:
        """Why this daemon is refused; "" if it is accepted.

        A manager must come with its registered disk. A broker may come with another one: its
        replicas are rebuilt then. But it is refused while the registered broker is alive or was a
        moment ago, so that two daemons with one number by mistake do not drive each other out.
        """
        row: Any = None
        tables = self.metadata.tables
        if kind == "manager":
            if node not in dict(self._config.managers):
                return f"manager {node} is not in this one's configuration"
            row = tables.managers.get(node)
        elif kind == "broker":
            if tables.removed.get(node) == disk:
                return f"broker {node} was removed; a new one needs a number or a disk of its own"
            known, now = tables.brokers.get(node), self.engine.now
            if (
                known is None
                or self.cluster_view.broker_silent_ms(node, known.disk, now)
                < DISK_TAKEOVER_SILENCE_MS
            ):
                row = known
        if row is None or row.disk == disk:
            return ""
        return f"{kind} {node} is registered with disk {row.disk}; this is disk {disk}"

    def receive(
        self, kind: str, node: int, state: dict[str, Any], next_transfers: NextTransfers
    ) -> dict[str, Any]:
        """Store a BEAT and return the map of ORDERS that answers it."""
        if kind not in ("broker", "manager"):
            raise Unsupported(f"a heartbeat of a {kind}")
        _check_addresses(state)
        problem = self.refusal_reason(kind, node, state["disk"])
        if problem:  # another disk was registered since its greeting
            raise IdentityMismatch(problem)
        self._check_reachable(kind, node, state)
        now, wall_ms = self.engine.now, self.engine.wall_ms()
        if kind == "manager":
            life = self.cluster_view.receive_manager_heartbeat(node, state, now, wall_ms)
            self._record_activity(0, life.producers, is_direct=False)
            self._record_activity(1, life.consumers, is_direct=False)
            return {}
        self._check_room(node, state)
        broker = self.cluster_view.receive_broker_heartbeat(node, state, now, wall_ms)
        self.record_client_activity(state["producers"], state["consumers"], is_direct=False)
        tables = self.metadata.tables
        transfers = next_transfers(tables, node, now)
        return self._with_cluster_facts(
            self._orders_builder.build(tables, node, broker, transfers, now)
        )

    def take_newer_orders(self, node: int) -> dict[str, Any] | None:
        """ORDERS for a broker that follows older ones and was not sent newer ones; else None."""
        tables, life = self.metadata.tables, self.cluster_view.brokers.get(node)
        row = tables.brokers.get(node)
        if row is None or life is None:
            return None
        process, pushed = self._pushed_versions.get(node, (0, 0))
        followed = max(life.version, pushed if process == life.incarnation else 0)
        if followed >= row.version:
            return None
        self._pushed_versions[node] = life.incarnation, row.version
        # It gets them in order. If one was lost, it does not follow the next ones, and the answer
        # to its next heartbeat has all that changed since the version that it follows.
        return self._with_cluster_facts(
            self._orders_builder.build(tables, node, life, [], self.engine.now, followed)
        )

    def divide_orders(self, node: int, orders: dict[str, Any]) -> list[dict[str, Any]]:
        """Divide orders that are too long for one message, if the broker reads parts."""
        life = self.cluster_view.brokers.get(node)
        return in_parts(orders) if life is not None and life.reads_changes else [orders]

    def _with_cluster_facts(self, orders: dict[str, Any]) -> dict[str, Any]:
        """Add this machine's clock, by which brokers check their own, and all managers' numbers, by
        which brokers notice that their settings leave some out.
        """
        managers = [node for node, _ in self._config.managers]
        return orders | {"wall_ms": self.engine.clock.wall_ms(), "managers": managers}

    def _check_reachable(self, kind: str, node: int, state: dict[str, Any]) -> None:
        """Refuse new addresses that no other machine can connect to."""
        tables = self.metadata.tables
        row: Any = (tables.brokers if kind == "broker" else tables.managers).get(node)
        if row is not None and (row.address, row.peer) == (
            client_url(state["address"]),
            state["peer"],
        ):
            return
        for name, flag in (("address", "--advertise"), ("peer", "--peer-advertise")):
            address = state[name].removeprefix("tcp://")
            if is_unspecified(address):
                raise InvalidRequest(
                    f"{address} is every address of a machine, so nobody elsewhere can connect to"
                    f" it; start {kind} {node} with {flag} HOST:PORT"
                )

    def _check_room(self, node: int, state: dict[str, Any]) -> None:
        """Limit the memory that made-up brokers and groups can take."""
        known, registered = self.cluster_view.brokers, self.metadata.tables.brokers
        if node not in known and node not in registered:
            unknown = sum(other not in registered for other in known)
            if len(registered) + unknown >= BROKERS_MAX:
                raise Busy(f"{BROKERS_MAX} brokers are known already")
        life = known.get(node)
        lists = (state.get("groups"), state.get("held"), state.get("lost"))
        rows = [rows for rows in lists if type(rows) is list]
        if (
            sum(map(len, rows)) + (len(life.reported_groups) if life else 0)
            > 3 * GROUPS_PER_BROKER_MAX
        ):
            raise InvalidRequest("a heartbeat reports more groups than a broker may hold")

    def send_to_managers(self, leader: int, *, is_log_empty: bool) -> None:
        """Send a heartbeat to each other manager; `is_log_empty`: our log has no entry."""
        here = self._own_status()
        common = {
            "disk": here.disk,
            "incarnation": self.engine.incarnation,
            "address": here.address,
            "peer": here.peer,
            "host": here.host,
            "applied": here.applied,
            "damaged": here.damaged,
            "closed": here.closed,
            "blank": is_log_empty,
        }
        for node, _ in self._config.managers:
            if node == self.engine.node:
                continue
            seen: dict[str, Any] = {"producers": [], "consumers": []}
            if node == leader:
                seen = self.activity.take(CLIENTS_PER_HEARTBEAT_MAX, direct_only=True)
            frame = protocol.encode(protocol.BEAT, 0, common | seen)
            if not self.engine.send_to_peer(("manager", node), [frame]):
                self.engine.counts["beats_dropped_total"] += 1

    def _own_status(self) -> ManagerStatus:
        """This manager, as the others know it from its heartbeats."""
        config, engine = self._config, self.engine
        return ManagerStatus(
            engine.now,
            engine.wall_ms(),
            engine.log.identity.disk,
            client_url(config.advertise),
            config.peer_advertise,
            config.host,
            self.metadata.applied_index,
            damaged=engine.repair.damage_report(),
            closed=engine.closing.report(),
        )

    def all_managers(self) -> dict[int, ManagerStatus]:
        """The managers that sent heartbeats, and this one."""
        return self.cluster_view.managers | {self.engine.node: self._own_status()}

    # -- clients -------------------------------------------------------------------------------

    def record_client_activity(
        self, producers: list[int], consumers: list[int], *, is_direct: bool
    ) -> None:
        now = self.engine.wall_ms()
        self._record_activity(0, [(number, now) for number in producers], is_direct=is_direct)
        self._record_activity(1, [(number, now) for number in consumers], is_direct=is_direct)

    def _record_activity(self, kind: int, pairs: list[tuple[int, int]], *, is_direct: bool) -> None:
        """Note signs of life. Unknown ids are dropped, so that no client can fill our memory."""
        tables = self.metadata.tables
        known: Any = tables.consumers if kind else tables.producers
        for number, wall_ms in pairs:
            if number in known:
                self.activity.record(kind, number, wall_ms, is_direct=is_direct)


def _check_addresses(state: dict[str, Any]) -> None:
    """Check the texts of a heartbeat before they are passed on to all daemons."""
    texts = [state.get(name) for name in ("disk", "address", "peer", "host")]
    if not all(type(text) is str and len(text) <= TEXT_MAX for text in texts):
        raise InvalidRequest("a heartbeat without disk, address, peer or host")
    if not all(_ADDRESS_PATTERN.fullmatch(str(text)) for text in texts[1:3]):
        raise InvalidRequest("a heartbeat without a usable address")
