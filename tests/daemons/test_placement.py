"""Placement: even by load, spread over hosts, the same each time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.daemons.metadata.placement import BrokerLoad, place_partitions


def cluster(hosts: int, on_each: int) -> list[BrokerLoad]:
    return [
        BrokerLoad(10 * host + number, f"host-{host}")
        for host in range(hosts)
        for number in range(on_each)
    ]


def settle(brokers: list[BrokerLoad], chosen: list[list[int]]) -> None:
    """What placing them means for the brokers."""
    by_node = {one.node: one for one in brokers}
    for nodes in chosen:
        by_node[nodes[0]].leaders += 1
        for node in nodes:
            by_node[node].replicas += 1


def spread(values: list[int]) -> int:
    return max(values) - min(values)


@given(st.data())
def test_equal_brokers_get_equally_many(data: st.DataObject) -> None:
    """Replicas and preferred leaders differ by at most 1, however the partitions came."""
    hosts, on_each = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    brokers = cluster(hosts, on_each)
    replication = data.draw(st.integers(1, min(6, len(brokers))))
    for count in data.draw(st.lists(st.integers(1, 20), max_size=8)):
        settle(brokers, place_partitions(brokers, count, replication))
        assert spread([one.replicas for one in brokers]) <= 1
        assert spread([one.leaders for one in brokers]) <= 1


@given(st.integers(1, 9), st.data())
def test_mixed_replication_stays_nearly_even(count: int, data: st.DataObject) -> None:
    brokers = cluster(count, 1)
    for replication in data.draw(st.lists(st.integers(1, count), max_size=40)):
        settle(brokers, place_partitions(brokers, 1, replication))
        assert spread([one.replicas for one in brokers]) <= 1
        assert spread([one.leaders for one in brokers]) <= 2


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.integers(0, 50)), min_size=1),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_hosts_are_distinct_where_possible(
    given: list[tuple[int, int, int]], replication: int, count: int
) -> None:
    brokers = [BrokerLoad(n + 1, f"host-{h}", r, lead) for n, (h, r, lead) in enumerate(given)]
    replication = min(replication, len(brokers))
    host_of = {one.node: one.host for one in brokers}
    sizes = Counter(host_of.values())
    chosen = place_partitions(brokers, count, replication)
    assert len(chosen) == count
    for nodes in chosen:
        assert len(set(nodes)) == len(nodes) == replication
        used = Counter(host_of[node] for node in nodes)
        for host, times in used.items():
            for other, size in sizes.items():
                # Two more on one host than on another only if the other has no more brokers.
                assert times <= used[other] + 1 or used[other] == size, (host, other)


@given(st.permutations(cluster(3, 2)), st.integers(1, 6))
def test_the_order_of_the_brokers_does_not_matter(
    brokers: list[BrokerLoad], replication: int
) -> None:
    assert place_partitions(brokers, 9, replication) == place_partitions(
        cluster(3, 2), 9, replication
    )
    assert all(one.replicas == one.leaders == 0 for one in brokers)


def test_a_new_broker_is_filled_first() -> None:
    brokers = [BrokerLoad(1, "a", 10, 5), BrokerLoad(2, "b", 10, 5), BrokerLoad(3, "c")]
    assert place_partitions(brokers, 2, 1) == [[3], [3]]
    assert all(nodes[0] == 3 for nodes in place_partitions(brokers, 4, 2))


def test_more_replicas_than_brokers_are_no_question_for_placement() -> None:
    with pytest.raises(ValueError, match="3 replicas on 2 brokers"):
        place_partitions(cluster(2, 1), 1, 3)
    with pytest.raises(ValueError, match="0 replicas"):
        place_partitions(cluster(2, 1), 1, 0)
