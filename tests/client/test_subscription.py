"""The pure half of a consumer: positions, fetches, turns, commits; without sockets or clocks."""

import doctest
from threading import Condition
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.partition_log import A, B, Bench, PartitionLog, offsets

from myqueue.consumer import subscription
from myqueue.consumer.batch_buffer import BatchBuffer
from myqueue.consumer.fetch_plan import EXTRA_MAX, FetchLimits, FetchRequest, OffsetsRequest
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.partition_state import StartRule
from myqueue.consumer.positions import Positions
from myqueue.consumer.subscription import PartitionRoute, Subscription
from myqueue.errors import (
    MisuseError,
    NotLeader,
    OffsetOutOfRange,
    TimedOut,
    UnknownTopic,
)
from myqueue.wire import batch


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


def test_nobody_waits_for_the_position_of_a_partition_that_was_removed() -> None:
    bench = Bench([A])
    (partition,) = bench.sub.partitions.values()
    fetcher: Any = SimpleNamespace(changed=Condition())
    positions = Positions(cast(Any, None), fetcher, bench.sub)
    with pytest.raises(TimedOut, match="no leader answered: t/0"):
        positions.known([partition], 0.0)
    bench.sub.mark_deleted("t")
    assert positions.known([partition], 0.0) == {}


def test_a_batch_that_came_before_is_not_buffered_again() -> None:
    log, buffer = PartitionLog(100), BatchBuffer()
    log.append(3)
    log.append(2)
    for offset, frame in (*log.batches, log.batches[0]):
        assert buffer.receive(offset, frame)
    assert len(buffer.packed) == 2 and buffer.next_offset == 5 and not buffer.contradictions()
    buffer.move_to(1)
    assert buffer.receive(*log.batches[0]) and buffer.next_offset == 3
    assert not buffer.receive(7, log.batches[0][1]) and buffer.next_offset == 3


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
        (StartRule("time", 1_500), 5),
        (StartRule("time", 9_999), 10),
        (StartRule("earliest"), 0),
        (StartRule("latest"), 10),
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
    assert sorted((f.address, len(f.partitions), f.wait_ms) for f in fetches) == [
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
    assert len(again.partitions) == 6


def test_buffers_have_a_limit_and_hungry_ones_come_first() -> None:
    bench = Bench([A, A], limits=FetchLimits(buffer_bytes=2_000, partition_bytes=1_500))
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


# -- topics that change ---------------------------------------------------------------------------


def test_a_partition_added_later_is_read_from_its_beginning() -> None:
    bench = Bench([A], start="latest")
    bench.logs[100].append(3)
    assert bench.read() == []
    bench.logs[101] = PartitionLog(101)
    bench.logs[101].append(4)
    bench.route([A, B])
    assert offsets(bench.read(), 1) == [0, 1, 2, 3]
    assert bench.sub.changes == [
        ([TopicPartition("t", 0)], []),
        ([TopicPartition("t", 1)], []),
    ]


def test_a_topic_that_was_made_anew_is_not_mistaken_for_the_old_one() -> None:
    bench = Bench([A])
    bench.logs[100].append(3)
    assert len(bench.read()) == 3
    bench.logs[100].append(3)
    bench.turn()
    bench.sub.set_routes("t", 0, [PartitionRoute(0, 900, A)])
    assert bench.sub.changes[-1] == ([TopicPartition("t", 0)], [TopicPartition("t", 0)])
    bench.logs = {900: PartitionLog(900)}
    bench.logs[900].append(2)
    assert offsets(bench.read()) == [0, 1]
    bench.sub.mark_deleted("t")
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
    assert bench.sub.on_committed(commit, [bench.logs[100].commit("5", 4)]) is None
    assert bench.sub.commits(handled_only=False) == []
    bench.take()
    [commit] = bench.sub.commits(handled_only=False)
    failure = bench.sub.on_committed(commit, [[100, NotLeader.code, 0, None]])
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
    assert isinstance(lookup, OffsetsRequest) and lookup.fields == (None, None, [100])
    bench.answer(lookup)
    [fetch] = bench.requests()
    assert isinstance(fetch, FetchRequest) and fetch.fields == (500, 1, 4 << 20, [[100, 0]])
