"""The manager's requests: updates through the log, reads from what is applied, errors that help."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.manager_rig import FakeEngine, ManagerCluster, config_of

from myqueue import errors
from myqueue.daemons.manager.manager import (
    MANAGERS_RAFT_UID,
    READ_TIMEOUT_MS,
    UPDATE_TIMEOUT_MS,
    Manager,
)
from myqueue.daemons.manager.pending import WAITING_MAX
from myqueue.daemons.metadata.group_records import ConsumerGroup
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.types import COMMAND, Proposal
from myqueue.wire import protocol

KEY = b"k" * 16


def error_of(answer: Any) -> tuple[int, str]:
    kind, _, code, text, component, _ = answer
    assert kind == protocol.ERROR
    assert component == "manager 1"
    return code, text


# -- updates --------------------------------------------------------------------------------------


def test_p8_an_update_is_answered_when_it_is_applied() -> None:
    cluster = ManagerCluster(brokers=3)
    request = cluster.ask(protocol.UPDATE, KEY, "create_topic", {"topic": "orders"})
    assert cluster.answers() == []
    cluster.commit()
    kind, answered, index, result = cluster.answer()
    assert (kind, answered) == (protocol.UPDATED, request)
    assert index == cluster.replica.machine.applied_index
    assert result["topic_uid"] == cluster.tables.topics["orders"].uid


def test_a_repeat_gets_the_first_result() -> None:
    cluster = ManagerCluster(brokers=3)
    for _ in range(2):  # both under way at the same time
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    cluster.commit()
    first, second = cluster.answers()
    assert first[3] == second[3] == {"producer_id": 1, "epoch": 1}


def test_the_same_key_with_something_else_is_refused() -> None:
    """Also while the first one is under way. What the leader adds makes no difference."""
    cluster = ManagerCluster(brokers=3)
    asked = {"topic": "orders", "partitions": 2}
    for more in ({}, {"partitions": 5}, {"topic": "others"}):
        cluster.ask(protocol.UPDATE, KEY, "create_topic", asked | more)
    cluster.ask(protocol.UPDATE, KEY, "delete_topic", {"topic": "orders"})
    cluster.commit()
    first, *others = cluster.answers()
    assert len(first[3]["partitions"]) == 2
    assert [error_of(one)[0] for one in others] == [errors.KeyReused.code] * 3
    cluster.turn(60_000)  # brokers are silent by now, so the leader names them
    cluster.ask(protocol.UPDATE, KEY, "create_topic", asked)
    cluster.ask(protocol.UPDATE, KEY, "create_topic", asked | {"settings": {"retention_ms": 1}})
    cluster.commit()
    again, reused = cluster.answers()
    assert again[3] == first[3] and error_of(reused)[0] == errors.KeyReused.code
    assert list(cluster.tables.topics) == ["orders"]


def test_a_key_whose_first_command_left_the_log_has_the_first_answer() -> None:
    cluster = ManagerCluster(brokers=3)
    cluster.ask(protocol.UPDATE, KEY, "create_topic", {"topic": "orders", "partitions": 2})
    cluster.commit()
    cluster.replica.entries.clear()
    cluster.ask(protocol.UPDATE, KEY, "create_topic", {"topic": "orders", "partitions": 5})
    cluster.commit()
    first, again = cluster.answers()
    assert first[3] == again[3]


def test_a_refusal_has_its_code() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.ask(protocol.UPDATE, KEY, "delete_topic", {"topic": "no"})
    cluster.commit()
    code, text = error_of(cluster.answer())
    assert code == errors.UnknownTopic.code
    assert "'no'" in text


def test_k7_others_say_who_leads() -> None:
    cluster = ManagerCluster(leads=False)
    cluster.follow(2)
    with pytest.raises(errors.NotLeader) as caught:
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    assert vars(caught.value)["details"] == {"leader": 2}
    cluster.manager_beat(2)
    with pytest.raises(errors.NotLeader) as caught:
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    assert vars(caught.value)["details"] == {"leader": 2, "address": "tcp://127.0.0.1:9093"}


def test_k3_without_a_leader_there_is_no_quorum() -> None:
    cluster = ManagerCluster(leads=False)
    with pytest.raises(errors.NoQuorum) as caught:
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    assert "retry_ms" in vars(caught.value)["details"]


def test_r9_a_new_leader_is_not_ready_at_once() -> None:
    cluster = ManagerCluster()
    cluster.replica.is_ready = False
    with pytest.raises(errors.NotReady):
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})


def test_k3_an_update_that_is_not_confirmed_times_out() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    cluster.engine.now += UPDATE_TIMEOUT_MS - 1
    cluster.manager.tick(cluster.engine.now)
    assert cluster.answers() == []
    cluster.engine.now += 1
    cluster.manager.tick(cluster.engine.now)
    assert error_of(cluster.answer())[0] == errors.TimedOut.code
    cluster.commit()  # it is done after all; nobody waits any more
    assert cluster.answers() == []


def test_what_is_dropped_may_have_been_done() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.UPDATE, b"1" * 16, "open_producer", {})
    first = cluster.engine.index
    cluster.ask(protocol.UPDATE, b"2" * 16, "open_producer", {})
    cluster.manager.dropped(cast(Any, cluster.replica), first + 1)
    assert error_of(cluster.answer())[0] == errors.OutcomeUnknown.code
    cluster.commit()
    assert cluster.answer()[0] == protocol.UPDATED


def test_another_entry_at_its_place_is_not_its_answer() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    other = protocol.pack([b"o" * 16, "open_producer", {}])
    cluster.engine.pending[0] = Proposal(0, cluster.engine.wall_ms(), COMMAND, other)
    cluster.commit()
    assert error_of(cluster.answer())[0] == errors.OutcomeUnknown.code


@pytest.mark.parametrize("operation", ["register_broker", "seen", "forget_gone", "nonsense"])
def test_what_managers_do_themselves_is_not_for_clients(operation: str) -> None:
    cluster = ManagerCluster()
    with pytest.raises(errors.Unsupported):
        cluster.ask(protocol.UPDATE, KEY, operation, {})
    with pytest.raises(errors.InvalidRequest):
        cluster.ask(protocol.UPDATE, KEY, "create_topic", {"topic": "a", "avoid": []})
    assert cluster.engine.pending == []


@pytest.mark.parametrize("name", [".", ".."])
def test_a_new_topic_can_not_be_named_as_urls_name_another_page(name: str) -> None:
    cluster = ManagerCluster(brokers=3)
    for operation in ("create_topic", "register_producer"):
        with pytest.raises(errors.InvalidName, match="can't be named"):
            cluster.ask(protocol.UPDATE, KEY, operation, {"topic": name})
    assert cluster.engine.pending == []
    old = cluster.tables.topics["..."] = cast(Any, None)  # one that an earlier version made
    cluster.tables.topics[name] = old
    cluster.ask(protocol.UPDATE, KEY, "register_producer", {"topic": name})
    assert len(cluster.engine.pending) == 1


@pytest.mark.parametrize("name", [".", ".."])
def test_a_new_group_can_not_be_named_as_urls_name_another_page(name: str) -> None:
    cluster = ManagerCluster(brokers=3)
    join = {"group": name, "topics": ["t"]}
    for operation, arguments in (("join_group", join), ("begin_reset", {"group": name})):
        with pytest.raises(errors.InvalidName, match="a group can't be named"):
            cluster.ask(protocol.UPDATE, KEY, operation, arguments)
    assert cluster.engine.pending == []
    cluster.tables.consumer_groups[name] = ConsumerGroup(
        1, name
    )  # one that an earlier version made
    assert cluster.read("group", group=name)["group"] == name
    cluster.update("join_group", **join)
    cluster.tables.consumer_groups[name].members.clear()
    epoch = cluster.update("begin_reset", group=name)["epoch"]
    cluster.update("remove_group", group=name, epoch=epoch)
    assert name not in cluster.tables.consumer_groups


def test_updates_are_bounded() -> None:
    cluster = ManagerCluster()
    for number in range(WAITING_MAX):
        cluster.ask(protocol.UPDATE, number.to_bytes(16, "big"), "open_producer", {})
    with pytest.raises(errors.Busy):
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    cluster.commit()
    assert len(cluster.answers()) == WAITING_MAX


def test_a_full_disk_refuses_the_update() -> None:
    cluster = ManagerCluster()
    cluster.engine.refuse_with = errors.DiskFull("full")
    with pytest.raises(errors.DiskFull):
        cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    cluster.engine.refuse_with = None
    cluster.turn(UPDATE_TIMEOUT_MS + 1)
    assert cluster.answers() == []


# -- reads ----------------------------------------------------------------------------------------


def test_p9_every_manager_answers_from_what_it_applied() -> None:
    cluster = ManagerCluster(brokers=3)
    cluster.update("create_topic", topic="orders", partitions=2)
    cluster.follow(2)
    assert cluster.read("topics") == {"topics": ["orders"]}
    applied, brokers, topics, unknown = cluster.routes("orders", "other")
    assert applied == cluster.replica.machine.applied_index
    assert brokers == [[n, f"tcp://127.0.0.1:{9291 + n}", f"host-{n}", True] for n in (1, 2, 3)]
    (topic,) = topics
    groups = [one.group for one in cluster.tables.topics["orders"].partitions]
    assert [row[:4] for row in topic[3]] == [[0, groups[0], 0, 0], [1, groups[1], 0, 0]]
    assert unknown == ["other"]
    assert [row[0] for row in cluster.routes()[2]] == ["orders"]


@pytest.mark.parametrize("kind", ["route", "read"])
def test_at_least_waits_for_so_much(kind: str) -> None:
    cluster = ManagerCluster(brokers=3)
    target = cluster.replica.machine.applied_index + 1
    if kind == "route":
        cluster.ask(protocol.ROUTE, [], target)
    else:
        cluster.ask(protocol.READ, "topics", {}, target, False)
    cluster.turn()
    assert cluster.answers() == []
    cluster.ask(protocol.UPDATE, KEY, "create_topic", {"topic": "orders"})
    cluster.commit()
    _, late = cluster.answers()
    assert late[0] == (protocol.ROUTES if kind == "route" else protocol.ANSWER)
    assert late[2] == target


def test_at_least_is_bounded_in_time_and_number() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.ROUTE, [], 1 << 40)
    cluster.turn(READ_TIMEOUT_MS)
    code, text = error_of(cluster.answer())
    assert code == errors.NotReady.code and str(1 << 40) in text
    for _ in range(WAITING_MAX):
        cluster.ask(protocol.ROUTE, [], 1 << 40)
    with pytest.raises(errors.Busy):
        cluster.ask(protocol.ROUTE, [], 1 << 40)


def test_a_state_taken_from_the_leader_is_enough_for_those_who_wait() -> None:
    ahead, cluster = ManagerCluster(brokers=3), ManagerCluster(leads=False)
    ahead.update("create_topic", topic="orders")
    cluster.follow(2)
    cluster.ask(protocol.READ, "topics", {}, ahead.replica.machine.applied_index, False)
    cluster.replica.machine.restore(ahead.replica.machine.snapshot())
    cluster.manager.end_turn(cluster.engine.now)
    assert cluster.answer()[3] == {"topics": ["orders"]}


def test_linearizable_reads_wait_for_a_round() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.READ, "topics", {}, 0, True)
    assert cluster.answers() == []
    (context,) = cluster.engine.reads
    cluster.manager.read_ready(context)
    assert cluster.answer()[0] == protocol.ANSWER
    cluster.manager.read_ready(context)  # late news of it changes nothing
    assert cluster.answers() == []


def test_linearizable_reads_end_with_leadership() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.READ, "topics", {}, 0, True)
    cluster.follow(2)
    assert error_of(cluster.answer())[0] == errors.NotLeader.code
    with pytest.raises(errors.NotLeader):
        cluster.ask(protocol.READ, "topics", {}, 0, True)


def test_linearizable_reads_have_a_deadline() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.READ, "topics", {}, 0, True)
    cluster.turn(READ_TIMEOUT_MS)
    code, text = error_of(cluster.answer())
    assert code == errors.NotReady.code and "majority" in text
    (context,) = cluster.engine.reads
    cluster.manager.read_ready(context)
    assert cluster.answers() == [], "it was answered already"


def test_a_read_that_the_engine_refuses_leaves_nothing_behind() -> None:
    cluster = ManagerCluster()
    cluster.engine.refuse_with = errors.NotReady("new")
    with pytest.raises(errors.NotReady):
        cluster.ask(protocol.READ, "topics", {}, 0, True)
    cluster.engine.refuse_with = None
    cluster.turn(READ_TIMEOUT_MS)
    assert cluster.answers() == []


def test_reads_that_make_no_sense() -> None:
    cluster = ManagerCluster()
    with pytest.raises(errors.InvalidRequest, match="nonsense"):
        cluster.ask(protocol.READ, "nonsense", {}, 0, False)
    with pytest.raises(errors.UnknownTopic):
        cluster.ask(protocol.READ, "topic", {"topic": "no"}, 0, False)
    with pytest.raises(errors.InvalidRequest, match="colour"):
        cluster.ask(protocol.READ, "topics", {"colour": 1}, 0, False)
    with pytest.raises(errors.Unsupported):
        cluster.ask(protocol.FETCH, 0, 0, 0, [])
    cluster.ask(protocol.READ, "topic", {"topic": "no"}, cluster.engine.index + 1, False)
    cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    cluster.commit()
    assert error_of(cluster.answers()[1])[0] == errors.UnknownTopic.code


def test_an_answer_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("create_topic", topic="orders", partitions=100)
    last = cluster.engine.index
    cluster.ask(protocol.UPDATE, KEY, "open_producer", {})
    cluster.ask(protocol.READ, "topics", {"detail": True}, last + 1, False)
    monkeypatch.setattr(protocol, "ENVELOPE_BYTES_MAX", 2000)
    with pytest.raises(errors.InvalidRequest, match="the limit is 1 MiB"):
        cluster.ask(protocol.READ, "topics", {"detail": True}, 0, False)
    cluster.commit()  # who waited is told so as well
    assert error_of(cluster.answers()[1])[0] == errors.InvalidRequest.code


# -- the daemon itself ----------------------------------------------------------------------------


def test_k6_status_tells_of_the_group() -> None:
    cluster = ManagerCluster()
    cluster.ask(protocol.STATUS, 0)
    whole = cluster.answer()[2]
    cluster.ask(protocol.STATUS, MANAGERS_RAFT_UID)
    one = cluster.answer()[2]
    assert whole["daemon"] == one["daemon"] == "manager"
    assert whole["groups"][0].items() <= one.items()
    assert one["leads"] and one["leader"] == 1 and one["members"] == [1, 2, 3]
    with pytest.raises(errors.UnknownPartition):
        cluster.ask(protocol.STATUS, 5)


def test_stats_are_counters_and_gauges() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.engine.counts["things_total"] += 3
    cluster.ask(protocol.STATS)
    stats = cluster.answer()[2]
    assert stats["counters"]["things_total"] == 3
    assert stats["gauges"]["brokers_alive"] == 2


def test_a_restart_goes_on_with_the_group_that_is_there() -> None:
    manager = Manager(config_of(1, 3), lambda *_a, **_k: None)
    engine = FakeEngine(1, manager)
    machine = cast(MetadataMachine, engine.create(MANAGERS_RAFT_UID, 1, [1], [], b"").machine)
    manager.started(0)
    assert list(engine.replicas) == [MANAGERS_RAFT_UID]
    assert engine.replicas[MANAGERS_RAFT_UID].machine is machine


def test_r2_a_manager_that_may_have_voted_is_not_founded_anew() -> None:
    """Its store is gone, and a hole in its log may have held the group with its votes."""
    manager = Manager(config_of(1, 3), lambda *_a, **_k: None)
    engine = FakeEngine(1, manager)
    engine.log.journal.recovered.unknown_loss = True
    manager.started(0)
    assert engine.replicas == {} and "votes" in engine.refused[MANAGERS_RAFT_UID]


def test_r2_a_manager_that_is_there_is_sure() -> None:
    """It holds one group. Else the note would put it in doubt for good, should its store go."""
    for is_there in (True, False):
        manager = Manager(config_of(1, 3), lambda *_a, **_k: None)
        engine, calls = FakeEngine(1, manager), list[str]()
        engine.log.journal.recovered.unknown_loss = True
        engine.log.clear_unknown_loss = lambda calls=calls: calls.append("sure")
        if is_there:
            engine.create(MANAGERS_RAFT_UID, 1, [1], [], b"")
        manager.started(0)
        assert calls == ["sure"] * is_there


def test_w6_a_manager_whose_log_is_not_whole_takes_no_part() -> None:
    manager = Manager(config_of(1, 3), lambda *_a, **_k: None)
    engine = FakeEngine(1, manager)
    engine.leave_out(MANAGERS_RAFT_UID, ReplicaHealth.UNREADABLE, "records of it may be missing")
    manager.started(0)
    assert engine.replicas == {}
    manager.tick(50)
    manager.begin_stopping(60)
    client = SimpleNamespace(name="c")
    update = [1, protocol.UPDATE, 1, KEY, "open_producer", {}]
    route = [1, protocol.ROUTE, 1, [], 0]
    for envelope in (update, route):
        with pytest.raises(errors.NotReady, match="may be missing"):
            manager.request(cast(Any, client), envelope, [])
    manager.request(cast(Any, client), [1, protocol.STATUS, 1, 0], [])
    refused = engine.replies[0][1][3]["refused"]
    assert refused == {str(MANAGERS_RAFT_UID): "records of it may be missing"}


def test_a_leader_that_stops_hands_over() -> None:
    cluster = ManagerCluster()
    cluster.manager.begin_stopping(cluster.engine.now)
    assert cluster.engine.transfers == []  # nobody is there
    cluster.replica.follower = 3
    cluster.engine.refuse_with = errors.NotReady("not now")
    cluster.turn(1000)
    cluster.engine.refuse_with = None
    cluster.turn(1000)
    cluster.turn(50)
    assert cluster.engine.transfers == [3]
    cluster.follow(3)
    cluster.turn(1000)
    assert cluster.engine.transfers == [3]
