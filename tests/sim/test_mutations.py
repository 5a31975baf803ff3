"""Known bugs, made again on purpose: each has to be found (`bin/test sim --mutations`).

Without the option the few that show within a handful of seeds are tried, so that a simulator that
finds nothing at all does not go unnoticed; and each has to fit the code that it spoils.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
from functools import partial
from typing import Any

import pytest
from sim.mutations import MUTATIONS, SHOWS_IN, Found, hunt, order

LIMIT = 500
QUICK = ("half_elects", "vote_before_sync", "ack_before_sync", "a_repeat_is_applied_again")


def test_a_few_bugs_are_found_at_once() -> None:
    for name in QUICK:
        assert hunt(name, 40).seed, f"{MUTATIONS[name].rule}: {MUTATIONS[name].bug} was not noticed"


def _shape(function: Any) -> tuple[int, bool]:
    """How many arguments it takes by their places; True if it takes any number."""
    kinds = [one.kind for one in inspect.signature(function).parameters.values()]
    several = inspect.Parameter.VAR_POSITIONAL in kinds
    return sum(kind != inspect.Parameter.KEYWORD_ONLY for kind in kinds), several


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_fits_the_code_of_today(name: str) -> None:
    """It replaces something that is there, by something that can be called as that is: a name that
    was changed in the product has to be changed in its mutant as well.
    """
    for owner, attribute, bug in MUTATIONS[name].patches():
        original = getattr(owner, attribute)
        if isinstance(original, property):
            assert isinstance(bug, property)
            continue
        theirs, ours = _shape(original), _shape(bug)
        assert ours[1] or ours == theirs, f"{attribute}{inspect.signature(original)}"


def test_each_seed_is_played_whatever_is_played_first() -> None:
    assert SHOWS_IN.keys() <= MUTATIONS.keys()
    for name, kinds in SHOWS_IN.items():
        seeds = order(name, LIMIT)
        assert sorted(seeds) == [*range(1, LIMIT + 1)]
        assert seeds[:5] != [1, 2, 3, 4, 5], f"{kinds}: there are no such worlds"


def _print(found: Found) -> Found:
    name = found.name
    when = f"{found.played:4} played, seed {found.seed:3}" if found.seed else "NOT FOUND"
    print(f"{MUTATIONS[name].rule:4} {name:44} {when:>21}  {found.told[:70]}", flush=True)
    return found


@pytest.mark.mutations
def test_every_bug_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    # Of a module that the workers find as well: this one has another name there.
    search = partial(hunt, limit=LIMIT)
    context = multiprocessing.get_context("spawn")
    names = sorted(MUTATIONS, key=lambda name: name not in SHOWS_IN)  # the longest hunts begin
    with context.Pool(os.cpu_count() or 1) as pool, capsys.disabled():
        print()
        found = [_print(one) for one in pool.imap_unordered(search, names)]
        seeds = sorted(one.seed for one in found if one.seed)
        middle, last = (seeds[len(seeds) // 2], seeds[-1]) if seeds else (0, 0)
        print(f"{len(seeds)} of {len(found)} found by seed {last}, half of them by seed {middle}")
    missed = [one.name for one in found if not one.seed]
    assert missed == [], f"not found within {LIMIT} seeds"
