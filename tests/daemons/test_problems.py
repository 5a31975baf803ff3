"""What managers call not well, when there is more of it than one answer holds."""

from __future__ import annotations

from support.manager_rig import ManagerCluster

from myqueue.daemons.manager.cluster_view import BROKER_SILENT_AFTER_MS
from myqueue.daemons.manager.queries import PROBLEMS_MAX
from myqueue.problems import describe


def test_of_many_problems_those_that_stop_somebody_are_told_first() -> None:
    """What is cut off must not be what a probe has to see."""
    cluster = ManagerCluster(brokers=2, managers=1)
    cluster.update("create_topic", topic="orders", partitions=PROBLEMS_MAX + 1)
    cluster.update("create_topic", topic="stopped", partitions=1)
    cluster.lead_all()
    last = cluster.tables.topics["stopped"].partitions[0]
    for group in [one for one in cluster.brokers[1].leads if one != last.group]:
        cluster.brokers[2].leads[group] = 2
    for broker in cluster.brokers.values():
        broker.leads.pop(last.group, None)
    cluster.brokers[1].leads.clear()
    cluster.beat_all()
    del cluster.brokers[1]
    cluster.live(BROKER_SILENT_AFTER_MS + 300)
    found = cluster.read("problems")
    assert [one["problem"] for one in found["problems"][:2]] == ["broker-silent", "leaderless"]
    assert found["problems"][1]["topic"] == "stopped"
    assert len(found["problems"]) == PROBLEMS_MAX and found["omitted"] == 4


def test_of_a_partition_without_a_leader_those_are_named_that_can_not_vote() -> None:
    """Of two copies one lost entries, and the other one stepped down: nobody is silent."""
    cluster = ManagerCluster(brokers=2, managers=1)
    cluster.update("create_topic", topic="orders", partitions=1, replication=2)
    cluster.lead_all()
    group = cluster.tables.topics["orders"].partitions[0].group
    for broker in cluster.brokers.values():
        broker.leads.clear()
    row = [group, cluster.brokers[2].incarnation_of(group)]
    cluster.brokers[2].health = [[*row, "recovering"]]
    cluster.live(600)
    found = cluster.read("problems")["problems"]
    assert found[0]["problem"] == "leaderless" and found[0]["voteless"] == [2]
    assert found[0]["health"] == {"2": "recovering"}
    sentences = describe(found)
    assert any("orders/0: its replica on broker 2 (recovering)" in one.text for one in sentences)
    cluster.brokers[2].health = []
    cluster.live(600)
    assert not cluster.read("problems")["problems"][0]["voteless"]


def test_who_was_killed_is_silent_at_once() -> None:
    """Its connection ended, though its last beat was a moment ago."""
    cluster = ManagerCluster(brokers=3)
    cluster.update("create_topic", topic="orders", partitions=3)
    cluster.lead_all()
    for node in (2, 3):
        cluster.manager_beat(node)
    assert cluster.read("problems")["problems"] == []
    cluster.engine.cut_off = {"broker 2", "manager 3"}
    found = cluster.read("problems")["problems"]
    assert [(one["problem"], one.get("node")) for one in found[:2]] == [
        ("manager-silent", 3),
        ("broker-silent", 2),
    ]
    rest = [one["problem"] for one in found[2:]]
    assert rest == ["leaderless"] + ["under-replicated"] * 3
    cluster.engine.cut_off.clear()
    assert cluster.read("problems")["problems"] == []
