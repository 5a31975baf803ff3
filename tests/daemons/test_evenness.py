"""What is even, and the steps towards it (B4, P4)."""

from __future__ import annotations

from random import Random

import pytest

from myqueue.daemons.manager.balancer.balance import better_leaders, is_uneven, next_move
from myqueue.daemons.metadata import placement


def test_within_a_tenth_or_one_is_even() -> None:
    assert not is_uneven(9, 8, 8.5)
    assert is_uneven(9, 7, 8)
    assert not is_uneven(105, 95, 100)
    assert is_uneven(111, 95, 100) and is_uneven(105, 89, 100)


def levelled(
    groups: dict[int, list[int]], nodes: list[int], hosts: dict[int, str]
) -> tuple[dict[int, int], int]:
    """Who holds how many when nothing is moved any more, and how many moves it took."""
    held = {node: sum(node in one for one in groups.values()) for node in nodes}
    moves = 0
    while (step := next_move(lambda _: groups.items(), held, hosts, nodes, nodes)) is not None:
        group, giver, taker = step
        assert taker not in groups[group]
        groups[group][groups[group].index(giver)] = taker
        held[giver] -= 1
        held[taker] += 1
        moves += 1
        assert moves < 1000
    return held, moves


@pytest.mark.parametrize("partitions", [12, 60, 100])
def test_p4_a_new_broker_gets_its_share_and_no_more_is_moved(partitions: int) -> None:
    old = [placement.BrokerLoad(node, f"h{node}") for node in (1, 2, 3)]
    groups = dict(enumerate(placement.place_partitions(old, partitions, 3)))
    hosts = {node: f"h{node}" for node in (1, 2, 3, 4)}
    held, moves = levelled(groups, [1, 2, 3, 4], hosts)
    share = partitions * 3 / 4
    assert all(abs(count - share) <= max(1, share / 10) for count in held.values())
    assert moves <= share + 1


def test_hosts_are_kept_apart() -> None:
    """Two brokers on one host: the new one takes nothing of which the other has a replica."""
    groups = {number: [1, 2, 3] for number in range(8)}
    held, _ = levelled(groups, [1, 2, 3, 4], {1: "a", 2: "b", 3: "c", 4: "a"})
    assert all(not {1, 4} <= set(one) for one in groups.values())
    assert held == {1: 4, 2: 8, 3: 8, 4: 4}


def test_leaders_are_evened_out_through_others() -> None:
    """1 has too many and 3 too few, but they share nothing: 2 passes one on."""
    groups = {1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [2, 3], 5: [2, 3], 6: [3, 2]}
    steps = better_leaders(groups.items(), [1, 2, 3])
    assert len(steps) == 2 and {node for _, node in steps} == {2, 3}
    assert better_leaders({1: [1, 2], 2: [2, 1], 3: [1, 2]}.items(), [1, 2]) == []


@pytest.mark.parametrize("seed", range(20))
def test_leaders_of_any_placement_become_even(seed: int) -> None:
    random = Random(seed)
    nodes = list(range(1, random.randint(3, 7)))
    groups = {number: random.sample(nodes, 2) for number in range(40)}
    for group, node in better_leaders(groups.items(), nodes):
        groups[group].remove(node)
        groups[group].insert(0, node)
    led = [sum(one[0] == node for one in groups.values()) for node in nodes]
    assert max(led) - min(led) <= 1, led
    assert better_leaders(groups.items(), nodes) == []
