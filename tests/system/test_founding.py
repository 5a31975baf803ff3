"""The metadata is founded once, by all managers together: never by a majority of new disks."""

from __future__ import annotations

from pathlib import Path

from support.processes import Cluster, Name, wait_for

from myqueue.wire import protocol

MANAGERS: list[Name] = [("manager", number) for number in (1, 2, 3)]


def leads(cluster: Cluster) -> bool:
    return cluster.problems() is not None


def start_two(cluster: Cluster) -> None:
    """They wait for the third one, and say so."""
    cluster.start(*MANAGERS[:2])
    for name in MANAGERS[:2]:
        wait_for("told", lambda at=name: "waits for 3" in cluster.log(at), 20)
    assert not leads(cluster)


def applied_indexes(cluster: Cluster) -> list[int]:
    """List how far each manager has applied the log."""
    rows = []
    for name in MANAGERS:
        asked = cluster.session.call(f"tcp://{cluster.door(name)}", protocol.STATUS, (0,))
        rows += asked.result().envelope[3]["groups"]
    assert len(rows) == len(MANAGERS)
    return [row["applied"] for row in rows]


def test_all_managers_found_it_and_two_new_disks_never_do(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, brokers=0, soft_limit_bytes=0)
    try:
        start_two(cluster)
        cluster.start(MANAGERS[2])
        wait_for("founded", lambda: leads(cluster), 20)
        cluster.wait_healthy()
        for name in MANAGERS:
            wait_for("ready", lambda at=name: "ready" in cluster.log(at))
        # A manager that has not applied the registration of a disk can't refuse another one.
        wait_for("the same metadata", lambda: len(set(applied_indexes(cluster))) == 1)
        cluster.stop(*MANAGERS)
        for name in MANAGERS[:2]:
            cluster.wipe(name)
            (tmp_path / f"{name[0]}-{name[1]}.log").unlink()
        start_two(cluster)
        cluster.start(MANAGERS[2])  # it has the metadata, and knows that their disks are others
        wait_for("refused", lambda: "link-refused" in cluster.log(MANAGERS[2]), 20)
        assert not leads(cluster)
        cluster.check_alive()
    finally:
        cluster.close()
