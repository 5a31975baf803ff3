"""The managers' log is cut behind a snapshot of their whole state; nobody misses what is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.processes import Cluster, Name, wait_for

from myqueue import protocol
from myqueue.errors import MyQueueError

MANAGERS: list[Name] = [("manager", number) for number in (1, 2, 3)]


def ask(cluster: Cluster, name: Name, kind: int, *fields: Any) -> list[Any]:
    address = f"tcp://127.0.0.1:{cluster.ports[name][0]}"
    answer: list[Any] = (
        cluster.session.call(address, kind, fields, timeout_ms=2000).result().envelope
    )
    return answer


def metadata(cluster: Cluster, name: Name) -> Any:
    """What this manager has applied, as it tells it; None if it does not answer."""
    try:
        topics = ask(cluster, name, protocol.READ, "topics", {"detail": True}, 0, False)[4]
        known = ask(cluster, name, protocol.READ, "cluster", {}, 0, False)[4]
    except MyQueueError:
        return None
    for topic in topics["topics"]:  # who leads and how much is there is no metadata
        for part in topic["partitions"]:
            del part["leader"], part["term"], part["end"], part["bytes"], part["silent"]
    return topics, known["settings"], known["counts"]


def counters(cluster: Cluster, name: Name) -> dict[str, int]:
    found: dict[str, int] = ask(cluster, name, protocol.STATS)[3]["counters"]
    return found


def test_the_managers_log_is_cut_and_nothing_is_missed(tmp_path: Path) -> None:
    """P8, R16, R20, W20: a manager that was away gets the state; a store that is deleted is built
    anew from a log without its beginning; ids that were given are never given again.
    """
    with Cluster(tmp_path, brokers=1, log_entries=40) as cluster:
        admin = cluster.admin
        admin.create_topic("first", partitions=2)
        leader = cluster.managers_leader()
        away = next(name for name in MANAGERS if name != leader)
        cluster.kill(away)
        consumers = [admin.register_consumer("first")["consumer_id"] for _ in range(10)]
        for number in range(150):
            admin.alter_topic("first", {"partition_growth": 1_000_000 + number})
        admin.create_topic("last")
        wait_for("a cut log", lambda: "log_starts_moved_total" in counters(cluster, leader))
        cluster.start(away)
        wait_for("it answers", lambda: metadata(cluster, away), 30)
        wait_for("the same", lambda: metadata(cluster, away) == metadata(cluster, leader), 30)
        assert counters(cluster, away)["snapshots_installed_total"] > 0
        before = metadata(cluster, leader)
        cluster.stop(*list(cluster.processes))
        for name in MANAGERS:
            for file in (cluster.data(name) / "store").iterdir():
                file.unlink()
        cluster.start()
        cluster.wait_healthy()
        for name in MANAGERS:
            wait_for(f"{name} as before", lambda at=name: metadata(cluster, at) == before, 30)
        assert admin.register_consumer("first")["consumer_id"] > max(consumers)
        assert admin.describe_topic("first")["settings"]["partition_growth"] == 1_000_149
