"""The usual way of `send` is written out; it does what `_put` does, message by message."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster

from myqueue.errors import DeliveryFailed, InvalidRequest, TimedOut
from myqueue.producer.accumulator import Accumulator
from myqueue.producer.batch import HEADER_OVERHEAD_BYTES, MESSAGE_OVERHEAD_BYTES, Batch
from myqueue.producer.lane import Lane
from myqueue.producer.producer import Producer

BATCH_BYTES = 10 * MESSAGE_OVERHEAD_BYTES


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster() as cluster:
        cluster.topic("t")
        cluster.topic("wide", 3)
        yield cluster


class Halted:
    """A producer whose I/O thread waits: no batch is taken unless the test takes it."""

    def __init__(self, cluster: EchoCluster, **settings: Any) -> None:
        self.producer = Producer(
            cluster.address, linger_ms=60_000, delivery_timeout_ms=9_000, **settings
        )
        for topic in ("t", "wide"):
            self.producer.partitions_for(topic)
        self.go_on, halted = threading.Event(), threading.Event()

        def halt() -> None:
            halted.set()
            self.go_on.wait(60)

        self.producer.session.on_io(halt)
        assert halted.wait(5)
        self.lanes = self.producer._topics["wide"].lanes

    @property
    def accumulator(self) -> Accumulator:
        return self.producer._accumulator

    def close(self) -> None:
        self.go_on.set()
        with suppress(DeliveryFailed, TimedOut):  # the test took its batches away
            self.producer.close(0)

    def put(
        self,
        value: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        headers: dict[str, bytes] | None = None,
        timestamp_ms: int | None = None,
    ) -> tuple[Batch, int]:
        """Do what `send` does, without its fast way."""
        topic_lanes = self.producer._topics["wide"]
        names = headers or {}
        size = MESSAGE_OVERHEAD_BYTES + len(value) + len(key or b"")
        size += sum(len(name) + len(names[name]) + HEADER_OVERHEAD_BYTES for name in names)
        named = key is not None or partition is not None
        lane = topic_lanes.lane_of(key, partition) if named else None
        return self.producer._put(topic_lanes, lane, size, value, key, headers, timestamp_ms)

    def told(self) -> list[Any]:
        """Everything that a message changes."""
        rows: list[Any] = [self.accumulator.buffered, self.producer._topics["wide"].spread.given]
        for lane in self.lanes:
            rows.append([_told(batch) for batch in lane.unsettled()])
            rows.append((lane.open is None, lane in self.accumulator._ready))
        return rows


def _told(batch: Batch) -> tuple[Any, ...]:
    return (batch.state, batch.count, batch.size, batch.sequence, batch.columns())


def _answer(lane: Lane, accumulator: Accumulator, is_stored: bool) -> None:
    if is_stored and lane.flight:
        accumulator.stored(lane.flight[0], 0, 0)
    else:
        accumulator._ready.pop(lane, None)
        accumulator.take(lane, 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_fast_way_leaves_what_put_leaves(cluster: EchoCluster, seed: int) -> None:
    """Random messages, sizes that often fill a batch exactly, and answers between them."""
    chance = random.Random(seed)
    settings = {"batch_bytes": BATCH_BYTES, "max_buffered_bytes": 1 << 20}
    fast, slow = Halted(cluster, **settings), Halted(cluster, **settings)
    quick = 0
    try:
        for _ in range(400):
            if chance.random() < 0.2:
                at, is_stored = chance.randrange(3), chance.random() < 0.5
                for halted in (fast, slow):
                    _answer(halted.lanes[at], halted.accumulator, is_stored)
            message: dict[str, Any] = {}
            if chance.random() < 0.3:
                message["key"] = b"%d" % chance.randrange(4)
            elif chance.random() < 0.4:
                message["partition"] = chance.randrange(3)
            if chance.random() < 0.2:
                message["headers"] = {"h": b"x" * chance.randrange(3)}
            if chance.random() < 0.2:
                message["timestamp_ms"] = chance.randrange(1000)
            value = b"v" * chance.choice((0, 1, 24, 72, 96, 240))
            before = {id(lane.open) for lane in fast.lanes if lane.open is not None}
            sent = fast.producer.send("wide", value, **message)
            quick += id(sent._batch) in before
            batch, index = slow.put(value, **message)
            assert sent._index == index and _told(sent._batch) == _told(batch)
            assert fast.told() == slow.told()
            fast.accumulator.check_invariants()
        assert quick > 50, "messages that found an open batch"
    finally:
        fast.close()
        slow.close()


def test_a_batch_that_is_exactly_full_waits_for_no_linger(cluster: EchoCluster) -> None:
    """The linger is a minute; the first batch is unanswered while the second fills up."""
    with Producer(
        cluster.address, linger_ms=60_000, batch_bytes=BATCH_BYTES, delivery_timeout_ms=8_000
    ) as producer:
        producer.send("t", b"warm").result(5)
        daemon = cluster.daemons[0]
        first, second = threading.Event(), threading.Event()

        def script(envelope: Any, frames: Any) -> Any:
            for word, seen in ((b"second", second), (b"first", first)):
                if any(word in frame for frame in frames):
                    seen.set()
                    return []
            return None

        daemon.script = script
        producer.send("t", b"first")
        assert first.wait(5)
        sent = [producer.send("t", b"") for _ in range(8)]
        sent.append(producer.send("t", b"second".ljust(MESSAGE_OVERHEAD_BYTES)))
        assert second.wait(5), "the full batch is sent behind the unanswered one"
        daemon.stop()
        daemon.script = lambda envelope, frames: None
        daemon.start()
        assert [one.result(20).offset for one in sent] == list(range(2, 11))


def test_an_error_inside_is_not_called_a_wrong_topic(
    cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: Any, **__: Any) -> None:
        raise TypeError("a defect")

    with Producer(cluster.address) as producer:
        with pytest.raises(InvalidRequest, match="topic"):
            producer.send(["t"], b"v")  # type: ignore[arg-type]
        monkeypatch.setattr(producer.session, "ensure_topics", defect)
        with pytest.raises(TypeError, match="a defect"):
            producer.send("t", b"v")
