"""Consumer groups in the managers' tables: who may read what, and when it goes to somebody else."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metadata_rig import Rig

from myqueue import errors
from myqueue.daemons.metadata import assignment
from myqueue.daemons.metadata.group_records import ConsumerGroup
from myqueue.daemons.metadata.tables import CONSUMER_GROUP, GROUP_PARTITIONS, Tables


class Group:
    """One consumer group in a machine with topics t and u; what each member was told is noted."""

    def __init__(self, partitions: int = 6) -> None:
        self.rig = Rig(brokers=1)
        self.rig.run("create_topic", topic="t", partitions=partitions)
        self.owners: dict[tuple[int, int], int] = {}  # (partition, epoch) -> owner

    @property
    def team(self) -> ConsumerGroup:
        return self.rig.machine.tables.consumer_groups["g"]

    def join(self, *topics: str) -> int:
        return int(self.rig.run("join_group", group="g", topics=list(topics or "t"))["member"])

    def balance(self) -> None:
        self.rig.run("balance_groups", groups=["g"])

    def of(self, member: int) -> dict[int, int]:
        """Partition -> epoch, of what it may read."""
        return {s.group: s.epoch for s in self.team.shares.values() if s.owner == member}

    def to_let_go(self, member: int) -> list[list[int]]:
        shares = self.team.shares.values()
        return [[s.group, s.epoch] for s in shares if s.owner == member != s.wanted]

    def let_go(self, member: int) -> list[int]:
        pairs = self.to_let_go(member)
        found = self.rig.run("release_shares", group="g", member=member, shares=pairs)
        return list(found["released"])

    def sizes(self) -> list[int]:
        owners = Counter(share.owner for share in self.team.shares.values())
        return sorted(owners[member] for member in self.team.members)

    def check(self, freed: set[int]) -> None:
        """`freed`: members that let something go, or went, since the last check (C8)."""
        if "g" not in self.rig.machine.tables.consumer_groups:
            return
        last = dict(sorted(self.owners))
        for share in self.team.shares.values():
            assert share.owner in self.team.members or not share.owner
            before = last.get(share.group, 0)
            assert share.epoch >= before, "epochs only rise (C7)"
            known = self.owners.setdefault((share.group, share.epoch), share.owner)
            assert known == share.owner, "two owners in one epoch"
            previous = self.owners.get((share.group, before), 0)
            if share.epoch > before and previous in self.team.members:
                assert previous in freed, "taken from an owner that did not let go (C8)"


def test_c8_a_partition_moves_only_when_its_owner_lets_go() -> None:
    group = Group()
    one = group.join()
    assert group.of(one) == {}  # not before it is decided
    group.balance()
    had = group.of(one)
    assert len(had) == 6
    two = group.join()
    group.balance()
    assert group.of(one) == had and group.of(two) == {}
    assert len(group.to_let_go(one)) == 3
    assert len(group.let_go(one)) == 3
    assert group.sizes() == [3, 3]
    assert all(had[partition] < epoch for partition, epoch in group.of(two).items())
    assert group.let_go(one) == []


def test_members_that_start_together_are_dealt_out_once() -> None:
    group = Group(24)
    members = [group.join() for _ in range(6)]
    group.balance()
    assert group.sizes() == [4] * 6
    assert not any(group.to_let_go(member) for member in members)


def test_a_decision_that_was_cut_short_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members with different wishes: the managers are asked again until it is even."""
    monkeypatch.setattr(assignment, "MOVES_PER_DECISION_MAX", 5)
    group = Group(30)
    group.rig.run("create_topic", topic="u", partitions=1)
    first = group.join("t", "u")
    group.balance()
    assert not group.team.unbalanced
    second, rounds = group.join("t"), 0
    while group.team.unbalanced and rounds < 20:
        group.balance()
        rounds += 1
    group.let_go(first)
    assert rounds == 4 and abs(len(group.of(first)) - len(group.of(second))) <= 1


def test_a_release_of_another_epoch_or_of_a_stranger_changes_nothing() -> None:
    group = Group()
    one, two = group.join(), group.join()
    group.balance()
    mine = sorted(group.of(one).items())
    before = group.of(two)
    late = [[partition, epoch - 1] for partition, epoch in mine]
    for member, pairs in ((one, late), (two, mine), (99, mine)):
        found = group.rig.run("release_shares", group="g", member=member, shares=pairs)
        assert found == {"released": []}
    assert (sorted(group.of(one).items()), group.of(two)) == (mine, before)


@pytest.mark.parametrize("way", ["leave_group", "expire_members"])
def test_what_a_member_had_goes_on_at_once(way: str) -> None:
    group = Group()
    one, two = group.join(), group.join()
    group.balance()
    more = {"members": [one]} if way == "expire_members" else {"member": one}
    group.rig.run(way, group="g", **more)
    assert len(group.of(two)) == 6
    again = group.rig.outcome(way, b"", group="g", **more)
    assert isinstance(again, errors.UnknownMember) or again == {"gone": []}


def test_topics_grow_go_and_come_again() -> None:
    group = Group(2)
    group.rig.run("create_topic", topic="u", partitions=2)
    one, two = group.join("t", "u"), group.join("u")
    group.balance()
    assert group.sizes() == [2, 2]
    group.rig.run("grow_topic", topic="u", count=2)
    group.rig.run("delete_topic", topic="t")
    group.balance()
    assert [share.number for share in group.team.shares.values()] == [0, 1, 2, 3]
    assert not group.let_go(two)
    assert group.sizes() == [2, 2]
    uid = group.rig.machine.tables.topics["u"].uid
    assert group.team.known_partition_counts == {uid: 2}  # 2 and 3 are new to all
    group.rig.run("create_topic", topic="t")
    group.balance()
    group.let_go(one), group.let_go(two)
    assert group.sizes() == [2, 3]


def test_what_comes_after_a_join_is_new_to_the_group() -> None:
    """It is read from its start, also where members begin at the latest message: a topic that is
    made again, and partitions that come before the first decision."""
    group = Group(2)
    group.join("t", "u")
    group.rig.run("grow_topic", topic="t", count=1)
    tables = group.rig.machine.tables
    group.balance()
    assert group.team.known_partition_counts == {tables.topics["t"].uid: 2}
    group.rig.run("create_topic", topic="u", partitions=2)
    group.rig.run("delete_topic", topic="t")
    group.rig.run("create_topic", topic="t", partitions=3)
    group.join("t")  # another one that comes before the decision
    group.balance()
    assert group.team.known_partition_counts == {
        tables.topics["u"].uid: 0,
        tables.topics["t"].uid: 0,
    }


def test_c7_epochs_go_on_when_a_group_was_forgotten() -> None:
    group = Group(1)
    member = group.join()
    group.balance()
    (last,) = group.of(member).values()
    group.rig.run("leave_group", group="g", member=member)
    group.rig.run("alter_cluster", settings={"groups_max": 1})
    group.rig.run("join_group", group="other", topics=["t"])
    assert "g" not in group.rig.machine.tables.consumer_groups
    group.rig.refused("join_group", group="g", topics=["t"])
    group.rig.run("alter_cluster", settings={"groups_max": 2})
    member = group.join()
    group.balance()
    assert group.of(member).popitem()[1] > last


def test_a_reset_lies_between_the_owners_before_and_after_it() -> None:
    group = Group(2)
    member = group.join()
    group.balance()
    before = group.of(member)
    assert isinstance(group.rig.refused("begin_reset", group="g"), errors.GroupInUse)
    epoch = group.rig.run("begin_reset", group="g", force=True)["epoch"]
    assert group.of(member) == {}
    group.join()
    group.balance()
    assert group.sizes() == [0, 0]  # nobody gets anything until it is over
    assert group.rig.run("end_reset", group="g", epoch=epoch - 1) == {"ended": False}
    assert group.rig.run("end_reset", group="g", epoch=epoch) == {"ended": True}
    assert group.sizes() == [1, 1]
    for share in group.team.shares.values():
        assert before[share.group] < epoch < share.epoch


def test_a_group_is_removed_under_its_reset_when_nobody_is_in_it() -> None:
    group = Group()
    member = group.join()
    group.balance()
    epoch = group.rig.run("begin_reset", group="g", force=True)["epoch"]
    refused = group.rig.refused("remove_group", group="g", epoch=epoch)
    assert isinstance(refused, errors.GroupInUse)
    group.rig.run("leave_group", group="g", member=member)
    refused = group.rig.refused("remove_group", group="g", epoch=epoch - 1)
    assert isinstance(refused, errors.GroupInUse)  # somebody else's
    tables = group.rig.machine.tables
    uid = group.team.uid
    keys = [key for key in tables.row_keys() if key[:1] in (CONSUMER_GROUP, GROUP_PARTITIONS)]
    tables.changed.clear()
    group.rig.run("remove_group", group="g", epoch=epoch)
    assert tables.consumer_groups == {} and uid not in tables.consumer_groups_by_uid
    assert keys and not any(tables.row(key) for key in keys)
    assert tables.changed.issuperset(keys)  # the store is told
    assert isinstance(group.rig.refused("remove_group", group="g", epoch=1), errors.UnknownGroup)


def test_a_group_that_is_given_positions_knows_of_the_topic() -> None:
    """Else nobody could see them before the first member comes."""
    group = Group(3)
    epoch = group.rig.run("begin_reset", group="g", topics=["t"])["epoch"]
    group.rig.run("end_reset", group="g", epoch=epoch)
    assert group.team.known_partition_counts == {group.rig.machine.tables.topics["t"].uid: 3}


def test_what_is_wrong_is_refused() -> None:
    group = Group()
    for arguments in (
        {"group": "g"},
        {"group": "g", "topics": []},
        {"group": "g", "topics": ["bad name"]},
        {"group": "g/h", "topics": ["t"]},
        {"group": "g", "topics": ["t"], "session_ms": 999},
        {"group": "g", "topics": ["t"], "colour": 1},
        {"group": "g", "topics": [1]},
    ):
        group.rig.refused("join_group", **arguments)
    assert isinstance(group.rig.refused("end_reset", group="g", epoch=1), errors.UnknownGroup)
    group.join()
    assert isinstance(group.rig.refused("leave_group", group="g", member=1), errors.UnknownMember)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_c7_c8_no_partition_has_two_owners_in_one_epoch(seed: int) -> None:
    """A random schedule of all that can happen to a group; at its end it comes to rest."""
    random = Random(seed)
    group = Group(random.randint(1, 9))
    group.rig.run("create_topic", topic="u", partitions=2)
    members: list[int] = []
    for _ in range(60):
        freed: set[int] = set()
        one = random.choice(members) if members else 0
        choice = random.randint(0, 9)
        if choice <= 1 and len(members) < 7:
            members.append(group.join(*random.choice([("t",), ("t",), ("u",), ("t", "u")])))
        elif choice == 2 and one:
            way, more = random.choice(_WAYS_OUT)
            group.rig.run(way, group="g", **{more: one if more == "member" else [one, 1]})
            members.remove(one)
            freed = {one}
        elif choice <= 4:
            group.balance()
        elif choice <= 7 and one:
            pairs = [pair for pair in group.to_let_go(one) if random.random() < 0.7]
            group.rig.run("release_shares", group="g", member=one, shares=pairs)
            freed = {one} if pairs else set()
        elif choice == 8:
            name = random.choice(["t", "u"])
            group.rig.outcome(random.choice(["grow_topic", "delete_topic"]), topic=name)
            group.rig.outcome("create_topic", topic="t", partitions=random.randint(1, 9))
        elif choice == 9 and random.random() < 0.3:
            epoch = group.rig.run("begin_reset", group="g", force=True)["epoch"]
            group.check(set(members))
            group.rig.run("end_reset", group="g", epoch=epoch)
            freed = set(members)
        group.check(freed)
    _comes_to_rest(group, members)


_WAYS_OUT: list[tuple[str, Any]] = [("leave_group", "member"), ("expire_members", "members")]


def _comes_to_rest(group: Group, members: list[int]) -> None:
    group.balance()
    for _ in range(2):
        for member in members:
            group.let_go(member)
    if not members:
        return
    tables = group.rig.machine.tables
    for share in group.team.shares.values():
        assert share.owner == share.wanted
    wanted = {name for one in group.team.members.values() for name in one.topics}
    topics = [tables.topics[name] for name in wanted & set(tables.topics)]
    there = {partition.group for topic in topics for partition in topic.partitions}
    assert set(group.team.shares) == there
    again = Tables.from_rows((key, tables.row(key) or b"") for key in tables.row_keys())
    assert again.consumer_groups == tables.consumer_groups
