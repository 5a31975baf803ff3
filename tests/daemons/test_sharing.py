"""Who should read which partition of a group: even, sticky, the same everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.daemons.metadata import assignment
from myqueue.daemons.metadata.assignment import Assignment

Partitions = list[tuple[int, int]]

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=4)
WISHES = st.dictionaries(
    st.integers(1, 9), st.frozensets(st.integers(0, 3), min_size=1), max_size=6
)


def share_out(*given: Any) -> Assignment:
    """As often as it takes."""
    wishes, partitions, before = given
    decision = before
    for _ in range(100):
        decision, is_even = assignment.assign_partitions(wishes, partitions, decision)
        if is_even:
            return decision
    raise AssertionError("it never comes to an end")


def parts(sizes: list[int]) -> Partitions:
    """Partitions of topics of these sizes."""
    return [(100 * topic + n, topic) for topic, size in enumerate(sizes) for n in range(size)]


def counts(decision: Assignment, members: Iterable[int]) -> dict[int, int]:
    found = Counter(decision.values())
    return {one: found[one] for one in members}


def moved(before: Assignment, after: Assignment) -> int:
    """Of those that had a home, and have one."""
    return sum(bool(before.get(one)) and before[one] != who for one, who in after.items())


@given(st.sets(st.integers(1, 30), min_size=1, max_size=8), SIZES)
def test_equal_wishes_differ_by_one_at_most(members: set[int], sizes: list[int]) -> None:
    every = frozenset(range(len(sizes)))
    decision = share_out(dict.fromkeys(members, every), parts(sizes), {})
    found = counts(decision, members)
    assert max(found.values()) - min(found.values()) <= 1
    assert sum(found.values()) == sum(sizes)


@settings(max_examples=200)
@given(
    st.sets(st.integers(1, 9), min_size=1, max_size=6),
    SIZES,
    st.dictionaries(st.integers(0, 409), st.integers(1, 12), max_size=30),
)
def test_as_few_move_as_evenness_allows(
    members: set[int], sizes: list[int], had: dict[int, int]
) -> None:
    """Counted: what is above the quota has to go, what is below has to come."""
    partitions = parts(sizes)
    before = {one: had[one] for one, _ in partitions if had.get(one) in members}
    every = frozenset(range(len(sizes)))
    after = share_out(dict.fromkeys(members, every), partitions, before)
    quota, more = divmod(len(partitions), len(members))
    kept = sorted(counts(before, members).values(), reverse=True)
    over = sum(max(0, n - quota - (place < more)) for place, n in enumerate(kept))
    assert moved(before, after) == over
    found = counts(after, members)
    assert not found or max(found.values()) - min(found.values()) <= 1


@settings(max_examples=200)
@given(WISHES, SIZES)
def test_different_wishes_are_served_as_evenly_as_can_be(
    wishes: dict[int, frozenset[int]], sizes: list[int]
) -> None:
    partitions = parts(sizes)
    after = share_out(wishes, partitions, {})
    for partition, topic in partitions:
        wanting = [one for one, topics in wishes.items() if topic in topics]
        assert after[partition] in (wanting or [0])
    found = counts(after, wishes)
    for (partition, topic), taker in product(partitions, wishes):
        giver = after[partition]
        if giver and topic in wishes[taker]:
            assert found[giver] - found[taker] <= 1, "one move would make it more even"
    assert share_out(wishes, partitions, after) == after  # it is settled


def test_a_chain_of_moves_is_found() -> None:
    """1 can give to 2 only, and 2 to 3 only."""
    wishes = {1: frozenset([0]), 2: frozenset([0, 1]), 3: frozenset([1])}
    partitions = parts([3, 2])
    before = {0: 1, 1: 1, 2: 1, 100: 2, 101: 2}
    after = share_out(wishes, partitions, before)
    assert counts(after, wishes) == {1: 2, 2: 2, 3: 1}
    assert moved(before, after) == 2


def test_r27_the_order_in_which_members_and_decisions_stand_changes_nothing() -> None:
    random = Random(5)
    for _ in range(100):
        wishes = {n: frozenset(random.sample(range(4), random.randint(1, 4))) for n in range(1, 8)}
        partitions = parts([random.randint(0, 9) for _ in range(4)])
        before = {one: random.randint(0, 9) for one, _ in partitions}
        expected = share_out(wishes, partitions, before)
        shuffled = dict(random.sample(sorted(wishes.items()), len(wishes)))
        again = dict(random.sample(sorted(before.items()), len(before)))
        assert share_out(shuffled, partitions, again) == expected


def test_members_come_and_go() -> None:
    partitions, every = parts([24]), frozenset([0])
    one = share_out({1: every}, partitions, {})
    six = share_out(dict.fromkeys(range(1, 7), every), partitions, one)
    assert moved(one, six) == 20
    five = share_out(dict.fromkeys(range(1, 6), every), partitions, six)
    assert moved({p: who for p, who in six.items() if who != 6}, five) == 0
    assert sorted(counts(five, range(1, 6)).values()) == [4, 5, 5, 5, 5]
    assert share_out({}, partitions, five) == dict.fromkeys((p for p, _ in partitions), 0)


def test_a_large_group_is_decided_quickly_enough_for_a_state_machine() -> None:
    partitions, every = parts([10_000]), frozenset([0])
    before = dict.fromkeys((p for p, _ in partitions), 1)
    after = share_out(dict.fromkeys(range(1, 1001), every), partitions, before)
    assert set(counts(after, range(1, 1001)).values()) == {10}


def test_no_decision_takes_long() -> None:
    """Many that are even among themselves are looked at once, not each for itself, before two that
    are not.
    """
    many = {member: frozenset({1}) for member in range(1, 701)}
    wishes = many | {701: frozenset({2, 3}), 702: frozenset({2})}
    partitions = [(n, 1) for n in range(3500)] + [(n, 2) for n in range(4000, 4200)]
    before = {n: 1 + n % 700 for n in range(3500)} | dict.fromkeys(range(4000, 4200), 701)
    spread = assignment._AssignmentBuilder(wishes)
    for partition, topic in partitions:
        spread.give(before[partition], partition, topic)
    assert spread.even_out() and spread._steps <= assignment.EXAMINED_PER_DECISION_MAX
    assert spread.counts[701] == spread.counts[702] == 100


def test_nor_does_one_about_many_topics() -> None:
    """What costs time is looks at who wants them, not moves."""
    topics = frozenset(range(1, 401))
    wishes = {member: topics - {member % 400 + 1} for member in range(1, 31)}
    partitions = [(4 * topic + n, topic) for topic in topics for n in range(4)]
    before = {
        partition: next(m for m in range(1 + partition % 15, 31) if topic in wishes[m])
        for partition, topic in partitions
    }
    spread = assignment._AssignmentBuilder(wishes)
    for partition, topic in partitions:
        spread.give(before[partition], partition, topic)
    assert not spread.even_out()
    most = sum(map(len, wishes.values())) + len(wishes)  # what the last chain looked at
    assert spread._steps <= assignment.EXAMINED_PER_DECISION_MAX + most


def test_a_long_decision_is_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has too much of what few want gives it away, however much that is."""
    monkeypatch.setattr(assignment, "MOVES_PER_DECISION_MAX", 5)
    wishes = {1: frozenset({1, 2}), 2: frozenset({1})}
    partitions = [(number, 1) for number in range(60)]
    before = dict.fromkeys(range(60), 1)
    after, is_even = assignment.assign_partitions(wishes, partitions, before)
    assert not is_even and list(after.values()).count(2) == 5
    assert list(share_out(wishes, partitions, before).values()).count(2) == 30
