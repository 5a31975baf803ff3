"""Daemons that are started together: no false alarm, and leaders are where they belong at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import zmtp
from support.processes import Cluster, wait_for

from myqueue.wire import protocol

pytestmark = pytest.mark.slow


def counters(cluster: Cluster, what: str) -> dict[Any, int]:
    out = {}
    for name in cluster.names:
        door = f"tcp://{cluster.door(name)}"
        told = cluster.session.call(door, protocol.STATS, ()).result().envelope[3]
        out[name] = int(told["counters"].get(what, 0))
    return out


def test_no_handshake_fails_when_all_start_together(tmp_path: Path) -> None:
    """And one that is refused after that is counted and logged."""
    with Cluster(tmp_path) as cluster:
        for what in ("handshakes_refused_total", "handshakes_unfinished_total"):
            assert not any(counters(cluster, what).values()), counters(cluster, what)
        logs = [name for name in cluster.names if "handshake-refused" in cluster.log(name)]
        assert not logs
        stranger = zmtp.greet(cluster.ports["manager", 2][1], b"CURVE")
        wait_for(
            "a refusal", lambda: counters(cluster, "handshakes_refused_total")["manager", 2] == 1
        )
        wait_for("a line", lambda: "handshake-refused" in cluster.log(("manager", 2)))
        stranger.close()


def test_leaders_are_where_they_belong_when_all_start_again(tmp_path: Path) -> None:
    """A power cut for all at once. By lot two thirds of the leaders would be moved afterwards; what
    one broker should lead may be, if it starts later than the others.
    """
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=12)

        def displaced() -> list[int] | None:
            """Partitions that another one than the preferred broker leads, once all are led."""
            rows = cluster.admin.describe_topic("t")["partitions"]
            if not all(row["leader"] for row in rows):
                return None
            return [at for at, row in enumerate(rows) if row["leader"] != row["preferred"]]

        wait_for("leaders", lambda: displaced() == [], 30)
        cluster.kill(*cluster.names)
        cluster.start()
        cluster.wait_healthy()
        (found,) = wait_for("leaders", lambda: [one] if (one := displaced()) is not None else [])
        assert len(found) <= 4, found
