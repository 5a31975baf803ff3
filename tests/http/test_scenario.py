"""The documents' scenario: five producers and three consumers over three topics, by plain HTTP.

Every consumer gets each message of its topics exactly once, each producer's messages of a partition
in the order in which they were sent. Then the same while a broker, a manager and the gateway are
killed and started again: clients repeat what failed, with the same Idempotency-Key.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.gateways import Client, Gateway
from support.processes import Cluster

pytestmark = pytest.mark.slow

TOPICS = ("t1", "t2", "t3")
# Which topics each client has; every topic has several of each.
PRODUCERS = (("t1",), ("t2",), ("t3",), ("t1", "t3"), ("t1", "t2", "t3"))
CONSUMERS = (("t1", "t2", "t3"), ("t1", "t3"), ("t2",))
PARTITIONS = {"t1": 1, "t2": 2, "t3": 3}
Row = tuple[int, int, str]  # partition, offset, message


class Run:
    """All clients, over some gateways."""

    def __init__(self, ports: list[int], prefix: str, messages: int) -> None:
        """`messages`: of each producer and topic."""
        self.ports, self.prefix, self.messages = ports, prefix, messages
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.got: dict[tuple[int, str], list[Row]] = {}
        self.produced = threading.Event()
        self.done = 0  # messages that were acknowledged
        self.repeats = 0
        self._lock = threading.Lock()

    def produce(self, who: int) -> None:
        with Client(self.ports) as client:
            ids = {
                topic: client.insist(
                    "POST",
                    "/producer/register",
                    {"topic": self.prefix + topic},
                    key=f"{self.prefix}p{who}{topic}",
                )["producer_id"]
                for topic in PRODUCERS[who]
            }
            for number in range(self.messages):
                for topic, producer in ids.items():
                    text = f"{who} {number:04}"
                    body: dict[str, Any] = {
                        "topic": self.prefix + topic,
                        "producer_id": producer,
                        "message": text,
                    }
                    if number % 3 == 0:
                        body["partition"] = number % PARTITIONS[topic]
                    client.insist(
                        "POST", "/producer/produce", body, key=f"{self.prefix}{who}{topic}{number}"
                    )
                    with self._lock:
                        self.sent[topic].append(text)
                        self.done += 1
            self.repeats += client.repeats

    def consume(self, who: int) -> None:
        with Client(self.ports) as client:
            ids = {
                topic: client.insist(
                    "POST",
                    "/consumer/register",
                    {"topic": self.prefix + topic},
                    key=f"{self.prefix}c{who}{topic}",
                )["consumer_id"]
                for topic in CONSUMERS[who]
            }
            rows: dict[str, list[Row]] = {topic: [] for topic in ids}
            open_topics, turn = list(ids), 0
            while open_topics:
                topic = open_topics[turn % len(open_topics)]
                is_over = self.produced.is_set()
                turn += 1
                found = client.insist(
                    "GET",
                    "/consumer/consume",
                    key=f"{self.prefix}{who}{turn}",
                    topic=self.prefix + topic,
                    consumer_id=ids[topic],
                    max=1 + turn % 7,
                )
                some = found.get("messages") or ([found] if found["message"] is not None else [])
                rows[topic] += [(row["partition"], row["offset"], row["message"]) for row in some]
                if not some and is_over:
                    open_topics.remove(topic)
                elif not some:
                    time.sleep(0.02)  # as an application that polls would
            self.repeats += client.repeats
            for topic, found_rows in rows.items():
                self.got[who, topic] = found_rows

    def go(self, during: Callable[[], object] = lambda: None) -> None:
        with Client(self.ports) as client:
            for topic, partitions in PARTITIONS.items():
                body = {"topic": self.prefix + topic, "partitions": partitions}
                client.insist("POST", "/topics", body, key=f"{self.prefix}{topic}")
        with ThreadPoolExecutor(len(PRODUCERS) + len(CONSUMERS)) as pool:
            producing: list[Future[None]] = [
                pool.submit(self.produce, who) for who in range(len(PRODUCERS))
            ]
            consuming = [pool.submit(self.consume, who) for who in range(len(CONSUMERS))]
            try:
                during()
                for one in producing:
                    one.result()
            finally:
                self.produced.set()
            for one in consuming:
                one.result()

    def check(self) -> None:
        for (who, topic), rows in self.got.items():
            texts = [text for _, _, text in rows]
            assert sorted(texts) == sorted(self.sent[topic]), f"consumer {who} of {topic}"
            for partition in range(PARTITIONS[topic]):
                mine = [row for row in rows if row[0] == partition]
                offsets = [offset for _, offset, _ in mine]
                assert offsets == list(range(len(mine))), f"order in {topic}/{partition}"
                for producer in range(len(PRODUCERS)):
                    of_one = [text for _, _, text in mine if text.startswith(f"{producer} ")]
                    assert of_one == sorted(of_one), f"order of producer {producer} in {topic}"
        assert len(self.got) == sum(map(len, CONSUMERS))


def test_five_producers_and_three_consumers(gateway: Gateway) -> None:
    """Q6, Q8, K5, P3, P11."""
    run = Run([gateway.port], "calm-", 60)
    run.go()
    run.check()
    assert not run.repeats


@pytest.fixture
def own(folder: Path, cluster: Cluster) -> Iterator[Gateway]:
    with Gateway(folder, cluster.address, "killed") as gateway:
        yield gateway
        gateway.check()


def test_the_same_while_daemons_are_killed(
    own: Gateway, gateway: Gateway, cluster: Cluster
) -> None:
    """Q9, K1, H4: a broker, a manager and the gateway, each killed and started again."""
    run = Run([own.port, gateway.port], "kill-", 150)

    def wait_until(done: int) -> None:
        end = time.monotonic() + 60
        while run.done < done and time.monotonic() < end:
            time.sleep(0.01)

    def kill() -> None:
        wait_until(100)
        broker = cluster.leader_of("kill-t1")
        cluster.kill(broker)
        wait_until(350)
        own.kill()
        cluster.start(broker)
        wait_until(550)
        manager = cluster.managers_leader()
        cluster.kill(manager)
        own.start(ready=False)
        wait_until(800)
        cluster.start(manager)

    run.go(kill)
    run.check()
    assert run.repeats, "nothing had to be repeated: the kills came too late"
    cluster.wait_healthy(60)
