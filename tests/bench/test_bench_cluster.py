"""What a whole cluster does and needs: `bin/test bench -k cluster`.

Three managers and three brokers, each a process of its own, replication 3, and the client beside
them; `myq bench` does the measuring. Each figure is the median of rounds that take turns, so that
what the machine does besides hits all of them (P14).

`myq bench all` has the figures of one topic; here are those that need a cluster of their own: many
partitions, large messages, nothing to do, and much on disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.figures import Row, median
from support.processes import Cluster, wait_for

from myqueue.cli.bench import measurements
from myqueue.cli.bench.parts import used

ROUNDS, SECONDS = 3, 4.0
IDLE_S = 15.0
SETTLE_S = 20.0  # leaders go where they belong, the stores get what creating made
MANY = 10_000_000
Report = list[Row]


@pytest.fixture
def cluster(disk: Path) -> Iterator[Cluster]:
    with Cluster(disk / "cluster") as made:
        yield made


def load(cluster: Cluster, topic: str, **changed: Any) -> measurements.Load:
    found = measurements.Load(
        cluster.address,
        topic,
        size=100,
        seconds=SECONDS,
        warmup=1.0,
        batch_bytes=256 << 10,
        in_flight=16,
        single=False,
        compression="none",
    )
    return found._replace(**changed)


def produce(cluster: Cluster, topic: str, **changed: Any) -> dict[str, Any]:
    return measurements.produce(load(cluster, topic, **changed), cluster.session)


def test_partitions(cluster: Cluster, report: Report) -> None:
    """What a hundred partitions leave of the throughput of one."""
    for partitions in (1, 100):
        cluster.admin.create_topic(f"p{partitions}", partitions=partitions)
    cluster.wait_healthy()
    ratios, one = list[float](), list[float]()
    for _ in range(ROUNDS):
        one.append(produce(cluster, "p1")["produce_msgs_s"])
        ratios.append(produce(cluster, "p100")["produce_msgs_s"] / one[-1])
    bare = f"1 partition: {median(one):,.0f}/s"
    report.append(Row("cluster, 100 partitions against 1", median(ratios), "ratio", bare, 0.8))


@pytest.mark.parametrize(("size", "goal"), [(100, 100.0), (1024, 130.0), (10240, None)])
def test_sizes(cluster: Cluster, report: Report, size: int, goal: float | None) -> None:
    cluster.admin.create_topic("sizes")
    cluster.wait_healthy()
    rounds = [produce(cluster, "sizes", size=size) for _ in range(ROUNDS)]
    rate = median([one["produce_mb_s"] for one in rounds])
    messages = median([one["produce_msgs_s"] for one in rounds])
    cpu = median([one["server_cpu_s_per_m"] for one in rounds])
    bare = f"{messages:,.0f}/s, daemons' CPU {cpu:.2f} s a million"
    report.append(Row(f"cluster, produce {size} B", rate, "MB/s", bare, goal))


@pytest.mark.parametrize(("size", "count"), [(100, 3_000_000), (1024, 500_000)])
def test_consume(cluster: Cluster, report: Report, size: int, count: int) -> None:
    """Reading from disk what was written long ago; CPU says more than time on a busy machine."""
    cluster.admin.create_topic("read")
    cluster.wait_healthy()
    while sum(row.end for row in cluster.admin.offsets("read").values()) < count:
        produce(cluster, "read", size=size, seconds=1.0, warmup=0.0)
    rates, client, daemons = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        before = used(cluster.session)
        found = measurements.consume(cluster.address, "read", 60.0, limit=count)
        gb = found["consume_n"] * size / 1e9
        daemons.append((used(cluster.session).cpu_s - before.cpu_s) / gb)
        client.append(found["consume_client_cpu_s_per_m"] / size * 1e3)
        rates.append(found["consume_msgs_s"])
    bare = f"CPU a GB: client {median(client):.2f} s, daemons {median(daemons):.2f} s"
    report.append(Row(f"cluster, consume {size} B", median(rates), "1/s", bare))


def test_idle(cluster: Cluster, report: Report) -> None:
    """300 partitions, nobody speaks: what all six daemons take of a core."""
    cluster.admin.create_topic("idle", partitions=300)
    cluster.wait_healthy(60)
    cluster.leader_of("idle", 299)
    time.sleep(SETTLE_S)
    before, begin = used(cluster.session), time.monotonic()
    time.sleep(IDLE_S)  # the measurement itself
    after, took = used(cluster.session), time.monotonic() - begin
    share = 100 * (after.cpu_s - before.cpu_s) / took
    bare = f"resident {after.resident_bytes / 2**20:,.0f} MiB in all"
    report.append(Row("cluster, idle with 300 partitions", share, "% core", bare, 5.0, -1))


def test_memory(cluster: Cluster, report: Report) -> None:
    """The largest daemon after ten million messages of 100 B."""
    cluster.admin.create_topic("much")
    cluster.wait_healthy()
    count = 0
    while count < MANY:
        count += produce(cluster, "much", seconds=SECONDS, warmup=0.0)["prefilled"]
    wait_for("its followers to have all", lambda: cluster.problems() == [], 30)
    biggest = used(cluster.session).biggest_bytes / 2**20
    report.append(Row("cluster, largest daemon", biggest, "MiB", f"{count:,} messages", 250.0, -1))
