"""What a consumer makes of brokers that refuse, vanish, move, or send what they should not."""

import pytest
from support.partition_log import A, B, Bench, PartitionLog, offsets

from myqueue.consumer.message import TopicPartition
from myqueue.errors import (
    CorruptData,
    Internal,
    MisuseError,
    NotLeader,
    OffsetOutOfRange,
    Unreachable,
)


def test_a_leader_change_loses_and_doubles_nothing() -> None:
    bench = Bench([A])
    bench.logs[100].append(5)
    bench.turn()
    [fetch] = bench.requests()
    bench.answer(fetch)
    assert offsets(bench.take(3)) == [0, 1, 2]
    [fetch] = bench.requests()
    bench.sub.fetch_plan.on_fetched(fetch, [[100, NotLeader.code, 0, 0, [], None]], [], bench.now)
    assert bench.sub.fetch_plan.routes_wanted and bench.requests() == []
    bench.logs[100].append(5)
    bench.route([B])
    [fetch] = bench.requests()
    assert fetch.address == B and fetch.fields[3] == [[100, 5]]
    bench.answer(fetch)
    assert offsets(bench.take()) == [3, 4, 5, 6, 7, 8, 9]


def test_an_answer_of_a_leader_that_was_replaced_is_not_waited_for() -> None:
    bench = Bench([A])
    bench.turn()
    [frozen] = bench.requests()
    bench.route([""])
    assert bench.requests() == []  # it may still answer
    bench.route([B])
    [fetch] = bench.requests()
    bench.logs[100].append(3)
    bench.answer(frozen)
    assert bench.take() == []
    bench.answer(fetch)
    assert offsets(bench.take()) == [0, 1, 2]


def test_a_failed_request_is_repeated_later_and_later() -> None:
    bench = Bench([A])
    bench.turn()
    waits = []
    for _ in range(8):
        [fetch] = bench.requests()
        bench.sub.fetch_plan.on_failure(fetch, Unreachable(), bench.now)
        assert bench.requests() == []
        retry = bench.sub.fetch_plan.next_retry(bench.now)
        assert retry is not None
        waits.append(retry - bench.now)
        bench.now = retry
    assert waits == [50, 100, 200, 400, 800, 1000, 1000, 1000]
    assert not bench.sub.round_robin.has_news  # nothing for the application: its position stays
    bench.logs[100].append(1)
    assert offsets(bench.read()) == [0]
    assert bench.sub.fetch_plan.next_retry(bench.now) is None


def test_two_brokers_that_name_each_other_are_not_asked_in_a_tight_loop() -> None:
    bench = Bench([A])
    bench.turn()
    asked = 0
    while bench.now < 1_000:
        for fetch in bench.requests():
            asked += 1
            bench.sub.fetch_plan.on_failure(fetch, NotLeader(), bench.now)
            bench.route([B if fetch.address == A else A])
        bench.now += 1
    assert asked < 30


def test_without_a_leader_routes_are_asked_for() -> None:
    bench = Bench([""])
    assert bench.requests() == [] and bench.sub.fetch_plan.routes_wanted
    assert bench.sub.fetch_plan.next_retry(bench.now) == 50
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
        assert bench.sub.fetch_plan.log_lines == [
            f"t/0: offset 0 is not between 5 and 10; going on from the {policy} one"
        ]
    with pytest.raises(MisuseError):
        Bench([A], on_out_of_range="ignore")


def test_a_gap_in_the_offsets_is_never_passed_over() -> None:
    bench = Bench([A])
    bench.turn()
    [fetch] = bench.requests()
    frame = PartitionLog(100, start=3).append(2)
    bench.sub.fetch_plan.on_fetched(fetch, [[100, 0, 0, 5, [[3, 0]], None]], [frame], 0)
    with pytest.raises(Internal, match="asked for offset 0, and 3 came"):
        bench.take()


def test_a_damaged_batch_is_fetched_again_and_then_told() -> None:
    bench = Bench([A])
    good = bench.logs[100].append(5)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    bench.turn()
    for attempt in range(3):
        [fetch] = bench.requests()
        bench.sub.fetch_plan.on_fetched(fetch, [[100, 0, 0, 5, [[0, 0]], None]], [bad], bench.now)
        if attempt < 2:
            assert bench.take() == []
        else:
            with pytest.raises(CorruptData, match="offset 0 came damaged 3 times") as caught:
                bench.take()
            assert "seek('t', 0, 5)" in caught.value.hint, "it says how to go on"
        bench.now += 2_000
    assert offsets(bench.read()) == [0, 1, 2, 3, 4]


def test_an_answer_that_is_cut_or_speaks_of_others_changes_nothing() -> None:
    bench = Bench([A])
    bench.logs[100].append(2)
    bench.turn()
    for rows in ([[100, 0, 0, 2, [[0, 0], [1, 0]], None]], [[7, 0, 0, 2, [], None]], []):
        [fetch] = bench.requests()
        bench.sub.fetch_plan.on_fetched(fetch, rows, [], bench.now)
        assert bench.take() == [] and bench.position() == 0
        bench.now += 2_000
    assert offsets(bench.read()) == [0, 1]
