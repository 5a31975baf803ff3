"""What the nemesis lets pass of what is found in the logs of a cluster that it damaged."""

from __future__ import annotations

from pathlib import Path

from faults.second_opinion import unexplained

from myqueue.analytics.verify.inspection_rows import CORRUPT, WRONG, Finding


def test_only_damage_that_is_still_there_explains_a_finding(tmp_path: Path) -> None:
    """P12: of a whole daemon, of one whose damage was mended, and of the ledger, all is told."""
    left, gone = tmp_path / "1.seg", tmp_path / "2.seg"
    left.write_bytes(b"x")
    damaged = {("broker", 1): {left, gone}, ("broker", 2): {gone}}
    mine = Finding(CORRUPT, "payload", "its bytes", "broker-1")
    told = [
        Finding(CORRUPT, "payload", "its bytes", "broker-2"),
        Finding(WRONG, "vote", "two of them", "manager-1"),
        Finding(WRONG, "ack", "is not in the log"),
    ]
    torn = Finding("torn", "tail", "cut off by a crash", "broker-3")
    assert unexplained([mine, *told, torn], damaged) == told
