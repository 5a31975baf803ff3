"""Brokers whose groups do what they are ordered, as the managers see it: for tests of moves.

Consensus is played by one table of configurations: the leader of a group knows the orders that its
broker follows, and takes the steps that a real one takes (`reconcile_members.next_step`). A replica
is whole as soon as its broker has made it, unless `fills` is False.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from support.manager_rig import WALL_MS, FakeBroker, ManagerCluster

from myqueue.daemons.broker.reconcile_members import (
    ChangeMembers,
    MemberStatus,
    TransferTo,
    next_step,
)
from myqueue.daemons.manager.balancer.controller import LEADER_ALIVE_MS_MIN
from myqueue.daemons.metadata.machine import pack_command
from myqueue.daemons.raft.types import COMMAND, Config, Proposal, node_of, replica_id


class MovingCluster(ManagerCluster):
    """A manager that leads, brokers, and their groups."""

    def __init__(self, brokers: int, **topics: int) -> None:
        """`topics`: name=partitions, of three replicas or as many as there are brokers."""
        super().__init__(brokers)
        self.configs: dict[int, Config] = {}
        self.leader: dict[int, int] = {}  # group -> replica
        self.terms: Counter[int] = Counter()
        self.away: dict[int, FakeBroker] = {}
        self.fills = True
        self.unreached: set[int] = set()  # brokers that leaders can't speak to
        self.busiest = 0
        self.live(LEADER_ALIVE_MS_MIN + 600)
        for name, partitions in topics.items():
            self.update("create_topic", topic=name, partitions=partitions)
        self.pass_time(1200)

    # -- brokers -------------------------------------------------------------------------------

    def add(self, node: int) -> FakeBroker:
        self.brokers[node] = FakeBroker(node)
        return self.brokers[node]

    def kill(self, node: int) -> None:
        self.away[node] = self.brokers.pop(node)

    def start(self, node: int, disk: str = "") -> None:
        """Start a broker again; with a new disk it has lost everything."""
        old = self.away.pop(node)
        broker = self.add(node)
        broker.incarnation = old.incarnation + 1000
        broker.disk = disk or old.disk
        broker.groups = {} if disk else old.groups

    def operate(self, operation: str, **arguments: Any) -> None:
        """Apply an operation that only managers propose."""
        payload = pack_command(b"", operation, arguments)
        self.engine.pending.append(Proposal(0, WALL_MS, COMMAND, payload))
        self.engine.index += 1
        self.commit()

    # -- groups --------------------------------------------------------------------------------

    def pass_time(self, passed_ms: int) -> None:
        """Send heartbeats every 300 ms; the groups take a step between two of them."""
        for _ in range(passed_ms // 300):
            self.live(300)
            self.step_all()
            self.busiest = max([self.busiest, *self.busy().values()])

    def step_all(self) -> None:
        for group in self.tables.groups:
            self._step(group)

    def _founders(self, group: int) -> Config:
        return Config(tuple(replica_id(*one) for one in self.tables.partition(group).replicas))

    def holds(self, replica: int, group: int) -> bool:
        broker = self.brokers.get(node_of(replica))
        if broker is None or group not in broker.groups or group in dict(broker.lost):
            return False
        return replica_id(broker.node, broker.incarnation_of(group)) == replica

    def _statuses(self, group: int, config: Config) -> dict[int, MemberStatus]:
        whole = {one: self.holds(one, group) for one in config.members}
        return {
            one: MemberStatus(self._is_heard(one), there and (self.fills or one in config[0]))
            for one, there in whole.items()
        }

    @staticmethod
    def _on(node: int, config: Config) -> list[int]:
        return [one for one in config.members if node_of(one) == node]

    def _is_heard(self, replica: int) -> bool:
        return node_of(replica) in self.brokers and node_of(replica) not in self.unreached

    def _step(self, group: int) -> None:
        config = self.configs.setdefault(group, self._founders(group))
        leader = self.leader.get(group, 0)
        able = [one for one in config.voters if self.holds(one, group)]
        if 2 * len(able) <= len(config.voters):
            self._tell(group, 0, config)
            return
        if leader not in able:
            leader = able[0]
        row = self.brokers[node_of(leader)].wanted.get(group)
        if row is not None:
            wanted = [replica_id(*one) for one in row[4]]
            step = next_step(config, leader, wanted, self._statuses(group, config))
            if isinstance(step, ChangeMembers):
                self.configs[group] = config = step.config
            elif isinstance(step, TransferTo):
                leader = step.replica_id
        self._tell(group, leader, config)

    def _tell(self, group: int, leader: int, config: Config) -> None:
        if leader != self.leader.get(group, 0):
            self.leader[group] = leader
            self.terms[group] += 1
        for broker in self.brokers.values():
            broker.leads.pop(group, None)
            is_member = any(self.holds(one, group) for one in self._on(broker.node, config))
            is_told = leader and is_member and broker.node not in self.unreached
            broker.follows[group] = node_of(leader) if is_told else 0
        if leader:
            broker = self.brokers[node_of(leader)]
            broker.leads[group] = self.terms[group]
            broker.members[group] = [
                [node_of(one), one & 0xFFFFFFFF, one in config.voters] for one in config.members
            ]

    # -- what became of it ---------------------------------------------------------------------

    def busy(self) -> Counter[int]:
        """Count, for each broker, the replicas that move to it or from it."""
        out: Counter[int] = Counter()
        for group in self.tables.moving:
            one, config = self.tables.partition(group), self.configs.get(group)
            voters = config.voters if config else ()
            arriving = [r for r in one.replicas if replica_id(*r) not in voters]
            out.update({node for node, _ in (*one.leaving, *arriving)})
        return out

    def held(self) -> dict[int, int]:
        """Count the replicas that each broker really has."""
        return {node: len(broker.groups) for node, broker in sorted(self.brokers.items())}

    def led(self) -> dict[int, int]:
        count = Counter(node_of(one) for one in self.leader.values() if one)
        return {node: count[node] for node in sorted(self.brokers)}

    def until(self, what: str, condition: object, limit_ms: int = 120_000) -> None:
        end = self.engine.now + limit_ms
        assert callable(condition)
        while not condition():
            assert self.engine.now < end, f"never: {what}"
            self.pass_time(300)

    def is_settled(self) -> bool:
        """True if every group has its wanted members, and no broker has any other replica."""
        tables = self.tables
        if tables.moving or tables.gone:
            return False
        for group in tables.groups:
            if set(self._founders(group).voters) != set(self.configs[group].voters):
                return False
            if self.configs[group].learners:
                return False
        return self.held() == {node: len(tables.held[node]) for node in sorted(self.brokers)}

    def is_settled_without_2(self) -> bool:
        return self.is_settled() and not self.tables.held[2] and not self.tables.left[2]
