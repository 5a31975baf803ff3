"""What each operation on the metadata does, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from support.metadata_rig import CLUSTER, Rig, broker

from myqueue import errors
from myqueue.daemons.metadata.arguments import default_settings
from myqueue.daemons.metadata.machine import MetadataMachine, pack_command
from myqueue.daemons.metadata.tables import CONSUMER, PRODUCER, Tables, row_key
from myqueue.daemons.raft.types import COMMAND, NOOP
from myqueue.wire import protocol
from myqueue.wire.metadata_settings import TOPIC_SETTINGS


@pytest.fixture
def rig() -> Rig:
    return Rig(brokers=3)


# -- topics ---------------------------------------------------------------------------------------


def test_create_topic_answers_its_groups(rig: Rig) -> None:
    result = rig.run("create_topic", topic="orders", partitions=4, settings={"retention_ms": 5})
    topic = rig.machine.tables.topics["orders"]
    assert result == {"topic_uid": topic.uid, "partitions": [one.group for one in topic.partitions]}
    assert topic.settings == default_settings(TOPIC_SETTINGS) | {"retention_ms": 5}
    assert [len(one.replicas) for one in topic.partitions] == [3] * 4
    uids = [topic.uid, *result["partitions"]]
    assert len(set(uids)) == 5
    assert all(1 << 62 <= uid < 1 << 63 for uid in uids)
    incarnations = [number for one in topic.partitions for _, number in one.replicas]
    assert incarnations == list(range(1, 13))


def test_q1_a_topic_exists_once(rig: Rig) -> None:
    rig.run("create_topic", topic="orders")
    assert isinstance(rig.refused("create_topic", topic="orders"), errors.TopicExists)


def test_a_topic_that_is_made_again_is_another_one(rig: Rig) -> None:
    """C10: nothing of the deleted one can be taken for it."""
    first = rig.run("create_topic", topic="orders")
    assert rig.run("delete_topic", topic="orders") == {"topic_uid": first["topic_uid"]}
    second = rig.run("create_topic", topic="orders")
    assert second["topic_uid"] != first["topic_uid"]
    assert second["partitions"] != first["partitions"]


def test_uids_of_two_clusters_of_one_name_differ() -> None:
    """The key is random, so a cluster that was made anew does not find old data for its groups."""
    uids = set()
    for key in (b"1" * 16, b"2" * 16):
        rig = Rig(brokers=1)
        uids.add(rig.run("create_topic", key, topic="orders")["topic_uid"])
    assert len(uids) == 2


@pytest.mark.parametrize("name", ["", "a b", "ü", "a/b", "a\n", "x" * 201, 7, None, b"orders"])
def test_names_are_checked(rig: Rig, name: Any) -> None:
    """S8"""
    refusal = rig.refused("create_topic", topic=name)
    assert isinstance(refusal, errors.InvalidName | errors.InvalidRequest)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"colour": 1}, "colour"),
        ({"retention_ms": -1}, "retention_ms"),
        ({"retention_ms": True}, "retention_ms"),
        ({"message_bytes_max": 0}, "message_bytes_max"),
        ({"retention_bytes": "1"}, "retention_bytes"),
        ({"partition_growth": 1.5}, "partition_growth"),
        ({7: 1}, "7"),
        ([], "settings"),
    ],
)
def test_settings_are_checked(rig: Rig, settings: Any, named: str) -> None:
    refusal = rig.refused("create_topic", topic="orders", settings=settings)
    assert isinstance(refusal, errors.InvalidSetting)
    assert named in str(refusal)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 1001}, "partitions"),
        ({"partitions": "1"}, "partitions"),
        ({"partitions": True}, "partitions"),
        ({"replication": 10}, "replication"),
        ({"replicas": 3}, "replicas"),
        ({"avoid": [-1]}, "avoid"),
    ],
)
def test_arguments_are_checked(rig: Rig, arguments: dict[str, Any], named: str) -> None:
    refusal = rig.refused("create_topic", topic="orders", **arguments)
    assert isinstance(refusal, errors.InvalidRequest)
    assert named in str(refusal)


def test_replicas_need_brokers(rig: Rig) -> None:
    refusal = rig.refused("create_topic", topic="orders", replication=4)
    assert isinstance(refusal, errors.TooFewBrokers)
    assert "4 replicas" in str(refusal) and "3 are known" in str(refusal)
    assert isinstance(Rig().refused("create_topic", topic="orders"), errors.TooFewBrokers)


def test_k1_by_default_three_replicas_or_as_many_as_there_are_brokers() -> None:
    for brokers, expected in ((1, 1), (2, 2), (3, 3), (5, 3)):
        rig = Rig(brokers)
        rig.run("create_topic", topic="orders")
        assert len(rig.machine.tables.topics["orders"].partitions[0].replicas) == expected


def test_silent_brokers_are_avoided_if_others_suffice() -> None:
    rig = Rig(brokers=4)
    rig.run("create_topic", topic="one", partitions=8, avoid=[2])
    assert not rig.machine.tables.held[2]
    rig.run("create_topic", topic="two", replication=4, avoid=[2])
    assert len(rig.machine.tables.held[2]) == 1


def test_limits_of_the_cluster(rig: Rig) -> None:
    rig.run("alter_cluster", settings={"partitions_max": 10, "replicas_per_broker_max": 6})
    rig.run("create_topic", topic="orders", partitions=5)
    refusal = rig.refused("create_topic", topic="events", partitions=6)
    assert isinstance(refusal, errors.InvalidRequest) and "room for 5" in str(refusal)
    refusal = rig.refused("grow_topic", topic="orders", count=2)
    assert isinstance(refusal, errors.TooFewBrokers)
    rig.run("grow_topic", topic="orders")
    assert isinstance(rig.refused("grow_topic", topic="orders"), errors.TooFewBrokers)
    assert isinstance(rig.refused("alter_cluster", settings={"x": 1}), errors.InvalidSetting)


def test_alter_topic_changes_what_is_named(rig: Rig) -> None:
    rig.run("create_topic", topic="orders", settings={"retention_ms": 5})
    result = rig.run("alter_topic", topic="orders", settings={"partition_growth": 9})
    assert result["settings"]["retention_ms"] == 5
    assert result["settings"]["partition_growth"] == 9
    result = rig.run("alter_topic", topic="orders", settings={"retention_ms": None})
    assert result["settings"]["retention_ms"] == 0
    assert isinstance(rig.refused("alter_topic", topic="no"), errors.UnknownTopic)


def test_p1_b3_grow_topic(rig: Rig) -> None:
    rig.run("create_topic", topic="orders")
    assert rig.run("grow_topic", topic="orders") == {"partitions": [1]}
    assert rig.run("grow_topic", topic="orders", count=2) == {"partitions": [2, 3]}
    assert rig.run("grow_topic", topic="orders", to=6) == {"partitions": [4, 5]}
    assert rig.run("grow_topic", topic="orders", to=3) == {"partitions": []}
    assert isinstance(rig.refused("grow_topic", topic="orders", to=2000), errors.InvalidRequest)
    assert isinstance(rig.refused("grow_topic", topic="orders", count=0), errors.InvalidRequest)
    assert isinstance(rig.refused("grow_topic", topic="no"), errors.UnknownTopic)


def test_growth_by_threshold_happens_once(rig: Rig) -> None:
    uid = rig.run("create_topic", topic="orders")["topic_uid"]
    grow = {"topic_uid": uid, "partitions": 1}
    assert rig.run("grow_by_threshold", **grow) == {"partitions": [1]}
    assert rig.run("grow_by_threshold", **grow) == {"partitions": []}
    rig.run("delete_topic", topic="orders")
    assert rig.run("grow_by_threshold", **grow) == {"partitions": []}


# -- deleted groups -------------------------------------------------------------------------------


def test_a_deleted_group_is_remembered_until_no_broker_holds_it(rig: Rig) -> None:
    (group,) = rig.run("create_topic", topic="orders")["partitions"]
    rig.run("delete_topic", topic="orders")
    tables = rig.machine.tables
    assert tables.gone[group].nodes == [1, 2, 3]
    index = rig.machine.applied_index
    assert {at for _, _, at in tables.gone[group].replicas} == {index}
    assert not any(tables.held.values())
    for node in (1, 3, 3, 9):
        rig.run("forget_gone", node=node, groups=[group, 12345], version=index)
    rig.run("forget_gone", node=2, groups=[group], version=index - 1)  # older than the deletion
    assert tables.gone[group].nodes == [2]
    rig.run("forget_gone", node=2, groups=[group], version=index)
    assert tables.gone == {}


def test_orders_change_for_the_brokers_that_are_concerned(rig: Rig) -> None:
    versions = {node: row.version for node, row in rig.machine.tables.brokers.items()}
    rig.run("create_topic", topic="orders", replication=1)
    (node,) = [n for n, row in rig.machine.tables.brokers.items() if row.version != versions[n]]
    assert rig.machine.tables.brokers[node].version == rig.machine.applied_index
    for operation in ("alter_topic", "delete_topic"):
        rig.run(operation, topic="orders")
        assert rig.machine.tables.brokers[node].version == rig.machine.applied_index
    rig.run("register_broker", **broker(4))
    now = {row.version for row in rig.machine.tables.brokers.values()}
    assert now == {rig.machine.applied_index}


# -- producers and consumers ----------------------------------------------------------------------


def test_q4_register_producer_creates_the_topic(rig: Rig) -> None:
    result = rig.run("register_producer", topic="orders")
    uid = rig.machine.tables.topics["orders"].uid
    assert result == {"producer_id": 1, "epoch": 0, "topic_uid": uid, "created": True}
    result = rig.run("register_producer", topic="orders")
    assert result == {"producer_id": 2, "epoch": 0, "topic_uid": uid, "created": False}
    refusal = rig.refused("register_producer", topic="other", create=False)
    assert isinstance(refusal, errors.UnknownTopic)
    assert isinstance(rig.refused("register_producer", topic="a b"), errors.InvalidName)


def test_q3_register_consumer_needs_the_topic(rig: Rig) -> None:
    assert isinstance(rig.refused("register_consumer", topic="orders"), errors.UnknownTopic)
    uid = rig.run("create_topic", topic="orders", partitions=2)["topic_uid"]
    result = rig.run("register_consumer", topic="orders")
    assert result == {"consumer_id": 1, "topic_uid": uid, "partitions": [0, 1]}


def test_a_client_may_be_registered_with_a_partition_that_exists(rig: Rig) -> None:
    rig.run("create_topic", topic="orders", partitions=2)
    rig.run("register_producer", topic="orders", partition=1)
    rig.run("register_consumer", topic="orders", partition=0)
    rig.run("register_producer", topic="made", partition=0)
    tables = rig.machine.tables
    assert [one.partition for one in tables.producers.values()] == [1, 0]
    assert [one.partition for one in tables.consumers.values()] == [0]
    for operation in ("register_producer", "register_consumer"):
        refusal = rig.refused(operation, topic="orders", partition=2)
        assert isinstance(refusal, errors.UnknownPartition) and "0 to 1, not 2" in str(refusal)
    assert isinstance(
        rig.refused("register_producer", topic="new", partition=1), errors.UnknownPartition
    )
    assert "new" not in tables.topics
    other = MetadataMachine(CLUSTER)
    other.restore(rig.machine.snapshot())
    assert other.tables.producers == tables.producers
    assert other.tables.consumers == tables.consumers


def test_rows_of_clients_without_a_partition_are_those_of_before(rig: Rig) -> None:
    """What an earlier version wrote is read, and is written the same, byte by byte."""
    rig.run("register_producer", topic="orders")
    rig.run("register_consumer", topic="orders")
    tables = rig.machine.tables
    uid = tables.topics["orders"].uid
    producer, consumer = tables.producers[1], tables.consumers[1]
    before = {
        row_key(PRODUCER, 1): [1, "", uid, 0, producer.seen_ms],
        row_key(CONSUMER, 1): [1, uid, consumer.seen_ms],
    }
    for key, fields in before.items():
        assert tables.row(key) == protocol.pack(fields)
    loaded = Tables.from_rows((key, protocol.pack(fields)) for key, fields in before.items())
    assert (loaded.producers, loaded.consumers) == ({1: producer}, {1: consumer})


@pytest.mark.parametrize("name", [".", ".."])
def test_an_entry_of_before_that_made_such_a_topic_is_applied(rig: Rig, name: str) -> None:
    """New ones are refused by the leader, before there is an entry."""
    rig.run("create_topic", topic=name)
    rig.run("register_producer", topic=name)
    rig.run("register_consumer", topic=name)
    rig.run("delete_topic", topic=name)


def test_c4_each_opening_has_a_higher_epoch(rig: Rig) -> None:
    assert rig.run("open_producer") == {"producer_id": 1, "epoch": 1}
    assert rig.run("open_producer", producer_id=1) == {"producer_id": 1, "epoch": 2}
    assert rig.run("open_producer", name="p") == {"producer_id": 2, "epoch": 1}
    assert rig.run("open_producer", name="p") == {"producer_id": 2, "epoch": 2}
    assert rig.run("open_producer", name="p", producer_id=2)["epoch"] == 3
    registered = rig.run("register_producer", topic="orders")["producer_id"]
    assert rig.run("open_producer", producer_id=registered)["epoch"] == 1
    assert isinstance(rig.refused("open_producer", producer_id=99), errors.UnknownClient)
    refusal = rig.refused("open_producer", producer_id=1, name="p")
    assert isinstance(refusal, errors.InvalidRequest)
    assert isinstance(rig.refused("open_producer", name="a b"), errors.InvalidName)


def test_clients_of_a_deleted_topic_are_gone_and_ids_not_used_again(rig: Rig) -> None:
    rig.run("register_producer", topic="orders")
    rig.run("register_consumer", topic="orders")
    rig.run("open_producer", name="stays")
    rig.run("delete_topic", topic="orders")
    assert list(rig.machine.tables.producers) == [2]
    assert rig.machine.tables.consumers == {}
    assert rig.run("register_producer", topic="orders")["producer_id"] == 3
    assert rig.run("register_consumer", topic="orders")["consumer_id"] == 2


def test_s4_producers_that_nobody_misses_make_room(rig: Rig) -> None:
    rig.run("alter_cluster", settings={"producers_max": 4})
    rig.run("register_producer", topic="orders")
    rig.run("open_producer", name="named")
    rig.run("open_producer")
    rig.run("open_producer")
    assert isinstance(rig.refused("open_producer"), errors.Busy)
    assert isinstance(rig.refused("register_producer", topic="new"), errors.Busy)
    assert rig.run("open_producer", name="named")["epoch"] == 2
    rig.script.time_ms += 4_000_000
    rig.run("seen", producers=[[3, rig.script.time_ms]])
    assert rig.run("open_producer")["producer_id"] == 5
    assert sorted(rig.machine.tables.producers) == [1, 2, 3, 5]


def test_consumers_have_a_limit(rig: Rig) -> None:
    rig.run("alter_cluster", settings={"consumers_max": 1})
    rig.run("create_topic", topic="orders")
    rig.run("register_consumer", topic="orders")
    assert isinstance(rig.refused("register_consumer", topic="orders"), errors.Busy)


def test_b7_activity_moves_forward_only(rig: Rig) -> None:
    rig.run("register_producer", topic="orders")
    rig.run("register_consumer", topic="orders")
    rig.run("seen", producers=[[1, 2_000_000], [7, 1]], consumers=[[1, 3_000_000]])
    rig.run("seen", producers=[[1, 1_500_000]], consumers=[])
    assert rig.machine.tables.producers[1].seen_ms == 2_000_000
    assert rig.machine.tables.consumers[1].seen_ms == 3_000_000


# -- daemons --------------------------------------------------------------------------------------


def test_w7_a_manager_with_another_disk_is_refused(rig: Rig) -> None:
    rig.run("register_manager", **broker(1))
    rig.run("register_manager", **broker(1))
    assert isinstance(
        rig.refused("register_manager", **broker(1, disk="other")), errors.IdentityMismatch
    )


def test_p4_a_broker_may_move(rig: Rig) -> None:
    since = rig.machine.tables.brokers[1].since_ms
    rig.run("register_broker", **(broker(1) | {"address": "10.0.0.1:9292"}))
    row = rig.machine.tables.brokers[1]
    assert (row.address, row.state, row.since_ms) == ("10.0.0.1:9292", "active", since)


# -- repeats and nonsense -------------------------------------------------------------------------


def test_a_repeated_key_gets_the_first_result(rig: Rig) -> None:
    key = b"k" * 16
    first = rig.run("create_topic", key, topic="orders")
    assert rig.run("create_topic", key, topic="orders") == first
    rig.run("delete_topic", topic="orders")
    assert rig.run("create_topic", key, topic="orders") == first
    assert "orders" not in rig.machine.tables.topics


def test_a_refusal_that_asks_for_a_repeat_is_not_repeated() -> None:
    rig = Rig(brokers=2)
    key = b"k" * 16
    refusal = rig.outcome("create_topic", key, topic="orders", replication=3)
    assert isinstance(refusal, errors.TooFewBrokers) and refusal.retriable
    rig.run("register_broker", **broker(3))
    made = rig.run("create_topic", key, topic="orders", replication=3)
    assert rig.run("create_topic", key, topic="orders", replication=3) == made


def test_a_repeated_key_gets_the_first_refusal(rig: Rig) -> None:
    key = b"k" * 16
    rig.run("create_topic", topic="orders")
    first = rig.outcome("create_topic", key, topic="orders")
    rig.run("delete_topic", topic="orders")
    second = rig.outcome("create_topic", key, topic="orders")
    assert (type(first), str(first)) == (type(second), str(second))
    assert isinstance(second, errors.TopicExists)


def test_results_are_nobody_elses_to_change(rig: Rig) -> None:
    key = b"k" * 16
    first = rig.run("alter_cluster", key, settings={})
    first["settings"]["producers_max"] = 1
    assert rig.run("alter_cluster", key, settings={})["settings"]["producers_max"] == 100_000
    assert rig.machine.tables.settings["producers_max"] == 100_000


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        protocol.pack([b"k", "create_topic"]),
        protocol.pack(["k", "create_topic", {}]),
        pack_command(b"k", "drop_everything", {}),
        protocol.pack([b"k", ["create_topic"], {}]),
        protocol.pack([b"k", "create_topic", []]),
        protocol.pack([b"k", "create_topic", {1: 2}]),
    ],
)
def test_entries_that_make_no_sense_are_refused(rig: Rig, payload: bytes) -> None:
    (outcome,) = rig.machine.apply([rig.script.raw(COMMAND, payload)])
    assert isinstance(outcome, errors.InvalidRequest)
    assert rig.machine.applied_index == rig.script.index


def test_other_entries_have_no_result(rig: Rig) -> None:
    assert rig.machine.apply([rig.script.raw(NOOP, b"")]) == [None]
    view = memoryview(pack_command(b"", "open_producer", {}))
    (outcome,) = rig.machine.apply([(*rig.script.raw(COMMAND, b"")[:7], view)])
    assert outcome == {"producer_id": 1, "epoch": 1}


def test_restoring_names_the_rows_that_are_no_more(rig: Rig) -> None:
    rig.run("create_topic", topic="old", partitions=70)
    puts, _ = rig.machine.take_changes()
    other = Rig(brokers=1)
    rig.machine.restore(other.machine.snapshot())
    new, deletes = rig.machine.take_changes()
    assert set(deletes) == set(puts) - set(new)
    assert {key[:1] for key in deletes} == {b"t", b"p", b"b", b"k"}
    fresh = MetadataMachine("test")
    fresh.load(other.machine.applied_index, new.items())
    assert fresh.snapshot() == other.machine.snapshot()
