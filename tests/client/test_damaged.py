"""Batches whose checksum is right and whose messages nobody can unpack: told, or passed over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner
from support.batches import forged, unreadable
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import fill, serve_reads
from support.partition_log import A, Bench

from myqueue import errors
from myqueue.aio import AsyncConsumer
from myqueue.cli.consume import consume
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message, TopicPartition
from myqueue.simple import MyConsumer
from myqueue.wire import batch

PLACE = TopicPartition("t", 0)
BAD = 4  # messages of the batch between two good ones of three: offsets 3 to 6


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(1) as cluster:
        serve_reads(cluster)
        bad, good = cluster.topic("t", 2)
        fill(bad, 3)
        bad.append(unreadable(BAD))
        fill(bad, 3)
        fill(good, 5)
        yield cluster


def asked(consumer: Consumer, polls: int = 40) -> tuple[list[Message], list[Exception]]:
    """What polls give until all is read that can be, and what they raise."""
    found, told = list[Message](), list[Exception]()
    for _ in range(polls):
        try:
            found += consumer.poll(timeout=0.1)
        except errors.MyQueueError as error:
            told.append(error)
        if len(told) == 3 and len(found) >= 8:
            break
    return found, told


def offsets(messages: list[Message], number: int = 0) -> list[int]:
    return [message.offset for message in messages if message.partition == number]


def test_it_is_told_in_each_poll_and_other_partitions_go_on(cluster: EchoCluster) -> None:
    with Consumer(cluster.address, "t") as consumer:
        found, told = asked(consumer)
        assert offsets(found) == [0, 1, 2] and offsets(found, 1) == [0, 1, 2, 3, 4]
        for error in told:
            assert isinstance(error, errors.BatchUnreadable)
            assert isinstance(error, errors.CorruptData), "which it was before it had its own name"
            assert (error.topic, error.partition) == PLACE
            assert (error.offset, error.next_offset) == (3, 7)
            assert "t/0: offsets 3 to 6 can't be read" in str(error)
            assert "seek('t', 0, 7)" in error.hint and 'on_damaged="skip"' in error.hint
        assert consumer.position(PLACE) == 3 and consumer.skipped() == {}
        consumer.seek(PLACE, told[0].next_offset)  # type: ignore[attr-defined]
        assert offsets(consumer.poll(timeout=5)) == [7, 8, 9]
        consumer.seek(PLACE, 5)  # within it
        with pytest.raises(errors.BatchUnreadable, match="offsets 3 to 6"):
            consumer.poll(timeout=5)


def test_it_is_told_once_before_what_comes_again(cluster: EchoCluster) -> None:
    """A broker is not asked again and again for what no broker has better."""
    reads = serve_reads(cluster)
    with Consumer(cluster.address, "t") as consumer:
        _, told = asked(consumer)
        before = reads.fetched_bytes
        with pytest.raises(errors.BatchUnreadable):
            for _ in range(3):
                consumer.poll(timeout=0.5)
        assert len(told) == 3 and reads.fetched_bytes == before


def test_it_is_passed_over_counted_and_logged(
    cluster: EchoCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.logs[cluster.topics["t"][1]].append(unreadable(2))  # at the end of the other one
    with (
        caplog.at_level(logging.WARNING, "myqueue.client"),
        Consumer(
            cluster.address, "t", consumer_id=7, on_damaged="skip", idle_timeout=0.3
        ) as consumer,
    ):
        found = list(consumer)
        assert offsets(found) == [0, 1, 2, 7, 8, 9] and offsets(found, 1) == [0, 1, 2, 3, 4]
        assert consumer.skipped() == {("t", 0): BAD, ("t", 1): 2}
        assert consumer.commit() == {("t", 0): 10, ("t", 1): 7}, "also behind the last one"
    lines = [one.getMessage() for one in caplog.records if "passed over" in one.getMessage()]
    assert len(lines) == 2
    assert sum("t/0: offsets 3 to 6 can't be read" in line for line in lines) == 1


def test_only_the_rest_of_it_counts_if_reading_begins_within() -> None:
    bench = Bench([A], on_damaged="skip")
    bench.logs[100].append(3)
    assert len(bench.read()) == 3
    [fetch] = bench.requests()
    bench.sub.seek(PLACE, 5)
    bench.sub.fetch_plan.on_fetched(fetch, [[100, 0, 0, 7, [[3, 0]], None]], [unreadable(4)], 0)
    assert bench.take() == [] and bench.sub.skips.counts == {}, "a seek made it useless"
    [fetch] = bench.requests()
    bench.sub.fetch_plan.on_fetched(fetch, [[100, 0, 0, 7, [[3, 0]], None]], [unreadable(4)], 0)
    assert bench.take() == [] and bench.position() == 7
    assert bench.sub.skips.counts == {PLACE: 2} and len(bench.sub.skips.log_lines) == 1


def test_one_that_was_damaged_on_its_way_is_never_passed_over() -> None:
    """Its count may be what was damaged, and the next copy may be whole."""
    bench = Bench([A], on_damaged="skip")
    good = bench.logs[100].append(5)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    bench.turn()
    for attempt in range(3):
        [fetch] = bench.requests()
        bench.sub.fetch_plan.on_fetched(fetch, [[100, 0, 0, 5, [[0, 0]], None]], [bad], bench.now)
        if attempt < 2:
            assert bench.take() == []
        else:
            with pytest.raises(errors.CorruptData, match="came damaged 3 times") as caught:
                bench.take()
            assert not isinstance(caught.value, errors.BatchUnreadable)
        bench.now += 2_000
    assert len(bench.read()) == 5 and bench.sub.skips.counts == {}


BODIES: dict[str, Callable[[], bytes]] = {
    "no msgpack": lambda: forged(b"\xc1" * 9, 2),
    "a column too short": lambda: unreadable(2),
    "a value of another type": lambda: forged(msgpack.packb(([1, 2], None, None, None)), 2),
    "no values": lambda: forged(msgpack.packb((None, None, None, None)), 2),
    "two columns": lambda: forged(msgpack.packb(([b"a", b"b"], None)), 2),
    "a map": lambda: forged(msgpack.packb({"a": 1}), 2),
    "no zlib": lambda: forged(b"nonsense", 2, codec=batch.ZLIB),
    "a time before 1970": lambda: forged(msgpack.packb(([b""] * 2, None, None, [0, -1])), 2),
    "more than one body": lambda: forged(msgpack.packb(([b""] * 2, None, None, None)) * 2, 2),
}


@pytest.mark.parametrize("name", BODIES)
def test_whatever_is_wrong_with_it(name: str) -> None:
    frame = BODIES[name]()
    for policy in ("raise", "skip"):
        bench = Bench([A], on_damaged=policy)
        bench.turn()
        [fetch] = bench.requests()
        bench.sub.fetch_plan.on_fetched(fetch, [[100, 0, 0, 2, [[0, 0]], None]], [frame], 0)
        if policy == "raise":
            for _ in range(2):
                with pytest.raises(errors.BatchUnreadable, match="offsets 0 to 1"):
                    bench.take()
        else:
            assert bench.take() == [] and bench.position() == 2


def test_full_buffers_of_nothing_else_do_not_stop_it(cluster: EchoCluster) -> None:
    """Nothing of them is handed out, and yet the next ones are asked for at once."""
    [log] = cluster.topic("many")
    for _ in range(200):
        log.append(unreadable(3))
    fill(log, 1)
    with Consumer(
        cluster.address,
        "many",
        on_damaged="skip",
        fetch_max_bytes=200,
        max_buffered_bytes=400,
        fetch_wait_ms=60_000,
    ) as consumer:
        found = consumer.poll(timeout=10)
        assert offsets(found) == [600] and consumer.skipped() == {("many", 0): 600}


def test_an_async_consumer(cluster: EchoCluster) -> None:
    async def read() -> None:
        async with AsyncConsumer(cluster.address, "t", idle_timeout=0.3) as consumer:
            found = []
            with pytest.raises(errors.BatchUnreadable) as caught:
                while True:
                    found += await consumer.poll(timeout=0.5)
            assert offsets(found) == [0, 1, 2]
            await consumer.seek(PLACE, caught.value.next_offset)
            rest = [message async for message in consumer]
            assert offsets(found + rest) == [0, 1, 2, 7, 8, 9]
        async with AsyncConsumer(
            cluster.address, "t", on_damaged="skip", idle_timeout=0.3
        ) as consumer:
            found = [message async for message in consumer]
            assert offsets(found) == [0, 1, 2, 7, 8, 9]
            assert consumer.skipped() == {("t", 0): BAD}

    asyncio.run(read())


def test_my_consumer(cluster: EchoCluster) -> None:
    with MyConsumer(["t"], cluster.address, idle_timeout=0.3) as consumer:
        found: list[Message] = []
        for _ in range(2):
            with pytest.raises(errors.BatchUnreadable):
                found += consumer.get_next()
        ids = consumer.consumer_ids
    with MyConsumer(
        ["t"], cluster.address, idle_timeout=0.3, consumer_ids=ids, on_damaged="skip"
    ) as consumer:
        assert [m.offset for m in consumer.get_next() if m.partition == 0][-3:] == [7, 8, 9]
        assert consumer.skipped() == {("t", 0): BAD}
    with pytest.raises(errors.InvalidSetting, match="on_damaged must be one of raise, skip"):
        MyConsumer(["t"], cluster.address, on_damaged="ignore")
    with pytest.raises(errors.InvalidSetting, match="on_damaged='ignore' must be one of raise"):
        MyConsumer(["t"], "http://127.0.0.1:1", on_damaged="ignore")


def test_the_command(cluster: EchoCluster) -> None:
    def run(*options: str) -> Any:
        words = ["t", "--partition", "0", "--cluster", cluster.address, *options]
        return CliRunner().invoke(consume, words)

    done = run()
    assert done.stdout == "0\n1\n2\n" and isinstance(done.exception, errors.BatchUnreadable)
    assert "--on-damaged skip" in done.exception.hint
    assert "--partition 0 --from 7" in done.exception.hint
    for more, rest in (([], "7\n8\n9\n"), (["--from", "5"], "7\n8\n9\n")):
        done = run("--on-damaged", "skip", *more)
        assert done.exit_code == 0 and done.stdout.endswith(rest)
        assert "passed over: t/0: offsets 3 to 6" in done.stderr
    cluster.logs[cluster.topics["t"][0]].append(unreadable(2))
    done = run("--on-damaged", "skip", "--from", "8")
    assert done.exit_code == 0 and done.stdout == "8\n9\n", "it ends behind the last one too"
