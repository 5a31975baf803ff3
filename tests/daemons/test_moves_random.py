"""Brokers come, go, die, are wiped, run full, in any order; when it is quiet again, all is whole.

P4, B6, R17, W7: nobody is stuck, every partition has as many voters as its topic promises, each of
them has its replica, and nobody holds anything else. Consensus is played (`support.moving`); what
is under test is what managers decide.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.moving import MovingCluster

from myqueue.daemons.manager.balancer.backoff import PAUSE_MS_MAX
from myqueue.daemons.manager.heartbeats import DISK_TAKEOVER_SILENCE_MS
from myqueue.daemons.raft.types import node_of


class Troubled:
    """Something happens to a cluster, again and again."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = MovingCluster(self.random.randint(3, 6), t=6, u=3)
        self.cluster.update("alter_cluster", settings={"replace_after_ms": 15_000})
        self.cluster.update("create_topic", topic="two", partitions=3, replication=2)
        for node, broker in self.cluster.brokers.items():
            broker.host = f"host-{node % 3}"
        self.cluster.pass_time(7000)
        self.last = max(self.cluster.brokers)
        self.refused = 0
        self.disks: dict[int, tuple[str, dict[int, Any]]] = {}  # that brokers had before

    def happen(self) -> None:
        what = self.random.choice(
            (
                "add",
                "kill",
                "kill",
                "start",
                "start",
                "start",
                "wipe",
                "wipe",
                "unwipe",
                "unwipe",
                "unwipe",
                "drain",
                "undrain",
                "remove",
                "force",
                "full",
                "empty",
                "fill",
                "wait",
            )
        )
        getattr(self, what)()
        self.cluster.pass_time(self.random.choice((300, 900, 3000, 9000)))

    def some(self, nodes: object) -> int:
        found = sorted(nodes)  # type: ignore[call-overload]
        return self.random.choice(found) if found else 0

    def bears(self, node: int) -> bool:
        """Every group keeps a majority of those who have it without this one's replica."""
        cluster = self.cluster
        for group in cluster.tables.groups:
            config = cluster.configs[group]
            able = [
                one for one in config.voters if cluster.holds(one, group) and node_of(one) != node
            ]
            left = [one for one in config.voters if node_of(one) != node]
            if 2 * len(able) <= len(config.voters) and len(left) < len(config.voters):
                return False
        return True

    def add(self) -> None:
        if len(self.cluster.brokers) + len(self.cluster.away) < 7:
            self.last += 1
            self.cluster.add(self.last).host = f"host-{self.random.randint(0, 3)}"

    def kill(self) -> None:
        node = self.some(self.cluster.brokers)
        if node:
            self.cluster.kill(node)

    def start(self) -> None:
        node = self.some(self.cluster.away)
        if node:
            host = self.cluster.away[node].host
            self.cluster.start(node)
            self.cluster.brokers[node].host = host

    def wipe(self) -> None:
        node = self.some(self.cluster.brokers)
        if node and node in self.cluster.tables.brokers and self.bears(node):
            self.change_disk(node, f"{self.cluster.brokers[node].disk}+", {})

    def unwipe(self) -> None:
        """The disk of before is back."""
        node = self.some(self.disks.keys() & self.cluster.brokers.keys())
        if node and node in self.cluster.tables.brokers and self.bears(node):
            self.change_disk(node, *self.disks[node])

    def change_disk(self, node: int, disk: str, groups: dict[int, Any]) -> None:
        broker = self.cluster.brokers[node]
        self.disks[node] = broker.disk, broker.groups
        self.cluster.kill(node)
        self.cluster.pass_time(DISK_TAKEOVER_SILENCE_MS + 600)
        self.cluster.start(node, disk=disk)
        self.cluster.brokers[node].host = broker.host
        self.cluster.brokers[node].groups = groups

    def drain(self) -> None:
        self.ask("drain_broker", self.some(self.cluster.tables.brokers))

    def undrain(self) -> None:
        self.ask("undrain_broker", self.some(self.cluster.tables.brokers))

    def remove(self) -> None:
        self.gone(self.some(self.cluster.tables.brokers), force=False)

    def force(self) -> None:
        node = self.some(self.cluster.tables.brokers)
        if len(self.cluster.tables.brokers) > 3 and self.bears(node):
            self.gone(node, force=True)

    def gone(self, node: int, *, force: bool) -> None:
        if node and self.ask("remove_broker", node, force=force):
            self.cluster.brokers.pop(node, None)
            self.cluster.away.pop(node, None)

    def full(self) -> None:
        node = self.some(self.cluster.brokers)
        if node:
            self.cluster.brokers[node].disk_low = True

    def empty(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.disk_low = False

    def fill(self) -> None:
        self.cluster.fills = not self.cluster.fills

    def wait(self) -> None:
        self.cluster.pass_time(20_000)

    def ask(self, operation: str, node: int, **arguments: bool) -> bool:
        try:
            self.cluster.update(operation, node=node, **arguments)
        except AssertionError:
            self.refused += 1
            return False
        return True

    def calm_down(self) -> None:
        while self.cluster.away:
            self.start()
        while len(self.cluster.brokers) < 3:
            self.last += 1
            self.cluster.add(self.last)
        self.empty()
        self.cluster.fills = True
        for node in sorted(self.cluster.tables.brokers):
            self.ask("undrain_broker", node)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happened_all_is_whole_in_the_end(seed: int) -> None:
    troubled = Troubled(seed)
    cluster = troubled.cluster
    for _ in range(25):
        troubled.happen()
    troubled.calm_down()
    cluster.until("at rest", lambda: is_quiet(cluster), 900_000)
    for topic in cluster.tables.topics.values():
        for one in topic.partitions:
            voters = cluster.configs[one.group].voters
            assert len(voters) == topic.replication == len(one.replicas)
            assert all(cluster.holds(voter, one.group) for voter in voters)
    # Whose disk was low again and again is left alone for as long as that; then it has its share.
    shares = lambda: min(cluster.held().values()) > 0  # noqa: E731
    cluster.until("everybody has a share", shares, PAUSE_MS_MAX)
    cluster.until("at rest again", lambda: is_quiet(cluster), 900_000)


def is_quiet(cluster: MovingCluster) -> bool:
    """All is as it is wanted, and nobody wants anything else for a while."""
    if not cluster.is_settled():
        return False
    before = cluster.tables.counters.incarnation
    cluster.pass_time(15_000)
    return cluster.tables.counters.incarnation == before and cluster.is_settled()
