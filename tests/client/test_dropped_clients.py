"""Clients that are dropped without close: threads and descriptors go, and nothing is lost silently.

Threads are counted by the kernel too, since ZeroMQ has some that Python does not know.
"""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.fake_cluster.groups import Groups, serve_groups
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import Reads, fill, serve_reads

from myqueue import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    MyConsumer,
    MyProducer,
    Producer,
    Session,
    errors,
    finalizers,
)

GONE_S = 10.0  # it takes some ms; a busy machine more


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        cluster.topic("t")
        yield cluster


@pytest.fixture
def reads(cluster: EchoCluster) -> Reads:
    reads = serve_reads(cluster)
    fill(cluster.topic("t")[0], 10)
    return reads


@pytest.fixture
def groups(cluster: EchoCluster, reads: Reads) -> Groups:
    return serve_groups(cluster)


def standing() -> tuple[int, int, int]:
    """Python's threads, all threads, descriptors."""
    return (
        len(threading.enumerate()),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


def until(condition: Callable[[], bool], limit_s: float = GONE_S) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def at_rest() -> tuple[int, int, int]:
    """When the other side has closed its ends too: the same for a while."""
    seen = [standing()]

    def is_same() -> bool:
        seen.append(standing())
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    assert until(is_same)
    return seen[-1]


def used_session(cluster: EchoCluster) -> object:
    session = Session(cluster.address)
    session.wait(session.read("managers"), 5_000)
    return session


def used_producer(cluster: EchoCluster) -> object:
    producer = Producer(cluster.address)
    producer.send("t", b"x").result(5)
    return producer


def used_consumer(cluster: EchoCluster) -> object:
    consumer = Consumer(cluster.address, "t", consumer_id=7, auto_commit=True)
    assert consumer.poll(timeout=5)
    return consumer


def used_admin(cluster: EchoCluster) -> object:
    admin = Admin(cluster.address)
    assert admin.managers()
    return admin


def used_my_producer(cluster: EchoCluster) -> object:
    producer = MyProducer(["t"], cluster.address)
    producer.send("t", b"x").result(5)
    return producer


def used_my_consumer(cluster: EchoCluster) -> object:
    consumer = MyConsumer(["t"], cluster.address)
    assert next(consumer.get_next()).offset == 0
    return consumer


def used_async_producer(cluster: EchoCluster) -> object:
    async def main() -> AsyncProducer:
        producer = AsyncProducer(cluster.address)
        await producer.send("t", b"x")
        return producer

    return asyncio.run(main())


def used_async_consumer(cluster: EchoCluster) -> object:
    async def main() -> AsyncConsumer:
        consumer = await AsyncConsumer(cluster.address, "t", consumer_id=7).start()
        assert await consumer.poll(timeout=5)
        return consumer

    return asyncio.run(main())


def used_together(cluster: EchoCluster) -> object:
    """Clients that share a session, which is dropped with them."""
    session = Session(cluster.address)
    consumer = Consumer(session, "t")
    assert consumer.poll(timeout=5)
    producer = Producer(session)
    producer.send("t", b"x").result(5)
    return [producer, consumer, Admin(session)]


MAKERS = {
    "Session": used_session,
    "Producer": used_producer,
    "Consumer": used_consumer,
    "Admin": used_admin,
    "MyProducer": used_my_producer,
    "MyConsumer": used_my_consumer,
    "AsyncProducer": used_async_producer,
    "AsyncConsumer": used_async_consumer,
    "(Session|Producer|Consumer)": used_together,
}


@pytest.mark.parametrize("name", MAKERS)
def test_threads_and_descriptors_go_with_the_client(cluster, reads, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        MAKERS[name](cluster)  # what is made once a process is made
        gc.collect()
        # The I/O thread is the last to refer to a shared session: its warning comes from there.
        assert until(lambda: not _io_threads())
    before = at_rest()
    client = MAKERS[name](cluster)
    assert len(_io_threads()) == 1 and standing()[2] > before[2]
    verb = "stop" if name.startswith("My") else "close"
    with pytest.warns(ResourceWarning, match=rf"a {name} was dropped without {verb}\(\)$"):
        del client
        gc.collect()
        assert until(lambda: all(map(int.__le__, standing(), before))), (standing(), before)


@pytest.fixture(autouse=True)
def threads_of_other_tests() -> Iterator[None]:
    """Other files of this process may have clients that are open; their threads do not count."""
    _other_threads[:] = _all_io_threads()
    yield


_other_threads: list[threading.Thread] = []


def _all_io_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("myqueue-")]


def _io_threads() -> list[str]:
    return [thread.name for thread in _all_io_threads() if thread not in _other_threads]


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin", "MyProducer", "MyConsumer"])
def test_a_client_that_was_closed_goes_without_a_word(cluster, reads, name):
    client: Any = MAKERS[name](cluster)
    client.stop() if name.startswith("My") else client.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del client
        gc.collect()
    assert until(lambda: not _io_threads())


def test_a_session_lives_as_long_as_a_client_that_uses_it(cluster):
    session = Session(cluster.address)
    producer = Producer(session)
    del session
    gc.collect()
    producer.send("t", b"x").result(5)
    shared = producer.session
    producer.close()
    assert not shared.closed
    shared.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_was_accepted_is_delivered_though_its_producer_is_dropped(cluster):
    """No answer comes before the producer is gone."""
    producer = Producer(cluster.address)
    producer.send("t", b"warm").result(5)
    gate = threading.Event()
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: None if gate.wait(10) else []
    sent = [producer.send("t", b"%d" % number) for number in range(100)]
    several = producer.send_many("t", [b"100", b"101"])
    del producer
    gc.collect()
    assert not any(one.done() for one in sent)
    gate.set()
    assert [one.result(5).offset for one in sent] == list(range(1, 101))
    assert several.result(5)[0].offset == 101
    assert until(lambda: not _io_threads())


def test_what_could_not_be_delivered_is_counted_in_warning_and_log(cluster, caplog, monkeypatch):
    monkeypatch.setattr(finalizers, "DELIVER_S", 0.3)
    producer = Producer(cluster.address)
    producer.send("t", b"warm").result(5)
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: []
    lost = [producer.send("t", b"x") for _ in range(7)]
    with (
        pytest.warns(ResourceWarning, match=r"Producer .* 7 messages are not delivered yet"),
        caplog.at_level(logging.ERROR, "myqueue.client"),
    ):
        del producer
        gc.collect()
        assert until(lambda: not _io_threads())
    assert "a Producer was dropped without close(): 7 messages were not delivered" in caplog.text
    for one in lost:
        error = one.exception(0)
        assert isinstance(error, errors.Closed) and error.outcome == errors.UNKNOWN


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_member_leaves_its_group_and_commits_what_was_handled(cluster, groups, reads):
    groups.give("t", (0, 3, False))
    consumer = Consumer(
        cluster.address, "t", group="g", auto_commit=True, auto_commit_interval_ms=60_000
    )
    assert len(consumer.poll(4, timeout=10)) == 4
    consumer.poll(1, timeout=0)  # so the four are handled
    del consumer
    gc.collect()
    assert until(lambda: not _io_threads())
    assert groups.done == ["join_group", "leave_group"]
    assert list(reads.positions.values()) == [4]


def test_a_finalizer_waits_for_no_lock(cluster):
    """It may run in a thread that holds one: here the lock of the producer itself."""
    producer = Producer(cluster.address)
    producer.send("t", b"x").result(5)
    lock = producer._lock
    with pytest.warns(ResourceWarning), lock:
        del producer
        gc.collect()
    assert until(lambda: not _io_threads())


PROGRAMS = {
    "Session": "client = Session(address); client.read('managers').result()",
    "Producer": "client = Producer(address); client.send('t', b'last')",
    "Consumer": "client = Consumer(address, 't'); client.poll()",
    "Admin": "client = Admin(address); client.managers()",
    "MyProducer": "client = MyProducer(['t'], address); client.send('t', b'last')",
    "MyConsumer": "client = MyConsumer(['t'], address); found = next(client.get_next())",
    "AsyncProducer": "client = AsyncProducer(address); asyncio.run(client.send('t', b'last'))",
    "AsyncConsumer": "client = AsyncConsumer(address, 't'); asyncio.run(client.start())",
}


ENDS = {
    "at the end": "",
    "dropped": "del client",
    "in a cycle": "cycle = [client]; cycle.append(cycle); del client, cycle",
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_without_a_hang_or_a_trace(cluster, reads, name, ends):
    program = f"import asyncio, sys\nfrom myqueue import {name}\naddress = sys.argv[1]\n"
    program += f"{PROGRAMS[name]}\n{ENDS[ends]}\n"
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, cluster.address], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - begin < 20
    if name.endswith("Producer"):
        assert cluster.topic("t")[0].values()[-1] == b"last"
