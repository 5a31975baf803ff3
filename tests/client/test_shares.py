"""A member's half of a group, pure: what it reads, lets go of, loses; and what it fences."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from support.partition_log import A, B, Bench, PartitionLog, offsets

from myqueue import errors
from myqueue.consumer.assignment import Assignment
from myqueue.consumer.fetch_plan import FenceRequest, FetchRequest, OffsetsRequest
from myqueue.consumer.message import TopicPartition
from myqueue.consumer.partition_state import NEXT, Fetching, Ownership, StartRule, entered
from myqueue.daemons.partition.positions import ConsumerPositions
from myqueue.wire.protocol import NO_OFFSET

WHO, MEMBER = "group/g", 50


class Desk(Bench):
    """A member, with partitions whose positions are kept under the group's name."""

    def __init__(self, leaders: list[str], **options: Any) -> None:
        self.leaders = leaders
        self.fences: list[Any] = []
        self.news: list[Any] = []
        super().__init__(leaders, who=WHO, assignment=Assignment(), **options)
        assert self.sub.assignment is not None
        self.shares = self.sub.assignment
        self.shares.begin(MEMBER, 10_000)

    def given(self, version: int, *rows: tuple[int, int, bool]) -> None:
        """(number, epoch, to let go?) of all that is ours."""
        told = [[100 + number, "t", number, epoch, go, False] for number, epoch, go in rows]
        self.sub.set_assignment(version, told)
        self.route(self.leaders)
        self.news += self.sub.take_changes()
        self.sub.admit()

    def answer(self, request: Any) -> None:
        if isinstance(request, FenceRequest):
            self.fences.append(request.fields)
            rows = [
                [group, 0, NO_OFFSET, None]
                if offset == NO_OFFSET
                else self.logs[group].commit(request.fields[0], offset)
                for group, offset, *_ in request.fields[1]
            ]
            self.sub.fetch_plan.on_fenced(request, rows, self.now)
        else:
            super().answer(request)


def test_a_member_reads_what_it_was_given_and_nothing_else() -> None:
    desk = Desk([A, A, B])
    for log in desk.logs.values():
        log.append(3)
    assert desk.read() == []
    desk.given(1, (1, 7, False))
    assert desk.news == [([("t", 1)], [])]
    found = desk.read()
    assert offsets(found, 1) == [0, 1, 2] and len(found) == 3
    (commit,) = desk.sub.commits()
    assert commit.parts == [[101, 3, MEMBER, 7]]


def test_c7_a_partition_is_fenced_before_its_position_is_asked_for() -> None:
    desk = Desk([A, A])
    desk.given(1, (0, 7, False), (1, 8, False))
    (fence,) = desk.requests()
    assert isinstance(fence, FenceRequest)
    assert fence.fields == (WHO, [[100, NO_OFFSET, MEMBER, 7], [101, NO_OFFSET, MEMBER, 8]])
    assert desk.requests() == []  # not before the answer
    refused = [100, errors.Fenced.code, 0, None]  # a newer owner is there already
    desk.sub.fetch_plan.on_fenced(fence, [refused, [101, 0, NO_OFFSET, None]], desk.now)
    (lookup,) = desk.requests()
    assert isinstance(lookup, OffsetsRequest) and lookup.fields == (WHO, None, [101])
    desk.now += 1000
    (again,) = desk.requests()
    assert isinstance(again, FenceRequest) and len(again.fields[1]) == 1
    desk.answer(lookup)
    (fetch,) = desk.requests()
    assert isinstance(fetch, FetchRequest)


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
    assert desk.sub.has_withdrawals and desk.read() == []
    lost, (reading,) = desk.sub.take_withdrawals()
    assert lost == [] and not desk.sub.has_withdrawals
    assert reading.position == 4
    desk.sub.mark_handled()
    (commit,) = desk.sub.commits(handled_only=True)
    assert commit.parts == [[100, 4, MEMBER, 7]]
    desk.sub.release([reading])
    assert desk.shares.released == {100: 7}
    desk.given(2, (0, 7, True))  # the managers do not know yet
    assert desk.sub.partitions == {} and desk.shares.released == {100: 7}
    desk.given(3)
    assert desk.shares.released == {}
    desk.given(4, (0, 9, False))  # it came back
    desk.logs[100].positions[WHO] = 4
    assert offsets(desk.read()) == [4, 5, 6, 7, 8, 9]


def test_who_seeks_while_a_partition_is_wanted_back_hears_where_to() -> None:
    """Else seek_to_end in on_assign, or lag(), waits until its deadline, and others with it."""
    desk = Desk([A, A])
    desk.logs[100].append(10)
    desk.given(1, (0, 7, False))
    desk.sub.set_assignment(2, [[100, "t", 0, 7, True, False], [101, "t", 1, 8, True, False]])
    desk.route([A, A])
    desk.sub.seek(TopicPartition("t", 0), StartRule("latest"))
    desk.turn(), desk.turn()
    assert (desk.position(0), desk.position(1)) == (10, 0)
    desk.logs[100].append(1)
    assert desk.requests() == [] and desk.take() == []  # of neither is anything read


def test_c8_a_share_in_another_epoch_is_lost_and_begun_anew() -> None:
    desk = Desk([A])
    desk.logs[100].append(5)
    desk.given(1, (0, 7, False))
    assert len(desk.read()) == 5
    desk.given(2, (0, 9, False))
    assert desk.sub.lost_partitions == [("t", 0)]
    desk.logs[100].positions[WHO] = 2
    assert offsets(desk.read()) == [2, 3, 4]
    assert desk.fences[-1] == (WHO, [[100, NO_OFFSET, MEMBER, 9]])


def test_an_older_answer_is_not_heard() -> None:
    desk = Desk([A])
    desk.given(5, (0, 7, False))
    desk.given(4)
    assert list(desk.sub.partitions) == [100]


def test_c8_at_the_end_of_the_session_all_is_lost_at_once() -> None:
    desk = Desk([A])
    desk.logs[100].append(10)
    desk.given(1, (0, 7, False))
    for _ in range(4):
        desk.turn()
    run = desk.sub.next_run(desk.now)
    assert run is not None and next(run).offset == 0
    assert not desk.shares.has_ended(9_999) and desk.shares.has_ended(10_000)
    desk.sub.end_session()
    assert list(run) == []
    assert desk.sub.lost_partitions == [("t", 0)]
    assert desk.sub.commits() == [] and desk.read() == []


@pytest.mark.parametrize(("is_new", "begins"), [(False, 5), (True, 0)])
def test_latest_is_for_members_without_a_position(is_new: bool, begins: int) -> None:
    desk = Desk([A], start="latest")
    log = desk.logs[100] = PartitionLog(100)
    log.append(5)
    desk.sub.set_assignment(1, [[100, "t", 0, 7, False, is_new]])
    desk.route([A])
    desk.turn(), desk.turn()
    assert desk.position() == begins
    assert StartRule("resumed").choose(0, 5, 3, None) == 3


def test_where_a_group_begins_is_committed_before_anything_is_read() -> None:
    """Else the next owner would begin at a later end: messages that came meanwhile, and that the
    first one did not commit before it died, would be left out for the group.
    """
    desk = Desk([A, A], start="latest")
    log = desk.logs[100]
    log.append(5)
    desk.given(1, (0, 7, False))
    desk.turn(), desk.turn()  # the fence, the look-up
    (first,) = desk.requests()
    assert isinstance(first, FenceRequest) and first.fields == (WHO, [[100, 5, MEMBER, 7]])
    log.append(3)
    desk.sub.fetch_plan.on_fenced(first, [[100, errors.NotLeader.code, 0, None]], desk.now)
    assert desk.requests() == []  # not before it is sure
    desk.now += 1000
    assert offsets(desk.read()) == [5, 6, 7]
    assert log.positions[WHO] == 5
    (commit,) = desk.sub.commits()
    assert commit.parts == [[100, 8, MEMBER, 7]]

    other = Desk([A], start="latest")  # the first one died
    other.logs[100] = log
    other.given(3, (0, 9, False))
    assert offsets(other.read()) == [5, 6, 7]
    assert other.fences == [(WHO, [[100, NO_OFFSET, MEMBER, 9]])] and log.positions[WHO] == 5


def test_a_group_that_goes_on_at_the_end_of_what_is_left_begins_there_once() -> None:
    """on_out_of_range="latest": else the next owner goes on at a later end, past messages that the
    first one got, or was about to get, and did not commit before it died.
    """
    log = PartitionLog(100)
    log.append(20)
    log.cut(10)
    log.positions[WHO] = 3
    for epoch in (7, 9):  # the first one died
        desk = Desk([A], on_out_of_range="latest")
        desk.logs[100] = log
        desk.given(1, (0, epoch, False))
        found = desk.read()
        if epoch == 7:
            log.append(3)
            found += desk.read()
        assert offsets(found) == [20, 21, 22] and log.positions[WHO] == 20


def test_whoever_seeks_as_soon_as_it_hears_of_a_partition_decides_where_the_group_begins() -> None:
    desk = Desk([A], start="latest")
    log = desk.logs[100]
    log.append(5)
    desk.sub.set_assignment(1, [[100, "t", 0, 7, False, False]])
    desk.route([A])
    desk.turn(), desk.turn()
    assert desk.position() == 5 and desk.requests() == []  # not before it was told
    desk.sub.take_changes()
    desk.sub.seek(TopicPartition("t", 0), 2)  # in on_assign
    desk.sub.admit()
    assert offsets(desk.read()) == [2, 3, 4]
    assert WHO not in log.positions and len(desk.fences) == 1


def test_nothing_is_handed_out_before_the_application_knows_that_it_has_the_partition() -> None:
    desk = Desk([A])
    desk.logs[100].append(3)
    desk.sub.set_assignment(1, [[100, "t", 0, 7, False, False]])
    desk.route([A])
    assert desk.read() == [] and desk.sub.has_news
    assert desk.sub.take_changes() == [([("t", 0)], [])]
    assert desk.read() == []  # it is being told
    desk.sub.admit()
    assert offsets(desk.take()) == [0, 1, 2]


@pytest.mark.parametrize("way", ["lost", "session over", "wanted back"])
def test_what_came_and_went_unheard_is_never_told(way: str) -> None:
    """Else on_assign would come after on_lost or on_revoke, and be believed."""
    desk = Desk([A, A])
    desk.sub.set_assignment(1, [[100, "t", 0, 7, False, False], [101, "t", 1, 7, False, False]])
    desk.route([A, A])
    if way == "session over":
        desk.sub.end_session()
    else:
        told = [] if way == "lost" else [[100, "t", 0, 7, True, False]]
        desk.sub.set_assignment(2, [*told, [101, "t", 1, 7, False, False]])
        desk.route([A, A])
    news, (lost, leaving) = desk.sub.take_changes(), desk.sub.take_withdrawals()
    assert [added for added, _ in news] == [[] if way == "session over" else [("t", 1)]]
    assert lost == []
    assert [(one.name, one.ownership) for one in leaving] == [(("t", 0), Ownership.WITHDRAWN)] * (
        way == "wanted back"
    )
    desk.sub.release(leaving)
    assert desk.shares.released == ({100: 7} if leaving else {})


def test_what_is_wanted_back_while_on_assign_runs_is_let_go_when_that_has_returned() -> None:
    """Till then the callback may seek, which decides where the group begins."""
    desk = Desk([A], start="latest")
    log = desk.logs[100]
    log.append(5)
    desk.sub.set_assignment(1, [[100, "t", 0, 7, False, False]])
    desk.route([A])
    desk.turn(), desk.turn()
    assert desk.sub.take_changes() == [([("t", 0)], [])]
    desk.sub.take_withdrawals()
    desk.sub.set_assignment(2, [[100, "t", 0, 7, True, False]])
    assert desk.requests() == [] and desk.sub.has_withdrawals
    partition = desk.sub.partitions[100]
    assert partition.ownership is Ownership.ANNOUNCED
    desk.sub.admit()
    assert partition.ownership is Ownership.LEAVING and desk.take() == []
    (start,) = desk.requests()
    desk.answer(start)
    assert log.positions[WHO] == 5
    assert desk.sub.take_withdrawals() == ([], [partition])
    desk.sub.release([partition])
    assert partition.ownership is Ownership.REMOVED and desk.shares.released == {100: 7}


def test_c8_what_is_lost_while_it_is_let_go_is_not_released() -> None:
    """Else the managers would take the release for one of the epoch in which it came back."""
    desk = Desk([A])
    desk.given(1, (0, 7, False))
    desk.given(2, (0, 7, True))
    _, leaving = desk.sub.take_withdrawals()
    desk.given(3, (0, 9, False))  # while on_revoke ran, or the last commit was under way
    desk.sub.release(leaving)
    assert desk.shares.released == {} and desk.sub.partitions[100].epoch == 9


def test_messages_that_came_damaged_later_do_not_hide_what_is_not_committed() -> None:
    desk = Desk([A])
    desk.logs[100].append(3)
    desk.given(1, (0, 7, False))
    assert len(desk.read()) == 3
    desk.logs[100].append(3)
    offset, frame = desk.logs[100].batches[-1]
    desk.logs[100].batches[-1] = (offset, bytes(frame[:-1]) + bytes([frame[-1] ^ 1]))
    desk.turn()
    assert desk.take() == [] and desk.position() == 3
    desk.sub.end_session()
    assert desk.sub.uncommitted == [("t", 0)]


@pytest.mark.parametrize("phases", [Fetching, Ownership])
def test_a_phase_is_followed_by_those_of_the_table_and_by_no_other(phases: Any) -> None:
    for before, after in product(phases, phases):
        if after is before or after in NEXT[before]:
            assert entered(after, before) is after
        else:
            with pytest.raises(errors.Internal, match=f"from {before} to {after}"):
                entered(after, before)
    reached = {after for before in phases for after in NEXT[before]}
    assert reached | {phases.FENCE if phases is Fetching else phases.ADDED} == set(phases)


def regained(desk: Desk) -> Any:
    """A message that was returned; then its partition is lost, set back to 0, and comes back."""
    desk.logs[100].append(5)
    desk.given(1, (0, 7, False))
    message = desk.read()[3]
    assert message.offset == 3
    desk.given(2)
    desk.logs[100].positions[WHO] = 0
    return message


def test_c7_what_was_returned_under_an_epoch_that_is_over_is_not_committed_under_the_next() -> None:
    desk = Desk([A])
    message = regained(desk)
    with pytest.raises(errors.Fenced, match="not this member's"):
        desk.sub.check_returned(message)
    desk.sub.set_assignment(3, [[100, "t", 0, 9, False, False]])
    desk.route([A])
    for upto in (message, {TopicPartition("t", 0): 4}):
        with pytest.raises(errors.Fenced, match="came back"):  # nobody told the application so far
            desk.sub.check_returned(upto)
    desk.sub.take_changes()
    desk.sub.admit()
    desk.turn(), desk.turn(), desk.turn()
    with pytest.raises(errors.Fenced, match="came back"):  # it will come again
        desk.sub.check_returned(message)
    assert offsets(desk.take(4)) == [0, 1, 2, 3]
    desk.sub.check_returned(message)
    desk.sub.seek(TopicPartition("t", 0), 1)
    desk.sub.check_returned(message)  # it was returned, whatever is read next
    desk.sub.check_returned({TopicPartition("t", 0): 5})


def test_c7_a_commit_that_is_repeated_keeps_its_epoch() -> None:
    """Else the second attempt would carry a position of before under the epoch of afterwards."""
    desk = Desk([A, A])
    for log in desk.logs.values():
        log.append(5)
    desk.given(1, (0, 7, False), (1, 7, False))
    assert len(desk.read()) == 10
    commits = desk.sub.commits()
    (commit,) = commits
    refused = [[group, errors.NotLeader.code, 0, None] for group, *_ in commit.parts]
    desk.sub.on_committed(commit, refused)
    desk.given(2, (0, 9, False), (1, 7, False))
    (again,), gone = desk.sub.remaining(commits)
    assert again.parts == [[101, 5, MEMBER, 7]] and gone == [("t", 0)]
    desk.sub.on_committed(again, [[101, 0, 5, None]])
    assert desk.sub.remaining([again]) == ([], [])


def test_c7_nothing_is_committed_before_the_fence() -> None:
    """The first commit under a new epoch may set any position, back too: the fence has to be it."""
    kept = ConsumerPositions()
    kept.commit(WHO, 9, 40, 5, 10)  # by who had it before
    desk = Desk([""])  # nobody leads at this moment
    desk.given(1, (0, 7, False))
    assert desk.requests() == []
    desk.sub.seek(TopicPartition("t", 0), 2)  # in on_assign
    desk.route([A])
    commits = desk.sub.commits(only={TopicPartition("t", 0): 2})
    assert [commit.address for commit in commits] == [""]  # it is tried again
    desk.sub.mark_handled()
    assert [commit.address for commit in desk.sub.commits(handled_only=True)] == [""]
    (fence,) = desk.requests()
    desk.answer(fence)
    (again,), _ = desk.sub.remaining(commits)
    assert again.address == A
    for _, offset, member, epoch in (*fence.fields[1], *again.parts):
        assert kept.commit(WHO, offset, member, epoch, 10) == (0, 9)


def test_what_was_lost_with_messages_that_are_not_committed_is_known() -> None:
    desk = Desk([A, A, A])
    for log in desk.logs.values():
        log.append(2)
    desk.logs[102] = PartitionLog(102)
    desk.given(1, (0, 7, False), (1, 7, False), (2, 7, False))
    assert len(desk.read()) == 4
    (commit,) = desk.sub.commits(only={TopicPartition("t", 0): 2})
    desk.sub.on_committed(commit, [[100, 0, 2, None]])
    desk.sub.end_session()
    assert desk.sub.uncommitted == [("t", 1)]
    assert sorted(desk.sub.take_withdrawals()[0]) == [("t", 0), ("t", 1), ("t", 2)]
    assert desk.sub.uncommitted == []


def test_offsets_that_can_not_be_are_refused() -> None:
    desk = Desk([A])
    desk.given(1, (0, 7, False))
    for offset in (-1, 1 << 63, NO_OFFSET, 1.5):
        with pytest.raises(errors.MisuseError):
            desk.sub.commits(only={TopicPartition("t", 0): offset})  # type: ignore[dict-item]
    for offset in (-1, 1 << 64):
        with pytest.raises(errors.MisuseError):
            desk.sub.seek(TopicPartition("t", 0), offset)
