"""A disk that was taken for lost and replaced (its broker started before it was mounted), and that
is back: what it has and nobody waits for any more goes, what is wanted still goes on (W6, W7).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.moving import MovingCluster

from myqueue.daemons.manager.broker_orders import OrdersBuilder, outdated_replicas

MINUTE = 60_000


def thin(cluster: MovingCluster) -> list[Any]:
    found = cluster.read("problems")["problems"]
    return [one for one in found if one["problem"] in ("under-replicated", "leaderless")]


def away_and_back(cluster: MovingCluster, away_ms: int) -> None:
    """Broker 2, on another disk meanwhile."""
    groups = dict(cluster.brokers[2].groups)
    assert groups
    for disk, passed_ms, has in (("empty", away_ms, {}), ("disk-2", 0, groups)):
        cluster.kill(2)
        cluster.pass_time(12_000)
        cluster.start(2, disk=disk)
        cluster.brokers[2].groups = dict(has)
        cluster.pass_time(passed_ms)


def test_w7_what_was_made_anew_meanwhile_is_made_once_more() -> None:
    cluster = MovingCluster(3, t=3)
    away_and_back(cluster, MINUTE)
    cluster.until("at rest", lambda: cluster.is_settled() and not thin(cluster))
    drawn = {one.replicas[one.nodes.index(2)] for one in cluster.tables.topics["t"].partitions}
    held = {(2, cluster.brokers[2].incarnation_of(one)) for one in cluster.brokers[2].groups}
    assert held == drawn and min(drawn)[1] > 10


def test_what_moved_elsewhere_meanwhile_goes() -> None:
    cluster = MovingCluster(4, t=4)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    groups = dict(cluster.brokers[2].groups)
    cluster.kill(2)
    cluster.until("made elsewhere", lambda: not cluster.tables.held[2] | cluster.tables.left[2])
    cluster.start(2, disk="empty")
    cluster.until("at rest", lambda: not cluster.tables.gone and not cluster.tables.moving)
    cluster.kill(2)
    cluster.pass_time(12_000)
    cluster.start(2, disk="disk-2")
    cluster.brokers[2].groups = groups
    cluster.until("at rest again", lambda: cluster.is_settled() and not thin(cluster))
    cluster.pass_time(3000)
    life = cluster.manager._heartbeats.cluster_view.brokers[2]
    assert not outdated_replicas(cluster.tables, 2, life) and not cluster.beat(2)["gone"]


def test_what_is_not_made_anew_yet_when_it_is_back() -> None:
    cluster = MovingCluster(3, t=3)
    cluster.update("alter_cluster", settings={"moves_per_broker": 0})
    away_and_back(cluster, 3000)
    drawn = cluster.tables.counters.incarnation
    cluster.update("alter_cluster", settings={"moves_per_broker": 4})
    cluster.pass_time(MINUTE)
    assert cluster.is_settled() and not thin(cluster)
    assert cluster.tables.counters.incarnation == drawn, "it has all of it"


def test_the_only_copy_is_back() -> None:
    """Without a leader it was not moved; and a move to where it is would never end."""
    cluster = MovingCluster(3)
    cluster.update("create_topic", topic="single", partitions=3, replication=1)
    cluster.pass_time(3000)
    away_and_back(cluster, 5000)
    cluster.pass_time(MINUTE)
    assert cluster.is_settled() and not thin(cluster)
    cluster.add(4)
    cluster.update("drain_broker", node=2)
    cluster.until("it can be moved", cluster.is_settled_without_2)


def test_w6_nothing_of_a_deleted_topic_or_without_a_name_is_named() -> None:
    cluster = MovingCluster(3, t=1)
    cluster.beat(2, full=True, held=[[5, 1], [next(iter(cluster.tables.groups)), 0]])
    assert not outdated_replicas(
        cluster.tables, 2, cluster.manager._heartbeats.cluster_view.brokers[2]
    )


def test_r2_who_leaves_is_not_wanted_again_on_another_disk() -> None:
    """It is a voter still, and what it voted for is not on the new disk."""
    cluster = MovingCluster(4, t=4)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    cluster.fills = False
    cluster.kill(2)
    tables = cluster.tables
    cluster.until("on its way elsewhere", lambda: tables.left[2] and not tables.held[2])
    cluster.start(2, disk="empty")
    cluster.pass_time(3000)
    (group, *_) = tables.left[2]
    partition = tables.partition(group)
    assert partition is not None
    old = dict(partition.leaving)[2]
    target = max(partition.replicas, key=lambda one: one[1])[0]
    cluster.kill(target)
    cluster.pass_time(1500)
    cluster.update("remove_broker", node=target, force=True)
    assert (2, old) not in partition.replicas
    cluster.pass_time(3000)
    broker = cluster.brokers[2]
    assert group not in broker.groups or broker.incarnation_of(group) != old


def test_a_manager_that_has_not_heard_all_of_a_disk_orders_nothing_yet() -> None:
    """It was restarted, and the first beat that it hears is not a full one."""
    cluster = MovingCluster(3, t=3)
    cluster.update("alter_cluster", settings={"moves_per_broker": 0})
    away_and_back(cluster, 3000)
    cluster.pass_time(3000)
    known = cluster.manager._heartbeats.cluster_view.brokers[2]
    assert cluster.tables.brokers[2].disk_first_incarnation and known.held
    life = replace(known, full_heartbeat_at=0, held={})
    said = OrdersBuilder().build(cluster.tables, 2, life, [], 0)
    assert said["wanted"] is None and said["more"]
    said = OrdersBuilder().build(cluster.tables, 2, replace(known, version=0), [], 0)
    assert len(said["wanted"]) == 3
