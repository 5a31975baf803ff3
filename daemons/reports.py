"""BEAT and ORDERS: what this broker tells every manager, and what they want of it.

Each manager hears from each broker every 450 ms, and at once when leadership changed; so it knows
by itself who lives and who leads. A beat carries the groups that changed since the last one that
this manager answered, or all of them if it asks (`more`). Nothing here is remembered over a
restart: the first beat to each manager is full.

Orders state what managers have committed. A broker follows those of the highest version that it
has seen: it makes replicas that it should hold, and removes those that are deleted by a committed
entry and named as such. A group that is neither wanted nor gone stays, and is reported (W6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from myqueue import protocol
from myqueue.daemons.partition import Partition
from myqueue.daemons.raft.types import replica_id

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.engine import Engine
    from myqueue.daemons.replica import Replica

BEAT_MS: Final = 450
GROUPS_MAX: Final = 8192  # in one beat; the rest goes with the next
CURRENT_MS: Final = 5000  # an answer older than that may be of another time
Row = list[Any]


class Wanted(NamedTuple):
    """One group that this broker should hold."""

    group: int
    topic: str
    number: int
    topic_uid: int
    replicas: list[list[int]]  # [node, incarnation]; the first is the preferred leader
    settings: dict[str, Any]

    def about(self) -> bytes:
        return protocol.pack([self.topic, self.number, self.topic_uid, self.settings])


class _Manager:
    """What one manager was told."""

    __slots__ = ("answered_at", "beat", "full", "unanswered")

    def __init__(self) -> None:
        self.beat = 0  # number of the last one
        self.answered_at = -CURRENT_MS  # when its orders were followed last
        self.full = True  # the next one is to be full
        self.unanswered: dict[int, None] = {}  # groups that it may not know as they are


class Orders(NamedTuple):
    """What a broker has to do after an answer of a manager."""

    create: list[Wanted]
    remove: list[int]
    settings: dict[int, dict[str, Any]]  # of groups that are held
    transfers: list[tuple[int, int]]


class Reports:
    """See the module's docstring. It sends beats; what orders ask for is the broker's to do."""

    def __init__(self, engine: Engine, config: DaemonConfig) -> None:
        self._engine, self._config = engine, config
        self._managers = {node: _Manager() for node, _ in config.managers}
        self._touched: dict[int, None] = {}  # groups that changed since the last beats
        self._due = 0
        self._at_once = False
        self._last_ms, self._messages = 0, 0
        self.version = 0  # of the orders that are followed
        self.brokers: dict[int, str] = {}  # node -> address of its clients' door

    # -- beats ---------------------------------------------------------------------------------

    def touch(self, group: int) -> None:
        self._touched[group] = None

    def leadership_changed(self, group: int) -> None:
        self._touched[group] = None
        self._at_once = True

    def count(self, messages: int) -> None:
        """Stored in groups that this broker leads."""
        self._messages += messages
        self._engine.counts["messages_stored_total"] += messages

    def is_due(self, now: int) -> bool:
        return self._at_once or now >= self._due

    def beat(self, now: int, producers: list[int], consumers: list[int]) -> None:
        """One beat to each manager."""
        common = self._common(now, producers, consumers)
        touched, self._touched = self._touched, {}
        self._due, self._at_once = now + BEAT_MS, False
        rows: dict[int, Row] = {}  # made once for all managers
        for node, manager in self._managers.items():
            manager.beat += 1
            manager.unanswered |= touched
            groups, held = manager.unanswered, None
            if manager.full:
                groups, held = manager.unanswered, list(self._engine.replicas)
                groups |= dict.fromkeys(held)
            told = []
            for group in list(groups)[:GROUPS_MAX]:
                row = rows.get(group) or self._row(group)
                if row is not None:
                    rows[group] = row
                    told.append(row)
            state = common | {"full": manager.full, "groups": told}
            if held is not None:
                state["held"] = held
            frame = protocol.encode(protocol.BEAT, manager.beat, state)
            if not self._engine.link_send(("manager", node), [frame]):
                self._engine.counts["beats_dropped_total"] += 1

    def _common(self, now: int, producers: list[int], consumers: list[int]) -> dict[str, Any]:
        engine, config = self._engine, self._config
        passed = now - self._last_ms if self._last_ms else BEAT_MS
        load = self._messages * 1000 // max(passed, 1)
        self._last_ms, self._messages = now, 0
        return {
            "disk": engine.log.identity.disk, "incarnation": engine.incarnation,
            "address": config.advertise, "peer": config.peer_advertise, "host": config.host,
            "version": self.version, "producers": producers, "consumers": consumers,
            "disk_low": engine.log.journal.space_low, "load": load,
            "free_bytes": engine.counts.get("disk_free_bytes", 0),
        }  # fmt: skip

    def _row(self, group: int) -> Row | None:
        replica = self._engine.replicas.get(group)
        if replica is None:
            return None
        machine = cast(Partition, replica.machine)
        return [
            group, replica.is_leader, replica.node.term, replica.leader_node, machine.start,
            machine.end, machine.bytes_kept,
        ]  # fmt: skip

    # -- orders --------------------------------------------------------------------------------

    def answered(self, node: int, envelope: protocol.Envelope) -> Orders | None:
        """A manager's answer on its link; None if there is nothing to do."""
        manager = self._managers.get(node)
        if manager is None or envelope[protocol.KIND] != protocol.ORDERS:
            return None
        _, _, beat, orders = envelope
        try:
            done = self._follow(orders)
            more = orders["more"]
        except (KeyError, TypeError, ValueError):  # of another version
            self._engine.counts["orders_invalid_total"] += 1
            return None
        manager.answered_at = self._engine.now
        if beat == manager.beat:  # older answers say nothing about what changed since
            told = list(manager.unanswered)
            manager.unanswered = dict.fromkeys(told[GROUPS_MAX:])
            manager.full = False
        manager.full |= more
        return done

    def is_current(self, now: int) -> bool:
        """A majority of managers answered lately: what we follow is what they have committed."""
        lately = sum(now - one.answered_at < CURRENT_MS for one in self._managers.values())
        return lately > len(self._managers) // 2

    def _follow(self, orders: dict[str, Any]) -> Orders:
        """What is not true yet. A deletion is committed, so it counts in any version."""
        engine = self._engine
        gone = [group for group in orders["gone"] if group in engine.replicas]
        out = Orders([], gone, {}, [(group, node) for group, node in orders["transfers"]])
        if orders["version"] < self.version:
            return out
        if orders["wanted"] is not None:
            self.version = orders["version"]
        for node, address, peer, _host in orders["brokers"] or ():
            self.brokers[node] = address
            if node != engine.node:
                engine.set_peer(("broker", node), peer)
        dead = set(orders["gone"])
        for row in orders["wanted"] or ():
            wanted = Wanted(*row)
            if wanted.group in engine.replicas:
                out.settings[wanted.group] = wanted.settings
            elif wanted.group not in dead:
                out.create.append(wanted)
        return out

    def create(self, wanted: Wanted) -> Replica | None:
        """The replica that was drawn for this broker; None if none was. Raises what create does"""
        engine = self._engine
        members = [replica_id(node, incarnation) for node, incarnation in wanted.replicas]
        nodes = [node for node, _ in wanted.replicas]
        # A replica that could not be opened stays as it is, for an operator to look at (W6).
        if engine.node not in nodes or wanted.group in engine.refused:
            return None
        place = nodes.index(engine.node)
        replica = engine.create(wanted.group, members[place], members, (), wanted.about())
        if place == 0:
            engine.campaign_soon(replica)
        self.touch(wanted.group)
        return replica
