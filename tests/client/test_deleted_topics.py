"""A topic is deleted while clients use it, and made again: one clear error, then the new topic."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.fake_cluster.groups import serve_groups
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import Reads, fill, serve_reads

from myqueue import errors
from myqueue.aio import AsyncConsumer
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(1) as cluster:
        fill(cluster.topic("t")[0], 3)
        yield cluster


@pytest.fixture
def reads(cluster: EchoCluster) -> Reads:
    return serve_reads(cluster)


Poll = Callable[[], list[Message]]


def poll_for(poll: Poll, seconds: float, *, until: int = 10**9) -> tuple[list[Any], list[Any]]:
    """Messages and errors of a program that goes on after each error."""
    found: list[Message] = []
    failed: list[errors.MyQueueError] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(found) < until:
        try:
            found += poll()
        except errors.MyQueueError as error:
            failed.append(error)
    return found, failed


def check_end_of_topic(cluster: EchoCluster, poll: Poll, refresh: Callable[[], object]) -> None:
    found, failed = poll_for(poll, 5, until=3)
    assert (len(found), failed) == (3, [])
    cluster.delete("t")
    refresh()
    found, [error] = poll_for(poll, 0.5)
    assert isinstance(error, errors.TopicDeleted) and "'t' was deleted" in str(error)
    assert found == [] and "created again" in error.hint
    fill(cluster.topic("t")[0], 2)
    refresh()
    found, failed = poll_for(poll, 5, until=2)
    assert ([message.offset for message in found], failed) == ([0, 1], [])
    # Deleted and made again before anybody looked: what was lost with it is told all the same.
    cluster.delete("t")
    fill(cluster.topic("t")[0], 4)
    refresh()
    found, [error] = poll_for(poll, 5, until=4)
    assert [message.offset for message in found] == [0, 1, 2, 3]
    assert isinstance(error, errors.TopicDeleted) and "made again" in str(error)


def test_a_plain_consumer_hears_it_once_and_goes_on_with_the_next_topic(cluster, reads):
    with Consumer(cluster.address, "t") as consumer:
        poll = lambda: consumer.poll(timeout=0.05)  # noqa: E731
        check_end_of_topic(cluster, poll, consumer._session.refresh)


def test_a_member_of_a_group_hears_it_once(cluster, reads):
    groups = serve_groups(cluster)
    groups.give("t", (0, 1, False))
    with Consumer(cluster.address, "t", group="g") as consumer:

        def refresh() -> None:
            if "t" in cluster.topics:
                groups.give("t", (0, 2, False))
            consumer._session.refresh()

        check_end_of_topic(cluster, lambda: consumer.poll(timeout=0.05), refresh)


def test_iteration_ends_with_it_once(cluster, reads):
    with MyConsumer(["t"], cluster.address, idle_timeout=0.1) as consumer:
        poll = lambda: list(consumer.get_next())  # noqa: E731

        def some() -> list[Message]:
            return next([message] for message in consumer.get_next())

        assert [some()[0].offset for _ in range(3)] == [0, 1, 2]
        cluster.delete("t")
        consumer._session.refresh()
        found, [error] = poll_for(poll, 0.5)
        assert found == [] and isinstance(error, errors.TopicDeleted)
        fill(cluster.topic("t")[0], 2)
        consumer._session.refresh()
        found, failed = poll_for(poll, 5, until=2)
        assert ([message.offset for message in found], failed) == ([0, 1], [])


def test_async_poll_hears_it_once(cluster, reads):
    async def main() -> None:
        async with AsyncConsumer(cluster.address, "t") as consumer:
            assert len(await consumer.poll()) == 3
            cluster.delete("t")
            consumer._consumer._session.refresh()
            with pytest.raises(errors.TopicDeleted):
                await consumer.poll(timeout=5)
            assert await consumer.poll(timeout=0.1) == []
            fill(cluster.topic("t")[0], 2)
            consumer._consumer._session.refresh()
            assert [message.offset for message in await consumer.poll(timeout=5)] == [0, 1]

    asyncio.run(main())


def test_a_message_of_the_topic_before_is_not_committed_to_the_next_one(cluster, reads):
    with Consumer(cluster.address, "t", consumer_id=7) as consumer:
        old = consumer.poll(timeout=5)[-1]
        cluster.delete("t")
        consumer._session.refresh()
        poll_for(lambda: consumer.poll(timeout=0.05), 0.3)
        for call in (
            lambda: consumer.commit(old),
            lambda: consumer.commit({("t", 0): 3}),
            lambda: consumer.position(("t", 0)),
            lambda: consumer.seek(("t", 0), 0),
        ):
            with pytest.raises(errors.TopicDeleted):
                call()
        fill(cluster.topic("t")[0], 2)
        consumer._session.refresh()
        [first] = poll_for(lambda: consumer.poll(1, timeout=0.05), 5, until=1)[0]
        with pytest.raises(errors.TopicDeleted):
            consumer.commit(old)
        assert consumer.commit(first) == {("t", 0): 1}


def test_a_producer_tells_what_was_lost_and_goes_on_with_the_next_topic(cluster, reads):
    with Producer(cluster.address) as producer:
        producer.send("t", b"x").result(5)
        cluster.daemons[0].script = lambda envelope, frames: None
        cluster.leaders[cluster.topics["t"][0]] = (0, 2)  # so that it waits
        waiting = producer.send("t", b"y")
        cluster.delete("t")
        producer.session.refresh()
        with pytest.raises(errors.TopicDeleted, match="before it was delivered: t"):
            waiting.result(5)
        log = cluster.topic("t")[0]
        assert producer.send("t", b"z").result(5).offset == 0
        assert log.values() == [b"z"]
        with pytest.raises(errors.DeliveryFailed):
            producer.flush()
