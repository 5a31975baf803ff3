"""Moves that meet with more than one trouble: none gets stuck, and nobody is promised too much.

P4, B6: disks that are full, brokers that die in the middle, partitions that nobody leads any more,
replicas for which there was no broker, hosts that had to be shared.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.moving import MovingCluster

from myqueue.daemons.manager.balancer.moves import STALLED_AFTER_MS
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.daemons.raft.types import node_of

MINUTE = 60_000


def problems(cluster: MovingCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.read("problems")["problems"]
    return found


def thin(cluster: MovingCluster) -> list[dict[str, Any]]:
    return [row for row in problems(cluster) if row["problem"] == "under-replicated"]


def voters(cluster: MovingCluster, topic: str) -> list[int]:
    """How many of each partition."""
    parts = cluster.tables.topics[topic].partitions
    return [len(cluster.configs[one.group].voters) for one in parts]


# -- fewer replicas than promised -----------------------------------------------------------------


def test_what_lost_a_replica_for_good_gets_another_when_there_is_a_broker_for_it() -> None:
    """A dead broker is removed by force, and its successor added afterwards."""
    cluster = MovingCluster(3, t=12)
    cluster.kill(2)
    cluster.pass_time(1500)
    cluster.update("remove_broker", node=2, force=True)
    cluster.until("nothing moves", lambda: not cluster.tables.moving)
    assert set(voters(cluster, "t")) == {2}
    found = thin(cluster)
    assert len(found) == 12 and {row["lacking"] for row in found} == {1}
    cluster.add(4)
    cluster.busiest = 0
    cluster.until("all have three again", lambda: set(voters(cluster, "t")) == {3})
    cluster.until("at rest", cluster.is_settled)
    assert cluster.held() == {1: 12, 3: 12, 4: 12}
    assert not thin(cluster)
    assert cluster.busiest == 4


def test_what_is_made_anew_counts_when_it_is_filled() -> None:
    """W7: a wiped broker makes its replicas before it has anything of them; the members are still
    called by the names of those that were lost. Another wipe then would cost the majority.
    """
    cluster = MovingCluster(3, t=3)
    cluster.kill(2)
    cluster.pass_time(12_000)  # so long the old disk's name is defended
    cluster.start(2, disk="new")
    for _ in range(40):
        assert [row["missing"] for row in thin(cluster)] == [[2]] * 3
        cluster.live(300)  # and no group takes a step
    assert len(cluster.brokers[2].groups) == 3, "they are made"
    cluster.until("they are whole", lambda: not thin(cluster))
    assert set(voters(cluster, "t")) == {3}


def test_one_more_replica_is_no_more_than_promised() -> None:
    cluster = MovingCluster(3, t=3)
    group = next(iter(cluster.tables.groups))
    cluster.add(4)
    cluster.update("alter_cluster", settings={"moves_per_broker": 0})
    cluster.pass_time(3000)
    cluster.operate("move_replicas", moves=[[group, 0, 0, 4]])
    assert len(cluster.tables.partition(group).replicas) == 3


# -- partitions that can't move hold up nobody ----------------------------------------------------


def test_partitions_without_a_leader_do_not_hold_up_those_that_have_one() -> None:
    """Of 20 partitions the dead broker has the only copy: these can't be moved, all others can."""
    cluster = MovingCluster(4, t=12)
    cluster.update("create_topic", topic="single", partitions=80, replication=1)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    cluster.pass_time(3000)
    alone = {one.group for one in cluster.tables.topics["single"].partitions if one.nodes == [3]}
    assert len(alone) >= 15
    cluster.kill(3)
    cluster.until("made anew", lambda: cluster.tables.held[3] == alone, 2 * MINUTE)
    cluster.until("they arrive", lambda: not cluster.tables.moving)
    assert set(voters(cluster, "t")) == {3}
    cluster.start(3)
    cluster.until("at rest", cluster.is_settled)


def test_moves_whose_leader_died_hold_up_no_others() -> None:
    cluster = MovingCluster(5, t=10)
    cluster.update("create_topic", topic="single", partitions=50, replication=1)
    cluster.update("alter_cluster", settings={"replace_after_ms": MINUTE})
    cluster.pass_time(3000)
    before = cluster.tables.held[2].copy()
    cluster.fills = False
    cluster.update("drain_broker", node=2)
    cluster.until("moves began", lambda: len(cluster.tables.moving) >= 4)
    cluster.kill(2)
    cluster.pass_time(600)
    cluster.fills = True
    cluster.pass_time(STALLED_AFTER_MS + 10_000)
    stuck = before & cluster.tables.moving
    assert len(stuck) >= 2, "of some, nobody else has a copy"
    cluster.update("undrain_broker", node=2)
    cluster.update("drain_broker", node=3)
    held, left = cluster.tables.held, cluster.tables.left
    cluster.until("3 gave away all that it has", lambda: held[3] <= stuck and not left[3])
    cluster.start(2)
    cluster.until("the others come as well", lambda: not cluster.tables.moving and not held[3])


def test_long_dead_brokers_that_hold_nothing_are_no_reason_to_replace_nobody() -> None:
    cluster = MovingCluster(7)
    cluster.update("create_topic", topic="t", partitions=12)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    cluster.pass_time(3000)
    for node in (1, 2, 3, 4):
        cluster.kill(node)
        cluster.until(f"{node} is replaced", lambda at=node: not cluster.tables.held[at])
        cluster.until("they arrive", lambda: not cluster.tables.moving)
    assert set(voters(cluster, "t")) == {3}


def test_b6_who_stood_and_died_before_anybody_heard_of_it_is_replaced() -> None:
    """It told us of its new term; its own vote was not on its disk yet, so nobody was asked."""
    cluster = MovingCluster(4, t=12)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    broker = cluster.brokers[3]
    rows = [
        [group, broker.incarnation_of(group), False, 99, 0, 0, 0, 0, None]
        for group in sorted(broker.groups.keys() - broker.leads.keys())
    ]
    assert rows
    cluster.beat(3, groups=rows)
    members = cluster.manager._heartbeats.cluster_view.members_of
    assert not any(members(row[0]) for row in rows), "it may lead by now"
    cluster.kill(3)
    cluster.pass_time(2000)
    assert all(members(row[0]) for row in rows), "most are heard, and none of them followed it"
    # A beat of who followed it may come late; what would be removed for good waits for its word.
    assert not any(members(row[0], include_dead=True) for row in rows)
    cluster.until("replaced", lambda: not cluster.tables.held[3])
    cluster.until("they arrive", lambda: not cluster.tables.moving)
    assert set(voters(cluster, "t")) == {3}


def test_a_move_to_a_broker_that_dies_for_good_is_called_off() -> None:
    """There is nobody else; but who was to leave is there still, and whole: nothing is copied."""
    cluster = MovingCluster(3, t=12)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    cluster.fills = False
    cluster.add(4)
    cluster.until("moves began", lambda: len(cluster.tables.moving) == 4)
    before = {group: cluster.configs[group].voters for group in cluster.tables.groups}
    cluster.kill(4)
    drawn = cluster.tables.counters.incarnation
    cluster.until("called off", lambda: not cluster.tables.moving)
    assert cluster.tables.counters.incarnation == drawn
    assert {group: cluster.configs[group].voters for group in before} == before
    assert cluster.held() == {1: 12, 2: 12, 3: 12}


def test_by_force_too() -> None:
    cluster = MovingCluster(3, t=12)
    cluster.fills = False
    cluster.add(4)
    cluster.until("moves began", lambda: len(cluster.tables.moving) == 4)
    cluster.kill(4)
    cluster.pass_time(1500)
    cluster.update("remove_broker", node=4, force=True)
    assert not cluster.tables.under_replicated
    cluster.until("called off", lambda: not cluster.tables.moving)
    assert set(voters(cluster, "t")) == {3} and cluster.held() == {1: 12, 2: 12, 3: 12}


def test_who_returns_while_its_successor_dies_stays_a_member() -> None:
    cluster = MovingCluster(4, t=12)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    cluster.fills = False
    cluster.kill(2)
    cluster.until("moves began", lambda: len(cluster.tables.moving) >= 4)
    cluster.start(2)
    cluster.kill(4)
    cluster.pass_time(25_000)
    cluster.fills = True
    assert set(voters(cluster, "t")) == {3} and not cluster.tables.under_replicated
    assert cluster.held() == {1: 12, 2: 12, 3: 12}
    cluster.until("nothing moves", lambda: not cluster.tables.moving)


@pytest.mark.parametrize("node", [2, 4])
def test_w7_what_was_on_its_way_to_a_disk_that_is_lost_as_well_is_made_anew(node: int) -> None:
    """As many as a broker takes at once: they have their turn already."""
    cluster = MovingCluster(3, t=12)
    cluster.fills = False
    if node == 2:
        cluster.kill(2)
        cluster.pass_time(12_000)
        cluster.start(2, disk="new")
    else:
        cluster.add(4)
    cluster.until("moves began", lambda: len(cluster.tables.moving) == 4)
    cluster.pass_time(3000)
    cluster.kill(node)
    cluster.pass_time(12_000)
    cluster.start(node, disk="newer")
    cluster.busiest = 0
    cluster.fills = True
    cluster.until("at rest", cluster.is_settled)
    assert set(voters(cluster, "t")) == {3}
    assert cluster.busiest == 4


# -- full disks -----------------------------------------------------------------------------------


def test_w15_a_new_broker_relieves_full_disks() -> None:
    """Which is what one adds it for."""
    cluster = MovingCluster(3, t=12)
    for broker in cluster.brokers.values():
        broker.disk_low = True
    cluster.pass_time(1500)
    cluster.add(4)
    cluster.until("even", lambda: cluster.is_settled() and cluster.held()[4] == 9)


def test_w15_what_is_on_its_way_to_a_disk_that_fills_up_goes_elsewhere() -> None:
    cluster = MovingCluster(5, t=10)
    cluster.fills = False
    cluster.update("drain_broker", node=2)
    cluster.until("moves began", lambda: len(cluster.tables.moving) >= 4)
    arriving = [one for one in cluster.tables.moving if 5 in newcomers(cluster, one)]
    assert arriving
    cluster.brokers[5].disk_low = True
    cluster.pass_time(5000)
    assert not [one for one in cluster.tables.moving if 5 in newcomers(cluster, one)]
    cluster.fills = True
    cluster.until("empty", cluster.is_settled_without_2)
    assert set(voters(cluster, "t")) == {3}


def newcomers(cluster: MovingCluster, group: int) -> set[int]:
    """Who is to hold it and does not vote yet."""
    there = {node_of(one) for one in cluster.configs[group].voters}
    return set(cluster.tables.partition(group).nodes) - there


# -- drains ---------------------------------------------------------------------------------------


def test_a_drain_that_others_are_too_silent_for_is_refused() -> None:
    cluster = MovingCluster(4, t=4)
    cluster.kill(4)
    cluster.pass_time(1500)
    with pytest.raises(AssertionError, match=r"2 brokers .* 4 is silent.* too few for t"):
        cluster.update("drain_broker", node=1)
    cluster.start(4)
    cluster.pass_time(1500)
    cluster.update("drain_broker", node=1)
    cluster.kill(4)
    cluster.pass_time(1500)
    cluster.update("drain_broker", node=1)  # once more: it goes on


def test_w7_a_wiped_broker_that_is_being_drained_is_not_filled_first() -> None:
    cluster = MovingCluster(4, t=12)
    cluster.update("alter_cluster", settings={"moves_per_broker": 0})
    cluster.update("drain_broker", node=2)
    cluster.kill(2)
    cluster.pass_time(12_000)
    cluster.start(2, disk="another")
    cluster.pass_time(3000)
    cluster.update("alter_cluster", settings={"moves_per_broker": 4})
    most = 0
    while not cluster.is_settled_without_2():
        cluster.pass_time(300)
        most = max(most, len(cluster.brokers[2].groups))
    assert most == 0


# -- hosts ----------------------------------------------------------------------------------------


def test_replicas_that_had_to_share_a_host_are_parted_when_they_can_be() -> None:
    cluster = MovingCluster(3, t=12)
    cluster.kill(3)
    twin = cluster.add(4)
    twin.host = "host-1"
    cluster.pass_time(7000)
    cluster.update("remove_broker", node=3, force=True)
    cluster.until("three again", lambda: not cluster.tables.moving)
    assert shared(cluster) == 12
    cluster.add(5)
    cluster.until("parted", lambda: cluster.is_settled() and not shared(cluster))
    before = cluster.tables.counters.incarnation
    cluster.pass_time(MINUTE)
    assert cluster.tables.counters.incarnation == before, "and there it ends"


def shared(cluster: MovingCluster) -> int:
    """Partitions with two replicas on one host."""
    count = 0
    for topic in cluster.tables.topics.values():
        for one in topic.partitions:
            hosts = [cluster.tables.brokers[node].host for node in one.nodes]
            count += len(set(hosts)) < len(hosts)
    return count


# -- removed by force -----------------------------------------------------------------------------


def test_what_hangs_on_a_broker_is_named_before_it_is_removed() -> None:
    """Of three replicas one is away already: without another, there is no majority."""
    cluster = MovingCluster(4, t=12)
    cluster.update("create_topic", topic="two", partitions=8, replication=2)
    cluster.pass_time(1500)
    cluster.kill(1)
    cluster.pass_time(1500)
    with_both = {
        n for n, one in enumerate(cluster.tables.topics["t"].partitions) if {1, 2} <= set(one.nodes)
    }
    assert 0 < len(with_both) < 12
    with pytest.raises(AssertionError, match=r"too few replicas of t/.* answer: nobody can read"):
        cluster.update("remove_broker", node=2)
    # Who is alive lets its groups go first: one of two that is left is enough for t, none for two.
    done = cluster.update("remove_broker", node=1, force=True)
    assert done["lost"] == 0
    assert {one.split("/")[0] for one in done["stranded_partitions"]} == {"two"}
    two = cluster.tables.topics["two"].partitions
    assert done["stranded"] == len(done["stranded_partitions"]) < len(two)


def test_founders_are_known_until_a_group_is_known_to_be_founded() -> None:
    """A broker is removed by force, and its groups may not be founded yet: those of them that are
    made later still found them, and others join.
    """
    cluster = MovingCluster(4)
    cluster.update("create_topic", topic="t", partitions=8)
    first = {one.group: list(one.replicas) for one in cluster.tables.topics["t"].partitions}
    cluster.kill(4)
    cluster.update("remove_broker", node=4, force=True)
    hit = {group for group, names in first.items() if 4 in dict(names)}
    assert hit and hit != first.keys()
    known = {one.group: one.founders for one in cluster.tables.topics["t"].partitions}
    assert known == {group: names if group in hit else [] for group, names in first.items()}
    restored = MetadataMachine("test")
    restored.restore(cluster.manager._metadata.snapshot())
    assert restored.snapshot() == cluster.manager._metadata.snapshot()
    assert restored.tables.topics["t"] == cluster.tables.topics["t"]
    cluster.until("told", lambda: all(one.wanted for one in cluster.brokers.values()))
    told = {group: names for one in cluster.brokers.values() for group, names in one.founders}
    assert told == {group: [list(one) for one in first[group]] for group in hit}
    cluster.until("settled", cluster.is_settled)
    assert not any(one.founders for one in cluster.tables.topics["t"].partitions)


def test_a_client_can_not_say_what_is_stranded() -> None:
    cluster = MovingCluster(3)
    with pytest.raises(Exception, match="knows no argument stranded"):
        cluster.update("remove_broker", node=1, stranded=[1])


@pytest.mark.parametrize("then", ["add", "undrain"])
def test_who_was_to_get_the_only_copy_is_removed_by_force(then: str) -> None:
    """It is where it was, so it is not lost; but when nobody else can take it, it has to wait."""
    cluster = MovingCluster(2)
    cluster.update("create_topic", topic="single", partitions=6, replication=1)
    cluster.pass_time(3000)
    cluster.fills = False
    cluster.update("drain_broker", node=1)
    cluster.until("moves began", lambda: cluster.tables.moving)
    moving = set(cluster.tables.moving)
    cluster.kill(2)
    cluster.pass_time(1500)
    assert cluster.update("remove_broker", node=2, force=True)["lost"] == 3
    cluster.pass_time(3000)
    assert cluster.tables.moving == moving
    cluster.fills = True
    if then == "add":
        cluster.add(3)
    else:
        cluster.update("undrain_broker", node=1)
    cluster.until("nothing moves", lambda: not cluster.tables.moving)
    at = {tuple(cluster.tables.partition(one).nodes) for one in moving}
    assert at == {(3,) if then == "add" else (1,)}
