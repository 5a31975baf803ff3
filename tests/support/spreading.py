"""A loaded cluster whose brokers come and go: what the managers know, who writes, who reads.

Everything is asked of the managers' leader or of the broker itself, as an operator would.
"""

from __future__ import annotations

from typing import Any

from support.processes import Cluster, Name, wait_for
from support.traffic import Reader, Writer, judge, wait_until_read

from myqueue.errors import MyQueueError
from myqueue.wire import protocol

Row = dict[str, Any]


def brokers(cluster: Cluster) -> dict[int, Row]:
    """Return the brokers that the managers' leader knows; {} if there is no leader now."""
    try:
        asked = cluster.session.read("brokers", linearizable=True, timeout_ms=1000)
        return {row["node"]: row for row in asked.result()["brokers"]}
    except MyQueueError:
        return {}


def is_even(cluster: Cluster, partitions: int, replication: int = 3) -> bool:
    """True if replicas and leaders are within 10 % of even, or within 1, without a problem."""
    rows = [row for row in brokers(cluster).values() if row["state"] == "active"]
    for count, total in (("replicas", partitions * replication), ("leads", partitions)):
        even = total / max(1, len(rows))
        if not rows or any(abs(row[count] - even) > max(1, even / 10) for row in rows):
            return False
        if sum(row[count] for row in rows) != total:
            return False
    return not any(row["leaving"] for row in rows) and cluster.problems() == []


def is_at_rest(cluster: Cluster) -> bool:
    """True if every partition has all its replicas, and none moves."""
    rows = brokers(cluster)
    return bool(rows) and not any(r["leaving"] for r in rows.values()) and not cluster.problems()


class Load:
    """Writers and readers of one topic, all the time."""

    def __init__(self, cluster: Cluster, count: int, rate: float) -> None:
        self.cluster = cluster
        self.writers = [Writer(cluster.address, "t", f"w{n}", rate) for n in range(count)]
        self.readers = []
        for n in range(count):
            consumer = cluster.admin.register_consumer("t")["consumer_id"]
            self.readers.append(Reader(cluster.address, "t", f"r{n}", consumer_id=consumer))
        for one in (*self.writers, *self.readers):
            one.start()

    def judged(self) -> dict[str, int]:
        for writer in self.writers:
            writer.finish(60)
        wait_until_read(self.readers, self.writers, 60)
        for reader in self.readers:
            reader.finish()
        return judge(self.readers, self.writers)


def drain_and_wait(cluster: Cluster, node: int, seconds: float) -> None:
    cluster.admin.drain_broker(node)
    wait_for(
        f"broker {node} is drained",
        lambda: brokers(cluster).get(node, {}).get("state") == "drained",
        seconds,
    )


def read_status(cluster: Cluster, name: Name) -> Row:
    """Return the STATUS of a daemon."""
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    asked = cluster.session.call(address, protocol.STATUS, (0,), timeout_ms=3000)
    found: Row = asked.result().envelope[3]
    return found


def count_held_groups(cluster: Cluster, name: Name) -> int:
    """Count the groups on the disk of a broker."""
    found = read_status(cluster, name)
    return int(found["groups_total"]) + len(found["refused"])
