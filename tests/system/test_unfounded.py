"""A broker is removed by force before a partition was founded: the other founders found it."""

from __future__ import annotations

from pathlib import Path

from support.processes import Cluster, wait_for

from myqueue.producer.producer import Producer


def test_a_partition_gets_a_leader_though_one_of_its_founders_never_was(tmp_path: Path) -> None:
    with Cluster(tmp_path, managers=1, brokers=4, soft_limit_bytes=0) as cluster:
        brokers = [name for name in cluster.names if name[0] == "broker"]
        cluster.admin.topics()  # connected
        cluster.kill(*brokers)  # they are not silent yet, and make nothing
        cluster.admin.create_topic("orders", partitions=1, replication=3)
        (part,) = cluster.admin.describe_topic("orders")["partitions"]
        removed = ("broker", part["replicas"][0])
        for name in [one for one in brokers if one != removed]:
            wait_for("silent", lambda at=name: at[1] in silent(cluster))
        cluster.admin.remove_broker(removed[1], force=True)
        cluster.start(*(one for one in brokers if one != removed))
        with Producer(cluster.address, delivery_timeout_ms=30_000) as producer:
            assert producer.send("orders", b"x", partition=0).result(30).offset == 0
        wait_for("three copies", lambda: cluster.problems() == [], 30)


def silent(cluster: Cluster) -> list[int]:
    rows = cluster.session.read("brokers", timeout_ms=1000).result()["brokers"]
    return [row["node"] for row in rows if not row["alive"]]
