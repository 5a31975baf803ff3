"""A cluster of real processes, used as applications use it; each test names the rows it proves."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import Cluster, wait_for

from myqueue import errors
from myqueue.admin.client import Admin
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer, MyProducer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        running.check_alive()


def read_all(cluster: Cluster, topic: str, count: int) -> list[tuple[int, int, bytes]]:
    with Consumer(cluster.address, [topic], idle_timeout=20) as consumer:
        out = []
        for message in consumer:
            out.append((message.partition, message.offset, message.value))
            if len(out) == count:
                break
    return sorted(out)


def test_the_two_programs_of_the_assignment(cluster: Cluster) -> None:
    """Q10, Q3, Q4, Q8: as they stand there, but for the names of topics."""
    producer = MyProducer(topics=["T-1", "T-2"], broker=cluster.address)
    for number in range(10):
        if producer.can_send():
            producer.send("T-1", b"T-1 " + str(number).encode())
            producer.send("T-2", b"T-2 " + str(number).encode())
    producer.send("T-3", b"on the way")
    producer.stop()
    consumer = MyConsumer(topics=["T-1", "T-2", "T-3"], broker=cluster.address)
    got: dict[str, list[bytes]] = {"T-1": [], "T-2": [], "T-3": []}
    for message in consumer.get_next():
        got[message.topic].append(message.value)
        if sum(map(len, got.values())) == 21:
            consumer.stop()
    for topic in ("T-1", "T-2"):
        assert got[topic] == [f"{topic} {number}".encode() for number in range(10)]
    assert got["T-3"] == [b"on the way"]
    with pytest.raises(errors.UnknownTopic):
        MyConsumer(topics=["nowhere"], broker=cluster.address)


def test_partitions_by_name_by_key_and_by_turns(cluster: Cluster) -> None:
    """P1, P3, P7, K5: a partition that is named, one for each key, all in turns; order in each.

    The client is told where managers are; which brokers lead what, it finds out.
    """
    for topic in ("parts", "turns"):
        cluster.admin.create_topic(topic, partitions=4)
    with Producer(cluster.address) as producer:
        named = [producer.send("parts", b"n%d" % n, partition=2) for n in range(20)]
        keyed = [producer.send("parts", b"k%d" % n, key=b"a key") for n in range(20)]
        turns = []
        for n in range(40):  # a partition has its turn with each batch, not with each message
            turns.append(producer.send("turns", b"t%d" % n))
            turns[-1].result(10)
        producer.flush(20)
        assert {one.result().partition for one in named} == {2}
        assert len({one.result().partition for one in keyed}) == 1
        taken = [one.result().partition for one in turns]
        assert [taken.count(number) for number in range(4)] == [10] * 4
    rows = read_all(cluster, "parts", 40)
    for prefix in (b"n", b"k"):
        mine = [value for _, _, value in rows if value.startswith(prefix)]
        assert mine == [prefix + b"%d" % n for n in range(20)]


def test_keys_headers_times_and_compression_arrive(cluster: Cluster) -> None:
    cluster.admin.create_topic("rich")
    with Producer(cluster.address, compression="zlib") as producer:
        producer.send(
            "rich", b"v" * 5000, key=b"k", headers={"a": b"1"}, timestamp_ms=1_700_000_000_123
        ).result(10)
    with Consumer(cluster.address, ["rich"], idle_timeout=20) as consumer:
        message = next(iter(consumer))
    assert (message.key, message.value, message.headers) == (b"k", b"v" * 5000, {"a": b"1"})
    assert message.timestamp == 1_700_000_000_123


def test_nothing_left_is_empty_and_no_error(cluster: Cluster) -> None:
    """P6"""
    cluster.admin.create_topic("empty")
    with Consumer(cluster.address, ["empty"]) as consumer:
        assert consumer.poll(10, 0.3) == []
        assert list(consumer.lag().values()) == [0]


def test_each_consumer_gets_all_and_goes_on_where_it_was(cluster: Cluster) -> None:
    """Q6, B5, K4: every consumer sees every message; its position is kept by the brokers."""
    cluster.admin.create_topic("shared", partitions=3)
    with Producer(cluster.address) as producer:
        for n in range(60):
            producer.send("shared", b"%d" % n)
    ids = [cluster.admin.register_consumer("shared")["consumer_id"] for _ in range(2)]
    for number in ids:
        seen: list[bytes] = []
        for _ in range(2):  # the second one goes on behind the first
            with Consumer(cluster.address, ["shared"], consumer_id=number) as consumer:
                wanted = len(seen) + 30
                while len(seen) < wanted:
                    got = consumer.poll(wanted - len(seen), 10)
                    assert got, "nothing came"
                    seen += [message.value for message in got]
                consumer.commit()
        assert sorted(seen, key=int) == [b"%d" % n for n in range(60)]


def test_a_topic_exists_once(cluster: Cluster) -> None:
    """Q1"""
    cluster.admin.create_topic("once")
    with pytest.raises(errors.TopicExists, match="once"):
        cluster.admin.create_topic("once")
    assert "once" in cluster.admin.topics()


def test_a_session_never_knows_less_than_it_did(cluster: Cluster) -> None:
    """A topic that is deleted and made anew has the same name; who did that meets the new one."""
    with Session(cluster.address) as session:
        admin = Admin(session)
        for _ in range(5):
            made = admin.create_topic("again")["topic_uid"]
            (known,) = session.wait(session.ensure_topics(["again"]))
            assert known.uid == made
            admin.delete_topic("again")


def test_a_topic_grows_by_its_threshold(cluster: Cluster) -> None:
    """B3; a partition that came later is read from its beginning by who is already there."""
    cluster.admin.create_topic("growing", settings={"partition_growth": 50})
    with (
        Producer(cluster.address) as producer,
        Consumer(cluster.address, ["growing"]) as consumer,
    ):
        sent = 0

        def grown() -> bool:
            nonlocal sent
            for _ in range(20):
                producer.send("growing", b"%d" % sent)
                sent += 1
            producer.flush(10)
            time.sleep(0.1)
            return len(cluster.admin.describe_topic("growing")["partitions"]) > 2

        wait_for("more partitions", grown, 30)
        seen: set[bytes] = set()
        wait_for(
            "all messages",
            lambda: seen.update(m.value for m in consumer.poll(1000, 0.5)) or len(seen) == sent,
        )


def test_leaders_and_replicas_are_spread(cluster: Cluster) -> None:
    """P2, B4, K1, K2: three replicas each, evenly; every manager knows."""
    cluster.admin.create_topic("spread", partitions=9)
    rows = cluster.admin.describe_topic("spread")["partitions"]
    assert all(sorted(row["replicas"]) == [1, 2, 3] for row in rows)
    preferred = [row["preferred"] for row in rows]
    assert {preferred.count(node) for node in (1, 2, 3)} == {3}
    for name in cluster.names:
        if name[0] == "manager":
            address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
            told = wait_for(
                "every manager knows",
                lambda at=address: (
                    "spread"
                    in cluster.session.call(at, 14, ("topics", {}, 0, False))
                    .result()
                    .envelope[4]["topics"]
                ),
            )
            assert told


def test_who_is_active_is_known(cluster: Cluster) -> None:
    """P5, B7: brokers, producers and consumers with their last sign of life."""
    producer = MyProducer(["alive"], cluster.address)
    consumer = MyConsumer(["alive"], cluster.address)

    def seen() -> bool:
        health = cluster.admin.health()
        ids = {row["id"] for row in (*health["producers"], *health["consumers"]) if row["active"]}
        mine = {producer.producer_ids["alive"], consumer.consumer_ids["alive"]}
        return mine <= ids and sum(row["active"] for row in health["brokers"]) == 3

    wait_for("all are active", seen)
    producer.stop()
    consumer.stop()


def test_a_second_process_on_the_same_data_refuses(cluster: Cluster) -> None:
    """W22"""
    command = cluster.command(("broker", 1))
    for flag in ("--listen", "--peer-listen"):
        command[command.index(flag) + 1] = "127.0.0.1:1"
    ended = subprocess.run(command, capture_output=True, timeout=20, check=False, text=True)
    assert ended.returncode == 1
    assert "1130" in ended.stderr and "Stop the other daemon" in ended.stderr


def test_the_store_can_be_rebuilt_from_the_log(tmp_path: Path) -> None:
    """P8, P10, Q9: every store deleted; content, positions and ids are as they were."""
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=3)
        number = cluster.admin.register_consumer("t")["consumer_id"]
        with Producer(cluster.address) as producer:
            for n in range(300):
                producer.send("t", b"%d" % n)
        with Consumer(cluster.address, ["t"], consumer_id=number) as consumer:
            got = 0
            while got < 120:
                got += len(consumer.poll(120 - got, 10))
            consumer.commit()
            positions = cluster.admin.positions("t", consumer_id=number)
        before = read_all(cluster, "t", 300), cluster.admin.describe_topic("t")["topic_uid"]
        cluster.stop(*list(cluster.processes))
        for name in cluster.names:
            for file in (cluster.data(name) / "store").iterdir():
                file.unlink()
        cluster.start()
        cluster.wait_healthy()
        topic = cluster.admin.describe_topic("t")
        assert (read_all(cluster, "t", 300), topic["topic_uid"]) == before
        assert cluster.admin.positions("t", consumer_id=number) == positions
        assert cluster.admin.register_consumer("t")["consumer_id"] > number
        with Producer(cluster.address) as producer:
            assert producer.send("t", b"more", partition=0).result(10).offset == len(
                [row for row in before[0] if row[0] == 0]
            )


def test_without_a_majority(tmp_path: Path) -> None:
    """K3, P9: updates fail in time and clearly, reads go on, work resumes by itself."""
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t")
        producer = Producer(cluster.address)
        producer.send("t", b"before").result(10)
        lost = [one for one in cluster.names if one[0] == "manager"][:2]
        cluster.kill(*lost)
        begin = time.monotonic()
        with pytest.raises(errors.MyQueueError) as caught:
            cluster.session.update("create_topic", {"topic": "u"}, timeout_ms=3000).result()
        assert time.monotonic() - begin < 5 and caught.value.retriable
        assert cluster.session.read("topics", timeout_ms=3000).result()["topics"] == ["t"]
        assert cluster.admin.topics() == ["t"]
        producer.send("t", b"managers are away").result(10)
        producer.close()
        cluster.start(*lost)
        cluster.wait_healthy()
        cluster.admin.create_topic("u")
        leader = cluster.leader_of("t")
        others = [one for one in cluster.names if one[0] == "broker" and one != leader]
        cluster.kill(*others)
        producer = Producer(cluster.address, delivery_timeout_ms=3000)
        assert producer.send("t", b"brokers are away").exception(10) is not None
        with pytest.raises(errors.DeliveryFailed):
            producer.close()
        cluster.start(*others)
        cluster.wait_healthy()
        with Producer(cluster.address) as producer:
            producer.send("t", b"after").result(10)
        values = read_until(cluster, "t", b"after")
        assert values[:2] == [b"before", b"managers are away"]


def read_until(cluster: Cluster, topic: str, last: bytes) -> list[bytes]:
    """Of one partition; whether a message is there whose outcome was unknown, nobody knows."""
    out: list[bytes] = []
    with Consumer(cluster.address, [topic], idle_timeout=20) as consumer:
        for message in consumer:
            out.append(message.value)
            if message.value == last:
                break
    assert out and out[-1] == last
    return out
