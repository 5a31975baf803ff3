"""Which replicas a broker makes and removes: by which orders, under which names (R2, W6, W7)."""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_seam import GROUP, FakeReplica, World
from support.orders import answer, later, orders, wanted_row

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.health import ReplicaHealth, Unhealthy

LIFE = 5  # of the engine of the tests


@pytest.fixture
def world() -> World:
    made = World()
    made.engine.beats.clear()
    made.engine.now += 1_000
    return made


def name(node: int, incarnation: int) -> int:
    return t.replica_id(node, incarnation)


# -- orders of old managers -----------------------------------------------------------------------


def test_w6_r26_orders_for_an_earlier_life_are_not_followed(world: World) -> None:
    """A manager that has not applied our registration may not know what was deleted since."""
    row = wanted_row(5, [[1, 7]])
    brokers = [[1, "one:1", "one:2", "h"], [2, "two:1", "two:2", "h"]]
    for life in (0, LIFE - 1, LIFE + 1):
        answer(
            world,
            orders(
                life=life,
                version=9,
                wanted=[row],
                gone=[[GROUP, 1]],
                brokers=brokers,
                transfers=[[GROUP, 3]],
            ),
        )
        assert set(world.engine.replicas) == {GROUP} and not world.engine.transfers
    assert world.broker.orders.version == 0
    # But where the others are may be told by anybody, or nobody could be reached.
    assert world.engine.peers == {("broker", 2): "two:2"}
    answer(world, orders(version=8, wanted=[row], gone=[[GROUP, 1]]))
    assert set(world.engine.replicas) == {5}


def test_removals_of_who_knows_less_or_overrates_us_wait(world: World) -> None:
    answer(world, orders(version=9, wanted=[]))
    answer(world, orders(version=8, gone=[[GROUP, 1]]))
    answer(world, orders(version=10, gone=[[GROUP, 1]]))  # it thinks that we follow these
    assert set(world.engine.replicas) == {GROUP}
    answer(world, orders(version=9, gone=[[GROUP, 1]]))
    assert not world.engine.replicas


def test_w6_only_the_replica_that_is_named_is_removed(world: World) -> None:
    answer(world, orders(version=9, wanted=[], gone=[[GROUP, 2], [GROUP, 0]]))
    assert set(world.engine.replicas) == {GROUP}
    answer(world, orders(version=9, gone=[[GROUP, 1]]))
    assert not world.engine.replicas


# -- making them ----------------------------------------------------------------------------------


def test_founders_vote_and_whoever_joins_does_not_yet(world: World) -> None:
    """R14, R18: until its log says so, a replica that came later is no voter, not even for itself.

    Two of them that believed otherwise could elect each other with empty logs.
    """
    founder = wanted_row(5, [[2, 8], [1, 7], [3, 9]])
    joins = wanted_row(6, [[2, 8], [1, 7], [3, 9]], leaving=[[4, 3]], moved=8)
    answer(world, orders(version=9, wanted=[founder, joins]))
    made = world.engine.replicas
    assert made[5].raft.config == t.Config((name(2, 8), name(1, 7), name(3, 9)))
    assert made[6].raft.config == t.Config((name(2, 8), name(3, 9), name(4, 3)), (name(1, 7),))
    assert made[6].campaigns == 0


def test_a_founder_that_is_made_late_founds_with_those_of_its_time(world: World) -> None:
    """One of them was removed by force before they were made: nobody else can found the group."""
    row = wanted_row(5, [[4, 12], [1, 7], [3, 9]], leaving=[[2, 8]], moved=8)
    other = wanted_row(6, [[4, 12], [1, 13], [3, 9]], leaving=[[2, 8]], moved=8)
    founders = [[group, [[2, 8], [1, 7], [3, 9]]] for group in (5, 6)]
    answer(world, orders(version=9, wanted=[row, other], founders=founders))
    made = world.engine.replicas
    assert made[5].raft.config == t.Config((name(2, 8), name(1, 7), name(3, 9)))
    assert made[6].raft.config.learners == (name(1, 13),)  # drawn later: it joins


def test_a_leaving_member_is_told_but_makes_nothing(world: World) -> None:
    answer(world, orders(version=9, wanted=[wanted_row(5, [[2, 8]], leaving=[[1, 3]], moved=8)]))
    assert set(world.engine.replicas) == {GROUP}


def test_a_replica_is_made_when_the_old_one_is_gone_from_the_disk(world: World) -> None:
    world.engine.removals_in_progress[5] = name(1, 6)
    answer(world, orders(version=9, wanted=[wanted_row(5, [[1, 7]])]))
    assert 5 not in world.engine.replicas
    world.engine.removals_in_progress.clear()
    world.engine.now += 1100
    world.broker.tick(world.engine.now)
    assert world.engine.replicas[5].replica_id == name(1, 7)


def test_w6_a_replica_is_told_of_until_its_removal_is_on_the_disk(world: World) -> None:
    """Killed before, the broker has it again; the managers must not have forgotten it by then."""
    world.engine.removals_in_progress |= {5: name(1, 6), 6: 0}
    state = later(world)[0][2]
    assert state["full"] and [5, 6] in state["held"] and [6, 0] in state["held"]
    assert state["lost"] == [[5, 6]], "it does not take part; who forgot its name is not drawn anew"
    answer(world, orders(version=9, wanted=[], gone=[[5, 6]]))  # again: it is on its way
    world.engine.removals_in_progress.clear()
    answer(world, orders(version=9, more=True))
    state = later(world)[0][2]
    assert state["full"] and not {5, 6} & {group for group, _ in state["held"]}
    assert state["lost"] == []


def lose(world: World, group: int, replica: int) -> None:
    """A log that was damaged so that the group can't be opened."""
    world.engine.not_open[group] = Unhealthy(ReplicaHealth.UNREADABLE, "records are missing")
    world.engine.names[group] = replica


def test_r2_a_lost_replica_is_told_and_replaced_by_another_name(world: World) -> None:
    lose(world, 5, name(1, 7))
    state = later(world)[0][2]
    assert state["lost"] == [[5, 7]] and [5, 7] in state["held"]
    answer(world, orders(version=9, wanted=[wanted_row(5, [[1, 7], [2, 8]])]))
    assert 5 not in world.engine.replicas, "that one must not vote again"
    renewed = wanted_row(5, [[1, 12], [2, 8]], leaving=[[1, 7]], moved=10)
    answer(world, orders(version=10, wanted=[renewed]))
    assert 5 not in world.engine.replicas, "not named as gone: it may be a member still"
    answer(world, orders(version=11, wanted=[renewed], gone=[[5, 7]]))
    assert world.engine.replicas[5].replica_id == name(1, 12)
    assert not world.engine.refused and later(world)[0][2]["lost"] == []


def test_a_replica_that_forgot_its_name_is_removed_by_any(world: World) -> None:
    lose(world, 5, 0)
    assert later(world)[0][2]["lost"] == [[5, 0]]
    answer(world, orders(version=9, wanted=[], gone=[[5, 7]]))
    assert not world.engine.refused


def test_a_lost_replica_whose_name_is_lost_is_removed_once(world: World) -> None:
    """Each of the names that it may have had is gone."""
    lose(world, 5, 0)
    answer(world, orders(version=9, wanted=[], gone=[[5, 3], [5, 7]]))
    assert not world.engine.refused and 5 not in world.engine.held()


def test_a_successor_has_its_topic_s_settings(world: World) -> None:
    """It is made from what was ordered before the old one went; else it would keep all for ever."""
    lose(world, 5, name(1, 7))
    wanted = wanted_row(5, [[1, 12]], {"retention_bytes": 9}, moved=8)
    answer(world, orders(version=9, wanted=[wanted]))
    answer(world, orders(version=9, gone=[[5, 7]]))
    world.engine.now += 1100
    world.broker.tick(world.engine.now)
    assert world.engine.replicas[5].replica_id == name(1, 12)
    assert world.broker.queues.settings(5) == {"retention_bytes": 9}


def test_r2_after_a_hole_in_the_log_nothing_old_is_made_that_is_not_there(world: World) -> None:
    """It may have been there, and have voted."""
    world.engine.log.journal.recovered.unknown_loss = True
    old, new = wanted_row(5, [[1, 7]]), wanted_row(6, [[1, 20]])
    answer(world, orders(version=9, life_from=15, wanted=[old, new]))
    assert set(world.engine.replicas) == {GROUP, 6}
    assert later(world)[0][2]["lost"] == [[5, 7]]
    world.engine.now += 1100
    world.broker.tick(world.engine.now)
    assert set(world.engine.replicas) == {GROUP, 6}
    again = wanted_row(5, [[1, 21]], moved=10)
    assert not world.engine.is_sure, "a later start has to know"
    left = wanted_row(7, [[2, 9]], leaving=[[1, 8]], moved=10)
    answer(world, orders(version=10, life_from=15, wanted=[again, left]))
    assert world.engine.replicas[5].replica_id == name(1, 21)
    assert later(world)[0][2]["lost"] == []
    assert not world.engine.is_sure, "that one may be wanted again, under this name"
    answer(world, orders(version=11, life_from=15, wanted=[again]))
    assert world.engine.is_sure


def test_r2_who_refuses_a_replica_is_not_sure(world: World) -> None:
    """Its doubt is in the store alone: if that is lost before it was replaced, the note tells."""
    world.engine.log.journal.recovered.unknown_loss = True
    lose(world, 5, name(1, 7))
    answer(world, orders(version=9, life_from=15, wanted=[wanted_row(5, [[1, 7]])]))
    assert world.engine.refused and not world.engine.is_sure
    again = wanted_row(5, [[1, 21]], moved=10)
    answer(world, orders(version=10, life_from=15, wanted=[again], gone=[[5, 7]]))
    world.engine.now += 1100
    world.broker.tick(world.engine.now)
    answer(world, orders(version=11, life_from=15, wanted=[again]))
    assert world.engine.replicas[5].replica_id == name(1, 21)
    assert world.engine.is_sure


def test_r2_one_that_was_before_is_not_taken_for_one_that_is_lost(world: World) -> None:
    """A log that was set back has the one that was removed, and not the one that voted since."""
    world.engine.log.journal.recovered.unknown_loss = True
    lose(world, 5, name(1, 5))
    wanted = wanted_row(5, [[1, 9], [2, 8]], moved=8)
    answer(world, orders(version=9, life_from=15, wanted=[wanted], gone=[[5, 5]]))
    assert not world.engine.refused, "that one goes"
    world.engine.now += 1100
    world.broker.tick(world.engine.now)
    assert 5 not in world.engine.replicas and not world.engine.is_sure
    assert later(world)[0][2]["lost"] == [[5, 9]]


def test_r2_who_waits_in_vain_for_a_newer_term_is_replaced(world: World) -> None:
    """Of two voters: the other one leads, and without this one nobody can be elected again."""
    raft = world.replica.raft
    own = [GROUP, world.replica.replica_id & 0xFFFFFFFF]
    raft.health, raft.config = ReplicaHealth.RECOVERING, t.Config((own[1], name(2, 7)))

    def lost_after(ms: int) -> Any:
        for _ in range(ms // 1000):
            world.engine.now += 1000
            world.broker.tick(world.engine.now)
            found = later(world)[0][2]["lost"]
        return found

    assert lost_after(60_000) == [], "nobody leads"
    world.replica.leader_node = 2
    assert lost_after(29_000) == []
    raft.term = 2
    assert lost_after(60_000) == [], "a newer term came"
    raft.started_term = 2
    assert lost_after(32_000) == [own]
    raft.config = t.Config((own[1], name(2, 7), name(3, 8)))
    assert lost_after(60_000) == [], "the leader makes way as soon as the third one is there"
    raft.config = t.Config((own[1], name(2, 7)))
    assert lost_after(32_000) == [own]
    raft.health = ReplicaHealth.HEALTHY
    assert lost_after(1000) == []


def test_r2_the_managers_are_told_who_can_not_vote(world: World) -> None:
    own = [GROUP, world.replica.replica_id & 0xFFFFFFFF]
    assert later(world)[0][2]["health"] == []
    world.replica.raft.health = ReplicaHealth.RECOVERING
    assert later(world)[0][2]["health"] == [[*own, "recovering"]]
    world.replica.raft.health = ReplicaHealth.REPAIRING
    assert later(world)[0][2]["health"] == [[*own, "repairing"]]


def test_one_that_only_can_not_serve_is_not_lost(world: World) -> None:
    world.replica.catch_up_problem = "can't serve followers"
    assert world.engine.refused == {GROUP: "can't serve followers"}
    assert later(world)[0][2]["lost"] == []


# -- as their leader ------------------------------------------------------------------------------


def lead(world: World, group: int, members: t.Config) -> FakeReplica:
    made = world.engine.replicas[group]
    made.raft.config = members
    world.engine.lead(made)
    return made


def test_a_leader_changes_its_group_as_it_is_ordered(world: World) -> None:
    founders = [[1, 7], [2, 8], [3, 9]]
    answer(world, orders(version=9, wanted=[wanted_row(5, founders)]))
    config = t.Config((name(1, 7), name(2, 8), name(3, 9)))
    made = lead(world, 5, config)
    look(world)
    assert world.engine.changes == []
    moved = wanted_row(5, [[1, 7], [2, 8], [4, 12]], leaving=[[3, 9]], moved=10)
    answer(world, orders(version=10, wanted=[moved]))
    look(world)
    assert world.engine.changes == [(5, t.Config(config.voters, (name(4, 12),)))]
    made.raft.configs.current_index = made.raft.commit_index + 1
    look(world)
    assert len(world.engine.changes) == 1, "one change at a time (R14)"


def look(world: World) -> None:
    world.engine.now += 100
    world.broker.tick(world.engine.now)


def members_in(world: World, group: int) -> Any:
    rows = [row for _, _, state in later(world) for row in state["groups"] if row[0] == group]
    return rows[-1][-1]


def test_members_are_told_when_they_are_committed_and_by_the_leader(world: World) -> None:
    answer(world, orders(version=9, wanted=[wanted_row(5, [[1, 7], [2, 8]])]))
    assert members_in(world, 5) is None
    made = lead(world, 5, t.Config((name(1, 7), name(2, 8)), (name(3, 9),)))
    assert members_in(world, 5) == [[1, 7, True], [2, 8, True], [3, 9, False]]
    made.raft.configs.current_index = made.raft.commit_index + 1
    world.broker.manager_link.note_changed(5)
    assert members_in(world, 5) is None


def test_a_group_that_can_not_be_changed_now_is_looked_at_again(world: World) -> None:
    answer(world, orders(version=9, wanted=[wanted_row(5, [[1, 7], [2, 8]], moved=8)]))
    lead(world, 5, t.Config((name(1, 7),)))

    def refuse(*_: Any) -> None:
        raise errors.NotReady

    change, world.engine.change = world.engine.change, refuse  # type: ignore[method-assign]
    look(world)
    assert world.engine.counts["members_postponed_total"] == 1
    world.engine.change = change  # type: ignore[method-assign]
    look(world)
    assert len(world.engine.changes) == 1
