"""Time-outs that callers give hold, whoever does not answer: a dead address, and a silent one."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import fill, serve_reads

from myqueue import errors
from myqueue.admin.client import Admin
from myqueue.consumer.consumer import CONTACT_S, Consumer
from myqueue.http_requests import REFUSED_S
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer, MyProducer

LIMIT_S = 0.5
LATE_S = 1.0  # a busy machine; far from the 10 s of requests without a limit


@pytest.fixture(params=["dead", "silent"])
def address(request: Any) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen()  # connections are taken by the kernel, and nobody says a word
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_calls_of_a_consumer(address):
    begin = time.monotonic()
    with Consumer(address, "t", consumer_id=7) as consumer:
        assert time.monotonic() - begin < CONTACT_S + LATE_S
        calls: dict[str, Callable[[], Any]] = {
            "poll": lambda: consumer.poll(timeout=LIMIT_S),
            "position": lambda: consumer.position("t", 0, timeout=LIMIT_S),
            "lag": lambda: consumer.lag(LIMIT_S),
            "committed": lambda: consumer.committed(LIMIT_S),
            "commit": lambda: consumer.commit(timeout=LIMIT_S),
            "seek_to_end": lambda: consumer.seek_to_end(timeout=LIMIT_S),
        }
        for name, call in calls.items():
            begin = time.monotonic()
            with pytest.raises(errors.Unreachable, match=address):
                call()
            assert LIMIT_S <= time.monotonic() - begin < LIMIT_S + LATE_S, name
        begin = time.monotonic()
        consumer.close(LIMIT_S)
        assert time.monotonic() - begin < LIMIT_S + LATE_S


def test_iteration(address):
    with Consumer(address, "t", idle_timeout=LIMIT_S) as consumer:
        begin = time.monotonic()
        with pytest.raises(errors.Unreachable):
            list(consumer)
        assert LIMIT_S <= time.monotonic() - begin < LIMIT_S + LATE_S


def test_calls_of_admin(address):
    with Admin(address, timeout=LIMIT_S) as admin:
        calls: dict[str, Callable[[], Any]] = {
            "topics": admin.topics,
            "create_topic": lambda: admin.create_topic("t"),
            "offsets": lambda: admin.offsets("t"),
            "where": lambda: admin.where("t", 0, 0),
            "describe_group": lambda: admin.describe_group("g"),
            "reset_group": lambda: admin.reset_group("g", to="latest"),
            "stats": admin.stats,
        }
        for name, call in calls.items():
            begin = time.monotonic()
            with pytest.raises((errors.Unreachable, errors.TimedOut)):
                call()
            assert time.monotonic() - begin < LIMIT_S + LATE_S, name


def test_a_producer(address):
    producer = Producer(address, max_block_ms=500)
    begin = time.monotonic()
    with pytest.raises(errors.TimedOut):
        producer.send("t", b"x")
    with contextlib.suppress(errors.MyQueueError):
        producer.flush(LIMIT_S)
    producer.close(LIMIT_S)
    assert time.monotonic() - begin < 2 * LIMIT_S + LATE_S


def test_a_consumer_that_was_made_before_its_cluster_begins_by_itself():
    with EchoCluster(1) as cluster:
        serve_reads(cluster)
        fill(cluster.topic("t")[0], 3)
        cluster.daemons[0].stop()
        with Consumer(cluster.address, "t", consumer_id=7) as consumer:
            with pytest.raises(errors.Unreachable):
                consumer.poll(timeout=0.1)
            cluster.daemons[0].start()
            assert len(consumer.poll(timeout=10)) == 3
            assert consumer.commit() == {("t", 0): 3}


@pytest.fixture
def closed() -> Iterator[list[str]]:
    """Two ports that refuse connections, and one behind which nobody says a word."""
    with socket.socket() as one, socket.socket() as other, socket.socket() as silent:
        for bound in (one, other, silent):
            bound.bind(("127.0.0.1", 0))
        silent.listen()
        yield [f"127.0.0.1:{bound.getsockname()[1]}" for bound in (one, other, silent)]


@pytest.mark.parametrize("way", ["", "http://"])
@pytest.mark.parametrize("kind", [MyProducer, MyConsumer])
def test_a_constructor_tells_soon_that_every_address_refuses(closed, kind, way):
    """Sooner than its time, later than a port is closed while a daemon starts again."""
    begin = time.monotonic()
    with pytest.raises(errors.Unreachable, match="refused") as raised:
        kind(["t"], way + ",".join(closed[:2]))
    assert REFUSED_S <= time.monotonic() - begin < REFUSED_S + 1.5 + LATE_S
    assert raised.value.retriable and raised.value.outcome == errors.NONE
    assert all(address in str(raised.value) for address in closed[:2])


@pytest.mark.parametrize("way", ["", "http://"])
@pytest.mark.parametrize("kind", [MyProducer, MyConsumer])
@pytest.mark.parametrize("place", [0, 2], ids=["refused", "silent"])
def test_the_time_of_a_constructor_holds(closed, kind, way, place):
    begin = time.monotonic()
    with pytest.raises((errors.Unreachable, errors.TimedOut)) as raised:
        kind(["t"], way + closed[place], timeout=LIMIT_S)
    assert time.monotonic() - begin < LIMIT_S + LATE_S
    assert closed[place] in str(raised.value)


def test_one_address_that_refuses_is_no_reason_to_give_up(closed):
    begin = time.monotonic()
    with pytest.raises(errors.Unreachable, match=closed[2]):
        MyProducer(["t"], f"{closed[0]},{closed[2]}", timeout=REFUSED_S + 1)
    assert time.monotonic() - begin >= REFUSED_S + 1


def test_a_constructor_outlives_a_short_restart():
    with EchoCluster(1) as cluster:
        serve_reads(cluster)
        cluster.topic("t")
        cluster.daemons[0].stop()
        later = threading.Timer(REFUSED_S / 2, cluster.daemons[0].start)
        later.start()
        with MyProducer(["t"], cluster.address) as producer:
            assert producer.send("t", b"x").result(5).offset == 0
        later.join()
