"""Some nodes with one group each, turned by hand: nothing moves unless a test moves it.

Each node is a real `RaftGroups`. Messages lie on links until they are delivered; writes lie on
disks until they are synced (at once, unless a disk is slow); beats, which only say who is alive,
are carried at once. Time stands still between calls of `elapse`. Everything that a node does is
given to `say`, which golden scripts print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from raft import wording
from raft.disk import Disk, Start, reopen

from myqueue.daemons.raft.groups import Packet, RaftGroups
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    CHAIN,
    COUNT,
    DATA,
    INDEX,
    OFFSET,
    PAYLOAD,
    TERM,
    Apply,
    Config,
    Effects,
    Entry,
    Fetch,
    Message,
    PersistEntries,
    PersistHardState,
    PersistSnapshot,
    PersistTruncate,
    Proposal,
    RaftSettings,
    Snapshot,
    node_of,
    replica_id,
)

GROUP = 7
STEP_MS = 50


def silent(line: str) -> None:
    """For tests that look at states, not at what is said."""


class Cluster:
    def __init__(
        self,
        voters: Iterable[int],
        learners: Iterable[int] = (),
        *,
        settings: RaftSettings | None = None,
        seed: int = 1,
        say: Callable[[str], None] = silent,
    ) -> None:
        self.settings = settings or RaftSettings()
        self.config = Config(
            tuple(replica_id(n, 1) for n in voters), tuple(replica_id(n, 1) for n in learners)
        )
        self.say, self.say_beats = say, False
        self.now, self.random, self._starts = 1000, Random(seed), 0
        self.hosts: dict[int, RaftGroups] = {}
        self.disks: dict[int, Disk] = {}
        self.replicas: dict[int, int] = {}
        self.slow: set[int] = set()  # disks that sync only when told to
        self.held_snapshots = False
        self.wanted: list[tuple[int, int]] = []  # snapshots: (leader's node, follower)
        self.links: dict[tuple[int, int], list[Message]] = {}
        self.held: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        self._beats: list[tuple[int, int, Packet]] = []
        for replica in self.config.members:
            self.replicas[node_of(replica)] = replica
            self.disks[node_of(replica)] = Disk(self.config)
        for number in self.replicas:
            self.start(number)

    # -- nodes ---------------------------------------------------------------------------------

    def node(self, number: int) -> RaftNode:
        return self.hosts[number].groups[GROUP]

    def touched(self, number: int) -> RaftNode:
        node = self.hosts[number].touch(GROUP)
        assert node is not None
        return node

    def out(self, number: int) -> Effects:
        return self.hosts[number].out

    def start(self, number: int) -> None:
        """A process starts, from its disk."""
        self._starts += 1
        host = self.hosts[number] = RaftGroups(number, self._starts, self.settings)
        random = Random(self.random.random())
        host.add(
            reopen(
                self.disks[number],
                GROUP,
                self.replicas[number],
                self.settings,
                host.suspicion.alive_until,
                self.now,
                random,
            )
        )
        self.turn(number)

    def join(self, number: int, incarnation: int = 1) -> None:
        """An empty replica, which knows nothing of the group but its name."""
        self.replicas[number] = replica_id(number, incarnation)
        self.disks[number] = Disk(Config(()))
        self.start(number)

    def crash(self, number: int) -> None:
        """What was not synced is lost, and so is what was on its way to it."""
        del self.hosts[number]
        self.disks[number].crash()
        self._beats = [one for one in self._beats if number not in one[:2]]
        for source, target in list(self.links):
            if target == number:
                del self.links[source, target]

    # -- turns ---------------------------------------------------------------------------------

    def turn(self, number: int) -> None:
        """End turns of a node until it has nothing more to do, then carry the beats."""
        host = self.hosts[number]
        while True:
            effects, packets = host.end_turn(self.now)
            self._beats += [
                (number, target, packet) for target, packet in packets.items() if packet.beats
            ]
            if not self._perform(number, effects):
                break
        self._carry_beats()

    def _perform(self, number: int, effects: Effects) -> bool:
        """True if anything happened."""
        node, disk = self.node(number), self.disks[number]
        for change in effects.changed:
            self.say(wording.effect(number, change))
        for op in effects.persist:
            disk.write(op)
            self.say(wording.persist(number, op))
            if isinstance(op, PersistSnapshot):
                disk.install(op.snapshot.index, list(op.snapshot.state))
        for message in effects.send:
            self.say(wording.message(message))
            self.links.setdefault((number, node_of(message.target)), []).append(message)
        for apply in effects.apply:
            self.say(wording.effect(number, apply))
            self._apply(number, apply)
        for done in [*effects.reads, *effects.dropped, *effects.fetch]:
            self.say(wording.effect(number, done))
        for wanted in effects.fetch:
            if isinstance(wanted, Fetch):
                got = self.read_log(number, wanted.first, wanted.last)
                self.touched(number).fetched(wanted.follower, got, self.now, self.out(number))
            elif self.held_snapshots:
                self.wanted.append((number, wanted.follower))
            else:
                self.make_snapshot(number, wanted.follower)
        if number not in self.slow:
            self.sync(number)
        disk.damaged = node.health is ReplicaHealth.RECOVERING
        return bool(effects.persist or effects.send or effects.apply or effects.fetch)

    def _apply(self, number: int, apply: Apply) -> None:
        disk = self.disks[number]
        got = apply.entries
        if got is None:
            got = self.read_log(number, apply.first, apply.last)
        assert [one[INDEX] for one in got] == list(range(disk.applied + 1, apply.last + 1))
        disk.state += [bytes(one[PAYLOAD]).decode() for one in got if one[5] == DATA]
        disk.applied = apply.last
        self.touched(number).applied(apply.last)

    def sync(self, number: int, count: int | None = None) -> None:
        """The disk reports writes: hard states before the entries that were written with them."""
        for op in self.disks[number].sync(count):
            node, out = self.touched(number), self.out(number)
            if isinstance(op, PersistHardState):
                node.hard_state_persisted(op.term, op.vote, self.now, out)
            elif isinstance(op, PersistEntries):
                last = op.entries[-1]
                node.persisted(last[TERM], last[INDEX], self.now, out)
            elif isinstance(op, PersistTruncate):
                node.persisted(op.term, op.index - 1, self.now, out)
            elif isinstance(op, PersistSnapshot):
                self.disks[number].replaced = None
                node.snapshot_persisted(op.snapshot.index, out)

    def read_log(self, number: int, first: int, last: int) -> list[Entry]:
        """What the journal holds, written or not yet synced: the newest of each index."""
        found: dict[int, Entry] = {}
        for op in self.disks[number].ops:
            if isinstance(op, PersistEntries):
                found |= {one[INDEX]: one for one in op.entries}
        return [found[index] for index in range(first, last + 1)]

    def make_snapshot(self, number: int, follower: int) -> None:
        node, disk = self.touched(number), self.disks[number]
        made = Snapshot(
            disk.applied,
            node.log.term(disk.applied),
            node.configs.at(disk.applied),
            node.log.first_index,
            node.log.start_term,
            node.log.start_offset,
            node.log.start_chain,
            list(disk.state),
        )
        node.snapshot_made(follower, made, self.now, self.out(number))

    def start_log_at(self, number: int, index: int) -> None:
        """Retention."""
        node = self.touched(number)
        before = self.read_log(number, index - 1, index - 1)[0]
        start = Start(index, before[TERM], before[OFFSET] + before[COUNT], before[CHAIN])
        node.start_log_at(*start)
        self.disks[number].write(start)
        self.turn(number)

    # -- network and time ----------------------------------------------------------------------

    def _carry_beats(self) -> None:
        while self._beats:
            source, target, packet = self._beats.pop(0)
            if (source, target) in self.cut or target not in self.hosts:
                continue
            if self.say_beats:
                for beat in packet.beats:
                    self.say(wording.beat(source, target, beat))
            self.hosts[target].receive(source, Packet([], packet.beats), self.now)
            self.turn(target)

    def deliver(self, source: int, target: int, count: int | None = None) -> int:
        """Messages of one link, the oldest first; on a cut link or to the dead they are lost."""
        queue = self.links.pop((source, target), [])
        count = len(queue) if count is None else count
        now, self.links[source, target] = queue[:count], queue[count:]
        if now and target in self.hosts and (source, target) not in self.cut:
            self.hosts[target].receive(source, Packet(now, []), self.now)
            self.turn(target)
        return len(now)

    def deliver_all(self) -> int:
        """One round: what is on the links now."""
        round_ = [(link, len(queue)) for link, queue in sorted(self.links.items())]
        return sum(self.deliver(*link, count) for link, count in round_ if count)

    def settle(self) -> None:
        """Deliver until nothing moves."""
        for _ in range(1000):
            if not self.deliver_all():
                return
        raise AssertionError("it never ends")

    def elapse(self, duration_ms: int, only: int | None = None) -> None:
        """Time passes, for all or for one alone (the others stand still)."""
        for _ in range(duration_ms // STEP_MS):
            self.now += STEP_MS
            for number in sorted(self.hosts):
                if only in (None, number):
                    self.hosts[number].tick(self.now)
                    self.turn(number)

    # -- shorthands ----------------------------------------------------------------------------

    def timeout(self, number: int) -> None:
        """The election timeout of one replica comes now."""
        self.touched(number).deadline = self.now
        self.turn(number)
        self.hosts[number].tick(self.now)
        self.turn(number)

    def elect(self, number: int) -> None:
        self.timeout(number)
        self.settle()

    def propose(self, number: int, *payloads: str) -> tuple[int, int]:
        items = [Proposal(1, self.now, DATA, payload.encode()) for payload in payloads]
        made = self.touched(number).propose(items)
        self.turn(number)
        return made

    def isolate(self, number: int) -> None:
        self.cut |= {(number, n) for n in self.replicas} | {(n, number) for n in self.replicas}
