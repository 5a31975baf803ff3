"""Many groups on a few hosts, without disks: writes are reported at once.

`Flock` turns all hosts until nothing moves; loss of packets is drawn from a seed. It is what the
tests of `host` and the benchmarks share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from myqueue.daemons.raft.groups import Packet, RaftGroups
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    INDEX,
    TERM,
    Config,
    Effects,
    PersistEntries,
    PersistHardState,
    RaftSettings,
    Role,
    node_of,
    replica_id,
)


class Flock:
    def __init__(
        self,
        nodes: int = 3,
        groups: Iterable[int] = (1,),
        *,
        seed: int = 1,
        loss: float = 0.0,
        settings: RaftSettings | None = None,
    ) -> None:
        self.settings = settings or RaftSettings()
        self.random, self.loss = Random(seed), loss
        self.now, self._starts = 1000, 0
        self.hosts: dict[int, RaftGroups] = {}
        self.cut: set[int] = set()  # nodes that nobody reaches
        self.packets: list[tuple[int, int, Packet]] = []
        self.committed = 0
        for number in range(1, nodes + 1):
            self.start(number)
        for group in groups:
            self.create(group, sorted(self.hosts))

    def start(self, number: int) -> RaftGroups:
        self._starts += 1
        self.hosts[number] = RaftGroups(number, self._starts, self.settings)
        return self.hosts[number]

    def create(self, group: int, nodes: Sequence[int]) -> None:
        config = Config(tuple(replica_id(number, 1) for number in nodes))
        for number in nodes:
            self.add(group, number, config)

    def add(self, group: int, number: int, config: Config) -> RaftNode:
        """A replica with an empty log."""
        host = self.hosts[number]
        node = RaftNode(
            group,
            replica_id(number, 1),
            ConfigHistory(0, config),
            RaftLog(),
            term=0,
            vote=0,
            applied_index=0,
            commit_index=0,
            settings=self.settings,
            random=Random(self.random.random()),
            alive_until=host.suspicion.alive_until,
            now=self.now,
        )
        host.add(node)
        return node

    # -- turning -------------------------------------------------------------------------------

    def turn(self, number: int) -> bool:
        """One turn of one host; True if it did anything."""
        host = self.hosts[number]
        effects, packets = host.end_turn(self.now)
        for target, packet in packets.items():
            self.packets.append((number, target, packet))
        self._report(host, effects)
        return bool(effects.persist or packets)

    def _report(self, host: RaftGroups, effects: Effects) -> None:
        for op in effects.persist:
            node = host.touch(op.group)
            if node is None:
                continue
            if isinstance(op, PersistHardState):
                node.hard_state_persisted(op.term, op.vote, self.now, host.out)
            elif isinstance(op, PersistEntries):
                last = op.entries[-1]
                node.persisted(last[TERM], last[INDEX], self.now, host.out)
        for apply in effects.apply:
            node = host.touch(apply.group)
            if node is not None:
                node.applied(apply.last)
            if host.node == 1:
                self.committed += apply.last - apply.first + 1

    def settle(self) -> None:
        """Turn and deliver until nothing moves."""
        moved = True
        while moved:
            moved = False
            for number in list(self.hosts):
                moved |= self.turn(number)
            packets, self.packets = self.packets, []
            for source, target, packet in packets:
                lost = self.loss and self.random.random() < self.loss
                if not lost and target in self.hosts and not {source, target} & self.cut:
                    self.hosts[target].receive(source, packet, self.now)
                    moved = True

    def elapse(self, duration_ms: int, step_ms: int = 50) -> None:
        for _ in range(duration_ms // step_ms):
            self.now += step_ms
            for host in list(self.hosts.values()):
                host.tick(self.now)
            self.settle()

    # -- looking -------------------------------------------------------------------------------

    def leader(self, group: int) -> RaftNode | None:
        """Of the newest term."""
        leading = [
            host.groups[group]
            for host in self.hosts.values()
            if group in host.groups and host.groups[group].role == Role.LEADER
        ]
        return max(leading, key=lambda node: node.term, default=None)

    def leader_at(self, group: int) -> int:
        """The node of the leader; there must be one."""
        leader = self.leader(group)
        assert leader is not None, f"nobody leads group {group}"
        return node_of(leader.replica)

    def elect_all(self, limit_ms: int = 20_000) -> None:
        """Until each group has a leader that all its members follow."""
        for _ in range(limit_ms // 50):
            if all(self.agreed(group) for group in self.all_groups()):
                return
            self.elapse(50)
        raise AssertionError("not every group found a leader")

    def all_groups(self) -> set[int]:
        return {group for host in self.hosts.values() for group in host.groups}

    def agreed(self, group: int) -> bool:
        leader = self.leader(group)
        return leader is not None and all(
            host.groups[group].leader == leader.replica
            for host in self.hosts.values()
            if group in host.groups and host.groups[group].replica in leader.config.members
        )
