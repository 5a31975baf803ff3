"""Brokers that live and seem to have room, and must be given nothing for a while."""

from __future__ import annotations

from kit.moving import Moving

from myqueue.daemons.raft.types import node_of


def unreached(cluster: Moving) -> list[int]:
    found = cluster.read("problems")["problems"]
    return [one["node"] for one in found if one["problem"] == "unreached"]


def test_w15_a_disk_that_is_too_small_is_not_filled_again_and_again() -> None:
    """What was called off leaves room behind, and the fewest replicas: it looks like the best."""
    cluster = Moving(3, t=12)
    small = cluster.add(4)
    drawn = []
    for _ in range(600):
        cluster.pass_time(3000)
        votes = sum(4 in map(node_of, config.voters) for config in cluster.configs.values())
        cluster.fills = votes < 4
        small.disk_low = len(small.groups) > 6
        drawn.append(cluster.tables.counters.incarnation)
    assert votes >= 4 and drawn[-1] > drawn[99], "it is asked now and then"
    assert drawn[-1] - drawn[299] <= 2 * 8, "but in a quarter of an hour not more than twice"
    assert all(len(config.voters) == 3 for config in cluster.configs.values())


def test_what_a_leader_does_not_reach_is_left_alone_and_told() -> None:
    """Managers hear it, so it lives, and has the fewest replicas. Without a word a drain would
    never end, and nothing would be evened out.
    """
    cluster = Moving(4, t=30)
    cluster.unreached = {5}
    cluster.add(5)
    cluster.pass_time(10_000)
    cluster.update("drain_broker", node=2)
    assert not unreached(cluster)
    cluster.until("told", lambda: unreached(cluster), 60_000)
    assert unreached(cluster) == [5]
    cluster.until("2 is empty", lambda: not cluster.held()[2], 600_000)
    assert not cluster.tables.moving
    assert {len(config.voters) for config in cluster.configs.values()} == {3}
    assert all(5 not in map(node_of, config.members) for config in cluster.configs.values())
    cluster.unreached.clear()
    cluster.until("5 has its share", lambda: cluster.held()[5] > 15, 1_200_000)
    assert not unreached(cluster)
