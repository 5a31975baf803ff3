"""Work that must not grow with the number of partitions: it is counted, not timed."""

from __future__ import annotations

from typing import Any

import pytest
from support.manager_rig import ManagerCluster

from myqueue.daemons.manager import broker_orders
from myqueue.daemons.manager.balancer.balance import better_leaders, next_move
from myqueue.daemons.manager.balancer.controller import BALANCE_CHECK_INTERVAL_MS
from myqueue.daemons.manager.cluster_view import BrokerStatus, ClusterView

MANY = 200


def full_cluster() -> ManagerCluster:
    cluster = ManagerCluster(brokers=3)
    cluster.beat_all()
    cluster.update("create_topic", topic="t", partitions=MANY)
    cluster.lead_all()
    cluster.live(6000)
    return cluster


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Return a list that gets an item with each call."""
    calls: list[int] = []
    inner = getattr(owner, name)

    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return inner(*arguments)

    monkeypatch.setattr(owner, name, counting)
    return calls


def test_quiet_heartbeats_compare_no_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = full_cluster()
    quiet = {"groups": [], "full": False}
    for node in cluster.brokers:
        cluster.beat(node, **quiet)
    looked = count_calls(monkeypatch, BrokerStatus, "has")
    compared = count_calls(monkeypatch, broker_orders, "outdated_replicas")
    for _ in range(10):
        for node in cluster.brokers:
            cluster.beat(node, **quiet)
    assert not looked and not compared
    cluster.beat(1, groups=[[5, 1, False, 1, 0, 0, 0, 0, None]], full=False)
    assert len(compared) == 1, "it has something that it had not"


def test_brokers_that_lead_what_they_should_are_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = full_cluster()
    quiet = {"groups": [], "full": False}
    scans = count_calls(monkeypatch, ClusterView, "groups_led_by")
    for _ in range(5):
        cluster.turn(BALANCE_CHECK_INTERVAL_MS)
        for node in cluster.brokers:
            assert not cluster.beat(node, **quiet)["transfers"]
    before = len(scans)
    assert before <= len(cluster.brokers)
    group = next(iter(cluster.brokers[2].leads))
    cluster.brokers[1].leads[group] = 1 + cluster.brokers[2].leads.pop(group)
    for _ in range(8):
        cluster.turn(BALANCE_CHECK_INTERVAL_MS)
        orders = [cluster.beat(node)["transfers"] for node in cluster.brokers]
        if any(orders):
            break
    assert orders[0] == [[group, 2]]


def test_the_next_move_looks_at_few_groups() -> None:
    """It needs one of the fullest broker, not all that could move."""
    groups = {number: [1 + number % 3, 1 + (number + 1) % 3] for number in range(3000)}
    looked: list[int] = []

    def groups_on(node: int) -> Any:
        for group, members in groups.items():
            if node in members:
                looked.append(group)
                yield group, members

    held = {node: sum(node in members for members in groups.values()) for node in (1, 2, 3)} | {
        4: 0
    }
    hosts = {node: f"host-{node}" for node in held}
    assert next_move(groups_on, held, hosts, [1, 2, 3, 4], [1, 2, 3, 4]) == (0, 1, 4)
    assert len(looked) == 1


def test_better_leaders_are_found_only_as_many_as_are_proposed() -> None:
    groups = {number: [1, 2] for number in range(400)}
    all_steps = better_leaders(groups.items(), [1, 2])
    assert len(all_steps) == 200
    assert better_leaders(groups.items(), [1, 2], 20) == all_steps[:20]
