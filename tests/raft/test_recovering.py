"""A replica that lost entries which it had acknowledged, beside one other (R2)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from raft.cluster import Cluster
from raft.replicas import ME, THREE, TWO, Solo, sent

from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.types import (
    DATA,
    NEVER,
    Config,
    NotPossibleNow,
    Proposal,
    Role,
    TimeoutNow,
    replica_id,
)

A, B, ANEW = replica_id(1, 1), replica_id(2, 1), replica_id(2, 2)


def test_of_two_voters_the_whole_one_goes_on_when_the_other_has_another_name() -> None:
    """B can't count before a newer term, and without B there is none.
    `daemons/broker/rebuilds.py` reports that; then B goes, and comes back under a new
    name (`reconcile_members.next_step`).
    """
    cluster = Cluster([1, 2])
    cluster.elect(1)
    cluster.propose(1, "a", "b", "c")
    cluster.settle()
    cluster.crash(2)
    cluster.disks[2].lose_entries(3)
    cluster.start(2)
    cluster.propose(1, "d")
    cluster.settle()
    cluster.elapse(30_000)
    leader = cluster.node(1)
    assert (
        cluster.node(2).health is ReplicaHealth.RECOVERING
        and leader.commit_index < leader.log.last_index
    )
    assert cluster.node(2).leader == A and cluster.node(2).term == cluster.node(2).started_term
    cluster.touched(1).change(Config((A,)), cluster.now)
    cluster.settle()
    cluster.elapse(1000)
    assert leader.commit_index == leader.log.last_index and leader.config == Config((A,))
    cluster.crash(2)
    cluster.join(2, 2)
    for config in (Config((A,), (ANEW,)), Config((A, ANEW))):
        cluster.touched(1).change(config, cluster.now)
        cluster.settle()
        cluster.elapse(5000)
        cluster.settle()
    cluster.propose(1, "e")
    cluster.settle()
    assert leader.config == Config((A, ANEW)) and leader.commit_index == leader.log.last_index
    assert cluster.node(2).log.last_index == leader.log.last_index


def waited_for(*others: int) -> Solo:
    """A quiet leader whose follower TWO waits for a newer term (R2)."""
    leader = Solo([], 5, voters=(ME, *others)).as_leader()
    for other in others:
        leader.ack(other, 1)
    assert leader.node.deadline == NEVER
    leader.alive_until.clear()
    leader.ack(TWO, 1, is_unhealthy=True, hint_term=5)
    return leader


def asked(leader: Solo, duration_ms: int, *heard: int) -> list[int]:
    """The times at which it hands over while these nodes are heard, and nobody answers."""
    times, end = list[int](), leader.now + duration_ms
    while leader.now < end:
        leader.now += 50
        leader.hear(*heard)
        leader.with_out("tick")
        times += [leader.now for one in sent(leader.out, TimeoutNow) if one.target == THREE]
    return times


def test_a_quiet_leader_makes_way_as_soon_as_somebody_is_heard() -> None:
    leader = waited_for(TWO, THREE)
    assert asked(leader, 2000, 2) == []
    leader.hear(3)
    leader.with_out("peer_is_back", 3)
    assert [one.target for one in sent(leader.out, TimeoutNow)] == [THREE]


def test_one_that_comes_to_be_ready_without_a_word_is_asked_as_well() -> None:
    leader = waited_for(TWO, THREE)
    assert len(asked(leader, 1000, 2, 3)) == 1


def test_a_hand_over_that_nobody_takes_is_tried_again_at_a_growing_distance() -> None:
    """A replica whose disk stalls does not answer: writes must not wait for it all the time."""
    leader = waited_for(TWO, THREE)
    times = asked(leader, 60_000, 2, 3)
    apart = [later - earlier for earlier, later in pairwise(times)]
    assert 5 <= len(times) <= 10 and apart == sorted(apart), times
    settings, refused = leader.node.settings, 0
    assert apart[-1] >= settings.snapshot_retry_ms
    for _ in range(240):
        asked(leader, 50, 2, 3)
        try:
            leader.do("propose", [Proposal(1, 5, DATA, b"x")])
        except NotPossibleNow:
            refused += 1
    assert refused <= 1.1 * settings.election_timeout_ms_max / 50
    assert leader.node.role == Role.LEADER


def test_after_one_that_did_not_take_it_another_one_is_asked() -> None:
    four = replica_id(4, 1)
    leader = Solo([], 5, voters=(ME, TWO, THREE, four)).as_leader()
    leader.ack(THREE, 1)
    leader.ack(four, 1)
    leader.ack(TWO, 1, is_unhealthy=True, hint_term=5)
    first = [one.target for one in sent(leader.out, TimeoutNow)]
    times = asked(leader, 4000, 2, 3, 4)
    assert first == [four] and times, "and then THREE"


@pytest.mark.parametrize("damaged", [True, False])
def test_a_leader_stops_looking_when_nobody_waits(damaged: bool) -> None:
    """One that tells no more that it waits, or is no member: the group is quiet again."""
    leader = waited_for(TWO, THREE)
    if damaged:  # it is whole again, or waits no more
        leader.ack(TWO, 1)
    else:
        leader.do("change", Config((ME, THREE)), leader.now)
        leader.ack(THREE, 2)
    asked(leader, 1000, 2)
    assert leader.node.deadline == NEVER


def test_of_two_voters_the_leader_hands_over_to_nobody_and_goes_on() -> None:
    pair = waited_for(TWO)
    for _ in range(100):
        assert asked(pair, 50, 2) == []
        assert pair.do("propose", [Proposal(1, 5, DATA, b"x")]).persist
