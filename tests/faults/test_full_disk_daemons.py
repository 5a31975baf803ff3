"""Brokers whose disk is full: clear refusals, reads and votes go on, nothing is lost, and all goes
on by itself when there is room.

One broker alone, or all of them, are on a file system of 240 MiB: room for what four brokers write
in the end. The managers have room.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import Cluster, Name, wait_for

from myqueue import errors
from myqueue.consumer.consumer import Consumer
from myqueue.producer.producer import Producer
from myqueue.wire import protocol

MIB = 1 << 20
HALF = MIB // 2
BROKERS: list[Name] = [("broker", number) for number in (1, 2, 3)]


class SmallDisk(Cluster):
    """Its brokers are on `disk`, or some of them."""

    disk: Path
    on_it: list[Name] = BROKERS

    def data(self, name: Name) -> Path:
        return (self.disk if name in self.on_it else self.folder) / f"{name[0]}-{name[1]}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system: a full disk is not tested")
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=240m", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def free_bytes(disk: Path) -> int:
    space = os.statvfs(disk)
    return space.f_bavail * space.f_frsize


def fill(disk: Path, leave: int = 0) -> Path:
    """Until so many bytes are left, and nobody gives any back for a moment."""
    ballast = disk / "ballast"
    quiet_since = time.monotonic()
    with ballast.open("ab", buffering=0) as file:
        while time.monotonic() - quiet_since < 1.0:
            try:
                while free_bytes(disk) > leave:
                    file.write(bytes(min(64 << 10, free_bytes(disk) - leave)))
                    quiet_since = time.monotonic()
            except OSError:
                pass
            time.sleep(0.05)
    return ballast


def counter(cluster: Cluster, name: Name, what: str) -> int:
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    answer = cluster.session.call(address, protocol.STATS, ()).result()
    return int(answer.envelope[3]["counters"].get(what, 0))


def values(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    out: list[bytes] = []
    with Consumer(cluster.address, [topic], idle_timeout=15) as consumer:
        for message in consumer:
            out.append(message.value[:8])
            if len(out) == count:
                break
    return out


def is_led_by_the_preferred(cluster: Cluster, topic: str) -> bool:
    """From then on the managers have no reason to move its leader."""
    (row,) = cluster.admin.describe_topic(topic)["partitions"]
    return bool(row["leader"] == row["preferred"])


def send(producer: Producer, topic: str, first: int, count: int, size: int) -> list[Any]:
    return [producer.send(topic, b"%08d" % n * (size // 8)) for n in range(first, first + count)]


def test_below_the_soft_limit_deleting_makes_room(tmp_path: Path, disk: Path) -> None:
    """W15: messages are refused with DISK_FULL, positions are kept, reads go on; a topic is
    deleted, and messages are taken again, though the disk has not grown.
    """
    cluster = SmallDisk(tmp_path, segment_bytes=4 * MIB, soft_limit_bytes=8 * MIB)
    cluster.disk = disk
    with cluster:
        for topic in ("kept", "big"):
            cluster.admin.create_topic(topic)
        with Producer(cluster.address) as producer:
            assert [one.result(20) for one in send(producer, "kept", 0, 20, 1000)]
            for at in range(28):
                assert [one.result(20) for one in send(producer, "big", at, 1, HALF)]
        number = cluster.admin.register_consumer("kept")["consumer_id"]
        fill(disk, leave=5 * MIB)
        wait_for(
            "refusals", lambda: any(p["problem"] == "disk-low" for p in cluster.problems() or ())
        )
        producer = Producer(cluster.address, delivery_timeout_ms=2000)
        error = producer.send("kept", b"no").exception(20)
        assert isinstance(error, errors.MyQueueError) and "DISK_FULL" in f"{error!r} {error}", error
        with pytest.raises(errors.DeliveryFailed):
            producer.close()
        with Consumer(cluster.address, ["kept"], consumer_id=number, idle_timeout=15) as consumer:
            got = [next(iter(consumer)) for _ in range(5)]
            consumer.commit()
            assert [message.offset for message in got] == list(range(5))
        cluster.admin.delete_topic("big")
        with Producer(cluster.address, delivery_timeout_ms=60_000) as producer:
            producer.send("kept", b"00000020").result(60)
        assert values(cluster, "kept", 21) == [b"%08d" % n for n in range(21)]
        cluster.check_alive()


def test_full_to_the_last_byte(tmp_path: Path, disk: Path) -> None:
    """W15, W17: no segment can be made, on all brokers at once. That is no stall: leaders stay; a
    broker that is killed meanwhile comes back, one that is new waits for room; all that was
    acknowledged is there.
    """
    cluster = SmallDisk(tmp_path, segment_bytes=4 * MIB, soft_limit_bytes=0)
    cluster.disk, cluster.on_it = disk, [*BROKERS, ("broker", 4)]
    with cluster:
        cluster.admin.create_topic("t")
        wait_for("its preferred leader", lambda: is_led_by_the_preferred(cluster, "t"), 30)
        producer = Producer(
            cluster.address, delivery_timeout_ms=120_000, max_buffered_bytes=64 * MIB
        )
        done = send(producer, "t", 0, 10, 1000)
        assert [one.result(20) for one in done]
        ballast = fill(disk)
        done += send(producer, "t", 10, 60, HALF)  # more than what is left of the segments
        leader = cluster.leader_of("t")
        wait_for("a full disk", lambda: "disk-low" in str(cluster.problems()), 30)
        term = cluster.admin.describe_topic("t")["partitions"][0]["term"]
        until = time.monotonic() + 4  # twice what counts as a stall, and more
        while time.monotonic() < until:
            assert values(cluster, "t", 10) == [b"%08d" % n for n in range(10)]
            found = cluster.admin.describe_topic("t")["partitions"][0]
            assert (found["leader"], found["term"]) == (leader[1], term)
        assert not any(counter(cluster, name, "disk_stalls_total") for name in BROKERS)
        acknowledged = sum(one.done() for one in done)
        assert acknowledged < len(done), "the disk was not full"
        newcomer = cluster.add_broker()  # has no room for a log of its own
        wait_for("the newcomer's word", lambda: "waits-for-room" in cluster.log(newcomer))
        # After that: what its start gives back for a moment could be room enough for the newcomer.
        other = next(name for name in BROKERS if name != leader)
        cluster.kill(other)
        cluster.start(other)
        cluster.check_alive()
        ballast.unlink()
        assert [one.result(60) for one in done]
        producer.close()
        assert values(cluster, "t", len(done)) == [b"%08d" % n for n in range(len(done))]
        cluster.wait_healthy()


def test_one_broker_is_full_and_nobody_notices(tmp_path: Path, disk: Path) -> None:
    """W15: to the last byte of its disk, while it leads; the others take over what it led, every
    message is taken, and it has all of them when there is room again.
    """
    cluster = SmallDisk(tmp_path, segment_bytes=4 * MIB, soft_limit_bytes=8 * MIB)
    cluster.disk, cluster.on_it = disk, [BROKERS[0]]
    with cluster:
        cluster.admin.create_topic("t", partitions=3)
        cluster.wait_healthy()
        parts = range(3)
        wait_for("a part", lambda: any(cluster.leader_of("t", n) == BROKERS[0] for n in parts))
        producer = Producer(
            cluster.address, delivery_timeout_ms=120_000, max_buffered_bytes=64 * MIB
        )
        done = send(producer, "t", 0, 30, 1000)
        assert [one.result(20) for one in done]
        ballast = fill(disk)
        wait_for("a full disk", lambda: "disk-low" in str(cluster.problems()), 30)
        done += send(producer, "t", 30, 60, HALF)  # more than what is left of its segments
        assert [one.result(60) for one in done], "a majority has room"
        wait_for(
            "leaders with room",
            lambda: all(cluster.leader_of("t", n) != BROKERS[0] for n in parts),
            60,
        )
        cluster.check_alive()
        ballast.unlink()
        cluster.wait_healthy(60)
        ends = [part["end"] for part in cluster.admin.describe_topic("t")["partitions"]]

        def has_all() -> bool:
            address = f"tcp://127.0.0.1:{cluster.ports[BROKERS[0]][0]}"
            answer = cluster.session.call(address, protocol.STATUS, (0,)).result().envelope[3]
            return sorted(group["end"] for group in answer["groups"]) == sorted(ends)

        wait_for("everything on the broker that was full", has_all, 60)
        producer.close()
        assert sorted(values(cluster, "t", len(done))) == [b"%08d" % n for n in range(len(done))]
