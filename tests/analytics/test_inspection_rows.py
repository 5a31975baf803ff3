"""Rows on their way from an executor to a judge."""

from __future__ import annotations

from myqueue.analytics.verify.inspection_rows import BatchRun, Change, Command, Step, packed


def test_changes_travel_as_plain_tuples_and_arrive_with_names() -> None:
    changes: list[Change] = [
        BatchRun(producer=7, epoch=1, sequence=0, offset=5, count=2, index=3, bytes=90, time_ms=4),
        Command(index=4, offset=7, payload=b"c"),
    ]
    step = Step("disk", 100, 3, 1, 512, 4, packed(changes))
    assert {type(change) for change in step.packed} == {tuple}
    arrived = list(step.changes)
    assert arrived == changes and [type(one) for one in arrived] == [BatchRun, Command]
