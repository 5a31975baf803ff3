"""Beats: what daemons and clients let a manager know of themselves, and what they hear in return.

Brokers beat to every manager and get their orders in the answer. Managers beat to each other, once
a second; to the leader with the clients that they heard of, which it logs for all. A manager that
comes with another disk than the one that is registered is not heard (W7): it may have forgotten
what it promised. So may a broker, but its replicas can be replaced.

There are no keys yet, so a broker that nobody knows is welcome: it is registered with what it says.
What it says is therefore looked at before it is believed: where it lives must be an address, since
all brokers will connect to it; and numbers of brokers and groups have an end.

Here the soft state meets the tables; who is heard and what is decided is in `cluster_view.py`,
`broker_orders.py` and `daemons/manager/balancer/controller.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from myqueue.daemons.manager.balancer.controller import Duties, Todo
from myqueue.daemons.manager.broker_orders import Orders
from myqueue.daemons.manager.cluster_view import Activity, Liveness, ManagerLife, url
from myqueue.daemons.metadata.arguments import TEXT_MAX
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.errors import Busy, IdentityMismatch, InvalidRequest, Unsupported
from myqueue.wire import protocol
from myqueue.wire.program_settings import is_unspecified

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.replication.engine import Engine

REMEMBER_MS: Final = 120_000  # what a follower knows of clients
CLIENTS_MAX: Final = 5000  # of each kind told to the leader in one beat
TAKEOVER_MS: Final = 10_000  # a broker is silent for so long until another disk has its number
BROKERS_MAX: Final = 1000  # known and unknown ones
GROUPS_MAX: Final = 16_384  # that one broker may tell of; it holds 2,500 at most
_ADDRESS: Final = re.compile(r"(?:tcp://)?[^\s/;@]{1,255}:[0-9]{1,5}")


class Beats:
    """See the module's docstring. `engine` and `metadata` are set when the manager has them."""

    engine: Engine

    def __init__(self, config: DaemonConfig, metadata: MetadataMachine) -> None:
        self._config, self.metadata = config, metadata
        self.liveness, self.activity = Liveness(), Activity()
        self.duties = Duties(self.liveness, self.activity)
        self._orders = Orders()
        self._forget_at = 0
        self._told: dict[int, int] = {}  # broker -> version of the orders sent without being asked

    def tick(self, now: int) -> None:
        self.liveness.watch(now)
        if now >= self._forget_at:
            self._forget_at = now + REMEMBER_MS // 4
            self.activity.forget_before(self.engine.wall_ms() - REMEMBER_MS)

    # -- daemons -------------------------------------------------------------------------------

    def problem_with(self, kind: str, node: int, disk: str) -> str:
        """Why this daemon is not to be heard; "": it is welcome.

        A manager never comes with another disk. A broker may: its replicas are made anew then. But
        not while the one that is registered is heard, or was a moment ago: two daemons that were
        given one number by mistake must not drive each other out.
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
            if known is None or self.liveness.silent_for(node, known.disk, now) < TAKEOVER_MS:
                row = known
        if row is None or row.disk == disk:
            return ""
        return f"{kind} {node} is registered with disk {row.disk}; this is disk {disk}"

    def answer(self, kind: str, node: int, state: dict[str, Any], *, leads: bool) -> dict[str, Any]:
        """Take in a BEAT; the map of ORDERS that answers it."""
        if kind not in ("broker", "manager"):
            raise Unsupported(f"a beat of a {kind}")
        _check_whereabouts(state)
        problem = self.problem_with(kind, node, state["disk"])
        if problem:  # registered with another disk since it greeted
            raise IdentityMismatch(problem)
        self._check_reachable(kind, node, state)
        now, wall_ms = self.engine.now, self.engine.wall_ms()
        if kind == "manager":
            life = self.liveness.manager_beat(node, state, now, wall_ms)
            self._heard(0, life.producers, own=False)
            self._heard(1, life.consumers, own=False)
            return {}
        self._check_room(node, state)
        broker = self.liveness.broker_beat(node, state, now, wall_ms)
        self.heard_now(state["producers"], state["consumers"], own=False)
        tables = self.metadata.tables
        transfers = self.duties.transfers(tables, node, now) if leads else []
        return self._timed(self._orders.answer(tables, node, broker, transfers, now))

    def news_for(self, node: int) -> dict[str, Any] | None:
        """ORDERS for a broker that follows older ones and has not been told of newer; else None."""
        tables, life = self.metadata.tables, self.liveness.brokers.get(node)
        row = tables.brokers.get(node)
        if row is None or life is None or max(life.version, self._told.get(node, 0)) >= row.version:
            return None
        self._told[node] = row.version
        return self._timed(self._orders.answer(tables, node, life, [], self.engine.now))

    def _timed(self, orders: dict[str, Any]) -> dict[str, Any]:
        """With this machine's clock as it stands, for brokers that are to doubt their own; and
        with the numbers of all managers, for brokers whose settings leave some out.
        """
        managers = [node for node, _ in self._config.managers]
        return orders | {"wall_ms": self.engine.clock.wall_ms(), "managers": managers}

    def _check_reachable(self, kind: str, node: int, state: dict[str, Any]) -> None:
        """All others are told to connect to it. What is registered already stays heard."""
        tables = self.metadata.tables
        row: Any = (tables.brokers if kind == "broker" else tables.managers).get(node)
        if row is not None and (row.address, row.peer) == (url(state["address"]), state["peer"]):
            return
        for name, flag in (("address", "--advertise"), ("peer", "--peer-advertise")):
            address = state[name].removeprefix("tcp://")
            if is_unspecified(address):
                raise InvalidRequest(
                    f"{address} is every address of a machine, so nobody elsewhere can connect to"
                    f" it; start {kind} {node} with {flag} HOST:PORT"
                )

    def _check_room(self, node: int, state: dict[str, Any]) -> None:
        """Nobody fills our memory with brokers or groups that there are not."""
        known, registered = self.liveness.brokers, self.metadata.tables.brokers
        if node not in known and node not in registered:
            unknown = sum(one not in registered for one in known)
            if len(registered) + unknown >= BROKERS_MAX:
                raise Busy(f"{BROKERS_MAX} brokers are known already")
        life = known.get(node)
        lists = (state.get("groups"), state.get("held"), state.get("lost"))
        told = [one for one in lists if type(one) is list]
        if sum(map(len, told)) + (len(life.reported) if life else 0) > 3 * GROUPS_MAX:
            raise InvalidRequest("a beat of a broker that holds more groups than it may")

    def send(self, leader: int, *, blank: bool) -> None:
        """To each other manager; `blank`: our log has no entry."""
        here = self._here()
        common = {
            "disk": here.disk, "incarnation": self.engine.incarnation, "address": here.address,
            "peer": here.peer, "host": here.host, "applied": here.applied,
            "damaged": here.damaged, "closed": here.closed, "blank": blank,
        }  # fmt: skip
        for node, _ in self._config.managers:
            if node == self.engine.node:
                continue
            seen: dict[str, Any] = {"producers": [], "consumers": []}
            if node == leader:
                seen = self.activity.take(CLIENTS_MAX, own_only=True)
            frame = protocol.encode(protocol.BEAT, 0, common | seen)
            if not self.engine.link_send(("manager", node), [frame]):
                self.engine.counts["beats_dropped_total"] += 1

    def _here(self) -> ManagerLife:
        """This manager, as the others know it from its beats."""
        config, engine = self._config, self.engine
        return ManagerLife(
            engine.now, engine.wall_ms(), engine.log.identity.disk, url(config.advertise),
            config.peer_advertise, config.host, self.metadata.applied_index,
            damaged=engine.repair.told(), closed=engine.closing.told(),
        )  # fmt: skip

    def due(self, now: int) -> list[Todo]:
        """What this manager should propose, if it leads."""
        managers = self.liveness.managers | {self.engine.node: self._here()}
        return self.duties.due(self.metadata.tables, managers, now)

    # -- clients -------------------------------------------------------------------------------

    def heard_now(self, producers: list[int], consumers: list[int], *, own: bool) -> None:
        now = self.engine.wall_ms()
        self._heard(0, [(number, now) for number in producers], own=own)
        self._heard(1, [(number, now) for number in consumers], own=own)

    def _heard(self, kind: int, pairs: list[tuple[int, int]], *, own: bool) -> None:
        """Ids that are not known are dropped here, so that nobody can fill our memory."""
        tables = self.metadata.tables
        known: Any = tables.consumers if kind else tables.producers
        for number, wall_ms in pairs:
            if number in known:
                self.activity.heard(kind, number, wall_ms, own=own)


def _check_whereabouts(state: dict[str, Any]) -> None:
    """Texts of a beat, before they become part of what is known to all."""
    texts = [state.get(name) for name in ("disk", "address", "peer", "host")]
    if not all(type(text) is str and len(text) <= TEXT_MAX for text in texts):
        raise InvalidRequest("a beat that does not say whose it is")
    if not all(_ADDRESS.fullmatch(str(text)) for text in texts[1:3]):
        raise InvalidRequest("a beat of a daemon without an address")
