"""Many seeds, on all cores, with a summary: what `bin/test sim` prints.

PYTHONPATH=tests .venv/bin/python -P -m sim.runner --seeds 300 --first 1000
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter, process_time

from sim.checkers import Violation
from sim.world import Summary, World

TELL_SEEDS = 1000


@dataclass
class Total:
    """The sum over all seeds, and the stories of those that failed."""

    seeds: int = 0
    steps: int = 0
    simulated_ms: int = 0
    acknowledged: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, outcome: Summary | str, cpu_s: float) -> None:
        self.seeds += 1
        self.cpu_s += cpu_s
        if isinstance(outcome, str):
            self.failures[seed] = outcome
            return
        self.steps += outcome.steps
        self.simulated_ms += outcome.simulated_ms
        self.acknowledged += outcome.acknowledged
        self.faults += outcome.faults

    def lines(self) -> Iterator[str]:
        hours = self.simulated_ms / 3.6e6
        rate = hours / (self.cpu_s / 3600) if self.cpu_s else 0.0
        yield (
            f"{self.seeds:,} seeds, {len(self.failures)} violations; {hours:.2f} simulated hours, "
            f"{self.steps:,} steps, {self.acknowledged:,} commands acknowledged"
        )
        yield (
            f"{self.wall_s:.0f} s on the clock, {self.cpu_s:.0f} s of CPU: "
            f"{rate:.2f} simulated hours per core-hour, "
            f"{self.seeds / self.cpu_s:.1f} seeds a CPU second"
        )
        kinds = ", ".join(f"{name} {count:,}" for name, count in self.faults.most_common())
        yield f"faults: {kinds}"


def play(seed: int) -> tuple[int, Summary | str, float]:
    """One seed: its summary, or the story of its failure."""
    began = process_time()
    try:
        outcome: Summary | str = World(seed).run()
    except Violation as violation:
        notes = "\n".join(getattr(violation, "__notes__", []))
        outcome = f"{type(violation).__name__}: {violation}\n{notes}"
    except BaseException as error:  # any other end of a world is a violation as well
        if isinstance(error, KeyboardInterrupt):
            raise
        notes = "\n".join(getattr(error, "__notes__", [f"seed {seed}"]))
        outcome = f"{traceback.format_exc()}\n{notes}"
    return seed, outcome, process_time() - began


def run(
    first: int, count: int, processes: int = 0, tell: Callable[[str], object] = lambda text: None
) -> Total:
    """`tell` hears how far it is, now and then, and at once of a seed that failed."""
    total, began = Total(), perf_counter()
    seeds = range(first, first + count)
    workers = processes or os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for seed, outcome, cpu_s in pool.imap_unordered(play, seeds, chunksize=4):
            total.add(seed, outcome, cpu_s)
            total.wall_s = perf_counter() - began
            if isinstance(outcome, str):
                tell(f"seed {seed}: {outcome}")
            if total.seeds % TELL_SEEDS == 0 and total.seeds < count:
                tell(f"{total.seeds:,} of {count:,}: {next(total.lines())}, {total.wall_s:.0f} s")
    return total


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--processes", type=int, default=0, help="0: one for each core")
    arguments = parser.parse_args()
    total = run(arguments.first, arguments.seeds, arguments.processes, print)
    for story in total.failures.values():
        sys.stdout.write(story + "\n\n")
    sys.stdout.write("\n".join(total.lines()) + "\n")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
