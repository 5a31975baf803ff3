"""What a leading manager writes into its log about what was done (S7)."""

from __future__ import annotations

import pytest
from support.manager_rig import ManagerCluster
from support.moving import MovingCluster

from myqueue.daemons.manager.audit_log import AUDITED_FIELDS
from myqueue.daemons.metadata.machine import pack_command
from myqueue.daemons.metadata.operations import _BY_NAME
from myqueue.daemons.raft.types import COMMAND, Proposal
from myqueue.wire import protocol


def told(cluster: ManagerCluster, *events: str) -> list[tuple[str, dict[str, object]]]:
    return [one for one in cluster.lines if one[0] in events]


def test_what_people_do_is_told() -> None:
    cluster = ManagerCluster(brokers=3)
    cluster.update("create_topic", topic="orders", partitions=2, replication=1)
    cluster.update("alter_topic", topic="orders", settings={"retention_ms": 60_000})
    cluster.update("drain_broker", node=2)
    cluster.update("undrain_broker", node=2)
    cluster.update("alter_cluster", settings={"replace_after_ms": 90_000})
    cluster.update("delete_topic", topic="orders")
    assert told(cluster, "create-topic", "alter-topic", "drain-broker", "undrain-broker") == [
        ("create-topic", {"topic": "orders", "replication": 1, "partitions": 2}),
        ("alter-topic", {"topic": "orders", "settings": {"retention_ms": 60_000}}),
        ("drain-broker", {"node": 2}),
        ("undrain-broker", {"node": 2}),
    ]
    assert told(cluster, "alter-cluster", "delete-topic") == [
        ("alter-cluster", {"settings": {"replace_after_ms": 90_000}}),
        ("delete-topic", {"topic": "orders"}),
    ]


def test_who_comes_by_itself_and_what_was_refused_is_not_told() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("create_topic", topic="orders")
    before = len(cluster.lines)
    cluster.update("register_producer", topic="orders")
    cluster.update("register_consumer", topic="orders")
    for operation, argument in (
        ("create_topic", {"topic": "orders"}),
        ("drain_broker", {"node": 7}),
    ):
        cluster.ask(protocol.UPDATE, b"%16d" % len(operation), operation, argument)
        cluster.commit()
        assert cluster.answer()[0] == protocol.ERROR
    assert cluster.lines[before:] == []


def test_what_a_repeat_asks_for_is_not_told_as_done() -> None:
    """A repeat gets the first answer; a key that comes with something else is refused."""
    cluster = ManagerCluster(brokers=1)
    cluster.update("create_topic", topic="orders")
    settings = {"topic": "orders", "settings": {"retention_ms": 60_000}}
    for operation, arguments, kind in (
        ("alter_topic", settings, protocol.UPDATED),
        ("alter_topic", settings, protocol.UPDATED),
        ("delete_topic", {"topic": "orders"}, protocol.ERROR),
    ):
        cluster.ask(protocol.UPDATE, b"k" * 16, operation, arguments)
        cluster.commit()
        assert cluster.answer()[0] == kind
    assert "orders" in cluster.tables.topics
    assert [event for event, _ in cluster.lines if event.endswith("-topic")] == [
        "create-topic",
        "alter-topic",
    ]


def test_what_came_too_late_is_not_told() -> None:
    cluster = MovingCluster(3, t=2)
    cluster.lines.clear()
    cluster.operate("move_replicas", moves=[[9, 1, 1, 2]])
    cluster.operate("expire_members", group="g", members=[7])
    uid = cluster.tables.topics["t"].uid
    cluster.operate("grow_by_threshold", topic_uid=uid, partitions=9)
    assert cluster.lines == []
    cluster.operate("grow_by_threshold", topic_uid=uid, partitions=2)
    assert cluster.lines == [("grow-by-threshold", {"topic": "t", "partitions": 1})]


def test_a_topic_that_its_first_producer_makes_is_told() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("register_producer", topic="orders")
    cluster.update("register_producer", topic="orders")
    assert [one for one in cluster.lines if "topic" in one[0]] == [
        ("create-topic", {"topic": "orders"})
    ]


def test_a_follower_is_silent() -> None:
    """Else each deed would stand in the logs of all managers."""
    cluster = ManagerCluster(brokers=1)
    cluster.follow(2)
    payload = pack_command(b"", "drain_broker", {"node": 1})
    cluster.engine.pending.append(Proposal(0, 0, COMMAND, payload))
    cluster.engine.index += 1
    cluster.lines.clear()
    cluster.commit()
    assert cluster.tables.brokers[1].state == "draining" and cluster.lines == []


def test_moves_are_told_by_name() -> None:
    cluster = MovingCluster(4, t=3)
    cluster.lines.clear()
    [*held] = sorted(cluster.tables.held[1])
    cluster.update("drain_broker", node=1)
    cluster.pass_time(30_000)
    assert not cluster.tables.held[1]
    lines = " ".join(str(fields["replicas"]) for _, fields in told(cluster, "move-replicas"))
    for group in held:
        topic, number = cluster.tables.groups[group]
        assert f"{topic.name}/{number} 1 to " in lines, lines


@pytest.mark.parametrize("operation", AUDITED_FIELDS)
def test_every_operation_that_is_told_exists(operation: str) -> None:
    assert operation in _BY_NAME
