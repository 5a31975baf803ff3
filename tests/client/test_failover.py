"""A producer whose broker hangs, or has no successor yet: what goes elsewhere, and how soon."""

import time

from support.fake_cluster.peer import EchoCluster

from myqueue.producer.producer import Producer
from myqueue.wire import protocol as words


def test_a_broker_that_hangs_is_left_when_another_one_leads():
    """C1: a paused broker breaks no connection; its requests would wait for their time-out."""
    with EchoCluster(2) as cluster:
        (log,) = cluster.topic("t")
        with Producer(cluster.address, request_timeout_ms=30_000) as producer:
            producer.send("t", b"0").result(10)
            first = cluster.daemons[0]
            first.script = lambda envelope, frames: [] if envelope[1] == words.PRODUCE else None
            waiting = [producer.send("t", b"%d" % n) for n in range(1, 4)]
            cluster.lead(cluster.topics["t"][0], 2)
            begin = time.monotonic()
            assert [delivery.result(15).offset for delivery in waiting] == [1, 2, 3]
            assert time.monotonic() - begin < 10, "routes are asked for after a silence"
            assert log.values() == [b"0", b"1", b"2", b"3"]


def test_messages_without_a_key_do_not_wait_for_a_partition_without_a_leader():
    """P3: one dead partition does not hold up what any of the others could take."""
    with EchoCluster(2) as cluster:
        cluster.topic("t", 4)
        with Producer(cluster.address, delivery_timeout_ms=20_000) as producer:
            producer.send_many("t", [b"warm"] * 8).result(10)
            cluster.daemons[1].stop()
            stuck = [producer.send("t", b"x", partition=n) for n in (1, 3)]
            done = [producer.send("t", b"%d" % n) for n in range(40)]
            deadline = time.monotonic() + 10
            while sum(one.done() for one in done) < 30 and time.monotonic() < deadline:
                done.append(producer.send("t", b"more"))
                time.sleep(0.02)
            found = {one.result(0).partition for one in done if one.done()}
            assert found <= {0, 2} and sum(one.done() for one in done) >= 30
            assert not any(one.done() for one in stuck)
            cluster.daemons[1].start()
            assert {one.result(15).partition for one in stuck} == {1, 3}
            assert all(one.result(15) for one in done)
