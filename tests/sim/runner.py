"""Many seeds, on all cores, with a summary: what `bin/test sim` prints.

A long run says now and then how far it is. It stops soon after the first violations: a fault that
shows in three seeds shows in hundreds, and each of them is told with the command that replays it.

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
from sim.world import REPLAY, Summary, World

TELL_S = 30.0  # between two lines of a run that goes well
FAILURES_MAX = 3  # then a run ends


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

    def progress(self, count: int) -> str:
        left_s = self.wall_s / self.seeds * (count - self.seeds)
        return (
            f"{self.seeds:,} of {count:,} seeds, {len(self.failures)} violations; "
            f"{self.wall_s:.0f} s, about {left_s:.0f} s left"
        )

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
            f"{self.seeds / (self.cpu_s or 1.0):.1f} seeds a CPU second"
        )
        kinds = ", ".join(f"{name} {count:,}" for name, count in self.faults.most_common())
        yield f"faults: {kinds}"


def play(seed: int) -> tuple[int, Summary | str, float]:
    """One seed: its summary, or the story of its failure."""
    began = process_time()
    try:
        outcome: Summary | str = World(seed).run()
    except Violation as violation:
        outcome = f"{type(violation).__name__}: {violation}\n{_notes(violation, seed)}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any other end of a world is a violation as well
        outcome = f"{traceback.format_exc()}\n{_notes(error, seed)}"
    return seed, outcome, process_time() - began


def _notes(error: BaseException, seed: int) -> str:
    return "\n".join(getattr(error, "__notes__", [f"{REPLAY} {seed}"]))


def run(
    first: int,
    count: int,
    processes: int = 0,
    tell: Callable[[str], object] = lambda text: None,
    play: Callable[[int], tuple[int, Summary | str, float]] = play,
) -> Total:
    """`tell` is given the progress, every half minute, and each failure at once. `play` is called
    in other processes.
    """
    total, began = Total(), perf_counter()
    seeds, told_at = range(first, first + count), began
    workers = processes or os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for seed, outcome, cpu_s in pool.imap_unordered(play, seeds, chunksize=4):
            total.add(seed, outcome, cpu_s)
            now = perf_counter()
            total.wall_s = now - began
            if isinstance(outcome, str):
                tell(f"seed {seed} failed; replay: {REPLAY} {seed}\n{outcome}")
                if len(total.failures) >= FAILURES_MAX:
                    tell(f"ended after {total.seeds:,} of {count:,} seeds")
                    break
            if now >= told_at + TELL_S and total.seeds < count:
                told_at = now
                tell(total.progress(count))
    return total


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--processes", type=int, default=0, help="0: one for each core")
    arguments = parser.parse_args()
    total = run(arguments.first, arguments.seeds, arguments.processes, tell)
    sys.stdout.write("\n".join(total.lines()) + "\n")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
