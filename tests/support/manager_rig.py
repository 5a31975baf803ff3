"""A manager without a network, a disk and other managers: the engine is played by hand.

`FakeEngine` stands at the seam only: it records what goes out, keeps proposals until `commit`, and
has the time that the test says. `ManagerCluster` is a manager with brokers that beat to it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from myqueue.daemons.config import SETTINGS, DaemonConfig, check_config
from myqueue.daemons.manager.broker_orders import wanted_rows
from myqueue.daemons.manager.manager import MANAGERS_RAFT_UID, Manager
from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.raft.health import ReplicaHealth, Unhealthy
from myqueue.daemons.raft.types import NOOP, Config, Proposal, Role, replica_id
from myqueue.daemons.replication.engine import Engine
from myqueue.errors import EntryMissing, MyQueueError, NotReady
from myqueue.wire import protocol

WALL_MS = 1_700_000_000_000


class FakeReplica:
    def __init__(self, uid: int, node: int, config: Config, machine: Any) -> None:
        self.uid, self.machine = uid, machine
        self.is_ready = False
        self.leader_node = 0
        self.repair_problem = self.catch_up_problem = ""
        self.follower = 0
        self.entries: dict[int, Any] = {}  # committed, and not cut off since
        self.raft = SimpleNamespace(
            term=1,
            role=Role.FOLLOWER,
            commit_index=0,
            config=config,
            replica=replica_id(node, 1),
            log=SimpleNamespace(last_index=1),
            health=ReplicaHealth.HEALTHY,
            may_found=True,
        )

    @property
    def is_leader(self) -> bool:
        return bool(self.raft.role == Role.LEADER)

    def read(self, first: int, last: int, max_bytes: int) -> list[Any]:
        if first not in self.entries:
            raise EntryMissing(f"entry {first} is gone")
        return [self.entries[first]]

    def best_successor(self, now: int) -> int:
        return self.follower


class FakeEngine:
    """The engine, played by hand: it records calls, and keeps proposals until `commit`."""

    refused, unhealthy = Engine.refused, Engine.unhealthy
    leave_out, status = Engine.leave_out, Engine.status

    def __init__(self, node: int, owner: Manager) -> None:
        self.node, self.owner, self.incarnation = node, owner, 77
        self.now = 1000
        self.replicas: dict[int, FakeReplica] = {}
        self.not_open: dict[int, Unhealthy] = {}
        self.report: Callable[..., None] = lambda *_, **__: None
        self.counts = DaemonMetrics()
        self.clock = SimpleNamespace(wall_ms=self.wall_ms)
        self.log = SimpleNamespace(
            identity=SimpleNamespace(disk=f"manager-disk-{node}"),
            journal=SimpleNamespace(recovered=SimpleNamespace(unknown_loss=False)),
        )
        self.repair = SimpleNamespace(damage_report=list, status=dict)  # nothing is damaged
        self.closing = SimpleNamespace(report=list)  # nor closed
        self.cut_off: set[str] = set()  # names of daemons whose connection ended
        self.rivals: dict[tuple[str, int], Any] = {}
        self.replies: list[tuple[str, Any]] = []
        self.peer_replies: list[tuple[str, Any]] = []
        self.sent: list[tuple[tuple[str, int], Any]] = []
        self.pending: list[Proposal] = []
        self.reads: list[int] = []
        self.transfers: list[int] = []
        self.refuse_with: MyQueueError | None = None
        self.index = 0  # of the last entry, committed or not
        owner.attach(cast(Any, self))

    def wall_ms(self) -> int:
        return WALL_MS + self.now

    def create(self, uid: int, replica: int, voters: Any, learners: Any, about: bytes) -> Any:
        config = Config(tuple(voters), tuple(learners))
        machine = self.owner.make_state_machine(uid, about)
        made = self.replicas[uid] = FakeReplica(uid, self.node, config, machine)
        return made

    def propose(self, replica: Any, items: list[Proposal], *, urgent: bool = False) -> int:
        if self.refuse_with is not None:
            raise self.refuse_with
        self.pending += items
        self.index += len(items)
        return self.index - len(items) + 1

    def read(self, replica: Any, context: int) -> None:
        if self.refuse_with is not None:
            raise self.refuse_with
        self.reads.append(context)

    def transfer(self, replica: Any, node: int) -> None:
        if self.refuse_with is not None:
            raise NotReady("not now")
        self.transfers.append(node)

    def reply(self, client: Any, frames: list[Any]) -> None:
        self.replies.append((client.name, protocol.decode(frames[0])))

    def reply_to_peer(self, peer: Any, frame: bytes) -> None:
        self.peer_replies.append((peer.name, protocol.decode(frame)))

    def check_connected(self, peer: Any) -> bool:
        return peer.name not in self.cut_off

    def send_to_peer(self, peer: tuple[str, int], frames: list[Any]) -> bool:
        self.sent.append((peer, protocol.decode(frames[0])))
        return True


def config_of(node: int, managers: int) -> DaemonConfig:
    values = {
        "id": node,
        "cluster": "test",
        "data": "/nowhere",
        "listen": f"127.0.0.1:{9091 + node}",
        "peer_listen": f"127.0.0.1:{9191 + node}",
        "managers": [f"{n}@127.0.0.1:{9191 + n}" for n in range(1, managers + 1)],
    }
    names = {
        "advertise": "",
        "peer_advertise": "",
        "host": f"host-{node}",
        "log": "text",
        "insecure": False,
        "heartbeat_ms": 100,
        "election_timeout_ms": 500,
        "segment_bytes": 1 << 26,
        "soft_limit_bytes": 0,
        "stop_within_ms": 3000,
        "log_entries": 20_000,
    }
    return check_config("manager", {one.name: one.default for one in SETTINGS} | names | values)


class ManagerCluster:
    """One manager, and brokers that send it heartbeats."""

    def __init__(self, brokers: int = 0, managers: int = 3, *, leads: bool = True) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.manager = Manager(
            config_of(1, managers),
            lambda _, event, always=False, **fields: self.lines.append((event, fields)),
        )
        self.engine = FakeEngine(1, self.manager)
        self.manager.started(self.engine.now)
        self.replica = self.engine.replicas[MANAGERS_RAFT_UID]
        self.client = SimpleNamespace(name="client", identity=b"c")
        self.brokers = {node: FakeBroker(node) for node in range(1, brokers + 1)}
        self._request = 0
        if leads:
            self.lead()
            self.beat_all()
            self.turn(0)

    @property
    def tables(self) -> Any:
        return self.replica.machine.tables

    # -- consensus, by hand --------------------------------------------------------------------

    def lead(self) -> None:
        replica = self.replica
        replica.raft.role, replica.leader_node = Role.LEADER, self.engine.node
        self.manager.changed(cast(Any, replica))
        self.engine.pending.append(Proposal(0, self.engine.wall_ms(), NOOP, b""))
        self.engine.index += 1
        replica.is_ready = True
        self.commit()
        self.manager.changed(cast(Any, replica))

    def follow(self, leader: int) -> None:
        replica = self.replica
        replica.raft.role, replica.is_ready = Role.FOLLOWER, False
        replica.leader_node = leader
        self.manager.changed(cast(Any, replica))

    def commit(self) -> list[Any]:
        """Apply every proposal, and answer the requests that wait for one."""
        engine, replica = self.engine, self.replica
        first = engine.index - len(engine.pending) + 1
        entries: list[Any] = [
            (first + place, 1, 0, 0, item.time_ms, item.type, 0, item.payload)
            for place, item in enumerate(engine.pending)
        ]
        engine.pending.clear()
        replica.entries.update((entry[0], entry) for entry in entries)
        results = replica.machine.apply(entries)
        if entries:
            self.manager.applied(cast(Any, replica), entries, results)
        self.manager.end_turn(engine.now)
        return cast(list[Any], results)

    def turn(self, passed_ms: int = 50) -> list[Any]:
        """Let time pass; do and commit all that is due."""
        self.engine.now += passed_ms
        self.manager.tick(self.engine.now)
        return self.commit()

    # -- clients -------------------------------------------------------------------------------

    def ask(self, kind: int, *fields: Any) -> int:
        self._request += 1
        frame = protocol.encode(kind, self._request, *fields)
        self.manager.request(cast(Any, self.client), protocol.decode(frame), [])
        return self._request

    def answers(self) -> list[Any]:
        """Return the answers since the last call: [kind, request, fields…]."""
        found = [envelope[1:] for _, envelope in self.engine.replies]
        self.engine.replies.clear()
        return found

    def answer(self) -> Any:
        (found,) = self.answers()
        return found

    def update(self, operation: str, **arguments: Any) -> Any:
        """Send an update, commit it, return its result."""
        key = (self._request + 1).to_bytes(16, "big")
        self.ask(protocol.UPDATE, key, operation, arguments)
        self.commit()
        kind, _, *fields = self.answer()
        assert kind == protocol.UPDATED, fields
        return fields[1]

    def read(self, query: str, **arguments: Any) -> Any:
        self.ask(protocol.READ, query, arguments, 0, False)
        kind, _, *fields = self.answer()
        assert kind == protocol.ANSWER, fields
        return fields[1]

    def routes(self, *topics: str) -> Any:
        """Return [applied, brokers, topics, unknown]."""
        self.ask(protocol.ROUTE, list(topics), 0)
        kind, _, *fields = self.answer()
        assert kind == protocol.ROUTES
        return fields

    # -- brokers -------------------------------------------------------------------------------

    def peer(self, kind: str, node: int) -> Any:
        return SimpleNamespace(kind=kind, node=node, name=f"{kind} {node}", disk="", identity=b"")

    def beat(self, node: int, **changes: Any) -> Any:
        """Send one heartbeat of a broker, which follows the orders; return the orders."""
        broker = self.brokers[node]
        frame = protocol.encode(protocol.BEAT, 1, broker.state(**changes))
        self.manager.handle_peer_request(self.peer("broker", node), protocol.decode(frame), [])
        name, envelope = self.engine.peer_replies.pop()
        assert (name, envelope[1]) == (f"broker {node}", protocol.ORDERS)
        broker.obey(envelope[3])
        self._check_wanted(broker, envelope[3])
        return envelope[3]

    def _check_wanted(self, broker: FakeBroker, orders: dict[str, Any]) -> None:
        """Orders that name only changes leave the broker with the same as all orders would."""
        if orders.get("since") is not None and broker.version == orders["version"]:
            view = self.manager._heartbeats.cluster_view
            rows = wanted_rows(self.tables, broker.node, view.brokers[broker.node])
            assert broker.wanted == {row[0]: row for row in rows}

    def manager_beat(self, node: int, **changes: Any) -> None:
        """Send one heartbeat of another manager; it must be answered."""
        state = {
            "disk": f"manager-disk-{node}",
            "incarnation": 5,
            "address": f"127.0.0.1:{9091 + node}",
            "peer": f"127.0.0.1:{9191 + node}",
            "host": f"host-{node}",
            "applied": 0,
            "producers": [],
            "consumers": [],
        }
        frame = protocol.encode(protocol.BEAT, 9, state | changes)
        self.manager.handle_peer_request(self.peer("manager", node), protocol.decode(frame), [])
        name, envelope = self.engine.peer_replies.pop()
        assert (name, envelope[1:]) == (f"manager {node}", [protocol.ORDERS, 9, {}])

    def beat_all(self) -> None:
        for node in self.brokers:
            self.beat(node)

    def live(self, passed_ms: int) -> None:
        """Let time pass while all brokers send heartbeats."""
        for _ in range(passed_ms // 300):
            self.beat_all()
            self.turn(300)
        self.beat_all()

    def lead_all(self) -> None:
        """Let every broker follow its orders; the preferred replicas lead."""
        self.beat_all()
        for topic in self.tables.topics.values():
            for partition in topic.partitions:
                self.brokers[partition.nodes[0]].leads.setdefault(partition.group, 1)
        self.beat_all()


class FakeBroker:
    """A broker: the state in its heartbeats, and the groups it holds by orders."""

    def __init__(self, node: int) -> None:
        self.node, self.incarnation, self.disk = node, 1000 + node, f"disk-{node}"
        self.version, self.full = 0, True
        self.groups: dict[int, list[Any]] = {}  # group -> wanted row, as it was made
        self.wanted: dict[int, list[Any]] = {}  # as it was ordered last
        self.founders: list[list[Any]] = []  # of those that may not be founded yet
        self.members: dict[int, list[list[Any]]] = {}  # of groups that it leads
        self.lost: list[list[int]] = []
        self.health: list[list[Any]] = []
        self.leads: dict[int, int] = {}  # group -> term
        self.follows: dict[int, int] = {}  # group -> node of its leader, as it knows it
        self.ends: dict[int, int] = {}
        self.transfers: list[list[int]] = []
        self.makes = True  # replicas that are wanted
        self.removes = True  # groups that are gone
        self.disk_low = False
        self.host = f"host-{node}"
        self.reads_changes = True  # an older broker does not
        self.rows_read = 0  # of all orders

    def state(self, **changes: Any) -> dict[str, Any]:
        state = {
            "disk": self.disk,
            "incarnation": self.incarnation,
            "address": f"127.0.0.1:{9291 + self.node}",
            "peer": f"127.0.0.1:{9391 + self.node}",
            "host": self.host,
            "version": self.version,
            "full": self.full,
            "groups": [
                [
                    group,
                    self.incarnation_of(group),
                    group in self.leads,
                    self.leads.get(group, 0),
                    self.follows.get(group, 0),
                    0,
                    self.ends.get(group, 0),
                    10 * self.ends.get(group, 0),
                    self.members_of(group) if group in self.leads else None,
                ]
                for group in sorted(self.groups)
            ],
            "lost": self.lost,
            "health": self.health,
            "producers": [],
            "consumers": [],
            "disk_low": self.disk_low,
            "free_bytes": 1 << 30,
            "load": 5,
            "reads_changes": self.reads_changes,
        }
        if self.full:
            held = {group: self.incarnation_of(group) for group in self.groups} | dict(self.lost)
            state["held"] = [list(one) for one in sorted(held.items())]
        return state | changes

    def incarnation_of(self, group: int) -> int:
        return next((drawn for node, drawn in self.groups[group][4] if node == self.node), 0)

    def members_of(self, group: int) -> list[list[Any]]:
        """Return the members of a group: its founders, unless the test set others."""
        founders = [[node, drawn, True] for node, drawn in self.groups[group][4]]
        return self.members.get(group, founders)

    def obey(self, orders: dict[str, Any]) -> None:
        self.full = orders["more"]
        if orders["life"] != self.incarnation:
            return
        self.transfers += orders["transfers"]
        for group, incarnation in orders["gone"] if self.removes else ():
            self.lost = [one for one in self.lost if one != [group, incarnation]]
            if group in self.groups and self.incarnation_of(group) == incarnation:
                self.groups.pop(group)
                self.leads.pop(group, None)
        if orders["version"] >= self.version >= orders.get("since", 0):
            self.version = orders["version"]
            if orders["wanted"] is not None:
                self.rows_read += len(orders["wanted"])
                before = self.wanted if "since" in orders else {}
                self.wanted = before | {row[0]: row for row in orders["wanted"]}
                for group in orders.get("unwanted", ()):
                    self.wanted.pop(group, None)
                self.founders += orders["founders"]
            for row in self.wanted.values():
                mine = any(node == self.node for node, _ in row[4])
                if self.makes and mine and row[0] not in self.groups | dict(self.lost):
                    self.groups[row[0]] = row
