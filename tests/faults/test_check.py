"""The checker of histories says nothing about sound ones, and finds what is planted in them."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from faults import judges, judges_of_positions
from faults.check import check, sum_of
from faults.stories import Event, tell

Alteration = Callable[[list[Event]], None]
TESTS = Path(__file__).parents[1]
SEEDS = range(1, 7)


@cache
def told(seed: int) -> str:
    return json.dumps(tell(seed, 800))


def rules(events: list[Event]) -> set[str]:
    return {violation.rule for violation in check(events).violations}


def of(events: list[Event], *verbs: str) -> list[Event]:
    return [event for event in events if event[1] in verbs]


def names_of(event: Event) -> list[str]:
    """The messages that a reader, a member or a take brought."""
    return [row[2] for row in event[-1]] if event[1] == "taken" else event[-1]


def rename(events: list[Event], old: str, new: str) -> None:
    """Whoever saw the one saw the other."""
    for event in of(events, "read", "got"):
        event[-1] = [new if name == old else name for name in event[-1]]
    for event in of(events, "taken"):
        event[-1] = [[p, o, new if name == old else name] for p, o, name in event[-1]]


def acknowledged(events: list[Event], at: int = 5) -> Event:
    return [event for event in of(events, "ack") if event[3] == "t"][at]


def reads(events: list[Event], client: str) -> list[Event]:
    return [event for event in of(events, "read") if event[2] == client]


# -- alterations: each breaks one promise ----------------------------------------------------------


def nobody_reads_the_end(events: list[Event]) -> None:
    """What was acknowledged last is cut off the log, for everybody."""
    last = max(of(events, "ack"), key=lambda event: (event[3] == "t", event[5] == 0, event[6]))
    name = f"{last[2]}:{last[4]}"
    for event in list(of(events, "read", "got", "taken")):
        names = names_of(event)
        if name in names:
            event[-1] = event[-1][: names.index(name)]
            if not event[-1]:
                events.remove(event)


def another_message_is_there(events: list[Event]) -> None:
    """One whose outcome nobody knows took the place of an acknowledged one."""
    ack = acknowledged(events)
    events.insert(1, [100.0, "send", "w9", "t", 1])
    events.insert(2, [100.0, "fail", "w9", "t", 1, "unknown", "TIMED_OUT"])
    rename(events, f"{ack[2]}:{ack[4]}", "w9:1")


def a_reader_stops_early(events: list[Event]) -> None:
    for event in reads(events, "r2")[-3:]:
        events.remove(event)


def one_message_is_twice(events: list[Event]) -> None:
    ack = acknowledged(events)
    rename(
        events,
        f"{ack[2]}:{ack[4]}",
        next(
            f"{one[2]}:{one[4]}" for one in of(events, "ack") if one[0] < ack[0] and one[3] == "t"
        ),
    )


def a_repeat_is_acknowledged_elsewhere(events: list[Event]) -> None:
    ack = acknowledged(events)
    events.insert(events.index(ack) + 1, [*ack[:6], ack[6] + 1])


def readers_differ(events: list[Event]) -> None:
    event = next(event for event in reads(events, "r2") if len(event[-1]) > 1)
    event[-1][0], event[-1][1] = event[-1][1], event[-1][0]


def nobody_sent_it(events: list[Event]) -> None:
    failed = next(event for event in of(events, "fail") if event[5] == "unknown")
    ack = acknowledged(events, -1)
    rename(events, f"{failed[2]}:{failed[4]}", "ghost:1")
    rename(events, f"{ack[2]}:{ack[4]}", "ghost:2")


def it_is_of_the_topic_before(events: list[Event]) -> None:
    made = [event for event in of(events, "send") if event[3].startswith("v#")]
    read = next(event for event in of(events, "read") if event[3].startswith("v#"))
    other = next(event for event in made if event[3] != read[3])
    read[-1] = [f"{other[2]}:{other[4]}"]


def it_failed_for_certain(events: list[Event]) -> None:
    """An acknowledgement becomes a failure that says that nothing was done."""
    ack = acknowledged(events)
    ack[1:] = ["fail", *ack[2:5], "none", "BUSY"]


def numbers_change_places(events: list[Event]) -> None:
    """Of one producer, in one partition."""
    one, other = of_one_producer(events)
    first, second = f"{one[2]}:{one[4]}", f"{other[2]}:{other[4]}"
    rename(events, first, "x")
    rename(events, second, first)
    rename(events, "x", second)
    one[6], other[6] = other[6], one[6]


def of_one_producer(events: list[Event]) -> tuple[Event, Event]:
    acks = [event for event in of(events, "ack") if event[2] == "w2" and event[5] == 0]
    ordered = sorted(acks, key=lambda event: event[6])
    return ordered[3], ordered[4]


def a_later_one_stands_before(events: list[Event]) -> None:
    """What was acknowledged early stands behind all that was sent later."""
    acknowledged(events, 3)[6] += 100_000


def a_reader_leaves_out(events: list[Event]) -> None:
    event = next(event for event in reads(events, "r2") if event[5] > 0)
    event[5] += 1
    event[-1] = event[-1][1:]


def a_reader_goes_back(events: list[Event]) -> None:
    event = reads(events, "r2")[4]
    events.insert(events.index(event) + 1, [event[0], *event[1:]])


def nothing_was_heard(events: list[Event]) -> None:
    failed = next(event for event in of(events, "fail") if event[5] == "unknown")
    events.remove(failed)


def two_calls_take_one(events: list[Event]) -> None:
    """Both at once, so that none had ended when the other began."""
    one, other = [event for event in of(events, "taken") if event[-1]][:2]
    other[-1] = other[-1] + [one[-1][-1]]


def a_take_leaves_out(events: list[Event]) -> None:
    event = [event for event in of(events, "taken") if len(event[-1]) > 1][1]
    del event[-1][0]


def a_take_goes_back(events: list[Event]) -> None:
    """Two calls change their results."""
    calls = [event for event in of(events, "taken") if event[-1]]
    one = calls[2]
    other = next(event for event in calls[4:] if event[-1][0][0] == one[-1][0][0])
    one[-1], other[-1] = other[-1], one[-1]


def a_position_goes_back(events: list[Event]) -> None:
    goes_back(events, "7")


def a_groups_position_goes_back(events: list[Event]) -> None:
    """Behind what a member was told is committed, and before anybody had looked."""
    goes_back(events, "group/g")


def goes_back(events: list[Event], who: str) -> None:
    committed = next(e for e in of(events, "committed") if e[2] == who and e[5] > 0)
    told = next(
        event
        for event in of(events, "position")
        if event[2] == who and event[4] == committed[4] and event[6] > committed[0]
    )
    told[5] = 0


def a_position_is_ahead(events: list[Event]) -> None:
    of(events, "position")[-1][5] += 10_000


def it_reads_on_too_early(events: list[Event]) -> None:
    resumed = of(events, "resume")[-1]
    later = [event for event in reads(events, "r1") if event[0] > resumed[0] and event[5] > 2]
    event = next(
        event for event in later if event[5] == min(one[5] for one in later if one[4] == event[4])
    )
    events.insert(
        events.index(event),
        [event[0], "read", "r1", "t", event[4], 0, names_from_0(events, event[4])],
    )


def names_from_0(events: list[Event], partition: int) -> list[str]:
    return next(e[-1] for e in reads(events, "r2") if e[4] == partition and e[5] == 0)


def two_members_have_it(events: list[Event]) -> None:
    event = of(events, "got")[5]
    event[2] = "m3"


def an_old_member_gets_more(events: list[Event]) -> None:
    """In the epoch before, when the next one had begun."""
    later = [event for event in of(events, "got") if event[6] > 1]
    event = later[0]
    events.insert(
        events.index(event) + 1,
        [
            event[0] + 0.0001,
            "got",
            "m1",
            *event[3:6],
            event[6] - 1,
            event[0] + 0.00005,
            before_epoch(events, event),
            list(event[-1]),
        ],
    )


def before_epoch(events: list[Event], event: Event) -> int:
    """The offset where the epoch before ended."""
    rows = [e for e in of(events, "got") if e[5] == event[5] and e[6] == event[6] - 1]
    return max((e[8] + len(e[9]) for e in rows), default=event[8])


def a_group_leaves_out(events: list[Event]) -> None:
    partition = next(event[5] for event in of(events, "got") if event[6] > 1)
    for event in of(events, "got"):
        if event[5] == partition and event[6] > 1:
            event[8] += 50


def a_member_leaves_out(events: list[Event]) -> None:
    """Within its epoch."""
    event = within_an_epoch(events)
    event[8] += 1
    event[9] = event[9][1:]


def a_member_goes_back(events: list[Event]) -> None:
    event = within_an_epoch(events)
    events.insert(events.index(event) + 1, list(event))


def within_an_epoch(events: list[Event]) -> Event:
    """Not the first one of it, and of more than one message."""
    before: set[tuple[int, int]] = set()
    for event in of(events, "got"):
        if (event[5], event[6]) in before and len(event[9]) > 1:
            return event
        before.add((event[5], event[6]))
    raise AssertionError("every epoch has one row")


def nobody_sent_what_was_acknowledged(events: list[Event]) -> None:
    ack = acknowledged(events)
    events.remove(next(e for e in of(events, "send") if e[2:5] == ack[2:5]))


def another_message_was_in_a_topic_that_is_gone(events: list[Event]) -> None:
    """Only a reader of that topic can tell; nothing else is asked of what was dropped."""
    read = next(event for event in of(events, "read") if event[3].startswith("v#"))
    client, _, number = read[6][0].rpartition(":")
    events.insert(1, [100.0, "send", client, read[3], int(number) + 1])
    events.insert(2, [100.0, "fail", client, read[3], int(number) + 1, "unknown", "TIMED_OUT"])
    read[6] = [f"{client}:{int(number) + 1}"]


def a_topic_is_not_listed(events: list[Event]) -> None:
    next(event for event in of(events, "listed") if "v" in event[3])[3].remove("v")


def a_topic_comes_back(events: list[Event]) -> None:
    next(event for event in of(events, "listed") if "v" not in event[3])[3].append("v")


PLANTED: list[tuple[Alteration, str]] = [
    (nobody_reads_the_end, "LOST"),
    (another_message_is_there, "LOST"),
    (a_reader_stops_early, "LOST"),
    (one_message_is_twice, "TWICE"),
    (a_repeat_is_acknowledged_elsewhere, "TWICE"),
    (readers_differ, "DIFFERENT"),
    (nobody_sent_it, "NEVER_SENT"),
    (it_is_of_the_topic_before, "NEVER_SENT"),
    (it_failed_for_certain, "AFTER_FAILURE"),
    (numbers_change_places, "REORDERED"),
    (a_later_one_stands_before, "OVERTAKEN"),
    (a_reader_leaves_out, "SKIPPED"),
    (a_reader_goes_back, "BACK"),
    (nothing_was_heard, "UNSETTLED"),
    (two_calls_take_one, "TAKEN_TWICE"),
    (a_take_leaves_out, "TAKEN_SKIPPED"),
    (a_take_goes_back, "TAKEN_BACK"),
    (a_position_goes_back, "POSITION_BACK"),
    (a_groups_position_goes_back, "POSITION_BACK"),
    (it_reads_on_too_early, "POSITION_BACK"),
    (a_position_is_ahead, "POSITION_AHEAD"),
    (two_members_have_it, "TWO_OWNERS"),
    (an_old_member_gets_more, "TWO_OWNERS"),
    (a_group_leaves_out, "SKIPPED"),
    (a_member_leaves_out, "SKIPPED"),
    (a_member_goes_back, "BACK"),
    (nobody_sent_what_was_acknowledged, "NEVER_SENT"),
    (another_message_was_in_a_topic_that_is_gone, "DIFFERENT"),
    (a_topic_is_not_listed, "STALE_TOPICS"),
    (a_topic_comes_back, "STALE_TOPICS"),
]


def test_every_rule_is_planted() -> None:
    source = inspect.getsource(judges) + inspect.getsource(judges_of_positions)
    assert set(re.findall(r'"([A-Z]{4,}|[A-Z]+(?:_[A-Z]+)+)"', source)) == {
        rule for _, rule in PLANTED
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_sound_history_is_called_sound(seed: int) -> None:
    report = check(json.loads(told(seed)))
    assert not report.violations, report.violations[:5]
    assert report.counts["acknowledged"] > 100 and report.counts["taken"] > 100


@pytest.mark.parametrize(("alter", "rule"), PLANTED, ids=[alter.__name__ for alter, _ in PLANTED])
def test_what_is_planted_is_found(alter: Alteration, rule: str) -> None:
    """In each of some histories; and nothing is called by a name that the checker does not have."""
    for seed in SEEDS:
        events = json.loads(told(seed))
        alter(events)
        assert rule in rules(events), f"seed {seed}: {rules(events)}"


def test_the_checker_is_a_program_too(tmp_path: Path) -> None:
    events = tell(1)
    sound, broken = tmp_path / "sound.jsonl", tmp_path / "broken.jsonl"
    sound.write_text("".join(json.dumps(event) + "\n" for event in events) + '[1.0,"se')
    one_message_is_twice(events)
    broken.write_text("".join(json.dumps(event) + "\n" for event in events))
    for file, code, word in ((sound, 0, "acknowledged"), (broken, 1, "BROKEN: TWICE")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "faults.check", str(file)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            check=False,
        )
        assert (done.returncode, word in done.stdout) == (code, True), done.stdout + done.stderr


def test_interruptions_are_those_of_steady_clients() -> None:
    """The worst partition's gap, from the fault on; not while no majority was left."""
    begin, out = [100.0, "begin", {}], []
    for number in range(1, 41):
        at = 100.0 + number / 10
        if 101.0 < at < 102.6:  # nothing of partition 0
            continue
        out.append([at, "ack", "steady1", "t", number, 0, number])
    out += [[100.05 + n / 10, "ack", "steady1", "t", 100 + n, 1, n] for n in range(40)]
    out += [[101.0, "fault", 1, "kill", ["broker-1"], True], [102.0, "healed", 1]]
    report = check([begin, *sorted(out, key=lambda event: event[0])])
    assert report.interruptions == {"kill": [1.6]}
    out += [[102.5, "fault", 2, "all", ["broker-2"], False], [103.0, "healed", 2]]
    second = check([begin, *sorted(out, key=lambda event: event[0])])
    assert second.interruptions == {}
    assert second.faults == {"kill": 1, "all": 1}
    assert "faults by kind: 1 kill, 1 all" in second.lines()
    both = sum_of([report, second])
    assert both.interruptions == {"kill": [1.6]}
    assert both.faults == {"kill": 2, "all": 1}
    assert both.counts["acknowledged"] == 2 * second.counts["acknowledged"] > 0
