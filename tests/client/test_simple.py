"""MyProducer and MyConsumer: the assignment's interface, against real sockets."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import Reads, serve_reads

from myqueue import errors
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer, MyProducer


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        yield cluster


@pytest.fixture
def reads(cluster: EchoCluster) -> Reads:
    return serve_reads(cluster)


def test_what_is_sent_comes_back(cluster, reads):
    producer = MyProducer(["a"], broker=cluster.address)
    for number in range(100):
        while not producer.can_send():
            time.sleep(0.01)
        producer.send("a", b"%d" % number)
    producer.send("b", b"on the way")
    producer.stop()
    assert not producer.can_send()
    assert list(producer.producer_ids) == ["a", "b"]
    with pytest.raises(errors.Closed):
        producer.send("a", b"late")
    producer.stop()

    consumer = MyConsumer(["a", "b"], broker=cluster.address, idle_timeout=0.3)
    found = list(consumer.get_next())
    assert [message.value for message in found if message.topic == "a"] == [
        b"%d" % number for number in range(100)
    ]
    assert [message.value for message in found if message.topic == "b"] == [b"on the way"]
    consumer.stop()
    assert list(consumer.get_next()) == []


def test_ids_are_registered_and_kept_alive(cluster, reads):
    address = cluster.address
    with MyProducer(["a"], address) as producer, MyConsumer(["a"], address) as consumer:
        [number] = consumer.consumer_ids.values()
        end = time.monotonic() + 5
        wanted = [([producer.producer_ids["a"]], []), ([], [number])]
        while time.monotonic() < end and not all(row in cluster.alive for row in wanted):
            time.sleep(0.02)
        assert all(row in cluster.alive for row in wanted)


def test_what_was_returned_is_consumed_for_this_consumer(cluster, reads):
    with MyProducer(["a"], cluster.address) as producer:
        for number in range(10):
            producer.send("a", b"%d" % number)
    consumer = MyConsumer(["a"], cluster.address)
    messages = consumer.get_next()
    assert [next(messages).offset for _ in range(4)] == [0, 1, 2, 3]
    consumer.stop()
    assert list(messages) == []
    assert list(reads.positions.values()) == [4]
    again = MyConsumer(["a"], cluster.address, consumer_ids=consumer.consumer_ids, idle_timeout=0.2)
    assert [message.offset for message in again.get_next()] == [4, 5, 6, 7, 8, 9]
    again.stop()
    another = MyConsumer(["a"], cluster.address)
    assert next(another.get_next()).offset == 0
    assert next(another.get_next()).offset == 1
    another.stop()


def test_what_retention_took_is_told_or_left_out_as_was_chosen(cluster, reads):
    """C6: neither skipped in silence nor the end of this consumer."""
    cluster.topic("a")
    with MyProducer(["a"], cluster.address) as producer:
        producer.send("a", b"old")
    consumer = MyConsumer(["a"], cluster.address, idle_timeout=0.3)
    assert [message.value for message in consumer.get_next()] == [b"old"]
    consumer.stop()
    for value in (b"gone", b"new"):
        with MyProducer(["a"], cluster.address) as producer:
            producer.send("a", value)
    reads.starts[cluster.topics["a"][0]] = 2
    known = {"consumer_ids": consumer.consumer_ids, "idle_timeout": 0.3}
    with MyConsumer(["a"], cluster.address, **known) as strict:
        with pytest.raises(errors.OffsetOutOfRange, match="offset 1 is not between 2"):
            next(strict.get_next())
        with pytest.raises(errors.OffsetOutOfRange):
            next(strict.get_next())
    with MyConsumer(["a"], cluster.address, **known, on_out_of_range="earliest") as consumer:
        assert [message.offset for message in consumer.get_next()] == [2]
    with pytest.raises(errors.MisuseError, match="on_out_of_range"):
        MyConsumer(["a"], cluster.address, on_out_of_range="never")


def test_an_unknown_topic_raises(cluster, reads):
    with pytest.raises(errors.UnknownTopic):
        MyConsumer(["nothing"], cluster.address)


def test_stop_while_a_message_is_handled_ends_the_loop_and_commits_no_more(cluster, reads):
    """C9: nothing that was not returned is committed; a batch has more than the loop took."""
    with MyProducer(["a"], cluster.address) as producer:
        producer._way._producer.send_many("a", [b"x"] * 10).result(5)
    consumer = MyConsumer(["a"], cluster.address)
    found = []
    for message in consumer.get_next():
        found.append(message.offset)
        if len(found) == 3:
            # A commit is due as soon as this one is handled.
            consumer._consumer._handover.commit_due_at = 0
            consumer.stop()
    assert found == [0, 1, 2]
    assert list(reads.positions.values()) == [3]


def test_closing_does_not_move_positions_of_a_shared_session(cluster, reads):
    """C9: as the session goes on, what is committed after the end would be believed."""
    cluster.topic("a")
    with Session(cluster.address) as session, Producer(session) as producer:
        producer.send_many("a", [b"x"] * 10).result(5)
        consumer = Consumer(
            session, ["a"], consumer_id=7, auto_commit=True, auto_commit_interval_ms=10
        )
        for message in consumer:
            if message.offset == 2:
                consumer.close()
                time.sleep(0.05)
        assert message.offset == 2
        end = time.monotonic() + 0.5
        while time.monotonic() < end and max(reads.positions.values()) <= 3:
            time.sleep(0.02)
        assert max(reads.positions.values()) <= 3


def test_get_next_waits_until_stop(cluster, reads):
    cluster.topic("a")
    consumer = MyConsumer(["a"], cluster.address)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(m.value for m in consumer.get_next()))
    thread.start()
    with MyProducer(["a"], cluster.address) as producer:
        producer.send("a", b"x")
    end = time.monotonic() + 5
    while not found and time.monotonic() < end:
        time.sleep(0.01)
    assert thread.is_alive()
    consumer.stop()
    thread.join(2)
    assert not thread.is_alive() and found == [b"x"]


def test_a_gateway_that_is_not_there_is_named():
    """Q10: the same classes go through HTTP; `tests/http` has them with real gateways."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for kind in (MyProducer, MyConsumer):
            with pytest.raises(errors.Unreachable, match=address):
                kind(["a"], address, timeout=0.1)
    with pytest.raises(errors.InvalidSetting):
        MyProducer(["a"], "http://127.0.0.1:8080/path")


def test_addresses_as_users_write_them(cluster, reads):
    plain = cluster.address.replace("tcp://", "")
    for broker in (plain, plain.split(",")[0], cluster.address.replace(",", " , ")):
        with MyProducer([], broker) as producer:
            assert producer.can_send()
