"""Brokers that live and seem to have room, and must be given nothing for a while."""

from __future__ import annotations

from support.moving import MovingCluster

from myqueue.daemons.broker.reconcile_members import MemberStatus
from myqueue.daemons.manager.balancer.backoff import Backoff
from myqueue.daemons.raft.types import Config, node_of

MINUTE = 60_000


def unreached(cluster: MovingCluster) -> list[int]:
    found = cluster.read("problems")["problems"]
    return [one["node"] for one in found if one["problem"] == "unreached"]


def test_w15_a_disk_that_is_too_small_is_not_filled_again_and_again() -> None:
    """What was called off leaves room behind, and the fewest replicas: it looks like the best."""
    cluster = MovingCluster(3, t=12)
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
    cluster = MovingCluster(4, t=30)
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


def test_a_new_replica_that_is_no_member_yet_is_owed_nothing() -> None:
    """Its predecessor may not go before another one is whole, so nobody speaks to it so far."""
    cluster = MovingCluster(3, t=12)
    standing, slow = cluster._statuses, {3}

    def catching_up(group: int, config: Config) -> dict[int, MemberStatus]:
        found = standing(group, config)
        return found | {one: MemberStatus(True, False) for one in found if node_of(one) in slow}

    cluster._statuses = catching_up  # type: ignore[method-assign]
    cluster.kill(2)
    cluster.pass_time(12_000)  # so long the old disk's name is defended
    cluster.start(2, disk="new")
    cluster.pass_time(3 * MINUTE)
    assert not unreached(cluster) and cluster.busiest <= 4
    slow.clear()
    cluster.until("all is whole", cluster.is_settled, 10 * MINUTE)


def test_pauses_grow_within_a_day_and_end_with_the_trouble() -> None:
    pauses, now = Backoff[int](), 0
    seen = []
    for _ in range(9):
        begin = now
        for now in range(begin, begin + 20_000, 2500):
            pauses.note(1, now)
        begin = now
        while 1 in pauses.active(now):
            now += 1000
        seen.append((now - begin) // 1000)
        now += 2 * 3_600_000  # it takes hours to fill
    assert seen == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert not pauses.active(now + 86_400_000)
    pauses.note(1, now + 86_400_000)
    assert not pauses.active(now + 86_400_000 + 30_000)


def test_who_comes_back_with_another_address_begins_anew() -> None:
    cluster = MovingCluster(4, t=30)
    cluster.unreached = {5}
    cluster.add(5)
    cluster.until("told", lambda: unreached(cluster), 2 * MINUTE)
    cluster.unreached.clear()
    cluster.kill(5)
    cluster.start(5)
    cluster.pass_time(3000)
    assert not unreached(cluster)
    cluster.until("5 has its share", lambda: cluster.held()[5] > 15, 3 * MINUTE)
