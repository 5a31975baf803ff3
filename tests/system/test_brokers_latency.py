"""How long a produce takes while brokers come and go: at most five times what it takes in peace.

P4: 60 partitions with data in them that has to travel, idempotent producers and consumers all the
time. Nothing is killed here; `test_brokers.py` does that.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.processes import Cluster, wait_for
from support.spreading import Load, brokers, count_held_groups, drain_and_wait, is_even
from support.traffic import percentile_ms

from myqueue.producer.producer import Producer

MESSAGE = bytes(range(256)) * 40  # 10 KiB


def fill(cluster: Cluster, topic: str, messages: int) -> None:
    """What moves with its partitions."""
    producer = Producer(cluster.address)
    for _ in range(messages):
        producer.send(topic, MESSAGE)
    producer.flush(120)
    producer.close()


@pytest.mark.full
def test_p4_produce_waits_at_most_five_times_longer_while_partitions_move(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=30)
        cluster.admin.create_topic("past", partitions=30)
        cluster.wait_healthy(60)
        fill(cluster, "past", 60_000)
        load = Load(cluster, 3, 200.0)

        def p99_ms(phase: str, since_s: float) -> float:
            until_s = time.monotonic()
            found = [percentile_ms(load.writers, since_s, until_s, s) for s in (0.5, 0.99, 0.999)]
            print(
                f"{phase}: {until_s - since_s:.0f} s, "
                "p50 {:.1f}, p99 {:.1f}, p99.9 {:.1f} ms".format(*found)
            )
            return found[1]

        def rest() -> float:
            time.sleep(5)
            begun_s = time.monotonic()
            time.sleep(30)
            return p99_ms("quiet", begun_s)

        quiet = [rest()]
        begun_s = time.monotonic()
        fourth = cluster.add_broker()
        wait_for("the fourth is known", lambda: 4 in brokers(cluster), 60)
        wait_for("replicas and leaders are even", lambda: is_even(cluster, 60), 300)
        added = p99_ms("a broker added", begun_s)
        quiet.append(rest())
        begun_s = time.monotonic()
        drain_and_wait(cluster, 4, 300)
        removed = p99_ms("a broker drained", begun_s)
        assert count_held_groups(cluster, fourth) == 0
        quiet.append(rest())
        counted = load.judged()
        print(counted)
        assert counted["failed"] == 0
        peace = sorted(quiet)[1]
        times = f"added × {added / peace:.2f}, drained × {removed / peace:.2f}"
        print(f"quiet p99 {peace:.1f} ms; {times}")
        assert max(added, removed) <= 5 * peace
