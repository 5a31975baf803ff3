"""Placement of new partitions: which brokers hold their replicas, and which should lead them.

Pure: loads in, choices out, the same on every replica that applies the same entry. The first rule
that decides counts:

1. No two replicas on one host if that can be avoided; otherwise as few on one host as possible.
2. The broker that holds the fewest replicas.
3. The host that holds the fewest for each of its brokers, so that hosts fill up evenly as well and
   rule 1 leaves enough choice for the next partition.
4. The first replica, the preferred leader, goes to a broker that is seldom preferred; the others go
   first to brokers that are often preferred. This keeps the leaders even: brokers that should lead
   the next partitions are not used up as followers now.

So between equal brokers the numbers of replicas held, and of partitions they should lead, differ by
at most 1 as long as all partitions have as many replicas (by 2 for leaders where these mix).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class BrokerLoad:
    """The load of one broker, as placement sees it."""

    node: int
    host: str
    replicas: int = 0
    leaders: int = 0  # partitions of which it holds the first replica


class _HostLoad:
    """The load of all brokers with one host label."""

    __slots__ = ("brokers", "leaders", "replicas", "used")

    def __init__(self) -> None:
        self.brokers = self.replicas = self.leaders = 0
        self.used = 0  # replicas of the partition that is being placed


def place_partitions(
    brokers: Iterable[BrokerLoad], partitions: int, replication: int
) -> list[list[int]]:
    """For each new partition the nodes of its replicas, the preferred leader first.

    `brokers` are not changed. The caller made sure that there are at least `replication` of them.
    """
    loads = [BrokerLoad(one.node, one.host, one.replicas, one.leaders) for one in brokers]
    loads.sort(key=lambda one: one.node)
    if not 1 <= replication <= len(loads):
        raise ValueError(f"{replication} replicas on {len(loads)} brokers")
    hosts: dict[str, _HostLoad] = {}
    for load in loads:
        host = hosts.setdefault(load.host, _HostLoad())
        host.brokers += 1
        host.replicas += load.replicas
        host.leaders += load.leaders
    return [_place_partition(loads, hosts, replication) for _ in range(partitions)]


def _place_partition(
    loads: list[BrokerLoad], hosts: dict[str, _HostLoad], replication: int
) -> list[int]:
    free = list(loads)
    chosen: list[BrokerLoad] = []
    for _ in range(replication):
        rank = _follower_rank if chosen else _leader_rank
        best = min(free, key=lambda one: rank(one, hosts[one.host]))
        free.remove(best)
        hosts[best.host].used += 1
        chosen.append(best)
    leader = min(chosen, key=lambda one: (one.leaders, one.node))
    leader.leaders += 1
    hosts[leader.host].leaders += 1
    for one in chosen:
        one.replicas += 1
        hosts[one.host].replicas += 1
        hosts[one.host].used = 0
    return [leader.node, *(one.node for one in chosen if one is not leader)]


def best_broker_for_replica(brokers: Iterable[BrokerLoad], hosts: Iterable[str]) -> int:
    """Return the broker for one more replica, given the hosts of the others; 0: none can."""
    taken = list(hosts)
    best = min(
        brokers, key=lambda one: (taken.count(one.host), one.replicas, one.node), default=None
    )
    return 0 if best is None else best.node


def _leader_rank(one: BrokerLoad, host: _HostLoad) -> tuple[float, ...]:
    return (
        one.replicas,
        host.replicas / host.brokers,
        host.leaders / host.brokers,
        one.leaders,
        one.node,
    )


def _follower_rank(one: BrokerLoad, host: _HostLoad) -> tuple[float, ...]:
    return host.used, one.replicas, host.replicas / host.brokers, -one.leaders, one.node
