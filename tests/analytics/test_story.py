"""The story of one replica, when segments of its log are gone that nobody needed any more (W12)."""

from __future__ import annotations

import json

from myqueue.analytics.log.msgpack_values import pack
from myqueue.analytics.verify.inspection_rows import Event, Finding, Run
from myqueue.analytics.verify.replica_agreement import judge_group
from myqueue.analytics.verify.replica_history import Names, Story, Teller
from myqueue.wal import format as f

GROUP, DISK = 7, "disk"
NAMES = Names({DISK: "broker-1"}, {})


def event(number: int, position: int, kind: int, index: int = 0, flags: int = 0) -> Event:
    return Event(GROUP, DISK, number, position, kind, index, 1, index, flags, b"\xc0")


def config(number: int, position: int, index: int, *voters: int) -> Event:
    payload = json.dumps([voters, []]).encode()
    return Event(GROUP, DISK, number, position, f.ENTRY, index, 1, index, 0, payload)


def run(number: int, position: int, first: int, last: int, *, relocated: bool = False) -> Run:
    """One message in each entry."""
    at = [(first, 1, position)]
    return Run(
        GROUP,
        DISK,
        number,
        position,
        position + 100,
        first,
        last,
        first,
        last + 1,
        at,
        relocated,
        [],
    )


def story_of(*rows: Run | Event) -> Story:
    teller = Teller(GROUP, DISK, NAMES)
    for row in (event(1, 0, f.GROUP_CREATED), *rows):
        assert list(teller.run(row) if isinstance(row, Run) else teller.event(row)) == []
    return teller.story


def rules(*rows: Run | Event) -> list[tuple[str, int]]:
    found = judge_group(GROUP, [event(1, 0, f.GROUP_CREATED), *rows], NAMES)
    return [(one.rule, one.index) for one in found if isinstance(one, Finding)]


def test_what_was_said_to_be_committed_and_was_never_there() -> None:
    assert rules(run(1, 10, 1, 9), event(1, 200, f.COMMIT, 9)) == []
    assert ("hint", 12) in rules(run(1, 10, 1, 9), event(1, 200, f.COMMIT, 12))
    late = rules(run(1, 10, 1, 9), event(1, 200, f.COMMIT, 12), run(1, 300, 10, 20))
    assert late == [("hint", 12)], "it came after it was said"


def test_what_stood_in_a_segment_that_is_gone() -> None:
    """Segment 2 had entries 10 to 15, and was reclaimed: all that is of the group is removed, or
    lies before the log's start, or these entries were appended again.
    """
    rows = [run(1, 10, 1, 9), event(3, 10, f.COMMIT, 14), run(3, 20, 16, 20)]
    assert rules(*rows, event(3, 900, f.GROUP_REMOVED)) == []
    assert rules(*rows, event(3, 900, f.START, 17)) == []
    assert rules(*rows, run(4, 10, 10, 15, relocated=True)) == []
    assert [rule for rule, _ in rules(*rows)] == ["gap"]
    alone = [run(1, 10, 1, 9), event(3, 10, f.COMMIT, 14)]
    assert rules(*alone, event(3, 900, f.GROUP_REMOVED)) == []
    assert rules(*alone, event(3, 900, f.START, 20, f.RESET)) == []
    assert ("hint", 14) in rules(*alone)


def test_a_reset_removes_configurations_with_their_entries() -> None:
    """What a snapshot says stays: it took the place of the entries."""
    rows = [run(1, 10, 1, 9), config(1, 50, 5, 1, 2, 3), config(1, 90, 9, 1, 2, 3, 4)]
    assert story_of(*rows).config == (9, (1, 2, 3, 4))
    assert story_of(*rows, event(2, 10, f.TRUNCATE, 9)).config == (5, (1, 2, 3))
    saved = event(2, 10, f.SNAPSHOT, 7, f.LAST)._replace(payload=pack([1, 2, 5]))
    for start in (1, 8):
        story = story_of(*rows, saved, event(2, 20, f.START, start, f.RESET))
        assert story.config == (7, (1, 2, 5))
        assert [*story.saved_configs, *story.configs] == [(7, (1, 2, 5))]


def test_an_older_configuration_that_was_moved_is_not_the_newest() -> None:
    rows = [run(1, 10, 1, 9), config(2, 10, 9, 1, 2, 3, 4), config(2, 90, 5, 1, 2, 3)]
    assert story_of(*rows).config == (9, (1, 2, 3, 4))
