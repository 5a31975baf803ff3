"""The leader's half of consumer groups: sessions, waiting beats, when something is decided."""

from __future__ import annotations

from typing import Any

import pytest
from support.manager_rig import FakeBroker, ManagerCluster

from myqueue import errors
from myqueue.daemons.manager.group_sessions import (
    JOIN_GATHER_MS_MAX,
    JOIN_QUIET_MS,
    RESET_MS_MAX,
    STALL_MS,
)
from myqueue.wire import protocol

SESSION_MS = 3000


class Groups(ManagerCluster):
    """A manager, a topic t with 4 partitions, and members of group g."""

    def __init__(self) -> None:
        super().__init__(brokers=1)
        self.update("create_topic", topic="t", partitions=4)

    def join(self) -> int:
        found = self.update("join_group", group="g", topics=["t"], session_ms=SESSION_MS)
        return int(found["member"])

    def settle(self) -> None:
        for _ in range(5):
            self.turn(JOIN_QUIET_MS // 2)

    def sign(self, member: int, seen: int = 0, released: Any = (), wait_ms: int = 1000) -> int:
        """Its request's id; it came, and leadership is confirmed."""
        request = self.ask(protocol.MEMBER, "g", member, seen, wait_ms, list(released))
        self.confirm()
        return request

    def confirm(self) -> None:
        contexts, self.engine.reads[:] = list(self.engine.reads), []
        for context in contexts:
            self.manager.read_ready(context)

    def told(self, member: int) -> Any:
        """(version, rows) as this member hears it now."""
        request = self.sign(member)
        ((kind, back, version, _, rows),) = self.answers()
        assert (kind, back) == (protocol.MEMBERSHIP, request)
        return version, rows

    def members(self) -> set[int]:
        return set(self.tables.consumer_groups["g"].members)


def refusal(answer: Any) -> int:
    assert answer[0] == protocol.ERROR
    return int(answer[2])


def test_members_that_start_together_are_dealt_out_once() -> None:
    groups = Groups()
    members = [groups.join()]
    groups.turn(JOIN_QUIET_MS - 50)
    members.append(groups.join())
    groups.turn(JOIN_QUIET_MS - 50)
    assert not groups.tables.consumer_groups["g"].shares
    groups.settle()
    shares = groups.tables.consumer_groups["g"].shares.values()
    assert sorted(share.owner for share in shares) == sorted(2 * members)
    assert len({share.epoch for share in shares}) == 1


def test_joins_that_do_not_end_are_dealt_out_all_the_same() -> None:
    groups = Groups()
    for _ in range(JOIN_GATHER_MS_MAX // 50 + 2):
        groups.join()
        groups.turn(50)
    assert groups.tables.consumer_groups["g"].shares


def test_a_rebalance_is_told_at_once_to_who_waits() -> None:
    groups = Groups()
    one = groups.join()
    groups.settle()
    version, rows = groups.told(one)
    assert [row[1:3] + row[4:] for row in rows] == [["t", n, False, False] for n in range(4)]
    waiting = groups.sign(one, version)
    assert groups.answers() == []
    two = groups.join()
    groups.answers()
    groups.settle()
    ((kind, request, version, session_ms, rows),) = groups.answers()
    assert (kind, request, session_ms) == (protocol.MEMBERSHIP, waiting, SESSION_MS)
    let_go = [[row[0], row[3]] for row in rows if row[4]]
    assert len(let_go) == 2
    assert groups.told(two)[1] == []
    hears = groups.sign(two, groups.told(two)[0])
    groups.sign(one, version, let_go)
    groups.commit()
    told = {answer[1]: answer[4] for answer in groups.answers()}
    assert sorted(row[0] for row in told[hears]) == sorted(group for group, _ in let_go)
    assert not any(row[4] for rows in told.values() for row in rows)


def test_partitions_that_are_added_are_dealt_out_and_are_new_to_all() -> None:
    groups = Groups()
    one = groups.join()
    groups.settle()
    groups.update("grow_topic", topic="t", count=1)
    groups.settle()
    assert [row[5] for row in groups.told(one)[1]] == [False] * 4 + [True]
    groups.update("delete_topic", topic="t")
    groups.settle()
    assert groups.told(one)[1] == []


def test_nobody_waits_for_longer_than_he_wants() -> None:
    groups = Groups()
    one = groups.join()
    groups.settle()
    version, _ = groups.told(one)
    groups.sign(one, version, wait_ms=200)
    groups.turn(150)
    assert groups.answers() == []
    groups.turn(50)
    assert groups.answers()[0][2] == version


def test_a_newer_beat_of_a_member_ends_the_older() -> None:
    groups = Groups()
    one = groups.join()
    groups.settle()
    version, _ = groups.told(one)
    first, second = groups.sign(one, version), groups.sign(one, version)
    assert [answer[1] for answer in groups.answers()] == [first]
    assert second not in [answer[1] for answer in groups.answers()]


def test_c8_a_session_ends_when_no_beat_came() -> None:
    groups = Groups()
    one, two = groups.join(), groups.join()
    groups.settle()
    groups.told(one), groups.told(two)
    for _ in range(SESSION_MS // 50 - 2):
        groups.turn(50)
        groups.told(two)
    assert groups.members() == {one, two}
    for _ in range(5):
        groups.turn(50)
    assert groups.members() == {two}
    assert {share.owner for share in groups.tables.consumer_groups["g"].shares.values()} == {two}
    with pytest.raises(errors.UnknownMember):
        groups.sign(one)


def test_an_end_that_could_not_be_proposed_is_asked_for_again_at_once() -> None:
    """Its partitions wait for that; and nobody is told of an end that was not asked for."""
    groups = Groups()
    one = groups.join()
    groups.settle()
    groups.told(one)
    groups.engine.refuse_with = errors.Busy("the disk is behind")
    for _ in range(SESSION_MS // 50 + 3):
        groups.turn(50)
    assert groups.members() == {one}
    groups.engine.refuse_with = None
    for _ in range(3):
        groups.turn(50)
    assert groups.members() == set()


def test_c8_a_beat_counts_only_when_leadership_is_confirmed() -> None:
    groups = Groups()
    one = groups.join()
    for _ in range(SESSION_MS // 100 + 3):
        groups.turn(100)
        if groups.members():
            groups.ask(protocol.MEMBER, "g", one, 0, 100, [])
    assert groups.members() == set()
    groups.confirm()
    assert {refusal(answer) for answer in groups.answers()} == {errors.UnknownMember.code}


def test_c8_a_new_leader_gives_everybody_a_whole_session() -> None:
    groups = Groups()
    one = groups.join()
    groups.settle()
    for _ in range(SESSION_MS // 100 - 5):
        groups.turn(100)
    version = groups.tables.consumer_groups["g"].members[one].version
    waiting = groups.sign(one, version)
    groups.follow(2)
    (answer,) = groups.answers()
    assert (answer[1], refusal(answer)) == (waiting, errors.NotLeader.code)
    with pytest.raises(errors.NotLeader):
        groups.sign(one)
    groups.engine.now += SESSION_MS
    groups.lead()
    for _ in range(SESSION_MS // 100 - 1):
        groups.turn(100)
    assert groups.members() == {one}
    groups.turn(100), groups.turn(100), groups.turn(100)
    assert groups.members() == set()


def test_c8_a_leader_that_stood_still_ends_nobodys_session() -> None:
    groups = Groups()
    one = groups.join()
    groups.settle()
    groups.turn(max(STALL_MS, SESSION_MS) + 1)
    groups.turn(100)
    assert groups.members() == {one}


def test_a_reset_that_nobody_ends_is_ended() -> None:
    groups = Groups()
    groups.update("begin_reset", group="g")
    groups.turn(100)
    assert groups.read("group", group="g")["state"] == "resetting"
    for _ in range(RESET_MS_MAX // 500 + 2):
        groups.turn(500)
    assert groups.read("group", group="g")["state"] == "empty"


def test_a_member_with_more_than_an_answer_can_name_is_told_so_and_harms_nobody() -> None:
    groups = Groups()
    name = "t" * 200
    for node in (2, 3):
        groups.brokers[node] = FakeBroker(node)
        groups.beat(node)
    groups.turn()
    groups.update("create_topic", topic=name, partitions=1000, replication=1)
    for _ in range(4):
        groups.update("grow_topic", topic=name, count=1000)
    found = groups.update("join_group", group="g", topics=[name], session_ms=SESSION_MS)
    one = int(found["member"])
    waits = groups.sign(one, 1 << 40)  # news for it come while it waits, in the loop's own turn
    groups.settle()
    groups.turn(SESSION_MS // 2)
    (answer,) = groups.answers()
    assert answer[1] == waits and refusal(answer) == errors.InvalidRequest.code
    assert "5000 partitions" in answer[3] and "add members" in answer[3]
    two = int(groups.update("join_group", group="g", topics=[name])["member"])
    groups.sign(one)
    groups.settle()
    pairs = [
        [s.group, s.epoch]
        for s in groups.tables.consumer_groups["g"].shares.values()
        if s.owner != s.wanted
    ]
    groups.sign(one, released=pairs)
    groups.commit()
    groups.answers()
    assert len(groups.told(two)[1]) == 2500  # who has half of them is told all


def test_groups_are_told() -> None:
    groups = Groups()
    assert groups.read("groups") == {"groups": []}
    groups.ask(protocol.READ, "topics", {}, 0, False)
    groups.answers()
    with pytest.raises(errors.UnknownGroup):
        groups.read("group", group="g")
    one = groups.join()
    groups.settle()
    found = groups.read("group", group="g")
    assert (found["state"], found["topics"]) == ("stable", ["t"])
    assert [row["member"] for row in found["partitions"]] == [one] * 4
    assert [(row["member"], row["partitions"]) for row in found["members"]] == [(one, 4)]
    (row,) = groups.read("groups")["groups"]
    assert (row["group"], row["state"], row["members"], row["partitions"]) == ("g", "stable", 1, 4)
