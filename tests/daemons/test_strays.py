"""What managers believe a broker to have, long after it is gone: it must not stay for ever (W6)."""

from __future__ import annotations

from typing import Any

from support.manager_rig import FakeBroker, ManagerCluster
from support.moving import MovingCluster

from myqueue.daemons.manager.broker_orders import STRAY_CHECK_INTERVAL_MS
from myqueue.daemons.metadata.machine import pack_command
from myqueue.daemons.raft.types import COMMAND, Proposal

MINUTE = 60_000


def strays(cluster: ManagerCluster) -> list[Any]:
    found = cluster.read("problems")["problems"]
    return [(one["node"], one["group"]) for one in found if one["problem"] == "stray-group"]


def cut_off_while_a_topic_went(cluster: ManagerCluster) -> FakeBroker:
    """The leader deleted it and saw it go meanwhile; here both is applied in one turn."""
    cluster.update("create_topic", topic="orders")
    cluster.live(1500)
    broker, engine = cluster.brokers[1], cluster.engine
    (group,) = broker.groups
    forget = {"node": 1, "groups": [group], "version": engine.index + 1}
    for operation, arguments in (("delete_topic", {"topic": "orders"}), ("forget_gone", forget)):
        payload = pack_command(b"", operation, arguments)
        engine.pending.append(Proposal(0, engine.wall_ms(), COMMAND, payload))
    engine.index += 2
    cluster.commit()
    assert not cluster.tables.groups and not cluster.tables.gone
    return broker


def test_a_manager_that_was_cut_off_hears_what_is_not_there_any_more() -> None:
    cluster = ManagerCluster(brokers=1)
    broker = cut_off_while_a_topic_went(cluster)
    broker.groups.clear()
    assert strays(cluster), "as far as it knows"
    cluster.live(STRAY_CHECK_INTERVAL_MS + 600)
    assert not strays(cluster)


def test_w6_what_nobody_knows_stays_and_is_told() -> None:
    cluster = ManagerCluster(brokers=1)
    broker = cut_off_while_a_topic_went(cluster)
    (group,) = broker.groups
    asked = 0
    for _ in range(100):
        asked += cluster.beat(1)["more"]
        cluster.turn(300)
    assert strays(cluster) == [(1, group)]
    assert 2 < asked < 10, "but it is not asked all the time"


def test_who_was_removed_has_no_strays() -> None:
    cluster = MovingCluster(4, t=6)
    cluster.kill(2)
    cluster.pass_time(1500)
    cluster.update("remove_broker", node=2, force=True)
    cluster.until("at rest", cluster.is_settled)
    cluster.update("delete_topic", topic="t")
    cluster.pass_time(10_000)
    assert not cluster.tables.gone and not strays(cluster)


def test_nobody_waits_for_replicas_of_a_broker_that_was_removed() -> None:
    """Of some partitions it had the only copy, so they were not moved; their topic went later."""
    cluster = MovingCluster(4)
    cluster.update("create_topic", topic="single", partitions=8, replication=1)
    cluster.pass_time(1500)
    cluster.kill(2)
    cluster.pass_time(1500)
    assert cluster.update("remove_broker", node=2, force=True)["lost"] == 2
    cluster.update("delete_topic", topic="single")
    cluster.until("they are forgotten", lambda: not cluster.tables.gone)
    assert cluster.read("cluster")["counts"]["groups_to_remove"] == 0
