"""Orders that name only what changed, and long orders in parts.

A thousand topics, one after another, would otherwise make each broker read half a million rows.
"""

from __future__ import annotations

from typing import Any

from support.broker_seam import GROUP, World
from support.manager_rig import ManagerCluster
from support.orders import answer, later, orders, wanted_row

from myqueue.daemons.broker.manager_link import URGENT_BURST, URGENT_INTERVAL_MS
from myqueue.daemons.manager.broker_orders import ROWS_PER_PART_MAX, in_parts
from myqueue.wire import protocol

TOPICS = 60


def create_topics(cluster: ManagerCluster) -> None:
    for number in range(TOPICS):
        cluster.update("create_topic", topic=f"topic-{number}")
        cluster.beat_all()


# -- managers -------------------------------------------------------------------------------------


def test_a_broker_reads_each_new_partition_once() -> None:
    cluster = ManagerCluster(brokers=3)
    cluster.beat_all()
    create_topics(cluster)
    assert [broker.rows_read for broker in cluster.brokers.values()] == [TOPICS] * 3
    assert all(len(broker.groups) == TOPICS for broker in cluster.brokers.values())


def test_orders_sent_unasked_go_on_from_each_other() -> None:
    """The broker's next heartbeat comes only after a thousand topics, say."""
    cluster = ManagerCluster(brokers=1)
    cluster.beat_all()
    cluster.engine.peer_replies.clear()
    for number in range(3):
        cluster.update("create_topic", topic=f"topic-{number}")
    pushed = [envelope[3] for _, envelope in map(_named, cluster.engine.peer_replies)]
    assert [[row[1] for row in one["wanted"]] for one in pushed] == [
        ["topic-0"],
        ["topic-1"],
        ["topic-2"],
    ]
    assert [one["since"] for one in pushed[1:]] == [one["version"] for one in pushed[:-1]]


def _named(reply: Any) -> tuple[str, Any]:
    return reply[0], reply[1]


def test_a_lost_push_is_made_good_by_the_next_heartbeat() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.beat_all()
    cluster.update("create_topic", topic="lost")
    cluster.engine.peer_replies.clear()
    cluster.update("create_topic", topic="next")
    _, envelope = cluster.engine.peer_replies.pop()
    cluster.brokers[1].obey(envelope[3])
    assert not cluster.brokers[1].groups, "what changed before is missing"
    cluster.beat(1)
    assert len(cluster.brokers[1].groups) == 2


def test_deleted_and_changed_topics_are_named() -> None:
    cluster = ManagerCluster(brokers=2)
    cluster.beat_all()
    create_topics(cluster)
    first, second = (cluster.tables.topics[f"topic-{n}"].partitions[0].group for n in (0, 1))
    cluster.update("delete_topic", topic="topic-0")
    cluster.update("alter_topic", topic="topic-1", settings={"retention_ms": 9})
    said = cluster.beat(1)
    assert (said["unwanted"], [row[0] for row in said["wanted"]]) == ([first], [second])
    assert said["wanted"][0][5]["retention_ms"] == 9


def test_brokers_of_an_older_version_get_all_orders() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.brokers[1].reads_changes = False
    cluster.beat_all()
    cluster.update("create_topic", topic="one")
    cluster.beat_all()
    cluster.update("create_topic", topic="two")
    said = cluster.beat(1)
    assert "since" not in said and len(said["wanted"]) == 2


def test_a_manager_that_loaded_its_state_names_all_first() -> None:
    """It has not seen what changed before."""
    cluster = ManagerCluster(brokers=1)
    cluster.beat_all()
    create_topics(cluster)
    cluster.update("open_producer")  # changes no orders, so the broker follows an earlier version
    machine = cluster.manager._metadata
    machine.restore(machine.snapshot())
    cluster.update("create_topic", topic="new")
    said = cluster.beat(1)
    assert "since" not in said and len(said["wanted"]) == TOPICS + 1
    cluster.update("create_topic", topic="newest")
    assert len(cluster.beat(1)["wanted"]) == 1


def test_long_orders_are_divided_and_fit_into_envelopes() -> None:
    many = 3 * ROWS_PER_PART_MAX + 1
    replicas = [[(1 << 31) - 1, 1 << 60]] * 9
    settings = {f"{name}_something_max": 1 << 62 for name in "abcd"}
    rows = [
        [1 << 62 | n, "n" * 200, 999, 1 << 62, replicas, settings, replicas, 1 << 60]
        for n in range(many)
    ]
    whole = orders(wanted=rows, founders=[[row[0], replicas] for row in rows], version=7)
    parts = in_parts(whole)
    assert [len(part["wanted"]) for part in parts] == [ROWS_PER_PART_MAX] * 3 + [1]
    assert [row for part in parts for row in part["wanted"]] == rows
    for part in parts:
        frame = protocol.encode(protocol.ORDERS, 1, part)
        assert len(frame) <= protocol.ENVELOPE_BYTES_MAX and protocol.decode(frame)[3] == part


# -- brokers --------------------------------------------------------------------------------------


def test_a_broker_adds_changes_to_what_it_follows() -> None:
    world = World()
    answer(world, orders(version=9, wanted=[wanted_row(5, [[1, 7]]), wanted_row(6, [[1, 8]])]))
    answer(world, orders(version=11, since=9, wanted=[wanted_row(7, [[1, 9]])], unwanted=[6]))
    link = world.broker.orders
    assert (set(link.wanted), link.version) == ({5, 7}, 11)
    assert {5, 6, 7} <= set(world.engine.replicas), "only a named replica is removed"


def test_changes_since_a_version_that_it_does_not_follow_are_left_alone() -> None:
    world = World()
    answer(world, orders(version=9, wanted=[wanted_row(5, [[1, 7]])]))
    answer(world, orders(version=12, since=10, wanted=[wanted_row(6, [[1, 8]])], gone=[[5, 7]]))
    link = world.broker.orders
    assert (set(link.wanted), link.version) == ({5}, 9) and 5 in world.engine.replicas
    answer(world, orders(version=12, since=8, wanted=[wanted_row(6, [[1, 8]])]))
    assert (set(link.wanted), link.version) == ({5, 6}, 12)


def long_orders(version: int, count: int = 2 * ROWS_PER_PART_MAX) -> list[dict[str, Any]]:
    rows = [wanted_row(100 + n, [[2, 7]]) for n in range(count)]
    return in_parts(orders(version=version, wanted=rows, founders=[]))


def test_parts_count_once_all_are_there() -> None:
    world = World()
    first, second = long_orders(9)
    link = world.broker.orders
    answer(world, first)
    assert (link.version, link.wanted) == (0, {})
    answer(world, second)
    assert (link.version, len(link.wanted)) == (9, 2 * ROWS_PER_PART_MAX)


def test_parts_of_other_orders_are_not_mixed() -> None:
    world = World()
    (first, second), (other_first, other_second) = long_orders(9), long_orders(10)
    link = world.broker.orders
    answer(world, second)
    answer(world, first)
    answer(world, other_second)
    answer(world, second)  # its first part was forgotten
    answer(world, first, manager=1)
    answer(world, second, manager=2)
    assert (link.version, link.wanted) == (0, {})
    answer(world, other_first)
    answer(world, other_second)
    assert link.version == 10


def test_a_storm_of_elections_is_reported_in_few_heartbeats() -> None:
    """A leader that changes alone is reported at once, one of thousands soon."""
    world = World()
    replicas = [world.add(GROUP + 1 + number) for number in range(1000)]
    later(world)
    sent = 0
    for replica in replicas:
        world.engine.lead(replica)
        sent += len(later(world, ms=1)) // 2  # for each manager one
    assert URGENT_BURST <= sent <= 1000 // URGENT_INTERVAL_MS + URGENT_BURST + 3
    assert {row[0] for row in later(world)[0][2]["groups"]} >= {GROUP + 1000}
    later(world, ms=1000)
    world.engine.lead(replicas[0])
    assert len(later(world, ms=1)) == 2, "at once again"
