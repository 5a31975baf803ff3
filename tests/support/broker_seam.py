"""The engine as a broker sees it, without disks and peers: only what daemons/interfaces.py names.

Proposals stand in a real `RaftLog`; they are applied at the end of the turn, or when a test says
so. What the broker answers is recorded, decoded. Nothing of Raft is played here but its outcomes:
`lead`, `depose`, `apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from support.batches import WALL_MS

from myqueue import errors
from myqueue.daemons.broker.broker import Broker
from myqueue.daemons.interfaces import Client
from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.health import START, ReplicaHealth, Unhealthy
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.replication.engine import Engine
from myqueue.daemons.replication.replica import Replica
from myqueue.wire import protocol

GROUP = 77


class FakeReplica:
    def __init__(
        self,
        uid: int,
        machine: PartitionMachine,
        about: bytes,
        name: int,
        voters: Any,
        learners: Any,
    ) -> None:
        self.uid, self.machine, self.about, self.replica_id = uid, machine, about, name
        self.log = RaftLog()
        self.is_ready = False
        self.leader_node = 0
        self.repair_problem = self.catch_up_problem = self.recovery_problem = ""
        self.noted_health = START
        self.campaigns = 0
        self.follower = 0
        self.broken: errors.MyQueueError | None = None  # what reading raises
        self.times: int | None = None
        self.raft = SimpleNamespace(
            term=1,
            role=t.Role.FOLLOWER,
            log=self.log,
            commit_index=0,
            replica=name,
            group=uid,
            vote=0,
            leader=0,
            applied_index=0,
            health=ReplicaHealth.HEALTHY,
            _may_miss_entries=False,
            _has_unreadable_entries=False,
            started_term=1,
            configs=SimpleNamespace(current_index=0),
            config=t.Config(tuple(voters), tuple(learners)),
            leading=SimpleNamespace(followers={}),
            is_heard=lambda _member, _now: True,
        )

    health, health_reason, note_health = Replica.health, Replica.health_reason, Replica.note_health

    @property
    def is_leader(self) -> bool:
        return bool(self.raft.role == t.Role.LEADER)

    def read(self, first: int, last: int, max_bytes: int) -> list[t.Entry]:
        if self.broken is not None:
            raise self.broken
        if first > min(last, self.log.last_index):
            raise errors.EntryMissing(f"no entry {first}")
        return self.log.portion(first, max_bytes, last - first + 1)[0]

    def index_at_offset(self, offset: int) -> int | None:
        for entry in self.log.in_memory(self.log.memory_first, self.log.last_index) or []:
            if entry[t.OFFSET] <= offset < entry[t.OFFSET] + entry[t.COUNT]:
                return entry[t.INDEX]
        return None

    def entry_at_offset(self, offset: int) -> t.Entry:
        index = self.index_at_offset(offset)
        assert index is not None
        return self.read(index, index, 1)[0]

    def offset_at_time(self, time_ms: int) -> int | None:
        return self.times

    def where(self, offset: int) -> dict[str, Any]:
        return {"offset": offset, "segment": "one"}

    def best_successor(self, now: int) -> int:
        return self.follower


class FakeEngine:
    refused, unhealthy, status = Engine.refused, Engine.unhealthy, Engine.status

    def __init__(self, owner: Broker, node: int = 1) -> None:
        self.owner, self.node, self.incarnation = owner, node, 5
        self.now, self.wall = 1_000, WALL_MS
        self.replicas: dict[int, FakeReplica] = {}
        self.not_open: dict[int, Unhealthy] = {}
        self.report: Callable[..., None] = lambda *_, **__: None
        self.counts = DaemonMetrics()
        self.log = SimpleNamespace(
            identity=SimpleNamespace(disk="disk-a"),
            journal=SimpleNamespace(space_low=False, recovered=SimpleNamespace(unknown_loss=False)),
            clear_unknown_loss=lambda: setattr(self, "is_sure", True),
        )
        self.is_sure = False
        self.names: dict[int, int] = {}  # replicas that can't take part, by group
        self.removals_in_progress: dict[int, int] = {}  # removed, and not on the disk yet
        self.changes: list[tuple[int, t.Config]] = []
        self.disk = SimpleNamespace(check_room_for_commands=self._check_reserve)
        self.repair = SimpleNamespace(damage_report=list, status=dict)  # nothing is damaged
        self.closing = SimpleNamespace(report=list, next_told=dict, total=0)  # nor closed
        self.is_full = False  # to the last byte
        self.proposals: list[tuple[int, list[t.Proposal]]] = []
        self.refusal: errors.MyQueueError | None = None  # of the next proposals
        self.takes_urgent = False  # all the same
        self.replies: list[tuple[Client, list[Any], list[Any]]] = []
        self.beats: list[tuple[tuple[str, int], list[Any]]] = []
        self.links_up = True
        self.reads: dict[int, int] = {}
        self.transfers: list[tuple[int, int]] = []
        self.lagging: set[int] = set()  # nodes
        self.peers: dict[tuple[str, int], str] = {}
        self.apply_at_once = True
        owner.attach(self)  # type: ignore[arg-type]
        owner.started(self.now)

    # -- what the owner calls ------------------------------------------------------------------

    def wall_ms(self) -> int:
        return self.wall

    def create(self, uid: int, replica: int, voters: Any, learners: Any, about: bytes) -> Any:
        if uid in self.replicas:
            raise errors.GroupExists()
        if uid in self.removals_in_progress:
            raise errors.NotReady()
        machine = self.owner.make_state_machine(uid, about)
        made = FakeReplica(uid, machine, about, replica, voters, learners)
        self.replicas[uid] = made
        return made

    def remove(self, uid: int) -> None:
        if uid not in self.held():
            raise errors.GroupUnknown()
        self.replicas.pop(uid, None)
        self.not_open.pop(uid, None)
        self.names.pop(uid, None)

    def prepare_removal(self, uid: int) -> bool:
        return True

    def held(self) -> dict[int, int]:
        return {uid: one.replica_id for uid, one in self.replicas.items()} | self.names

    def change(self, replica: FakeReplica, config: t.Config) -> None:
        self.changes.append((replica.uid, config))

    def propose(
        self, replica: FakeReplica, items: list[t.Proposal], *, urgent: bool = False
    ) -> int:
        if self.refusal is not None and not (urgent and self.takes_urgent):
            raise self.refusal
        if not replica.is_leader:
            raise errors.NotLeader()
        self.proposals.append((replica.uid, items))
        first = replica.log.last_index + 1
        replica.log.make(items, replica.raft.term)
        return first

    def _check_reserve(self) -> None:
        if self.is_full:
            raise errors.DiskFull("the data disk is full")

    def read(self, replica: FakeReplica, context: int) -> None:
        if not replica.is_leader:
            raise errors.NotLeader()
        self.reads[context] = replica.uid

    def transfer(self, replica: FakeReplica, node: int, *, at_once: bool = False) -> None:
        if not node or (at_once and node in self.lagging):
            raise errors.NotReady()
        self.transfers.append((replica.uid, node))

    def campaign_soon(self, replica: FakeReplica) -> None:
        replica.campaigns += 1

    def reply(self, client: Client, frames: list[Any]) -> None:
        self.replies.append((client, protocol.decode(frames[0]), list(frames[1:])))

    def send_to_peer(self, peer: tuple[str, int], frames: list[Any]) -> bool:
        if self.links_up:
            self.beats.append((peer, protocol.decode(frames[0])))
        return self.links_up

    def peer_problem(self, peer: tuple[str, int]) -> str:
        return "" if self.links_up else "nothing listens there"

    def set_peer_address(self, peer: tuple[str, int], address: str) -> None:
        self.peers[peer] = address

    # -- what happens --------------------------------------------------------------------------

    def lead(self, replica: FakeReplica, ready: bool = True) -> None:
        """Let the replica lead a new term; it is ready as soon as its first entry is applied."""
        raft = replica.raft
        raft.term, raft.role, replica.leader_node = raft.term + 1, t.Role.LEADER, self.node
        replica.is_ready = False
        self.owner.changed(replica)  # type: ignore[arg-type]
        replica.log.make([t.Proposal(0, 0, t.NOOP, b"")], raft.term)
        if ready:
            self.apply(replica)

    def depose(self, replica: FakeReplica, leader: int = 0) -> None:
        """Let another replica lead a later term; entries that were not applied are cut off."""
        raft, lost = replica.raft, replica.machine.applied_index + 1
        raft.role, raft.term, replica.leader_node = t.Role.FOLLOWER, raft.term + 1, leader
        replica.is_ready = False
        self.owner.changed(replica)  # type: ignore[arg-type]
        if replica.log.last_index >= lost:
            replica.log.truncate(lost)
            self.owner.dropped(replica, lost)  # type: ignore[arg-type]

    def apply(self, replica: FakeReplica, last: int = 0) -> None:
        """Apply as the engine does: first `ready`, then the entries."""
        first = replica.machine.applied_index + 1
        last = last or replica.log.last_index
        if last < first:
            return
        entries = replica.log.in_memory(first, last)
        assert entries is not None
        results = replica.machine.apply(entries)
        replica.raft.commit_index = last
        if not replica.is_ready and replica.is_leader and entries[-1][1] == replica.raft.term:
            replica.is_ready = True
            self.owner.changed(replica)  # type: ignore[arg-type]
        self.owner.applied(replica, entries, results)  # type: ignore[arg-type]

    def end_turn(self) -> None:
        self.owner.before_turn_ends(self.now)
        if self.apply_at_once:
            for replica in list(self.replicas.values()):
                self.apply(replica)
        self.owner.end_turn(self.now)


def config(managers: int = 2) -> Any:
    nodes = tuple((node, f"manager-{node}:1") for node in range(1, managers + 1))
    return SimpleNamespace(
        managers=nodes,
        advertise="me:1",
        peer_advertise="me:2",
        host="here",
        cluster="c",
        segment_bytes=64 << 20,
    )


class World:
    """One broker with one group that it leads, and a client."""

    def __init__(self, tell: Callable[..., None] = lambda *_, **__: None) -> None:
        self.broker = Broker(config(), tell)
        self.engine = FakeEngine(self.broker)
        self.client = Client(b"c1", "client-1")
        self.replica = self.add(GROUP)
        self.engine.lead(self.replica)
        self.engine.end_turn()
        self.numbers = 100

    def add(self, group: int, **settings: Any) -> FakeReplica:
        about = protocol.pack(["topic", 0, 1, settings])
        made = self.engine.create(group, t.replica_id(1, 1), (), (), about)
        self.broker.started(self.engine.now)
        return made  # type: ignore[no-any-return]

    def ask(self, kind: int, *fields: Any, frames: Any = (), client: Client | None = None) -> int:
        """Send one request in this turn; return its number."""
        self.numbers += 100
        envelope = protocol.decode(protocol.encode(kind, self.numbers, *fields))
        self.broker.request(client or self.client, envelope, list(frames))
        return self.numbers

    def answers(self) -> list[tuple[list[Any], list[Any]]]:
        """Return the answers since the last call: (envelope, frames)."""
        replies, self.engine.replies = self.engine.replies, []
        return [(envelope, frames) for _, envelope, frames in replies]

    def turn(self) -> list[tuple[list[Any], list[Any]]]:
        self.engine.end_turn()
        return self.answers()

    def produce(self, *batches: Any, group: int = GROUP) -> list[list[Any]]:
        """Send one PRODUCE, end the turn, return its results."""
        self.ask(protocol.PRODUCE, [group] * len(batches), frames=batches)
        return [row for envelope, _ in self.turn() if envelope[1] == 31 for row in envelope[3]]
