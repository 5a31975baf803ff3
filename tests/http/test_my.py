"""`MyProducer` and `MyConsumer` with an http:// address: the same, through the endpoints (Q10)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.gateways import Gateway
from support.processes import Cluster

from myqueue import MyConsumer, MyProducer, Producer, errors
from myqueue.cluster.partitioner import partition_of
from myqueue.http_requests import Gateways

pytestmark = pytest.mark.slow


def test_what_is_sent_comes_back(gateway: Gateway, topic: str) -> None:
    topics = [f"{topic}-1", f"{topic}-2"]
    producer = MyProducer(topics, gateway.url)
    assert producer.can_send() and sorted(producer.producer_ids) == topics
    sent = [producer.send(topics[n % 2], b"%d" % n) for n in range(60)]
    producer.send(topics[0], b"\xff\x00 no text")
    producer.send(f"{topic}-3", b"on the way")
    producer.stop()
    assert not producer.can_send()
    assert [one.result(0).offset for one in sent[:4]] == [0, 0, 1, 1]
    with pytest.raises(errors.Closed):
        producer.send(topics[0], b"late")
    with pytest.raises(errors.UnknownTopic):
        MyConsumer([f"{topic}-none"], gateway.url)
    consumer = MyConsumer(topics, gateway.url, idle_timeout=1.5)
    found = []
    for message in consumer.get_next():
        found.append(message)
        if len(found) == 20:
            break
    consumer.stop()
    assert list(consumer.get_next()) == []
    ids = consumer.consumer_ids
    with MyConsumer(topics, gateway.url, idle_timeout=1.5, consumer_ids=ids) as again:
        found += again.get_next()
    for at, name in enumerate(topics):
        values = [one.value for one in found if one.topic == name]
        extra = [b"\xff\x00 no text"] if at == 0 else []
        assert values == [b"%d" % n for n in range(at, 60, 2)] + extra
    assert all(one.timestamp > 0 and one.partition == 0 for one in found)


@pytest.mark.parametrize("over", ["http", "zeromq"])
def test_texts_are_sent_as_utf_8_and_keys_share_a_partition(
    gateway: Gateway, cluster: Cluster, topic: str, over: str
) -> None:
    where = gateway.url if over == "http" else cluster.address
    cluster.admin.create_topic(topic, partitions=3)
    with MyProducer([topic], where) as producer:
        sent = [producer.send(topic, f"ü{n}", key=("k", b"k", "other ü")[n % 3]) for n in range(9)]
        producer.send(topic, b"\xff", key=b"\xfe")
        producer.send(topic, "no key")
        for value, key in ((5, None), ("\ud800", None), ("x", "\ud800"), ("x", 5)):
            with pytest.raises(errors.InvalidRequest):
                producer.send(topic, value, key=key)  # type: ignore[arg-type]
    places = [one.result(0) for one in sent]
    assert len({places[n].partition for n in range(9) if n % 3 < 2}) == 1
    assert places[2].partition == places[5].partition == partition_of("other ü".encode(), 3)
    with MyConsumer([topic], where, idle_timeout=1.5) as consumer:
        found = {(one.value, one.key) for one in consumer.get_next()}
    keys = (b"k", b"k", "other ü".encode())
    assert found == {
        *((f"ü{n}".encode(), keys[n % 3]) for n in range(9)),
        (b"\xff", b"\xfe"),
        (b"no key", None),
    }


def test_stop_ends_a_consumer_that_waits(gateway: Gateway, topic: str) -> None:
    MyProducer([topic], gateway.url).stop()
    consumer = MyConsumer([topic], gateway.url)
    ended = threading.Event()

    def read() -> None:
        assert list(consumer.get_next()) == []
        ended.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    time.sleep(0.2)  # it waits by now; if not, it ends all the same
    consumer.stop()
    assert ended.wait(30)


def test_nobody_waits_at_an_empty_partition_while_another_has_messages(
    gateway: Gateway, topic: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow requests are: a third of a second for each message makes minutes of many."""
    cluster.admin.create_topic(topic, partitions=3)
    with Producer(cluster.address) as producer:
        producer.send_many(topic, [b"x"] * 8, partition=1).result(30)
    waits: list[int] = []
    ask = Gateways.ask

    def noted(self: Gateways, method: str, path: str, values: Any, **more: Any) -> dict[str, Any]:
        waits.append(values.get("wait_ms", 0))
        time.sleep(0.11)  # a machine so busy that one request takes longer than a consumer is awake
        return ask(self, method, path, values, **more)

    monkeypatch.setattr(Gateways, "ask", noted)
    with MyConsumer([topic], gateway.url, idle_timeout=1.0) as consumer:
        for number, _ in enumerate(consumer.get_next(), 1):
            if number == 8:
                break
        assert not any(waits)
        assert list(consumer.get_next()) == []
        assert any(waits), "who has found nothing anywhere does wait"


def test_a_gateway_that_dies_doubles_nothing(
    gateway: Gateway, topic: str, folder: Path, cluster: Cluster
) -> None:
    """No message twice, none lost, each in its place: repeats carry the key of the first."""
    own = Gateway(folder, cluster.address, "dies").start()
    addresses = f"{own.url},127.0.0.1:{gateway.port}"
    with MyProducer([topic], addresses) as producer:
        cluster.admin.grow_topic(topic, 2)
        sent = [producer.send(topic, b"%05d" % n) for n in range(300)]
        sent[0].result(30)
        own.kill()
        sent += [producer.send(topic, b"%05d" % n) for n in range(300, 600)]
        for one in sent:
            one.result(60)
    own.start(ready=False)
    consumer = MyConsumer([topic], addresses, idle_timeout=2.0)
    found = []
    for message in consumer.get_next():
        found.append(message)
        if len(found) == 150:
            own.kill()
    consumer.stop()
    assert sorted(one.value for one in found) == [b"%05d" % n for n in range(600)]
    for partition in range(3):
        mine = [one for one in found if one.partition == partition]
        assert [one.offset for one in mine] == list(range(len(mine)))
        assert [one.value for one in mine] == sorted(one.value for one in mine)
    own.kill()


def test_clients_that_are_dropped_go_by_themselves(gateway: Gateway, topic: str) -> None:
    """What was accepted is delivered; no thread and no connection stays."""
    producer = MyProducer([topic], gateway.url)
    sent = [producer.send(topic, b"%d" % n) for n in range(20)]
    with pytest.warns(ResourceWarning, match=r"a MyProducer was dropped without stop\(\)"):
        del producer
        gc.collect()
    assert [one.result(30).offset for one in sent] == list(range(20))
    for thread in threading.enumerate():
        if thread.name == "myqueue-http":
            thread.join(30)
            assert not thread.is_alive()
    before = len(os.listdir("/proc/self/fd"))
    consumer = MyConsumer([topic], gateway.url)
    assert next(consumer.get_next()).value == b"0"
    assert len(os.listdir("/proc/self/fd")) == before + 1
    with pytest.warns(ResourceWarning, match=r"a MyConsumer was dropped without stop\(\)"):
        del consumer
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_program_that_forgets_to_stop_still_delivers(gateway: Gateway, topic: str) -> None:
    program = (
        "import sys\nfrom myqueue import MyProducer\n"
        "producer = MyProducer([sys.argv[2]], sys.argv[1])\n"
        "producer.send(sys.argv[2], b'forgotten')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, gateway.url, topic], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    with MyConsumer([topic], gateway.url, idle_timeout=1.5) as consumer:
        assert [one.value for one in consumer.get_next()] == [b"forgotten"]
