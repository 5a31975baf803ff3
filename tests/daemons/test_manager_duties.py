"""What managers see to: registration, orders, deletions, growth, leaders; and what they tell."""

from __future__ import annotations

from typing import Any

import pytest
from support.manager_rig import FakeBroker, ManagerCluster

from myqueue import errors
from myqueue.daemons.manager.balancer.controller import (
    LEADER_ALIVE_MS_MIN,
    TRANSFER_RETRY_MS,
    TRANSFERS_PER_REPLY_MAX,
)
from myqueue.daemons.manager.cluster_view import BROKER_SILENT_AFTER_MS
from myqueue.wire import protocol


def led_by(cluster: ManagerCluster, topic: str) -> list[int]:
    ((*_, partitions),) = cluster.routes(topic)[2]
    return [row[2] for row in partitions]


# -- registration and orders ----------------------------------------------------------------------


def test_brokers_register_by_their_beats() -> None:
    cluster = ManagerCluster()
    assert cluster.tables.brokers == {}
    cluster.brokers[1] = FakeBroker(1)
    orders = cluster.beat(1)
    assert orders == {
        "version": 0,
        "life": 0,
        "life_from": 0,
        "more": False,
        "wanted": None,
        "gone": [],
        "transfers": [],
        "brokers": None,
        "wall_ms": cluster.engine.wall_ms(),
        "managers": [1, 2, 3],
    }
    cluster.turn()
    row = cluster.tables.brokers[1]
    assert (row.disk, row.address, row.host) == ("disk-1", "tcp://127.0.0.1:9292", "host-1")
    before = cluster.replica.machine.applied_index
    cluster.live(3000)
    assert cluster.replica.machine.applied_index == before
    orders = cluster.beat(1, address="10.0.0.1:9292")
    cluster.turn()
    assert cluster.tables.brokers[1].address == "tcp://10.0.0.1:9292"


def test_w7_a_broker_with_another_disk_is_not_heard() -> None:
    cluster = ManagerCluster(brokers=2)
    assert "disk-1" in cluster.manager.greeted("broker", 1, "wiped")
    with pytest.raises(errors.IdentityMismatch):
        cluster.beat(1, disk="wiped")
    cluster.turn(BROKER_SILENT_AFTER_MS + 1)
    assert [row[3] for row in cluster.routes()[1]] == [False, False]


def test_registration_is_not_asked_for_at_every_tick() -> None:
    cluster = ManagerCluster()
    cluster.brokers[1] = FakeBroker(1)
    cluster.beat(1)
    cluster.engine.pending.clear()
    for _ in range(5):
        cluster.engine.now += 50
        cluster.manager.tick(cluster.engine.now)
    assert len(cluster.engine.pending) == 1


def test_a_full_beat_is_asked_for_until_it_came() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.brokers[1].full = False
    assert not cluster.beat(1)["more"]
    cluster.brokers[1].incarnation += 1  # of a broker that this manager knows from before
    assert cluster.beat(1)["more"]
    assert not cluster.beat(1)["more"]


def test_orders_name_what_a_broker_should_hold() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.update("create_topic", topic="orders", replication=2, settings={"retention_ms": 9})
    topic = cluster.tables.topics["orders"]
    orders = cluster.beat(1)
    (partition,) = topic.partitions
    assert orders["version"] == cluster.tables.brokers[1].version
    assert orders["wanted"] == [
        [
            partition.group,
            "orders",
            0,
            topic.uid,
            [list(one) for one in partition.replicas],
            topic.settings,
            [],
            0,
        ]
    ]
    assert orders["brokers"] == [
        [n, f"tcp://127.0.0.1:{9291 + n}", f"127.0.0.1:{9391 + n}", f"host-{n}"] for n in (1, 2)
    ]
    again = cluster.beat(1)
    assert (again["wanted"], again["brokers"]) == (None, None)
    assert again["version"] == orders["version"]


def test_followers_order_the_same_but_no_transfers() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.update("create_topic", topic="orders")
    cluster.follow(2)
    assert len(cluster.beat(1)["wanted"]) == 1


def test_what_could_not_be_made_is_ordered_again() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.brokers[1].makes = False
    cluster.update("create_topic", topic="orders")
    assert cluster.beat(1)["wanted"]
    assert cluster.beat(1)["wanted"] is None  # not at every beat
    cluster.live(2400)
    cluster.brokers[1].makes = True
    cluster.live(2400)
    assert len(cluster.brokers[1].groups) == 1


def test_w6_a_deleted_group_is_gone_when_no_broker_has_it() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.update("create_topic", topic="orders", partitions=2, replication=2)
    cluster.beat_all()
    cluster.beat_all()
    groups = [[g, cluster.brokers[1].incarnation_of(g)] for g in sorted(cluster.brokers[1].groups)]
    cluster.brokers[2].removes = False
    cluster.update("delete_topic", topic="orders")
    orders = cluster.beat(1)
    assert orders["gone"] == groups and orders["wanted"] == []
    cluster.live(3000)
    assert [one.nodes for one in cluster.tables.gone.values()] == [[2], [2]]
    assert cluster.beat(1)["gone"] == []
    assert [group for group, _ in cluster.beat(2)["gone"]] == [group for group, _ in groups]
    cluster.brokers[2].removes = True
    cluster.live(3000)
    assert cluster.tables.gone == {}


def test_a_broker_that_follows_old_orders_may_still_make_a_deleted_group() -> None:
    """Not holding it says nothing as long as orders from before the deletion may reach it."""
    cluster = ManagerCluster(brokers=1)
    broker = cluster.brokers[1]
    old = broker.version
    cluster.update("create_topic", topic="orders")
    cluster.update("delete_topic", topic="orders")
    for _ in range(5):
        broker.version, broker.full = old, True
        cluster.beat(1)
        broker.groups.clear()
        cluster.turn(1000)
    assert len(cluster.tables.gone) == 1
    cluster.live(3000)
    assert cluster.tables.gone == {}


# -- leaders --------------------------------------------------------------------------------------


def test_p7_routes_name_the_leader_until_it_is_silent() -> None:
    cluster = ManagerCluster(brokers=3)
    cluster.update("create_topic", topic="orders", partitions=3)
    assert led_by(cluster, "orders") == [0, 0, 0]
    cluster.lead_all()
    assert sorted(led_by(cluster, "orders")) == [1, 2, 3]
    cluster.engine.now += BROKER_SILENT_AFTER_MS + 1
    cluster.beat(1)
    cluster.beat(2)
    assert sorted(led_by(cluster, "orders")) == [0, 1, 2]
    assert [row[3] for row in cluster.routes()[1]] == [True, True, False]


def moved(brokers: int, partitions: int) -> ManagerCluster:
    """Broker 1 leads everything."""
    cluster = ManagerCluster(brokers)
    cluster.update("create_topic", topic="orders", partitions=partitions, replication=brokers)
    cluster.beat_all()
    for group in cluster.brokers[1].groups:
        cluster.brokers[1].leads[group] = 2
    return cluster


def test_leadership_goes_back_few_at_a_time() -> None:
    cluster = moved(brokers=2, partitions=20)
    cluster.live(LEADER_ALIVE_MS_MIN - 600)
    assert cluster.brokers[1].transfers == []
    cluster.live(2100)
    first = list(cluster.brokers[1].transfers)
    assert len(first) == TRANSFERS_PER_REPLY_MAX
    tables = cluster.tables
    for group, node in first:
        topic, number = tables.groups[group]
        assert node == 2 == topic.partitions[number].nodes[0]
        del cluster.brokers[1].leads[group]
        cluster.brokers[2].leads[group] = 3
    cluster.live(4500)
    transfers = cluster.brokers[1].transfers
    assert len(transfers) == 10  # all that broker 2 should lead
    assert len({group for group, _ in transfers}) == 10  # and each was asked for once
    assert cluster.brokers[2].transfers == []


def test_a_transfer_that_did_not_happen_is_asked_for_again_later() -> None:
    cluster = moved(brokers=2, partitions=2)
    cluster.live(LEADER_ALIVE_MS_MIN + 1500)
    assert len(cluster.brokers[1].transfers) == 1
    cluster.live(TRANSFER_RETRY_MS - 3000)
    assert len(cluster.brokers[1].transfers) == 1
    cluster.live(4500)
    assert len(cluster.brokers[1].transfers) == 2


def test_nobody_is_sent_to_a_broker_that_only_just_came_back() -> None:
    cluster = moved(brokers=2, partitions=2)
    del cluster.brokers[2]
    cluster.live(10_000)
    assert cluster.brokers[1].transfers == []
    cluster.follow(2)
    cluster.live(10_000)
    assert cluster.brokers[1].transfers == []


# -- growth ---------------------------------------------------------------------------------------


def fill(cluster: ManagerCluster, messages: int) -> None:
    """So many messages in each partition."""
    for broker in cluster.brokers.values():
        broker.ends = dict.fromkeys(broker.groups, messages)


def test_b3_a_topic_grows_when_its_messages_pass_the_threshold() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.update("create_topic", topic="orders", settings={"partition_growth": 100})
    cluster.update("create_topic", topic="fixed")
    cluster.lead_all()
    fill(cluster, 99)
    cluster.live(1500)
    assert len(cluster.tables.topics["orders"].partitions) == 1
    fill(cluster, 100)
    cluster.live(600)
    assert len(cluster.tables.topics["orders"].partitions) == 2
    cluster.live(3000)  # the new one is empty, so 100 of 2 * 100
    assert len(cluster.tables.topics["orders"].partitions) == 2
    fill(cluster, 100)
    cluster.live(600)
    assert len(cluster.tables.topics["orders"].partitions) == 3
    assert len(cluster.tables.topics["fixed"].partitions) == 1


def test_growth_in_flight_is_not_asked_for_twice() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("create_topic", topic="orders", settings={"partition_growth": 1})
    cluster.lead_all()
    fill(cluster, 1000)
    cluster.beat(1)
    for _ in range(20):
        cluster.engine.now += 50
        cluster.manager.tick(cluster.engine.now)
    assert len(cluster.engine.pending) == 1
    cluster.commit()
    assert len(cluster.tables.topics["orders"].partitions) == 2


def test_new_replicas_avoid_brokers_that_are_silent() -> None:
    cluster = ManagerCluster(brokers=4)
    del cluster.brokers[2]
    cluster.live(1500)
    cluster.update("create_topic", topic="orders", partitions=8, replication=3)
    assert not cluster.tables.held[2]
    cluster.update("create_topic", topic="wide", replication=4)
    assert len(cluster.tables.held[2]) == 1


# -- what is told ---------------------------------------------------------------------------------


def test_topics_with_details() -> None:
    cluster = ManagerCluster(brokers=2)
    uid = cluster.update("create_topic", topic="orders", partitions=2)["topic_uid"]
    cluster.lead_all()
    fill(cluster, 7)
    cluster.beat_all()
    (detail,) = cluster.read("topics", detail=True)["topics"]
    assert detail == cluster.read("topic", topic="orders")
    assert (detail["topic"], detail["topic_uid"], detail["replication"]) == ("orders", uid, 2)
    assert (detail["messages"], detail["bytes"]) == (14, 140)
    assert [one["end"] for one in detail["partitions"]] == [7, 7]
    assert sorted(one["leader"] for one in detail["partitions"]) == [1, 2]


def test_brokers_with_what_they_hold_and_lead() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.update("create_topic", topic="orders", partitions=4)
    cluster.lead_all()
    rows = cluster.read("brokers")["brokers"]
    assert [(r["node"], r["replicas"], r["leads"], r["should_lead"]) for r in rows] == [
        (1, 4, 2, 2),
        (2, 4, 2, 2),
    ]
    assert all(r["alive"] and r["state"] == "active" and r["load"] == 5 for r in rows)


def test_p5_b7_health_names_every_actor_and_whether_it_is_active() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("register_producer", topic="orders")
    cluster.update("register_consumer", topic="orders")
    cluster.live(31_000)
    cluster.beat(1, producers=[1])
    health = cluster.read("health")
    (producer,), (consumer,) = health["producers"], health["consumers"]
    assert producer["active"] and not consumer["active"]
    assert producer["topic"] == consumer["topic"] == "orders"
    assert producer["last_seen_ms"] == cluster.engine.wall_ms()
    assert [one["active"] for one in health["brokers"]] == [True]
    assert [one["active"] for one in health["managers"]] == [True, False, False]
    assert cluster.read("producer", producer_id=1)["active"]
    found = cluster.read("consumer", consumer_id=1)
    assert not found["active"] and found["partitions"] == [0]
    for query, arguments in (("producer", {"producer_id": 5}), ("consumer", {"consumer_id": 5})):
        with pytest.raises(errors.UnknownClient):
            cluster.read(query, **arguments)


def test_health_of_many_clients_names_the_last_that_were_heard_of() -> None:
    cluster = ManagerCluster(brokers=1)
    for _ in range(5):
        cluster.engine.now += 10
        cluster.update("open_producer")
    health = cluster.read("health", limit=2)
    assert [one["id"] for one in health["producers"]] == [4, 5]
    assert health["omitted"] == 3


def problems(cluster: ManagerCluster) -> list[Any]:
    return sorted({one["problem"] for one in cluster.read("problems")["problems"]})


def test_problems_are_named() -> None:
    cluster = ManagerCluster(brokers=2, managers=1)
    cluster.update("create_topic", topic="orders")
    assert problems(cluster) == ["leaderless", "under-replicated"]
    cluster.lead_all()
    assert problems(cluster) == []
    stray = [[555, 9, False, 1, 0, 0, 0, 0, None]]
    cluster.brokers[1].full = True
    held = [[group, 1] for group in cluster.brokers[1].groups]
    cluster.beat(1, held=[*held, [555, 9]], groups=stray, disk_low=True)
    assert problems(cluster) == ["disk-low", "stray-group"]
    group = next(iter(cluster.brokers[1].groups))
    told = {
        "segment": "7.seg",
        "position": 512,
        "found": "scrub",
        "what": "a payload",
        "since_ms": 1,
        "state": "being emptied",
        "groups": [group],
    }
    cluster.beat(1, disk_low=True, damaged=[told])
    assert problems(cluster) == ["damaged", "disk-low", "stray-group"]
    [row] = [r for r in cluster.read("problems")["problems"] if r["problem"] == "damaged"]
    assert (row["kind"], row["node"], row["partitions"]) == ("broker", 1, ["orders/0"])
    for wrong in ([{**told, "groups": None}], [{**told, "what": "x" * 9999}], [told] * 99, "x"):
        with pytest.raises(errors.InvalidRequest):
            cluster.beat(1, damaged=wrong)
    cluster.beat(1, disk_low=True)
    assert problems(cluster) == ["disk-low", "stray-group"]
    cluster.engine.now += BROKER_SILENT_AFTER_MS + 1
    assert problems(cluster) == ["broker-silent", "leaderless", "stray-group", "under-replicated"]
    cluster.follow(0)
    assert "managers-leaderless" in problems(cluster)


def test_the_cluster_in_numbers() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.update("create_topic", topic="orders", partitions=3)
    cluster.update("register_producer", topic="orders")
    found = cluster.read("cluster")
    assert found["cluster"] == "test" and found["leader"] == 1
    assert found["counts"] == {
        "topics": 1,
        "partitions": 3,
        "brokers": 2,
        "managers": 3,
        "producers": 1,
        "consumers": 0,
        "groups_to_remove": 0,
    }
    assert found["settings"]["inactive_ms"] == 30_000


def test_a_new_topic_is_ordered_at_once() -> None:
    """Not with the next beat only; and once, however much is applied until the broker follows."""
    cluster = ManagerCluster(brokers=3)
    cluster.beat_all()
    cluster.engine.peer_replies.clear()
    cluster.update("create_topic", topic="orders")
    told = dict(cluster.engine.peer_replies)
    assert sorted(told) == ["broker 1", "broker 2", "broker 3"]
    for _, kind, request, orders in told.values():
        assert (kind, request) == (protocol.ORDERS, 0)
        assert [row[1] for row in orders["wanted"]] == ["orders"]
    cluster.engine.peer_replies.clear()
    cluster.update("register_producer", topic="orders")
    assert cluster.engine.peer_replies == []
