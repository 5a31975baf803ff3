"""The checker of histories: pure, and a program of its own, so that an old one is judged again.

    PYTHONPATH=tests .venv/bin/python -m faults.check FILE...

It prints what was counted, how long clients had to wait during each kind of fault, and every rule
that was broken, with the place; the exit code is 1 then. Of several files, a sum at the end.
"""

from __future__ import annotations

import itertools
import json
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from faults.judges import Messages
from faults.judges_of_positions import Members, Positions, Takes, Topics

SHOWN_MAX = 20  # of each rule
SLACK_S = 0.2  # the last acknowledgement may be somewhat older than the fault that stopped them
AFTER_S = 3.0  # what a fault did may show so long after it was healed


class Violation(NamedTuple):
    rule: str
    what: str


class Fault(NamedTuple):
    number: int
    kind: str
    victims: list[str]
    majority: bool  # every group kept one, so an interruption has a bound
    begin_s: float
    end_s: float


class Report(NamedTuple):
    counts: dict[str, int]
    violations: list[Violation]
    faults: Counter[str]  # by kind, those without a majority as well
    interruptions: dict[str, list[float]]  # kind of fault -> the longest gap of each
    errors: Counter[str]

    @property
    def summary(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in self.counts.items())

    def lines(self) -> Iterator[str]:
        yield self.summary
        for error, count in self.errors.most_common(8):
            yield f"  failed {count:5} x {error}"
        if self.faults:
            kinds = (f"{count:,} {kind}" for kind, count in self.faults.most_common())
            yield f"faults by kind: {', '.join(kinds)}"
        gaps = sorted(gap for of in self.interruptions.values() for gap in of)
        if gaps:
            parts = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}
            told = ", ".join(f"{name} {share(gaps, part):.2f} s" for name, part in parts.items())
            yield f"interruptions, {len(gaps)} faults with a majority left: {told}"
        for kind, of in sorted(self.interruptions.items()):
            middle = share(sorted(of), 0.5)
            yield f"  {kind:24} {len(of):4} x  p50 {middle:5.2f} s  longest {max(of):5.2f} s"
        broken: Counter[str] = Counter()
        for rule, what in self.violations:
            broken[rule] += 1
            if broken[rule] <= SHOWN_MAX:
                yield f"{rule}: {what}"
        for rule, count in broken.items():
            yield f"BROKEN: {rule}, {count} times"


def sum_of(reports: list[Report]) -> Report:
    """What a run of several histories comes to."""
    counts: Counter[str] = Counter()
    interruptions: dict[str, list[float]] = defaultdict(list)
    for one in reports:
        counts.update(one.counts)
        for kind, gaps in one.interruptions.items():
            interruptions[kind] += gaps
    violations = [broken for one in reports for broken in one.violations]
    faults = sum((one.faults for one in reports), Counter[str]())
    errors = sum((one.errors for one in reports), Counter[str]())
    return Report(counts, violations, faults, interruptions, errors)


def share(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def check(events: Iterable[list[Any]]) -> Report:
    """The verdict about a history."""
    violations: list[Violation] = []

    def found(rule: str, what: str) -> None:
        violations.append(Violation(rule, what))

    messages = Messages(found)
    takes, positions = Takes(found, messages), Positions(found)
    judges = [messages, takes, positions, Members(found, messages), Topics(found)]
    waits = Waits()
    hearers: dict[str, list[Any]] = {}
    for at, verb, *fields in events:
        if verb not in hearers:
            known = [getattr(one, f"on_{verb}", None) for one in (*judges, waits)]
            hearers[verb] = [one for one in known if one is not None]
        for hear in hearers[verb]:
            hear(at, *fields)
    for judge in judges:
        judge.judge()
    counts = messages.counts() | {
        "taken": takes.count,
        "commits": positions.committed,
        "faults": len(waits.faults),
    }
    kinds = Counter(fault.kind for fault in waits.faults.values())
    return Report(counts, violations, kinds, waits.by_kind(), waits.errors)


class Waits:
    """How long a partition had no acknowledgement around each fault: the worst partition's."""

    def __init__(self) -> None:
        self.faults: dict[int, Fault] = {}
        self.errors: Counter[str] = Counter()
        self._acks: dict[tuple[str, int], list[float]] = defaultdict(list)

    def on_fault(
        self, at: float, number: int, kind: str, victims: list[str], majority: bool
    ) -> None:
        self.faults[number] = Fault(number, kind, victims, majority, at, at)

    def on_healed(self, at: float, number: int) -> None:
        self.faults[number] = self.faults[number]._replace(end_s=at)

    def on_fail(
        self, _at: float, _client: str, _topic: str, _number: int, outcome: str, error: str
    ) -> None:
        self.errors[f"{error} (outcome {outcome})"] += 1

    def on_ack(
        self, at: float, client: str, topic: str, _number: int, partition: int, _offset: int
    ) -> None:
        if client.startswith("steady"):  # sends to every partition, whatever happens
            self._acks[topic, partition].append(at)

    def by_kind(self) -> dict[str, list[float]]:
        """Of each fault that left a majority the longest wait of any partition. A wait is laid to
        the fault that began last before it, and not long ago.
        """
        worst = dict.fromkeys(self.faults, 0.0)
        ordered = sorted(self.faults.values(), key=lambda fault: fault.begin_s)
        begins = [fault.begin_s for fault in ordered]
        for times in self._acks.values():
            for last, at in itertools.pairwise(times):
                count = bisect_right(begins, last + SLACK_S)
                fault = ordered[count - 1] if count else None
                if fault is not None and last <= fault.end_s + AFTER_S:
                    worst[fault.number] = max(worst[fault.number], at - last)
        out: dict[str, list[float]] = defaultdict(list)
        for fault in ordered:
            if fault.majority and not self._is_shadowed(fault):
                out[fault.kind].append(round(worst[fault.number], 3))
        return dict(out)

    def _is_shadowed(self, fault: Fault) -> bool:
        """Another one left no majority at that time; who waited, waited for that."""
        return any(
            not one.majority
            and one.begin_s < fault.end_s + AFTER_S
            and fault.begin_s < one.end_s + AFTER_S
            for one in self.faults.values()
        )


def events_of(path: Path) -> Iterator[list[Any]]:
    with path.open(encoding="ascii") as file:
        for line in file:
            if line.endswith("\n"):  # the last one may have been cut
                yield json.loads(line)


def main() -> int:
    if len(sys.argv) < 2:
        sys.stderr.write("Usage: PYTHONPATH=tests .venv/bin/python -m faults.check FILE...\n")
        return 2
    reports = []
    for path in map(Path, sys.argv[1:]):
        print(f"{path}: {next(events_of(path))[2]}")
        reports.append(check(events_of(path)))
        print("\n".join(reports[-1].lines()))
    if len(reports) > 1:
        print("in all:", *sum_of(reports).lines(), sep="\n")
    return 1 if any(one.violations for one in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
