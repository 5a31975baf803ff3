"""Every kind of problem, from the managers' row to the sentence; and that all kinds are there."""

from __future__ import annotations

import ast
import doctest
import inspect
from typing import Any

import pytest

from myqueue import problems
from myqueue.daemons.manager import queries
from myqueue.problems import CRITICAL, ENDS_ALONE, KINDS, REPORTED, describe

DAMAGED = {
    "problem": "damaged", "kind": "broker", "node": 2, "segment": "7.seg", "position": 512,
    "found": "scrub", "what": "a payload", "state": "being emptied", "since_ms": 1,
    "partitions": ["t/0"],
}  # fmt: skip
CLOSED = {
    "problem": "closed", "kind": "broker", "node": 2, "group": 7, "partition": "t/0",
    "why": "logs differ", "since_ms": 1, "kept": "",
}  # fmt: skip
RIVAL = {
    "problem": "rival", "kind": "broker", "node": 2, "address": "h:1", "connected": "h:2",
}  # fmt: skip


def of_partitions(kind: str, *numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"problem": kind, "topic": "t", "partition": number, **more} for number in numbers]


# Rows, then whether it is critical, the sentence, and how the action begins.
CASES: list[tuple[list[dict[str, Any]], list[tuple[bool, str, str]]]] = [
    ([], []),
    (
        [{"problem": "managers-unreachable", "why": "nobody"}],
        [(True, "no manager answers: nobody", "")],
    ),
    (
        [{"problem": "managers-leaderless"}],
        [(True, "no manager leads", "Nothing can be changed until")],
    ),
    (
        [{"problem": "managers-leaderless", "why": "h:1 is silent"}],
        [(True, "no manager leads: h:1 is silent", "Nothing can be changed until")],
    ),
    (
        [{"problem": "disk-low", "node": 1, "free_bytes": 0}],
        [(True, "broker 1 has no room on its disk, and refuses messages", "Make room")],
    ),
    (
        of_partitions("leaderless", 0, voteless=[]),
        [(True, "1 partition without a leader: t/0", "Start the silent brokers")],
    ),
    (
        of_partitions("leaderless", *range(7)),
        [
            (True, "7 partitions without a leader: t/0, t/1, t/2, t/3, t/4 and 2 more", "Start"),
        ],
    ),
    (
        of_partitions("leaderless", 0, 1, voteless=[2, 3])[1:],
        [
            (True, "1 partition without a leader: t/1", "Start the silent brokers"),
            (
                True,
                "t/1: its replica on broker 2, 3 does not vote until a leader has restored its lost"
                " entries",
                "Start the brokers of its other replicas",
            ),
        ],
    ),
    (
        of_partitions("leaderless", 0, voteless=[2, 3], health={"2": "repairing", "3": ""}),
        [
            (True, "1 partition without a leader: t/0", "Start the silent brokers"),
            (
                True,
                "t/0: its replica on broker 2 (repairing), 3 does not vote until a leader has"
                " restored its lost entries",
                "Start the brokers of its other replicas",
            ),
        ],
    ),
    ([{"problem": "manager-silent", "node": 3}], [(False, "manager 3 is silent", "Start it")]),
    ([{"problem": "broker-silent", "node": 3}], [(False, "broker 3 is silent", "Start it")]),
    (
        [{"problem": "broker-unregistered", "node": 3}],
        [(False, "broker 3 is not registered", "Start it")],
    ),
    (
        [{"problem": "unreached", "node": 3}],
        [(False, "other brokers can't reach broker 3", "Check its address for peers")],
    ),
    (
        [RIVAL],
        [
            (
                False,
                "another process claims to be broker 2, at h:1, and is refused while broker 2 is"
                " connected from h:2",
                "Stop the one that should not be",
            ),
        ],
    ),
    ([DAMAGED], [(False, "broker 2: damage in 7.seg at position 512 (t/0): being emptied", "")]),
    (
        [DAMAGED | {"partitions": []}],
        [(False, "broker 2: damage in 7.seg at position 512: being emptied", "")],
    ),
    (
        of_partitions("under-replicated", 0, 1, missing=[2], lacking=1),
        [(False, "2 partitions with replicas missing: t/0, t/1", "Start the silent brokers")],
    ),
    (
        [{"problem": "stray-group", "node": node, "group": uid} for node, uid in
         ((3, 7), (1, 7), (1, 9))],
        [
            (False, "broker 1 keeps 2 replicas that no topic has", "No broker deletes these"),
            (False, "broker 3 keeps 1 replica that no topic has", "No broker deletes these"),
        ],
    ),
    (
        [CLOSED | {"kept": "/d/closed-7"}],
        [(False, "broker 2 keeps the log of a closed replica of t/0 in /d/closed-7", "See with")],
    ),
    (
        [CLOSED | {"kind": "manager", "partition": "managers"}],
        [(False, "manager 2 takes no part: logs differ", "Look for a disk or a folder of a man")],
    ),
    (
        [CLOSED],
        [(False, "broker 2 closed its replica of t/0: logs differ", "Look for a disk or a folder")],
    ),
    (
        [{"problem": "clock-skew", "node": 2, "ms": 900}, {"problem": "new"}],
        [(False, "clock-skew: node 2, ms 900", ""), (False, "new", "")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), CASES)
def test_every_kind_has_its_sentence(
    rows: list[dict[str, Any]], expected: list[tuple[bool, str, str]]
) -> None:
    described = describe(rows)
    assert [(one.critical, one.text) for one in described] == [row[:2] for row in expected]
    for problem, (_, text, action) in zip(described, expected, strict=True):
        assert problem.action.startswith(action) and bool(problem.action) == bool(action)
        assert problem.advice == (f"{text}. {problem.action}" if action else text)
        assert (problem.kind in CRITICAL) == problem.critical


def test_the_cases_cover_the_table() -> None:
    used = [
        kind
        for kind in KINDS
        for rows, _ in CASES
        if any(row["problem"] == kind.name and kind.is_case(row) for row in rows)
    ]
    assert set(used) == set(KINDS)


def test_the_critical_ones_come_first() -> None:
    described = describe([row for rows, _ in reversed(CASES) for row in rows])
    flags = [problem.critical for problem in described]
    assert flags == sorted(flags, reverse=True) and set(flags) == {True, False}


def test_the_table_has_every_kind_that_managers_report() -> None:
    """One that is missing would be written as it came, and count as not critical."""
    tree = ast.parse(inspect.getsource(queries))
    reported = {
        value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "problem"
        if isinstance(value, ast.Constant)
    }
    assert reported == set(REPORTED)


def test_a_start_does_not_wait_for_what_stays() -> None:
    assert set(REPORTED) - ENDS_ALONE == {"stray-group", "closed"}
    assert "clock-skew" not in ENDS_ALONE


def test_its_examples_are_true() -> None:
    assert doctest.testmod(problems).failed == 0
