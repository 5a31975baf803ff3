"""A member's half of a group, pure: what it reads, lets go of, loses; and what it fences."""

from __future__ import annotations

from typing import Any

import pytest
from kit.partition_log import A, B, Bench, PartitionLog, offsets

from myqueue import errors
from myqueue.prefetch import Fence, Fetch, Lookup
from myqueue.protocol import NO_OFFSET
from myqueue.reading import Find
from myqueue.shares import Shares

WHO, MEMBER = "group/g", 50


class Desk(Bench):
    """A member, with partitions whose positions are kept under the group's name."""

    def __init__(self, leaders: list[str], **options: Any) -> None:
        self.leaders = leaders
        self.fences: list[Any] = []
        super().__init__(leaders, who=WHO, shares=Shares(), **options)
        assert self.sub.shares is not None
        self.shares = self.sub.shares
        self.shares.joined(MEMBER, 10_000)

    def given(self, version: int, *rows: tuple[int, int, bool]) -> None:
        """(number, epoch, to let go?) of all that is ours."""
        told = [[100 + number, "t", number, epoch, go, False] for number, epoch, go in rows]
        self.sub.shared(version, told)
        self.route(self.leaders)

    def answer(self, request: Any) -> None:
        if isinstance(request, Fence):
            self.fences.append(request.fields)
            rows = [[group, 0, NO_OFFSET, None] for group, *_ in request.fields[1]]
            self.sub.prefetch.fenced(request, rows, self.now)
        else:
            super().answer(request)


def test_a_member_reads_what_it_was_given_and_nothing_else() -> None:
    desk = Desk([A, A, B])
    for log in desk.logs.values():
        log.append(3)
    assert desk.read() == []
    desk.given(1, (1, 7, False))
    assert desk.sub.news == [([("t", 1)], [])]
    found = desk.read()
    assert offsets(found, 1) == [0, 1, 2] and len(found) == 3
    (commit,) = desk.sub.commits()
    assert commit.parts == [[101, 3, MEMBER, 7]]


def test_c7_a_partition_is_fenced_before_its_position_is_asked_for() -> None:
    desk = Desk([A, A])
    desk.given(1, (0, 7, False), (1, 8, False))
    (fence,) = desk.requests()
    assert isinstance(fence, Fence)
    assert fence.fields == (WHO, [[100, NO_OFFSET, MEMBER, 7], [101, NO_OFFSET, MEMBER, 8]])
    assert desk.requests() == []  # not before the answer
    refused = [100, errors.Fenced.code, 0, None]  # a newer owner is there already
    desk.sub.prefetch.fenced(fence, [refused, [101, 0, NO_OFFSET, None]], desk.now)
    (lookup,) = desk.requests()
    assert isinstance(lookup, Lookup) and lookup.fields == (WHO, None, [101])
    desk.now += 1000
    (again,) = desk.requests()
    assert isinstance(again, Fence) and len(again.fields[1]) == 1
    desk.answer(lookup)
    (fetch,) = desk.requests()
    assert isinstance(fetch, Fetch)


def test_what_is_to_be_let_go_is_silent_and_its_position_is_where_the_application_is() -> None:
    desk = Desk([A])
    desk.logs[100].append(10)
    desk.given(1, (0, 7, False))
    for _ in range(4):
        desk.turn()
    run = desk.sub.next_run(desk.now)
    assert run is not None and [next(run).offset for _ in range(4)] == [0, 1, 2, 3]
    desk.given(2, (0, 7, True))
    assert list(run) == []  # who is in a loop gets no more of it
    assert desk.sub.has_word and desk.read() == []
    lost, (reading,) = desk.sub.take_word()
    assert lost == [] and not desk.sub.has_word
    assert reading.position == 4
    desk.sub.mark_handled()
    (commit,) = desk.sub.commits(handled_only=True)
    assert commit.parts == [[100, 4, MEMBER, 7]]
    desk.sub.release([reading])
    assert desk.shares.released == {100: 7}
    desk.given(2, (0, 7, True))  # the managers do not know yet
    assert desk.sub.readings == {} and desk.shares.released == {100: 7}
    desk.given(3)
    assert desk.shares.released == {}
    desk.given(4, (0, 9, False))  # it came back
    desk.logs[100].positions[WHO] = 4
    assert offsets(desk.read()) == [4, 5, 6, 7, 8, 9]


def test_c8_a_share_in_another_epoch_is_lost_and_begun_anew() -> None:
    desk = Desk([A])
    desk.logs[100].append(5)
    desk.given(1, (0, 7, False))
    assert len(desk.read()) == 5
    desk.given(2, (0, 9, False))
    assert desk.sub.lost == [("t", 0)]
    desk.logs[100].positions[WHO] = 2
    assert offsets(desk.read()) == [2, 3, 4]
    assert desk.fences[-1] == (WHO, [[100, NO_OFFSET, MEMBER, 9]])


def test_an_older_answer_is_not_heard() -> None:
    desk = Desk([A])
    desk.given(5, (0, 7, False))
    desk.given(4)
    assert list(desk.sub.readings) == [100]


def test_c8_at_the_end_of_the_session_all_is_lost_at_once() -> None:
    desk = Desk([A])
    desk.logs[100].append(10)
    desk.given(1, (0, 7, False))
    for _ in range(4):
        desk.turn()
    run = desk.sub.next_run(desk.now)
    assert run is not None and next(run).offset == 0
    assert not desk.shares.is_over(9_999) and desk.shares.is_over(10_000)
    desk.sub.session_ended()
    assert list(run) == []
    assert desk.sub.lost == [("t", 0)]
    assert desk.sub.commits() == [] and desk.read() == []


@pytest.mark.parametrize(("is_new", "begins"), [(False, 5), (True, 0)])
def test_latest_is_for_members_without_a_position(is_new: bool, begins: int) -> None:
    desk = Desk([A], start="latest")
    log = desk.logs[100] = PartitionLog(100)
    log.append(5)
    desk.sub.shared(1, [[100, "t", 0, 7, False, is_new]])
    desk.route([A])
    desk.turn(), desk.turn()
    assert desk.position() == begins
    assert Find("resumed").choose(0, 5, 3, None) == 3
