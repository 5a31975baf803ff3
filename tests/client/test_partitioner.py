"""Where messages go: the same key to the same place for ever, the rest evenly."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.cluster.partitioner import Spread, partition_of


@pytest.mark.parametrize(
    ("key", "partitions", "expected"),
    [(b"", 7, 0), (b"a", 8, 3), (b"customer 4", 12, 3), (b"\x00\xff", 5, 4), (b"k" * 100, 3, 2)],
)
def test_the_place_of_a_key_never_changes(key, partitions, expected):
    """Part of the contract with other versions and languages: CRC-32 modulo the count."""
    assert partition_of(key, partitions) == expected


def test_single_messages_go_round():
    spread = Spread(3)
    assert [spread.next() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@given(runs=st.lists(st.integers(1, 1000), max_size=200), partitions=st.integers(1, 20))
def test_runs_of_any_length_spread_evenly(runs, partitions):
    """No partition is ahead of another by more than one run."""
    spread = Spread(partitions)
    for run in runs:
        spread.next(run)
    assert sum(spread.given) == sum(runs)
    assert max(spread.given) - min(spread.given) <= max(runs, default=0)


def test_a_new_partition_is_not_flooded():
    spread, chance = Spread(2), random.Random(1)
    for _ in range(100):
        spread.next(chance.randint(1, 50))
    spread.grow(3)
    before = list(spread.given)
    for _ in range(90):
        spread.next()
    assert all(now - then >= 10 for now, then in zip(spread.given, before, strict=True))


def test_a_partition_that_can_not_take_anything_is_avoided_and_comes_back_without_a_flood():
    spread = Spread(3)
    spread.avoid(1)
    assert [spread.next() for _ in range(4)] == [0, 2, 0, 2]
    spread.welcome(1)
    assert [spread.next() for _ in range(3)] == [0, 1, 2]
    for partition in range(3):
        spread.avoid(partition)
    assert {spread.next() for _ in range(3)} == {0, 1, 2}, "all are as good as none"
