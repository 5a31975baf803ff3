"""The console's table of what was damaged on disks, and what became of it (W21, promise 6)."""

from __future__ import annotations

from typing import Any

import pytest

from myqueue.errors import Unreachable
from myqueue.gateway.cluster_snapshot import ClusterSnapshot
from myqueue.gateway.console.pages import nodes
from myqueue.gateway.console.view.format import OK, WARN

ROW = {"segment": "7.seg", "position": 512, "found": "scrub", "since_ms": 1000}


class ToldAdmin:
    """Who is asked, and what they say."""

    def __init__(self, rows: list[dict[str, Any]] | None) -> None:
        self.rows, self.asked = rows, list[dict[str, Any]]()

    def repairs(self, daemons: list[dict[str, Any]]) -> dict[str, Any]:
        self.asked = daemons
        if self.rows is None:
            raise Unreachable("nobody answers")
        return {"repairs": self.rows}


def look() -> ClusterSnapshot:
    at = {"address": "127.0.0.1:1"}
    return ClusterSnapshot(
        managers=[{"node": 1, "last_seen_ms": 5000}],
        stats=[
            {"daemon": "broker", "node": 1, **at, "counters": {"damage_found_total": 2}},
            {"daemon": "broker", "node": 2, **at, "counters": {}},
            {"daemon": "broker", "node": 3, **at, "error": "not heard"},
        ],
    )


def drawn(monkeypatch: pytest.MonkeyPatch, admin: ToldAdmin, seen: ClusterSnapshot) -> Any:
    monkeypatch.setattr(nodes, "admin", lambda: admin)
    return nodes.repairs_table(seen)


def test_damage_is_shown_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    what = "7.seg at position 512: the checksum of its payload is wrong"
    admin = ToldAdmin(
        [
            {
                **ROW,
                "daemon": "broker 1",
                "what": what,
                "state": "repaired in 0.2 s",
                "partitions": ["t/0", "u/3"],
            },
            {**ROW, "daemon": "broker 1", "what": what, "since_ms": 4000, "state": "asked for"},
        ]
    )
    table = drawn(monkeypatch, admin, look())
    assert [one["node"] for one in admin.asked] == [1], "only who counted something is asked"
    rows = [[getattr(cell, "text", cell) for cell in row] for row in table.rows]
    assert [row[-1] for row in rows] == ["asked for", "repaired in 0.2 s"]
    assert rows[1][:5] == ["broker 1", "4 s ago", "scrub", "7.seg", "512"]
    assert rows[1][5] == "the checksum of its payload is wrong (t/0, u/3)"
    assert [row[-1].state for row in table.rows] == [WARN, OK]


def test_without_damage_and_without_an_answer_there_is_no_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert drawn(monkeypatch, ToldAdmin([]), look()) is None
    assert drawn(monkeypatch, ToldAdmin(None), look()) is None
    quiet = ClusterSnapshot(
        stats=[{"daemon": "broker", "node": 2, "counters": {"damage_found_total": 0}}]
    )
    admin = ToldAdmin(None)
    assert drawn(monkeypatch, admin, quiet) is None and not admin.asked
