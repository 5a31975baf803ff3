"""Published bugs, made again one at a time: the simulator has to find each.

A mutation is a rule id, the bug, and what it replaces. It exists only in a process that asked for
it (`mutated`), so that nothing of it can reach the code that is shipped. The number of seeds that
each needs is the measure of how hard this world looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sim import mutants_log, mutants_more, mutants_repair, mutants_rest
from sim.runner import play
from sim.world import Summary

from myqueue.daemons.raft.types import require

TOLD = re.compile(r"[A-Za-z.]*(Violation|Broken|NoProgress|Error|CorruptData): ")
MISFIT = re.compile(r"^(Type|Attribute|Name)Error: ", re.MULTILINE)  # of the mutation itself
Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class Mutation:
    rule: str
    bug: str
    patches: Callable[[], list[Patch]]


def _table() -> dict[str, Mutation]:
    found = {}
    bugs = vars(mutants_log) | vars(mutants_rest) | vars(mutants_more) | vars(mutants_repair)
    for name, make in bugs.items():
        if callable(make) and name.startswith("bug_"):
            rule, _, bug = (make.__doc__ or "").strip().partition(": ")
            found[name.removeprefix("bug_")] = Mutation(rule, bug, make)
    return found


MUTATIONS = _table()


@contextmanager
def mutated(name: str) -> Iterator[None]:
    patches = MUTATIONS[name].patches()
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in before:
            setattr(owner, attribute, original)


def play_mutated(name: str, seed: int) -> tuple[int, Summary | str, float]:
    with mutated(name):
        return play(seed)


def hunt(name: str, limit: int, first: int = 1) -> tuple[str, int, str]:
    """How many seeds it takes until the bug shows, and how it showed; 0 if it does not."""
    for count in range(1, limit + 1):
        _, outcome, _ = play_mutated(name, first + count - 1)
        if isinstance(outcome, str):
            require(not MISFIT.search(outcome), outcome)
            lines = [line for line in outcome.splitlines() if ": " in line]
            return name, count, next(filter(TOLD.match, lines), outcome.split("\n", 1)[0])
    return name, 0, ""
