"""R2: the health of a replica. Each row of the table of transitions happens, and no other row."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from raft.replicas import Solo
from support.broker_seam import GROUP as OWN
from support.broker_seam import World
from support.damage_rig import CONFIG, GROUP, OTHER, damage_and_notice, follower, write_segments
from support.engine_rig import EngineNet, Node
from support.manager_rig import ManagerCluster
from support.orders import answer, later, orders, wanted_row

from myqueue.daemons.manager.balancer.plan import MovePlan
from myqueue.daemons.manager.cluster_view import _BROKER_FIELDS, parse_heartbeat
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.health import NOT_OPEN, START, TRANSITIONS, ReplicaHealth, may_follow
from myqueue.daemons.replication.replica import Replica
from myqueue.errors import InvalidRequest

# The facts that each open state is made from: may_miss_entries, has_unreadable_entries (of the
# core), repair_problem, recovery_problem (of the replica).
FACTS = {
    "healthy": (False, False, "", ""),
    "repairing": (False, True, "", ""),
    "repair-stalled": (False, True, "nobody has them", ""),
    "recovering": (True, True, "nobody has them", ""),
    "recovery-stalled": (True, False, "", "no newer term"),
}


def set_health(replica: Replica, state: str) -> None:
    raft = replica.raft
    raft._may_miss_entries, raft._has_unreadable_entries = FACTS[state][:2]
    replica.repair_problem, replica.recovery_problem = FACTS[state][2:]
    assert replica.health == state


def a_replica() -> Replica:
    return Replica(Solo([1]).node, PartitionMachine(), b"", cast(Any, None))


@pytest.mark.parametrize("pair", list(product(FACTS, FACTS)), ids="-".join)
def test_a_change_of_an_open_replica_is_logged_by_the_table(pair: tuple[str, str]) -> None:
    before, after = pair
    replica, events = a_replica(), list[tuple[str, str, dict[str, Any]]]()
    set_health(replica, before)
    replica.note_health(lambda *_, **__: None)
    set_health(replica, after)
    replica.note_health(lambda level, event, **about: events.append((level, event, about)))
    replica.note_health(lambda *_, **__: pytest.fail("it is logged once"))
    if before == after:
        assert not events
        return
    ((level, event, about),) = events
    is_row = after in TRANSITIONS[before].split()
    assert event == ("replica-health-changed" if is_row else "replica-health-impossible")
    assert (about["from"], about["to"]) == pair
    assert about["reason"] == (FACTS[after][2] or FACTS[after][3] if "stalled" in after else "")
    assert level == {"healthy": "info", "repairing": "warning", "recovering": "warning"}.get(
        after, "error"
    )


def test_the_table_names_states_and_leads_from_none_that_is_not_open() -> None:
    assert set(TRANSITIONS) == {START, *FACTS}
    for before, after in TRANSITIONS.items():
        assert {ReplicaHealth(one) for one in after.split()} and before not in after.split()
    assert not any(may_follow(one, other) for one in NOT_OPEN for other in ReplicaHealth)
    assert set(ReplicaHealth) - NOT_OPEN == set(FACTS)
    assert [one for one in ReplicaHealth if one.votes] == [ReplicaHealth.HEALTHY]
    rebuilt = {one for one in ReplicaHealth if one.needs_rebuild}
    assert rebuilt == {*NOT_OPEN, ReplicaHealth.RECOVERY_STALLED}


def test_a_transition_outside_of_the_table_raises(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create(GROUP)
        node = net.nodes[1]
        set_health(node.replica(GROUP), "recovering")
        with pytest.raises(AssertionError, match="recovering"):
            node.replica(GROUP).note_health(node.engine.report)


# -- in engines on real logs ----------------------------------------------------------------------


def test_healthy_repairing_healthy(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        damage_and_notice(net, [node])
        net.until("repaired", lambda: node.replica(GROUP).health.votes, 6000)
        assert node.health_changes == [("healthy", "repairing"), ("repairing", "healthy")]


def test_repair_stalls_starts_again_and_ends(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        third = follower(net)
        rest = [one for one in net.nodes.values() if one is not third]
        third.close()
        damage_and_notice(net, rest)
        stalled = ReplicaHealth.REPAIR_STALLED
        net.until(
            "stalled", lambda: all(one.replica(GROUP).health is stalled for one in rest), 3000
        )
        again = rest[0]
        assert "can't be read" in again.engine.unhealthy()[GROUP].reason
        again.restart()
        net.until("stalled again", lambda: again.replica(GROUP).health is stalled, 3000)
        third.open()
        net.until("repaired", lambda: all(one.replica(GROUP).health.votes for one in rest), 6000)
        cycle = [("repairing", "repair-stalled"), ("repair-stalled", "healthy")]
        assert rest[1].health_changes == [("healthy", "repairing"), *cycle]
        assert again.health_changes[2:] == [("start", "repairing"), *cycle]


def test_recovering_ends_in_a_newer_term(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        forget_entries(node)
        assert node.health_changes == [("start", "recovering")]
        net.until("recovered", lambda: node.replica(GROUP).health.votes, 3000)
        assert node.health_changes[1:] == [("recovering", "healthy")]


def forget_entries(node: Node) -> None:
    """Its newest hard state says that entries which it acknowledged may be missing."""
    group = node.log.journal.groups.by_uid[GROUP]
    node.log.journal.hard_state(GROUP, group.term, group.vote, True)
    node.log.journal.submit()
    node.restart()


@pytest.mark.parametrize("state", FACTS)
def test_each_open_replica_may_be_closed(tmp_path: Path, state: str) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create(GROUP)
        net.write(3, GROUP)
        node = net.nodes[1]
        set_health(node.replica(GROUP), state)
        node.replica(GROUP).noted_health = state  # how it came to be so is tested above
        node.engine.host.mark_broken(GROUP, t.InvariantBroken("two logs differ"))
        net.until("closed", lambda: GROUP in node.engine.not_open)
        assert node.health_changes == [(state, "closed")]
        assert node.engine.unhealthy()[GROUP].health is ReplicaHealth.CLOSED
        net.until("noted", lambda: node.engine.closing.closed[GROUP].is_noted)
        node.restart()
        assert node.health_changes[1:] == [("start", "closed")]


def test_a_replica_whose_vote_may_be_lost_is_not_opened(tmp_path: Path) -> None:
    def lose_log(node: Node) -> None:
        shutil.rmtree(node.folder / "wal")
        (node.folder / "begun").unlink(missing_ok=True)

    assert_not_opened(tmp_path, lose_log, "vote-lost", [GROUP, OTHER])


def test_a_replica_whose_state_does_not_reach_its_log_is_not_opened(tmp_path: Path) -> None:
    def move_start(node: Node) -> None:
        node.open()
        group = node.log.journal.groups.by_uid[GROUP]
        node.log.journal.start(GROUP, group.last_index + 9, group.last_term, 9, 0, reset=True)
        node.log.journal.submit()
        node.close()
        node.health_changes.clear()

    assert_not_opened(tmp_path, move_start, "unreadable", [GROUP])


def assert_not_opened(
    folder: Path, harm: Callable[[Node], None], state: str, groups: list[int]
) -> None:
    with EngineNet(folder, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        node.close()
        harm(node)
        node.open()
        found = {uid: one.health for uid, one in node.engine.unhealthy().items()}
        assert found == dict.fromkeys(groups, state)
        assert node.health_changes == [("start", state)] * len(groups)


# -- what a broker tells the managers -------------------------------------------------------------


@pytest.fixture
def world() -> World:
    made = World()
    made.engine.beats.clear()
    made.engine.now += 1_000
    return made


def health_changes(world: World) -> list[tuple[str, str]]:
    changes = list[tuple[str, str]]()

    def report(_level: str, event: str, **about: Any) -> None:
        assert event == "replica-health-changed"
        changes.append((about["from"], about["to"]))

    world.engine.report = report
    return changes


def test_a_recovery_stalls_and_goes_on(world: World) -> None:
    changes = health_changes(world)
    raft, own = world.replica.raft, world.replica.replica_id & 0xFFFFFFFF
    raft.health = ReplicaHealth.RECOVERING
    raft.config = t.Config((world.replica.replica_id, t.replica_id(2, 7)))
    world.replica.leader_node, raft.started_term = 2, raft.term
    world.replica.note_health(world.engine.report)  # as the engine does when it opens a replica
    world.broker.tick(world.engine.now)
    assert later(world)[0][2]["health"] == [[OWN, own, "recovering"]]
    world.engine.now += 31_000
    assert later(world)[0][2]["health"] == [[OWN, own, "recovering"]], "sending changes nothing"
    world.broker.tick(world.engine.now)
    state = later(world)[0][2]
    assert state["health"] == [[OWN, own, "recovery-stalled"]]
    assert state["lost"] == [[OWN, own]]
    raft.term += 1
    world.engine.now += 1000
    world.broker.tick(world.engine.now)
    assert later(world)[0][2]["health"] == [[OWN, own, "recovering"]]
    stalled = "recovery-stalled"
    assert changes[:2] == [("start", "recovering"), ("recovering", stalled)]
    assert changes[2:] == [(stalled, "recovering")]


def test_what_a_hole_in_the_log_may_have_held_is_missing(world: World) -> None:
    changes = health_changes(world)
    world.engine.log.journal.recovered.unknown_loss = True
    for version in (9, 10):
        wanted = [wanted_row(5, [[1, 7]])]
        answer(world, orders(version=version, life_from=15, wanted=wanted))
    assert changes == [("start", "missing")]
    assert [5, 7, "missing"] in later(world)[0][2]["health"]
    assert world.broker.orders.unhealthy()[5].health is ReplicaHealth.MISSING


# -- what managers make of it ---------------------------------------------------------------------


WORDS = [one for one in ReplicaHealth if one is not ReplicaHealth.HEALTHY]


@pytest.mark.parametrize("word", [*WORDS, "of a newer broker"])
def test_managers_plan_by_what_is_lost_and_show_the_health(word: str) -> None:
    moves, problem = seen_by_managers(word)
    assert bool(moves) == (word in WORDS and ReplicaHealth(word).needs_rebuild)
    assert problem["voteless"] == ([] if word in NOT_OPEN else [2])
    assert problem["health"] == {"2": word}


def seen_by_managers(word: str) -> tuple[list[Any], Any]:
    """Moves that managers plan, and the problem of a partition whose leader is silent then."""
    cluster = ManagerCluster(brokers=3, managers=1)
    cluster.update("create_topic", topic="orders", partitions=1, replication=3)
    cluster.lead_all()
    broker, group = cluster.brokers[2], cluster.tables.topics["orders"].partitions[0].group
    row = [group, broker.incarnation_of(group)]
    state = ReplicaHealth(word) if word in WORDS else ReplicaHealth.REPAIRING
    broker.lost = [row] if state.needs_rebuild else []
    broker.health = [[*row, word]]
    broker.full = True
    cluster.beat_all()
    view = cluster.manager._heartbeats.cluster_view
    backoff = cluster.manager._controller._move_scheduler.backoff
    moves = MovePlan(cluster.tables, view, set(), cluster.engine.now, backoff).make_moves()
    for one in cluster.brokers.values():
        one.leads.clear()
    cluster.beat_all()
    (problem,) = [
        one for one in cluster.read("problems")["problems"] if one["problem"] == "leaderless"
    ]
    return moves, problem


def test_a_heartbeat_with_a_malformed_health_is_refused() -> None:
    cluster = ManagerCluster(brokers=1, managers=1)
    for wrong in ({}, [[1, 2]], [[1, 2, 3]], [[1, 2, "x" * 33]], [[1, 2, "closed"]] * 1001):
        with pytest.raises(InvalidRequest, match="health"):
            parse_heartbeat(cluster.brokers[1].state(health=wrong), _BROKER_FIELDS)
    assert parse_heartbeat(cluster.brokers[1].state(), _BROKER_FIELDS)["health"] == []
