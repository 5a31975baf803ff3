"""Retention with real daemons: what is too old or too much goes, on every replica, and its space
comes back; nobody is told otherwise than in clear words.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.processes import Cluster, Name, wait_for

from myqueue import errors
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import TopicPartition
from myqueue.producer.producer import Producer
from myqueue.wire import batch, protocol

MIB = 1 << 20
SEGMENT = 4 * MIB
LOG_ENTRIES = 40  # that managers keep, about
BROKERS: list[Name] = [("broker", number) for number in (1, 2, 3)]
MANAGERS: list[Name] = [("manager", number) for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("retention")
    limits = {"segment_bytes": SEGMENT, "soft_limit_bytes": 0, "log_entries": LOG_ENTRIES}
    with Cluster(folder, **limits) as running:
        yield running
        running.check_alive()


def produce(cluster: Cluster, topic: str, mib: int, size: int = 16 << 10) -> int:
    """So much of numbered messages to partition 0; how many they were."""
    count = mib * MIB // size
    with Producer(cluster.address, batch_bytes=256 << 10) as producer:
        for number in range(count):
            producer.send(topic, b"%08d" % number * (size // 8), partition=0)
    return count


def disk_bytes(cluster: Cluster, name: Name, part: str = "wal") -> int:
    """Of the log, or of all that a broker has on its disk (part: ".")."""
    total = 0
    for one in (cluster.data(name) / part).rglob("*"):
        with suppress(FileNotFoundError):  # reclaimed since it was named
            total += one.stat().st_blocks * 512
    return total


def persisted(cluster: Cluster, name: Name, group: int) -> int:
    """The index up to which that broker has the group on its disk."""
    address = f"tcp://{cluster.door(name)}"
    asked = cluster.session.call(address, protocol.STATUS, (group,), timeout_ms=3000)
    return int(asked.result().envelope[3]["persisted"])


def part(cluster: Cluster, topic: str) -> dict[str, Any]:
    return cluster.admin.describe_topic(topic)["partitions"][0]


def read_all(cluster: Cluster, topic: str, count: int) -> list[tuple[int, bytes]]:
    out: list[tuple[int, bytes]] = []
    with Consumer(cluster.address, [topic], idle_timeout=20) as consumer:
        for message in consumer:
            out.append((message.offset, message.value[:8]))
            if len(out) == count:
                break
    return out


def test_a_stream_into_a_topic_with_a_byte_limit(cluster: Cluster) -> None:
    """W12: 80 MiB into a topic of 16 MiB, in segments of 4 MiB."""
    cluster.admin.create_topic("limited", settings={"retention_bytes": 16 * MIB})
    end = produce(cluster, "limited", 80)

    def cut() -> Any:
        now = part(cluster, "limited")  # as it was told last: at first not all of it is known
        return now["end"] == end and now["bytes"] < 19 * MIB and now

    found = wait_for("the start", cut, 40)
    assert found["start"] > 0
    assert found["bytes"] >= 16 * MIB, "so much is kept"
    for name in BROKERS:  # what is kept, a step of retention, open and prepared segments
        limit = (16 + 2 + 6 * 4) * MIB
        wait_for(f"space of {name}", lambda at=name, most=limit: disk_bytes(cluster, at) < most, 40)

    def told() -> bool:
        rows = cluster.admin.health()["brokers"]
        return all(16 * MIB < one["used_bytes"] < 64 * MIB and one["free_bytes"] for one in rows)

    wait_for("what brokers use, as they tell it", told, 30)
    start = part(cluster, "limited")["start"]
    got = read_all(cluster, "limited", end - start)
    assert got == [(number, b"%08d" % number) for number in range(start, end)]


def fetch_all(cluster: Cluster, name: Name, topic: str) -> list[tuple[int, bytes]]:
    """Batches of partition 0 as this broker has them, whoever leads: (offset, bytes)."""
    group, offset = part(cluster, topic)["group"], part(cluster, topic)["start"]
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    out: list[tuple[int, bytes]] = []
    while True:
        fields = (0, 1, 8 * MIB, [[group, offset]])
        answer = cluster.session.call(address, protocol.FETCH, fields).result()
        ((_, code, _, end, batches, _),) = answer.envelope[3]
        assert not code, (name, errors.error_of(code))
        out += [
            (first, bytes(frame)) for (first, _), frame in zip(batches, answer.frames, strict=True)
        ]
        if not batches:
            assert offset == end
            return out
        offset = out[-1][0] + batch.check(out[-1][1]).count


def counters(cluster: Cluster, name: Name) -> dict[str, int]:
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    found: dict[str, int] = (
        cluster.session.call(address, protocol.STATS, ()).result().envelope[3]["counters"]
    )
    return found


def has(cluster: Cluster, name: Name, topic: str, content: list[tuple[int, bytes]]) -> bool:
    try:
        return fetch_all(cluster, name, topic) == content
    except (errors.MyQueueError, AssertionError):
        return False  # not there yet


def test_below_the_start_is_told_and_done_as_chosen(cluster: Cluster) -> None:
    """C6: an error with start and end, or what the application chose; never silently."""
    topic, partition = "moved", TopicPartition("moved", 0)
    cluster.admin.create_topic(topic, settings={"retention_bytes": 1 * MIB})
    group = part(cluster, topic)["group"]
    slow = cluster.admin.register_consumer(topic)["consumer_id"]
    with Consumer(cluster.address, [topic], consumer_id=slow, idle_timeout=20) as consumer:
        produce(cluster, topic, 1)
        first = next(iter(consumer))
        consumer.commit(first)
    end = produce(cluster, topic, 4) + first.offset + 64
    start = wait_for("the start", lambda: (at := part(cluster, topic)["start"]) > 1 and at, 30)
    for name in BROKERS:
        address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"

        def below(at: str = address) -> list[int]:
            answer = cluster.session.call(at, protocol.FETCH, (0, 1, MIB, [[group, 0]])).result()
            row: list[int] = answer.envelope[3][0][1:4]
            return row

        said = wait_for(f"{name} knows", lambda ask=below: (row := ask())[1] >= start and row)
        assert said == [errors.OffsetOutOfRange.code, start, end]
    with (
        Consumer(cluster.address, [topic], consumer_id=slow) as consumer,
        pytest.raises(errors.OffsetOutOfRange, match=rf"offset 1 .* {start} \(start\) and {end}"),
    ):
        consumer.poll(1, 20)
    for policy, begin in (("earliest", start), ("latest", end)):
        with Consumer(
            cluster.address, [topic], consumer_id=slow, on_out_of_range=policy, idle_timeout=20
        ) as consumer:
            wait_for("a place", lambda c=consumer: c.poll(1, 0.1) or c.position(partition) >= start)
            consumer.seek(partition, 0)
            if policy == "latest":
                wait_for(
                    "the end", lambda c=consumer: c.poll(9, 0.1) or c.position(partition) == end
                )
            else:
                assert next(iter(consumer)).offset == begin


def test_what_is_too_old_goes_and_not_before(cluster: Cluster) -> None:
    """W12: by the stamps in the log, on every replica; what comes later is there."""
    topic, keep_ms = "aged", 3000
    cluster.admin.create_topic(topic, settings={"retention_ms": keep_ms})
    count = produce(cluster, topic, 1)
    done = time.monotonic()
    wait_for("all of it to go", lambda: part(cluster, topic)["start"] == count, 30)
    assert time.monotonic() - done >= keep_ms / 1000
    cluster.admin.alter_topic(topic, {"retention_ms": None})
    with Producer(cluster.address) as producer:
        assert producer.send(topic, b"younger", partition=0).result(20).offset == count
    for name in BROKERS:

        def has_the_rest(at: Name = name) -> bool:
            try:
                return [offset for offset, _ in fetch_all(cluster, at, topic)] == [count]
            except (errors.MyQueueError, AssertionError):
                return False  # not there yet

        wait_for("the rest", has_the_rest, 20)


def metadata(cluster: Cluster, name: Name) -> Any:
    """What this manager has applied, as it tells it; None if it does not answer."""
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"

    def read(query: str, arguments: dict[str, Any]) -> Any:
        fields = (query, arguments, 0, False)
        asked = cluster.session.call(address, protocol.READ, fields, timeout_ms=2000)
        return asked.result().envelope[4]

    try:
        topics, known = read("topics", {"detail": True})["topics"], read("cluster", {})
    except errors.MyQueueError:
        return None
    told = [(one["topic"], one["topic_uid"], one["settings"]) for one in topics]
    groups = [[(row["group"], row["replicas"]) for row in one["partitions"]] for one in topics]
    return told, groups, known["settings"], known["counts"]


def cuts(cluster: Cluster, name: Name) -> int:
    return counters(cluster, name).get("log_starts_moved_total", 0)


def test_who_was_away_gets_the_state_and_the_rest(cluster: Cluster) -> None:
    """R16, R19, R20, W20, P8: the start moves past all that a broker has while it is down, and the
    managers' log past all that one of them has. Both come back, catch up by a snapshot, and have
    what the others have; so it is after a rebuild of all stores from the logs.
    """
    topic, admin = "away", cluster.admin
    admin.create_topic(topic, settings={"retention_bytes": 2 * MIB})
    produce(cluster, topic, 1)
    leader, first = cluster.leader_of(topic), cluster.managers_leader()
    away = next(name for name in BROKERS if name != leader)
    manager = next(name for name in MANAGERS if name != first)
    cluster.kill(away, manager)
    end = produce(cluster, topic, 24) + 64
    consumers = [admin.register_consumer(topic)["consumer_id"] for _ in range(10)]
    for number in range(2 * LOG_ENTRIES):
        admin.alter_topic(topic, {"partition_growth": 1_000_000 + number})
    moved = cuts(cluster, first)  # from now on each is past what the one that is away has
    for number in range(LOG_ENTRIES):
        admin.alter_topic(topic, {"partition_growth": 2_000_000 + number})
    wait_for("a start past it", lambda: part(cluster, topic)["start"] > 1000, 30)
    wait_for("a cut log, half a minute later at most", lambda: cuts(cluster, first) > moved, 60)
    cluster.start(away, manager)
    content = fetch_all(cluster, leader, topic)
    wait_for("the same content", lambda: has(cluster, away, topic, content), 40)
    wait_for(
        "the same metadata", lambda: metadata(cluster, manager) == metadata(cluster, first), 40
    )
    for name in (away, manager):
        assert counters(cluster, name)["snapshots_installed_total"] > 0
    known = metadata(cluster, first)
    assert content[0][0] > 1000 and len(read_all(cluster, topic, 64)) == 64
    cluster.wait_healthy()
    cluster.stop(*list(cluster.processes))
    for name in cluster.names:
        for file in (cluster.data(name) / "store").iterdir():
            file.unlink()
    cluster.start()
    cluster.wait_healthy()
    for name in BROKERS:
        wait_for(f"{name} as before", lambda at=name: has(cluster, at, topic, content), 30)
    for name in MANAGERS:
        wait_for(f"{name} as before", lambda at=name: metadata(cluster, at) == known, 30)
    assert admin.register_consumer(topic)["consumer_id"] > max(consumers)
    with Producer(cluster.address) as producer:
        assert producer.send(topic, b"more", partition=0).result(20).offset == end


def test_a_deleted_topic_gives_its_space_back(cluster: Cluster) -> None:
    """W6, W12: all but the open segment, within a minute."""
    topic = "deleted"
    cluster.admin.create_topic(topic)
    produce(cluster, topic, 40)
    group = part(cluster, topic)["group"]

    def is_everywhere() -> bool:  # a majority is all that a producer waits for
        return len({persisted(cluster, name, group) for name in BROKERS}) == 1

    wait_for("all of it on each disk", is_everywhere)
    before = {name: disk_bytes(cluster, name) for name in BROKERS}
    cluster.admin.delete_topic(topic)
    for name in BROKERS:
        most = before[name] - 32 * MIB
        wait_for(f"space of {name}", lambda at=name, m=most: disk_bytes(cluster, at) < m, 60)


@pytest.mark.full
def test_two_gigabytes_a_minute_into_one(tmp_path: Path) -> None:
    """W12: for five minutes, into a topic that keeps 1 GB; no replica ever takes 1.5 GB of disk."""
    gb, minutes, size = 1_000_000_000, 5, 16 << 10
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("stream", settings={"retention_bytes": gb})
        most, begin, sent = 0, time.monotonic(), 0
        producer = Producer(cluster.address, batch_bytes=256 << 10)
        next_look = begin
        while (now := time.monotonic()) < begin + 60 * minutes:
            while sent * size < (now - begin) * 2 * gb / 60:
                producer.send("stream", b"%08d" % sent * (size // 8))
                sent += 1
            if now >= next_look:
                next_look = now + 1
                most = max(most, *(disk_bytes(cluster, name, ".") for name in BROKERS))
            time.sleep(0.01)
        producer.close(60)
        took = time.monotonic() - begin
        found = wait_for(
            "the end", lambda: (now := part(cluster, "stream"))["end"] == sent and now, 30
        )
        print(
            f"{sent * size / gb:.2f} GB in {took:.0f} s; at most {most / gb:.3f} GB on a disk; "
            f"kept {found['bytes'] / gb:.3f} GB, start {found['start']}, end {found['end']}; "
            + ", ".join(f"{name[1]}: {counters(cluster, name)}" for name in BROKERS)
        )
        assert sent * size >= 2 * gb * minutes * 0.95
        assert found["bytes"] >= gb and most < 1.5 * gb
