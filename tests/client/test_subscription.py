"""The pure half of a consumer: positions, fetches, turns, commits; without sockets or clocks."""

import doctest
from itertools import islice
from typing import Any

import pytest
from kit.partition_log import PartitionLog

from myqueue import batch, subscription
from myqueue.errors import (
    CorruptData,
    Internal,
    MisuseError,
    NotLeader,
    OffsetOutOfRange,
    UnknownTopic,
    Unreachable,
)
from myqueue.message import Message, TopicPartition
from myqueue.prefetch import EXTRA_MAX, Fetch, Limits, Lookup
from myqueue.reading import Find
from myqueue.subscription import Place, Subscription

A, B = "tcp://a", "tcp://b"


class Bench:
    """A subscription to topic "t" whose partitions are PartitionLogs at addresses."""

    def __init__(self, leaders: list[str], *, who: str = "", **options: Any) -> None:
        self.now = 0
        self.logs = {100 + number: PartitionLog(100 + number) for number in range(len(leaders))}
        self.sub = Subscription({"t": who}, **options)
        self.route(leaders)

    def route(self, leaders: list[str]) -> None:
        groups = zip(sorted(self.logs), leaders, strict=False)
        self.sub.routed("t", self.now, [Place(g - 100, g, leader) for g, leader in groups])

    def requests(self) -> list[Any]:
        return self.sub.prefetch.requests(self.now)

    def answer(self, request: Any) -> None:
        if isinstance(request, Lookup):
            who, time_ms, groups = request.fields
            rows = [self.logs[group].offsets(who, time_ms) for group in groups]
            self.sub.prefetch.looked_up(request, rows, self.now)
        else:
            answers = [self.logs[group].fetch(offset) for group, offset in request.fields[3]]
            rows = [row for row, _ in answers]
            frames = [frame for _, own in answers for frame in own]
            self.sub.prefetch.fetched(request, rows, frames, self.now)

    def turn(self) -> None:
        for request in self.requests():
            self.answer(request)
        for reading in self.sub.readings.values():
            reading.check_invariants()

    def take(self, count: int = 1 << 30) -> list[Message]:
        """As poll does it: run after run, until there are so many."""
        out: list[Message] = []
        while len(out) < count and (run := self.sub.next_run(self.now)) is not None:
            out += islice(run, count - len(out))
        return out

    def read(self, turns: int = 5) -> list[Message]:
        out = []
        for _ in range(turns):
            self.turn()
            out += self.take()
        return out

    def position(self, number: int = 0) -> int | None:
        return self.sub.named(TopicPartition("t", number)).position


def offsets(messages: list[Message], number: int = 0) -> list[int]:
    assert all(int(message.value) == message.offset for message in messages)
    return [message.offset for message in messages if message.partition == number]


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(subscription).failed == 0


def test_reads_everything_once_and_in_order() -> None:
    bench = Bench([A, A, B])
    for log in bench.logs.values():
        for count in (3, 1, 5):
            log.append(count)
    found = bench.read()
    assert [offsets(found, number) for number in range(3)] == [list(range(9))] * 3
    assert bench.read() == []
    bench.logs[101].append(2)
    assert offsets(bench.read(), 1) == [9, 10]


def test_start() -> None:
    for start, first in (("earliest", 4), ("latest", 10), ("committed", 7)):
        bench = Bench([A], who="12", start=start)
        log = bench.logs[100] = PartitionLog(100, start=4)
        log.append(6)
        log.positions["12"] = 7
        bench.turn()
        assert bench.position() == first
    bench = Bench([A], who="12", start="committed")
    bench.logs[100] = PartitionLog(100, start=4)
    bench.turn()
    assert bench.position() == 4  # never committed: from the start
    with pytest.raises(MisuseError, match="earliest, latest"):
        Subscription({"t": ""}, start="now")


def test_a_batch_that_begins_before_the_position_is_skipped_into() -> None:
    bench = Bench([A])
    bench.logs[100].append(10)
    bench.turn()
    bench.sub.seek(TopicPartition("t", 0), 7)
    assert offsets(bench.read()) == [7, 8, 9]


def test_partitions_take_turns_and_errors_have_theirs() -> None:
    bench = Bench([A, A])
    for _ in range(20):
        bench.logs[100].append(10)
    bench.logs[101].append(1)
    bench.turn()
    bench.turn()
    found = bench.take(12)
    assert offsets(found, 1) == [0]
    bench.sub.seek(TopicPartition("t", 1), 99)
    bench.turn()
    with pytest.raises(OffsetOutOfRange):  # though partition 0 has more
        bench.take(50)


def test_what_is_left_of_a_batch_comes_again() -> None:
    bench = Bench([A, A])
    bench.logs[100].append(5)
    bench.logs[101].append(5)
    bench.turn()
    bench.turn()
    found = bench.take(2)
    assert offsets(found) == [0, 1] and bench.position() == 2
    rest = bench.take()
    assert offsets(found + rest) == offsets(found + rest, 1) == [0, 1, 2, 3, 4]


def test_a_seek_ends_a_loop_that_holds_the_old_messages_and_drops_the_old_answer() -> None:
    bench = Bench([A])
    bench.logs[100].append(5)
    bench.turn()
    [fetch] = bench.requests()
    bench.answer(fetch)
    run = bench.sub.next_run(0)
    assert run is not None and next(run).offset == 0
    [waiting] = bench.requests()
    bench.sub.seek(TopicPartition("t", 0), 3)
    assert list(run) == []
    bench.answer(waiting)
    assert bench.take() == []
    assert offsets(bench.read()) == [3, 4]
    with pytest.raises(MisuseError):
        bench.sub.seek(TopicPartition("t", 0), -1)


def test_seek_to_time_beginning_and_end() -> None:
    bench = Bench([A])
    log = bench.logs[100]
    log.append(5, time_ms=1_000)
    log.append(5, time_ms=2_000)
    bench.turn()
    for find, first in (
        (Find("time", 1_500), 5),
        (Find("time", 9_999), 10),
        (Find("earliest"), 0),
        (Find("latest"), 10),
    ):
        bench.sub.seek(TopicPartition("t", 0), find)
        assert bench.position() is None
        bench.turn()
        assert bench.position() == first


def test_pause_keeps_what_came_and_resume_goes_on() -> None:
    bench = Bench([A, A])
    for log in bench.logs.values():
        log.append(5)
    bench.turn()
    bench.turn()
    run = bench.sub.next_run(0)
    assert run is not None
    name = TopicPartition("t", next(run).partition)
    bench.sub.pause(name)
    assert list(run) == []  # also from who iterates already
    found = bench.read()
    assert {message.partition for message in found} == {1 - name.partition}
    bench.sub.resume(name)
    assert offsets(bench.read(), name.partition) == [1, 2, 3, 4]


# -- requests -------------------------------------------------------------------------------------


def test_one_fetch_for_all_partitions_of_a_broker() -> None:
    bench = Bench([A, A, B])
    lookups = bench.requests()
    assert sorted(request.address for request in lookups) == [A, B]
    for lookup in lookups:
        bench.answer(lookup)
    fetches = bench.requests()
    assert sorted((f.address, len(f.readings), f.wait_ms) for f in fetches) == [
        (A, 2, 500),
        (B, 1, 500),
    ]
    assert bench.requests() == []  # they are under way


def test_a_seek_does_not_wait_for_the_long_poll_of_others() -> None:
    bench = Bench([A] * 6)
    bench.turn()
    [long] = bench.requests()
    short = []
    for number in range(5):
        bench.sub.seek(TopicPartition("t", number), 0)
        short += bench.requests()
    assert len(short) == EXTRA_MAX and all(fetch.wait_ms < long.wait_ms for fetch in short)
    for fetch in (long, *short):
        bench.answer(fetch)
    [again] = bench.requests()  # one again
    assert len(again.readings) == 6


def test_buffers_have_a_limit_and_hungry_ones_come_first() -> None:
    bench = Bench([A, A], limits=Limits(buffer_bytes=2_000, partition_bytes=1_500))
    bench.logs[100].append(100)
    bench.turn()
    bench.turn()
    [fetch] = bench.requests()  # 0 is not full yet, but 1 has less
    assert [group for group, _ in fetch.fields[3]] == [101, 100]
    bench.logs[100].append(500)
    bench.answer(fetch)
    assert bench.requests() == []
    bench.sub.pause(TopicPartition("t", 0))
    [fetch] = bench.requests()  # what a paused one has keeps no other from fetching
    assert [group for group, _ in fetch.fields[3]] == [101]
    bench.sub.resume(TopicPartition("t", 0))
    assert offsets(bench.take()) == list(range(600))
    assert len(bench.requests()) == 1


# -- failures -------------------------------------------------------------------------------------


def test_a_leader_change_loses_and_doubles_nothing() -> None:
    bench = Bench([A])
    bench.logs[100].append(5)
    bench.turn()
    [fetch] = bench.requests()
    bench.answer(fetch)
    assert offsets(bench.take(3)) == [0, 1, 2]
    [fetch] = bench.requests()
    bench.sub.prefetch.fetched(fetch, [[100, NotLeader.code, 0, 0, [], None]], [], bench.now)
    assert bench.sub.prefetch.routes_wanted and bench.requests() == []
    bench.logs[100].append(5)
    bench.route([B])
    [fetch] = bench.requests()
    assert fetch.address == B and fetch.fields[3] == [[100, 5]]
    bench.answer(fetch)
    assert offsets(bench.take()) == [3, 4, 5, 6, 7, 8, 9]


def test_a_failed_request_is_repeated_later_and_later() -> None:
    bench = Bench([A])
    bench.turn()
    waits = []
    for _ in range(8):
        [fetch] = bench.requests()
        bench.sub.prefetch.failed(fetch, Unreachable(), bench.now)
        assert bench.requests() == []
        retry = bench.sub.prefetch.next_retry(bench.now)
        assert retry is not None
        waits.append(retry - bench.now)
        bench.now = retry
    assert waits == [50, 100, 200, 400, 800, 1000, 1000, 1000]
    assert not bench.sub.turns.has_news  # nothing for the application: its position stays
    bench.logs[100].append(1)
    assert offsets(bench.read()) == [0]
    assert bench.sub.prefetch.next_retry(bench.now) is None


def test_two_brokers_that_name_each_other_are_not_asked_in_a_tight_loop() -> None:
    bench = Bench([A])
    bench.turn()
    asked = 0
    while bench.now < 1_000:
        for fetch in bench.requests():
            asked += 1
            bench.sub.prefetch.failed(fetch, NotLeader(), bench.now)
            bench.route([B if fetch.address == A else A])
        bench.now += 1
    assert asked < 30


def test_without_a_leader_routes_are_asked_for() -> None:
    bench = Bench([""])
    assert bench.requests() == [] and bench.sub.prefetch.routes_wanted
    assert bench.sub.prefetch.next_retry(bench.now) == 50
    bench.route([A])
    assert len(bench.requests()) == 1


def test_out_of_range_is_an_error_unless_a_policy_was_chosen() -> None:
    bench = Bench([A])
    bench.logs[100].append(5)
    bench.logs[100].append(5)
    bench.turn()
    bench.logs[100].cut(5)
    for _ in range(2):  # it stays
        bench.turn()
        with pytest.raises(OffsetOutOfRange, match=r"offset 0 .* 5 \(start\) and 10"):
            bench.take()
    bench.sub.seek(TopicPartition("t", 0), 6)
    assert offsets(bench.read()) == [6, 7, 8, 9]
    for policy, expected in (("earliest", [5, 6, 7, 8, 9]), ("latest", [])):
        bench = Bench([A], on_out_of_range=policy)
        bench.turn()
        bench.logs[100].append(5)
        bench.logs[100].append(5)
        bench.logs[100].cut(5)
        assert offsets(bench.read()) == expected
    with pytest.raises(MisuseError):
        Bench([A], on_out_of_range="ignore")


def test_a_gap_in_the_offsets_is_never_passed_over() -> None:
    bench = Bench([A])
    bench.turn()
    [fetch] = bench.requests()
    frame = PartitionLog(100, start=3).append(2)
    bench.sub.prefetch.fetched(fetch, [[100, 0, 0, 5, [[3, 0]], None]], [frame], 0)
    with pytest.raises(Internal, match="asked for offset 0, and 3 came"):
        bench.take()


def test_a_damaged_batch_is_fetched_again_and_then_told() -> None:
    bench = Bench([A])
    good = bench.logs[100].append(5)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    bench.turn()
    for attempt in range(3):
        [fetch] = bench.requests()
        bench.sub.prefetch.fetched(fetch, [[100, 0, 0, 5, [[0, 0]], None]], [bad], bench.now)
        if attempt < 2:
            assert bench.take() == []
        else:
            with pytest.raises(CorruptData, match="offset 0 came damaged 3 times"):
                bench.take()
        bench.now += 2_000
    assert offsets(bench.read()) == [0, 1, 2, 3, 4]


def test_an_answer_that_is_cut_or_speaks_of_others_changes_nothing() -> None:
    bench = Bench([A])
    bench.logs[100].append(2)
    bench.turn()
    for rows in ([[100, 0, 0, 2, [[0, 0], [1, 0]], None]], [[7, 0, 0, 2, [], None]], []):
        [fetch] = bench.requests()
        bench.sub.prefetch.fetched(fetch, rows, [], bench.now)
        assert bench.take() == [] and bench.position() == 0
        bench.now += 2_000
    assert offsets(bench.read()) == [0, 1]


# -- topics that change ---------------------------------------------------------------------------


def test_a_partition_added_later_is_read_from_its_beginning() -> None:
    bench = Bench([A], start="latest")
    bench.logs[100].append(3)
    assert bench.read() == []
    bench.logs[101] = PartitionLog(101)
    bench.logs[101].append(4)
    bench.route([A, B])
    assert offsets(bench.read(), 1) == [0, 1, 2, 3]
    assert bench.sub.news == [
        ([TopicPartition("t", 0)], []),
        ([TopicPartition("t", 1)], []),
    ]


def test_a_topic_that_was_made_anew_is_not_mistaken_for_the_old_one() -> None:
    bench = Bench([A])
    bench.logs[100].append(3)
    assert len(bench.read()) == 3
    bench.logs[100].append(3)
    bench.turn()
    bench.sub.routed("t", 0, [Place(0, 900, A)])
    assert bench.sub.news[-1] == ([TopicPartition("t", 0)], [TopicPartition("t", 0)])
    bench.logs = {900: PartitionLog(900)}
    bench.logs[900].append(2)
    assert offsets(bench.read()) == [0, 1]
    bench.sub.unknown("t")
    with pytest.raises(UnknownTopic):
        bench.take()
    with pytest.raises(MisuseError):
        bench.position()


# -- committing -----------------------------------------------------------------------------------


def test_only_what_an_earlier_poll_returned_is_committed_automatically() -> None:
    bench = Bench([A], who="5")
    bench.logs[100].append(6)
    bench.turn()
    bench.turn()
    bench.sub.mark_handled()
    bench.take(4)
    [commit] = bench.sub.commits(handled_only=True)
    assert commit.parts == [[100, 0, 0, 0]]
    [commit] = bench.sub.commits(handled_only=False)
    assert commit[:2] == (A, "5") and commit.parts == [[100, 4, 0, 0]]
    bench.sub.mark_handled()
    [commit] = bench.sub.commits(handled_only=True)
    assert commit.parts == [[100, 4, 0, 0]]
    assert bench.sub.committed(commit, [bench.logs[100].commit("5", 4)]) is None
    assert bench.sub.commits(handled_only=False) == []
    bench.take()
    [commit] = bench.sub.commits(handled_only=False)
    failure = bench.sub.committed(commit, [[100, NotLeader.code, 0, None]])
    assert isinstance(failure, NotLeader) and len(bench.sub.commits(handled_only=False)) == 1


def test_nobody_commits_nothing() -> None:
    bench = Bench([A])
    bench.logs[100].append(6)
    bench.read()
    assert bench.sub.commits(handled_only=False) == []


def test_columns_become_messages() -> None:
    bench = Bench([A])
    log = bench.logs[100]
    columns = [[b"v", b"w"], [b"k", None], [None, {"h": b"1"}], [0, 7]]
    log.batches.append((0, batch.make(columns, 1_000, codec=batch.ZLIB)))
    log.end = 2
    bench.turn()
    bench.turn()
    assert bench.take() == [
        Message("t", 0, 0, b"k", b"v", None, 1_000),
        Message("t", 0, 1, None, b"w", {"h": b"1"}, 1_007),
    ]


def test_types_of_requests() -> None:
    bench = Bench([A])
    [lookup] = bench.requests()
    assert isinstance(lookup, Lookup) and lookup.fields == (None, None, [100])
    bench.answer(lookup)
    [fetch] = bench.requests()
    assert isinstance(fetch, Fetch) and fetch.fields == (500, 1, 4 << 20, [[100, 0]])
