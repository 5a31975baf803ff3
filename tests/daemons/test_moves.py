"""Which replicas move, when and how many; and when what left may be removed (P4, B6)."""

from __future__ import annotations

import pytest
from support.manager_rig import WALL_MS
from support.moving import MovingCluster

from myqueue import errors
from myqueue.daemons.manager.balancer.moves import settled_replicas
from myqueue.daemons.manager.balancer.plan import TARGET_ALIVE_MS_MIN
from myqueue.daemons.manager.heartbeats import DISK_TAKEOVER_SILENCE_MS
from myqueue.daemons.raft.types import node_of

MINUTE = 60_000


def test_nothing_moves_in_a_cluster_that_is_well() -> None:
    cluster = MovingCluster(4, t=12)
    before = cluster.tables.counters.incarnation
    cluster.pass_time(MINUTE)
    assert cluster.tables.counters.incarnation == before and cluster.is_settled()


def test_p4_an_added_broker_gets_its_share_of_replicas_and_leaders() -> None:
    cluster = MovingCluster(3, t=12)
    cluster.add(4)
    cluster.pass_time(TARGET_ALIVE_MS_MIN)
    assert cluster.held()[4] == 0, "it has to prove that it stays"
    cluster.until("even", lambda: cluster.is_settled() and cluster.held()[4] == 9)
    assert cluster.held() == {1: 9, 2: 9, 3: 9, 4: 9}
    cluster.pass_time(10_000)
    assert set(cluster.tables.led.values()) == {3}
    assert cluster.busiest == cluster.tables.settings["moves_per_broker"] == 4


def test_p4_a_drained_broker_gives_everything_away() -> None:
    cluster = MovingCluster(4, t=12)
    assert cluster.update("drain_broker", node=2) == {"node": 2, "replicas": 9}
    row = {r["node"]: r for r in cluster.read("brokers")["brokers"]}[2]
    assert row["state"] == "draining"
    cluster.until("empty", cluster.is_settled_without_2)
    row = {r["node"]: r for r in cluster.read("brokers")["brokers"]}[2]
    assert (row["state"], row["replicas"], row["leaving"]) == ("drained", 0, 0)
    assert cluster.held() == {1: 12, 2: 0, 3: 12, 4: 12}
    assert cluster.busiest == 4
    cluster.update("create_topic", topic="u", partitions=3)
    cluster.pass_time(1200)
    assert cluster.held()[2] == 0
    cluster.update("undrain_broker", node=2)
    cluster.until("even again", lambda: cluster.is_settled() and cluster.held()[2] >= 10)


def test_a_drain_that_can_not_end_is_refused() -> None:
    cluster = MovingCluster(3, t=2)
    with pytest.raises(AssertionError, match=r"too few for t"):
        cluster.update("drain_broker", node=1)
    with pytest.raises(AssertionError, match="no broker 9"):
        cluster.update("drain_broker", node=9)


def test_b6_a_dead_broker_is_replaced_after_a_while() -> None:
    cluster = MovingCluster(4, t=12)
    cluster.update("alter_cluster", settings={"replace_after_ms": 20_000})
    cluster.kill(3)
    cluster.pass_time(18_000)
    assert len(cluster.tables.held[3]) == 9
    cluster.until("replaced", lambda: not cluster.tables.moving and not cluster.tables.held[3])
    assert cluster.held() == {1: 12, 2: 12, 4: 12}
    assert cluster.busiest <= 9  # nothing is taken from the dead one, so it has no limit
    assert {one.nodes[0] for one in cluster.tables.gone.values()} == {3}
    cluster.start(3)
    cluster.until("it is back", lambda: cluster.is_settled() and cluster.held()[3] == 9)


def test_a_broker_that_comes_back_in_time_keeps_all() -> None:
    cluster = MovingCluster(4, t=12)
    drawn = cluster.tables.counters.incarnation
    cluster.kill(3)
    cluster.pass_time(4 * MINUTE)
    cluster.start(3)
    cluster.pass_time(2 * MINUTE)
    assert cluster.tables.counters.incarnation == drawn and cluster.is_settled()


def test_who_hears_nobody_replaces_nobody() -> None:
    """Most brokers are silent: it is more likely that we are cut off."""
    cluster = MovingCluster(5, t=12)
    drawn = cluster.tables.counters.incarnation
    for node in (1, 2, 3):
        cluster.kill(node)
    cluster.pass_time(10 * MINUTE)
    assert cluster.tables.counters.incarnation == drawn


def test_a_manager_that_stood_still_replaces_nobody() -> None:
    """It heard nothing because it did not listen."""
    cluster = MovingCluster(4, t=12)
    drawn = cluster.tables.counters.incarnation
    cluster.engine.now += 30 * MINUTE
    cluster.turn()
    cluster.turn(600)
    assert cluster.tables.counters.incarnation == drawn
    cluster.kill(3)
    cluster.pass_time(4 * MINUTE)
    cluster.engine.now += 2 * MINUTE  # again, and nothing is known of 3 in this time
    cluster.turn()
    cluster.pass_time(4 * MINUTE)
    assert cluster.tables.counters.incarnation == drawn
    cluster.until("replaced", lambda: not cluster.tables.held[3], 2 * MINUTE)


def test_a_group_that_was_never_led_is_not_moved() -> None:
    """Its founders may not be made yet; made after a move, none of them would vote for itself."""
    cluster = MovingCluster(4)
    for broker in cluster.brokers.values():
        broker.makes = False
    cluster.update("create_topic", topic="t", partitions=3)
    cluster.update("drain_broker", node=cluster.tables.topics["t"].partitions[0].nodes[0])
    cluster.pass_time(10_000)
    assert not cluster.tables.moving
    for broker in cluster.brokers.values():
        broker.makes = True
    cluster.until("it moves when it is led", lambda: bool(cluster.tables.moving))
    cluster.until("and arrives", cluster.is_settled)


def test_r2_a_lost_replica_is_made_anew_on_its_broker() -> None:
    cluster = MovingCluster(3, t=4)
    broker = cluster.brokers[2]
    group = next(iter(broker.groups))
    old = broker.incarnation_of(group)
    broker.groups.pop(group)
    broker.lost, broker.full = [[group, old]], True
    cluster.until("filled again", lambda: cluster.is_settled() and group in broker.groups)
    assert broker.incarnation_of(group) > old and not broker.lost
    assert [one for one in cluster.terms.values() if one > 2] == []


def test_w7_a_new_disk_is_heard_when_the_old_one_is_silent_and_filled_bit_by_bit() -> None:
    cluster = MovingCluster(3, t=12)
    old = {
        one
        for topic in cluster.tables.topics.values()
        for p in topic.partitions
        for one in p.replicas
    }
    cluster.kill(2)
    cluster.start(2, disk="another")
    with pytest.raises(errors.IdentityMismatch):
        cluster.beat(2)
    cluster.kill(2)
    cluster.pass_time(DISK_TAKEOVER_SILENCE_MS + 600)
    cluster.start(2, disk="another")
    cluster.until("it is full again", lambda: cluster.is_settled() and cluster.held()[2] == 12)
    assert cluster.busiest == 4
    assert cluster.tables.brokers[2].disk == "another"
    broker = cluster.brokers[2]
    assert not {(2, broker.incarnation_of(group)) for group in broker.groups} & old
    assert "another" in cluster.manager.greeted("broker", 2, "disk-2"), "two claim one number"


def test_w7_what_was_drawn_for_an_old_disk_is_not_ordered_on_the_new_one() -> None:
    cluster = MovingCluster(3, t=12)
    cluster.kill(2)
    cluster.pass_time(DISK_TAKEOVER_SILENCE_MS + 600)
    cluster.start(2, disk="another")
    cluster.beat(2)
    cluster.turn(50)  # it is registered
    assert cluster.beat(2)["wanted"] == [] and cluster.held()[2] == 0


def test_a_new_leader_of_the_managers_goes_on_where_the_old_one_was() -> None:
    cluster = MovingCluster(4, t=12)
    cluster.update("drain_broker", node=2)
    for _ in range(200):
        cluster.pass_time(600)
        cluster.follow(2)
        cluster.lead()
        cluster.pass_time(900)
        if cluster.is_settled_without_2():
            break
    assert cluster.is_settled_without_2()
    assert cluster.held() == {1: 12, 2: 0, 3: 12, 4: 12}


def test_the_destination_of_a_move_dies() -> None:
    cluster = MovingCluster(5, t=1)
    cluster.update("alter_cluster", settings={"replace_after_ms": 10_000})
    (group,) = cluster.tables.groups
    dead = cluster.tables.partition(group).nodes[1]
    cluster.fills = False
    cluster.kill(dead)
    cluster.until("a move began", lambda: bool(cluster.tables.moving))
    founders = {node_of(one) for one in cluster.configs[group].voters}
    (victim,) = set(cluster.tables.partition(group).nodes) - founders
    cluster.kill(victim)
    cluster.pass_time(12_000)
    cluster.fills = True
    cluster.until("it is whole elsewhere", lambda: not cluster.tables.moving)
    nodes = {node_of(one) for one in cluster.configs[group].voters}
    assert len(nodes) == 3 and not nodes & {dead, victim}


def test_a_topic_that_is_deleted_while_it_moves_leaves_nothing() -> None:
    cluster = MovingCluster(4, t=12)
    cluster.update("drain_broker", node=2)
    cluster.until("moves began", lambda: bool(cluster.tables.moving))
    cluster.update("delete_topic", topic="t")
    cluster.until("all is gone", lambda: not cluster.tables.gone)
    assert cluster.held() == {1: 0, 2: 0, 3: 0, 4: 0}


# -- when a replica that left may be removed ------------------------------------------------------


def midway() -> tuple[MovingCluster, int]:
    """A group whose move is done but for the removal of the replica that left."""
    cluster = MovingCluster(4, t=1)
    group = next(iter(cluster.tables.groups))
    node, incarnation = cluster.tables.partition(group).replicas[1]
    (to,) = {1, 2, 3, 4} - set(cluster.tables.partition(group).nodes)
    propose(cluster, group, node, incarnation, to)
    cluster.beat_all()
    cluster.beat_all()
    for _ in range(5):
        cluster.step_all()
        cluster.beat_all()
    return cluster, group


def propose(cluster: MovingCluster, *move: int) -> None:
    from myqueue.daemons.metadata.machine import pack_command
    from myqueue.daemons.raft.types import COMMAND, Proposal

    payload = pack_command(b"", "move_replicas", {"moves": [list(move)]})
    cluster.engine.pending.append(Proposal(0, WALL_MS, COMMAND, payload))
    cluster.engine.index += 1
    cluster.commit()


def verdict(cluster: MovingCluster, group: int) -> tuple[int, bool]:
    cluster_view = cluster.manager._heartbeats.cluster_view
    gone, done = settled_replicas(cluster.tables, cluster_view, cluster.tables.partition(group))
    return len(gone), done


def test_what_left_is_removed_when_its_leader_says_so() -> None:
    cluster, group = midway()
    assert verdict(cluster, group) == (1, True)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_not_while_a_member_follows_older_orders(which: int) -> None:
    """It could lead, and take back the one that left."""
    cluster, group = midway()
    node = cluster.tables.partition(group).nodes[which]
    cluster.beat(node, version=cluster.tables.partition(group).moved - 1)
    assert verdict(cluster, group) == (0, False)


def test_not_on_the_word_of_a_leader_that_may_be_deposed() -> None:
    cluster, group = midway()
    leader = node_of(cluster.leader[group])
    other = next(n for n in cluster.tables.partition(group).nodes if n != leader)
    row = [group, cluster.brokers[other].incarnation_of(group), False, 99, 0, 0, 0, 0, None]
    cluster.beat(other, groups=[row])
    assert verdict(cluster, group) == (0, False)


def test_a_later_term_of_who_is_no_member_says_nothing() -> None:
    """It can't be elected; and if it kept its own removal up, its data would stay for ever."""
    cluster, group = midway()
    (left,) = cluster.tables.partition(group).leaving
    row = [group, left[1], False, 99, 0, 0, 0, 0, None]
    cluster.beat(left[0], groups=[row])
    assert verdict(cluster, group) == (1, True)


def test_not_after_a_restart_before_the_new_life_follows() -> None:
    cluster, group = midway()
    node = cluster.tables.partition(group).nodes[0]
    cluster.kill(node)
    cluster.start(node)
    cluster.beat(node, version=1_000_000)  # whatever it says: its life is not registered
    assert verdict(cluster, group) == (0, False)


def test_old_news_of_a_move_settle_nothing() -> None:
    cluster, group = midway()
    tables = cluster.tables
    before = tables.partition(group).leaving[:]
    arguments = {"group": group, "moved": 1, "gone": [list(before[0])], "done": True}
    from myqueue.daemons.metadata.machine import pack_command
    from myqueue.daemons.raft.types import COMMAND, Proposal

    for moved, left in ((1, before), (tables.partition(group).moved, [])):
        payload = pack_command(b"", "settle_replicas", arguments | {"moved": moved})
        cluster.engine.pending.append(Proposal(0, WALL_MS, COMMAND, payload))
        cluster.engine.index += 1
        cluster.commit()
        assert tables.partition(group).leaving == left


# -- removing a broker ----------------------------------------------------------------------------


def test_a_broker_that_holds_something_is_not_removed() -> None:
    cluster = MovingCluster(3, t=2)
    cluster.update("create_topic", topic="single", partitions=3, replication=1)
    with pytest.raises(AssertionError, match="3 replicas; it alone has single/0, whose"):
        cluster.update("remove_broker", node=cluster.tables.topics["single"].partitions[0].nodes[0])


def test_the_only_broker_is_not_removed_unless_that_is_insisted_on() -> None:
    cluster = MovingCluster(1)
    with pytest.raises(AssertionError, match="broker 1 is the only one"):
        cluster.update("remove_broker", node=1)
    cluster.update("remove_broker", node=1, force=True)
    assert not cluster.tables.brokers


def test_an_empty_broker_is_removed_and_does_not_come_back() -> None:
    cluster = MovingCluster(3, t=2)
    cluster.add(4)
    cluster.update("alter_cluster", settings={"moves_per_broker": 0})
    cluster.pass_time(3000)
    cluster.update("remove_broker", node=4)
    assert [row["node"] for row in cluster.read("brokers")["brokers"]] == [1, 2, 3]
    assert "was removed" in cluster.manager.greeted("broker", 4, "disk-4")
    gone = cluster.brokers.pop(4)
    before = cluster.replica.machine.applied_index
    cluster.pass_time(6000)
    assert cluster.replica.machine.applied_index == before, "nobody tries to register it again"
    cluster.brokers[4] = gone
    with pytest.raises(errors.IdentityMismatch):
        cluster.beat(4)
    cluster.brokers[4].disk = "another"
    cluster.pass_time(3000)
    assert len(cluster.tables.brokers) == 4 and cluster.tables.brokers[4].disk == "another"


def test_a_broker_is_removed_by_force_and_its_replicas_are_made_elsewhere() -> None:
    cluster = MovingCluster(4, t=12)
    cluster.update("create_topic", topic="single", partitions=4, replication=1)
    cluster.kill(2)
    cluster.pass_time(1500)
    (alone,) = [
        f"single/{n}"
        for n, one in enumerate(cluster.tables.topics["single"].partitions)
        if one.nodes == [2]
    ]
    assert cluster.update("remove_broker", node=2, force=True) == {
        "node": 2,
        "replicas": 10,
        "lost": 1,
        "stranded": 0,
        "lost_partitions": [alone],
        "stranded_partitions": [],
        "missed": f"it alone has {alone}, whose messages are lost without it",
    }
    cluster.until("whole again", lambda: not cluster.tables.moving)
    for group in cluster.tables.groups:
        topic, _ = cluster.tables.groups[group]
        if topic.name == "t":
            assert len(cluster.configs[group].voters) == 3
            assert 2 not in {node_of(one) for one in cluster.configs[group].voters}
    assert not any(2 in one.nodes for one in cluster.tables.gone.values())
