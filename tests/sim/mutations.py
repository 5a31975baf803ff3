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
from sim.world import Summary, World

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
# The profile, or the faults, of the worlds that are tried first for bugs that few worlds show.
SHOWS_IN: dict[str, set[str]] = {
    "a_report_of_another_install": {"lag"},
    "a_report_of_another_install_at_this_index": {"lag"},
    "apply_ahead_of_the_log": {"terms"},
    "install_over_a_log_that_reaches_its_start": {"terms"},
    "the_longer_log_gets_the_vote": {"terms"},
    "a_leader_that_lacks_entries_counts_itself": {"rot"},
    "a_bad_entry_is_taken_for_a_lost_one": {"rot"},
    "who_lacks_entries_stands": {"rot"},
    "vote_forgotten_when_a_leader_is_lost": {"rot"},
    "a_lost_vote_is_not_missed": {"corruption"},
    "other_incarnations_are_heard": {"membership"},
    "own_lateness_is_silence_of_others": {"starved"},
    "long_gaps_teach_no_patience": {"starved"},
}


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


def order(name: str, limit: int) -> list[int]:
    """Each seed from 1 to the limit, once."""
    seeds, kinds = range(1, limit + 1), SHOWS_IN.get(name, set())
    return sorted(seeds, key=lambda seed: not kinds <= _kinds_of(seed)) if kinds else list(seeds)


def _kinds_of(seed: int) -> set[str]:
    nemesis = World(seed).nemesis  # a world that is not run costs nothing
    return {nemesis.profile, *nemesis.enabled}


@dataclass(frozen=True)
class Found:
    name: str
    played: int  # seeds, the one that shows it included
    seed: int  # so many would do, if they were played one after another; 0: it was not found
    told: str = ""


def hunt(name: str, limit: int) -> Found:
    for played, seed in enumerate(order(name, limit), 1):
        _, outcome, _ = play_mutated(name, seed)
        if isinstance(outcome, str):
            require(not MISFIT.search(outcome), outcome)
            lines = [line for line in outcome.splitlines() if ": " in line]
            told = next(filter(TOLD.match, lines), outcome.split("\n", 1)[0])
            return Found(name, played, seed, told)
    return Found(name, limit, 0)
