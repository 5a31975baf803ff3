"""Very many states of a log after crashes and damage, each judged by an oracle.

`faults.recording` makes a log, `faults.states` puts it into states, `faults.oracle` says which
outcomes are allowed. A normal run looks at every byte of one log and at 8,000 sampled states of
eight; `--states 1000000` at as many as that, on two cores. MYQ_SEED=n takes other logs. A failure
prints the one command that shows it again.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

import pytest
from faults.oracle import EXCUSED, RIGHT, Oracle, Violation
from faults.recording import SEGMENT_BYTES, Recording
from faults.states import KINDS, judge
from support.telling import tell

from myqueue.wal.check.segments import CORRUPT, TORN

STATES, LOGS_MAX = 8000, 100
IN_PROCESSES_FROM = 200_000
SHOWN_MAX = 5
SEED = int(os.environ.get("MYQ_SEED", "1"))
Outcomes = Counter[tuple[str, str]]


def look(seed: int, kind: str, numbers: list[int]) -> tuple[Outcomes, list[str]]:
    """Judge these states of one log; counts, and what was violated."""
    oracle = Oracle(Recording(seed))
    counts: Outcomes = Counter()
    violations = []
    for number in numbers:
        try:
            counts[kind, judge(oracle, kind, number)] += 1
        except Violation as violation:
            counts[kind, "VIOLATION"] += 1
            violations.append(str(violation))
    return counts, violations


def sampled(states: int) -> Iterator[tuple[int, str, list[int]]]:
    """Portions of work: seed, kind, numbers of states; together `states` of them, or some more.

    Of a kind that has fewer than its share all are taken, and the rest from the next kind that
    has no end.
    """
    logs = min(LOGS_MAX, max(1, states // 1000))
    for seed in range(SEED, SEED + logs):
        oracle, missing = Oracle(Recording(seed)), 0
        for name, kind in KINDS.items():
            size, count = kind.size(oracle), -int(-states * kind.share // logs)
            if not size:
                yield seed, name, list(range(count + missing))
                missing = 0
            else:
                taken = min(size, count)
                missing += count - taken
                yield seed, name, sorted(Random(seed).sample(range(size), taken))


def run(portions: list[tuple[int, str, list[int]]]) -> tuple[Outcomes, list[str]]:
    total: Outcomes = Counter()
    violations: list[str] = []
    if sum(len(numbers) for _, _, numbers in portions) < IN_PROCESSES_FROM:
        results = list(map(look, *zip(*portions, strict=True)))
    else:
        with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
            results = list(pool.map(look, *zip(*portions, strict=True)))
    for counts, found in results:
        total += counts
        violations += found
    return total, violations


def table(counts: Outcomes) -> str:
    """Kinds in rows, outcomes in columns."""
    outcomes = [RIGHT, TORN, CORRUPT, EXCUSED, "VIOLATION"]
    rows = [("kind", *outcomes, "states")]
    for name in KINDS:
        numbers = [counts[name, outcome] for outcome in outcomes]
        if any(numbers):
            rows.append((name, *map(str, numbers), str(sum(numbers))))
    sums = [sum(counts[name, outcome] for name in KINDS) for outcome in outcomes]
    rows.append(("all", *map(str, sums), str(sum(sums))))
    return "\n".join(f"{row[0]:14}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows)


def report(counts: Outcomes, violations: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tell(capsys, f"\nseed {SEED}\n{table(counts)}")
    shown = "\n".join(violations[:SHOWN_MAX])
    assert not violations, f"{len(violations)} violations, the first of them:\n{shown}"


def test_every_byte_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """W5, W8, W16, W19: each cut of the newest segment, each byte flipped in each segment."""
    size = len([n for n in Recording(SEED).last.moment.disk.list() if n.endswith(".seg")])
    counts, violations = run(
        [
            (SEED, "truncate", list(range(SEGMENT_BYTES))),
            (SEED, "flip", list(range(size * SEGMENT_BYTES))),
        ]
    )
    report(counts, violations, capsys)
    assert counts["truncate", EXCUSED] == counts["flip", EXCUSED] == 0


def test_sampled_states(states: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """W1, W3, W4, W5, W8, W9, W14, W19."""
    counts, violations = run(list(sampled(states or STATES)))
    report(counts, violations, capsys)
    for kind in ("crash", "recovery", "lives"):
        assert counts[kind, CORRUPT] == counts[kind, EXCUSED] == 0
    assert counts["watermark", EXCUSED] == counts["flip", EXCUSED] == 0
    assert min(sum(counts[kind, outcome] for outcome in (RIGHT, TORN, CORRUPT)) for kind in KINDS)


@pytest.mark.parametrize("option", ["--states", "--seeds"])
@pytest.mark.parametrize("number", ["0", "-5", "x"])
def test_a_run_that_looks_at_nothing_is_refused(option: str, number: str) -> None:
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", __file__, option, number]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"argument {option}: " in done.stderr and "Traceback" not in done.stderr
