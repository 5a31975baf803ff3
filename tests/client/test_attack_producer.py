"""Lists of which a part was taken: what is said of the rest must not be said of all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fake_cluster.peer import EchoCluster

from myqueue.errors import NONE, UNKNOWN, BufferFull, MessageTooLarge
from myqueue.producer.producer import Producer
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster() as running:
        yield running


def test_a_list_that_was_taken_in_part_did_not_certainly_fail(cluster: EchoCluster) -> None:
    """C1: the first messages are delivered, though send_many raises."""
    [log] = cluster.topic("t")
    daemon = cluster.daemons[0]
    daemon.script = lambda envelope, _: [] if envelope[words.KIND] == words.PRODUCE else None
    with Producer(
        cluster.address, max_buffered_bytes=20_000, max_block_ms=200, request_timeout_ms=500
    ) as producer:
        with pytest.raises(BufferFull) as caught:
            producer.send_many("t", [b"x" * 1000] * 100)
        assert caught.value.outcome == UNKNOWN
        assert "taken before" in str(caught.value.__notes__)
        with pytest.raises(BufferFull) as caught:
            producer.send_many("t", [b"x" * 1000] * 10)
        assert caught.value.outcome == NONE
        daemon.script = lambda envelope, _: None
        producer.flush(10)
        assert 0 < len(log.values()) < 100


def test_the_same_for_one_message_that_is_too_large(cluster: EchoCluster) -> None:
    logs = cluster.topic("t", 4)
    with Producer(cluster.address) as producer:
        keys = [str(number) for number in range(16)]
        values = [b"small"] * 15 + [b"x" * (17 << 20)]
        with pytest.raises(MessageTooLarge) as caught:
            producer.send_many("t", values, keys=keys)
        producer.flush(10)
        stored = sum(len(log.values()) for log in logs)
        assert (caught.value.outcome == NONE) == (stored == 0)
