"""A producer that was made a moment ago, used by many threads at once: a message's key decides its
partition from the first message on, and so does the id of a message that is stored once.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.fake_cluster.peer import EchoCluster

from myqueue.cluster.partitioner import jump_hash, partition_of
from myqueue.producer.lane import Lane
from myqueue.producer.producer import Producer
from myqueue.wire import batch as batches

PARTITIONS, THREADS = 300, 8


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster() as cluster:
        cluster.topic("wide", PARTITIONS)
        yield cluster


def stopped_while_it_adds_lanes(
    producer: Producer, threads: ThreadPoolExecutor, first: Callable[[], object]
) -> Callable[[], None]:
    """`first` runs up to the place where some lanes of the topic exist and others do not."""
    added, go_on = threading.Event(), threading.Event()
    add_lane = producer._accumulator.add_lane

    def slowly(lane: Lane) -> Lane:
        if lane.partition == PARTITIONS // 2:
            added.set()
            assert go_on.wait(10)
        return add_lane(lane)

    producer._accumulator.add_lane = slowly  # type: ignore[method-assign]
    threads.submit(first)
    assert added.wait(10)
    return go_on.set


def ids(count: int) -> list[bytes]:
    return [b"%016d" % number for number in range(count)]


def test_nobody_sees_half_of_a_new_topic(cluster: EchoCluster) -> None:
    with Producer(cluster.address) as producer, ThreadPoolExecutor(THREADS) as threads:
        release = stopped_while_it_adds_lanes(
            producer, threads, lambda: producer.send("wide", b"first", key=b"first").result(10)
        )
        keys = [b"key %d" % number for number in range(3)]
        keyed = [threads.submit(producer.send, "wide", b"", key=key) for key in keys]
        once = [
            threads.submit(producer.send_once, "wide", [b""], request_id=name) for name in ids(3)
        ]
        count = threads.submit(producer.partitions_for, "wide")
        told, _ = threading.Event(), [one.add_done_callback(lambda _: told.set()) for one in keyed]
        told.wait(0.1)  # what would be sent by half of the lanes is sent by now
        release()
        assert count.result(10) == PARTITIONS
        assert [one.result(10).result(10).partition for one in keyed] == [
            partition_of(key, PARTITIONS) for key in keys
        ]
        assert [one.result(10).result(10)[0].partition for one in once] == [
            jump_hash(name, PARTITIONS) for name in ids(3)
        ]


def test_nobody_sees_half_of_a_topic_that_grows(cluster: EchoCluster) -> None:
    cluster.topic("grows", 1)
    with Producer(cluster.address) as producer, ThreadPoolExecutor(2) as threads:
        assert producer.partitions_for("grows") == 1

        def grow() -> None:
            cluster.topic("grows", PARTITIONS)
            producer.session.refresh(("grows",))

        release = stopped_while_it_adds_lanes(producer, threads, grow)
        seen = producer.partitions_for("grows")
        release()
        assert seen == 1, "the number of partitions is the old one until it is the new one"


def test_one_that_grew_while_it_was_asked_for_is_known_as_it_is_now(cluster: EchoCluster) -> None:
    cluster.topic("grows", 1)
    with Producer(cluster.address) as producer:
        session, wait = producer.session, producer.session.wait
        grown = threading.Event()

        def grows_meanwhile(*asked):  # type: ignore[no-untyped-def]
            found = wait(*asked)
            cluster.topic("grows", 2)
            session.on_routes(grown.set)
            session.refresh(("grows",))
            assert grown.wait(10)
            return found

        session.wait = grows_meanwhile  # type: ignore[method-assign]
        assert producer.partitions_for("grows") == 2


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change at every moment at which they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_the_first_moment(producer: Producer, send: Callable[[int], object]) -> list[object]:
    """Each thread does its share as soon as it sees that the producer knows the topic."""

    def share(at: int) -> object:
        while "wide" not in producer._topics:
            if not at:
                return producer.partitions_for("wide")
        return send(at - 1)

    with ThreadPoolExecutor(THREADS + 1) as threads:
        return list(threads.map(share, range(THREADS, -1, -1)))[:THREADS]


@pytest.mark.usefixtures("hasty")
def test_an_id_finds_its_partition_through_every_new_producer(cluster: EchoCluster) -> None:
    """As requests with a key through gateways that were started a moment ago."""
    for _ in range(10):
        with Producer(cluster.address) as producer:
            asked = at_the_first_moment(
                producer, lambda at: producer.send_once("wide", [b""], request_id=ids(THREADS)[at])
            )
            found = [one.result(20)[0].partition for one in asked]  # type: ignore[attr-defined]
            assert found[::-1] == [jump_hash(name, PARTITIONS) for name in ids(THREADS)]


@pytest.mark.usefixtures("hasty")
def test_keys_keep_their_partition_in_a_new_producer(cluster: EchoCluster) -> None:
    keys = [b"%d" % number for number in range(THREADS)]
    for _ in range(10):
        with Producer(cluster.address) as producer:
            at_the_first_moment(producer, lambda at: producer.send("wide", b"", key=keys[at]))
    stored = 0
    for number, group in enumerate(cluster.topics["wide"]):
        for _, data in cluster.logs[group].batches:
            _, columns = batches.open_batch(data)
            assert {partition_of(key, PARTITIONS) for key in columns.keys} == {number}
            stored += len(columns.keys)
    assert stored == 10 * THREADS
