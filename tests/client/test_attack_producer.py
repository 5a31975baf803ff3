"""Lists of which a part was taken or failed: what is said of a part must not be said of all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster

from myqueue.cluster.partitioner import partition_of
from myqueue.errors import (
    NONE,
    UNKNOWN,
    BufferFull,
    Busy,
    Closed,
    MessageTooLarge,
    OutcomeUnknown,
)
from myqueue.producer import send_once
from myqueue.producer.producer import Producer
from myqueue.producer.send_once import _JoinedAnswers
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


def test_send_once_sends_nothing_if_one_partition_gets_too_much(cluster: EchoCluster) -> None:
    """C1: the error says that nothing was done, so no part of the list may be stored."""
    logs = cluster.topic("t", 4)
    keys = [str(number) for number in range(16)]
    large = next(key for key in keys if partition_of(key.encode(), 4) == 3)
    with Producer(cluster.address) as producer:
        values = [b"x" * (9 << 20) if key == large else b"small" for key in keys]
        with pytest.raises(MessageTooLarge, match=r"t/3 packs to \d+ bytes; \d+ at most") as caught:
            producer.send_once(
                "t", [*values, values[keys.index(large)]], request_id=b"i" * 16, keys=[*keys, large]
            )
        assert caught.value.outcome == NONE
        for partition in range(4):  # stored behind all that was sent before
            producer.send("t", b"last", partition=partition).result(10)
    assert [log.values() for log in logs] == [[b"last"]] * 4


def test_send_once_whose_session_is_closed_meanwhile_is_unknown(
    cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the first part was sent before the session was closed."""
    cluster.topic("t", 4)
    ask_leader = send_once.ask_leader
    with Producer(cluster.address) as producer:

        def ask_then_close(*arguments: Any, **named: Any) -> Future[Any]:
            answer = ask_leader(*arguments, **named)
            answer.exception(10)
            producer.session.close()
            return answer

        monkeypatch.setattr(send_once, "ask_leader", ask_then_close)
        keys = [str(number) for number in range(16)]
        values = [b"small"] * len(keys)
        delivery = producer.send_once("t", values, request_id=b"i" * 16, keys=keys)
        failure = delivery.exception(10)
    assert isinstance(failure, Closed) and failure.outcome == UNKNOWN


@pytest.mark.parametrize("other", [None, Busy("later")])
def test_a_part_that_fails_in_an_unknown_way_ends_the_wait(other: Exception | None) -> None:
    """C1: nobody waits for ever, and nobody is told that nothing was done."""
    joined, parts = _JoinedAnswers("t", 2, 2), [Future[Any](), Future[Any]()]
    for partition, part in enumerate(parts):
        part.add_done_callback(partial(joined.part_answered, partition, [partition]))
    parts[0].set_exception(ZeroDivisionError("a defect"))
    if other is None:
        parts[1].set_result((7, 1))
    else:
        parts[1].set_exception(other)
    assert joined.future.done()
    error = joined.future.exception()
    assert isinstance(error, OutcomeUnknown) and error.outcome == UNKNOWN
    assert "a defect" in str(error)


def test_a_part_with_an_unexpected_result_ends_the_wait_too() -> None:
    joined, part = _JoinedAnswers("t", 1, 1), Future[Any]()
    part.add_done_callback(partial(joined.part_answered, 0, [0]))
    part.set_result(7)  # neither offset nor time
    assert joined.future.done()
    error = joined.future.exception(0)
    assert isinstance(error, OutcomeUnknown) and error.outcome == UNKNOWN


def test_what_send_once_may_have_sent_cannot_be_cancelled(cluster: EchoCluster) -> None:
    """Like a Delivery: a cancelled one would say nothing of messages that may be stored."""
    [log] = cluster.topic("t")
    with Producer(cluster.address) as producer:
        delivery = producer.send_once("t", [b"a"], request_id=b"i" * 16)
        assert not delivery.cancel()
        assert delivery.result(10)[0].offset == 0
    assert log.values() == [b"a"]
