"""A replica that lost entries which it had acknowledged, beside one other (R2)."""

from __future__ import annotations

from raft.cluster import Cluster

from myqueue.daemons.raft.types import Config, replica_id

A, B, ANEW = replica_id(1, 1), replica_id(2, 1), replica_id(2, 2)


def test_of_two_voters_the_whole_one_goes_on_when_the_other_has_another_name() -> None:
    """B can't count before a newer term, and without B there is none. `reports.py` tells that B is
    lost; then it goes, and comes back under a new name (`members.next_step`).
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
    assert cluster.node(2).recovering and leader.commit_index < leader.log.last_index
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
