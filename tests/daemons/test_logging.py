"""What a daemon tells people: one line an event, not too many of one kind, and nothing that a
terminal would obey.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from myqueue.daemons.event_log import EVENTS_PER_WINDOW_MAX, WINDOW_MS, EventLog


class Told:
    def __init__(self, form: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.now, self._capsys = 1000, capsys
        clock: Any = SimpleNamespace(now_ms=lambda: self.now, wall_ms=lambda: 1_700_000_000_000)
        self.tell = EventLog("broker-1", form, clock)

    def lines(self) -> list[str]:
        return self._capsys.readouterr().err.splitlines()


def test_a_line_has_its_time_its_daemon_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told("text", capsys)
    told.tell("info", "replica-made", group=5, why="it was lost")
    assert told.lines() == [
        '2023-11-14T22:13:20.000+00:00 info    broker-1 replica-made group=5 why="it was lost"'
    ]
    told = Told("json", capsys)
    told.tell("error", "x", settings={"a": 1})
    row = json.loads(told.lines()[0])
    assert (row["level"], row["event"], row["settings"]) == ("error", "x", {"a": 1})


def test_what_comes_again_and_again_is_left_out_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = Told("text", capsys)
    for _ in range(EVENTS_PER_WINDOW_MAX + 5):
        told.tell("warning", "again")
    told.tell("warning", "other")
    assert len(told.lines()) == EVENTS_PER_WINDOW_MAX + 1
    told.now += WINDOW_MS + 1
    told.tell("warning", "again")
    assert told.lines()[0].endswith("again left_out=5")


def test_what_somebody_did_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told("text", capsys)
    for number in range(5 * EVENTS_PER_WINDOW_MAX):
        told.tell("info", "delete-topic", always=True, topic=number)
    assert len(told.lines()) == 5 * EVENTS_PER_WINDOW_MAX


def test_no_word_of_a_user_reaches_a_terminal_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told("text", capsys)
    told.tell("info", "x", name="\x1b[31mred", other="a\rb", empty="", plain="grün")
    (line,) = told.lines()
    assert line.endswith(r'name="\u001b[31mred" other="a\rb" empty="" plain=grün')
