"""Known bugs, made again on purpose: each has to be found (`bin/test sim --mutations`).

Without the option the few that show within a handful of seeds are tried, so that a simulator that
finds nothing at all does not go unnoticed.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import partial

import pytest
from sim.mutations import MUTATIONS, hunt

LIMIT = 500
QUICK = ("half_elects", "vote_before_sync", "ack_before_sync", "a_repeat_is_applied_again")


def test_a_few_bugs_are_found_at_once() -> None:
    for name in QUICK:
        _, count, _ = hunt(name, 40)
        assert count, f"{MUTATIONS[name].rule}: {MUTATIONS[name].bug} was not noticed"


def _print(found: tuple[str, int, str]) -> tuple[str, int, str]:
    name, count, told = found
    when = f"after {count}" if count else "NOT FOUND"
    print(f"{MUTATIONS[name].rule:4} {name:47} {when:>10}  {told[:70]}", flush=True)
    return found


@pytest.mark.mutations
def test_every_bug_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    # Of a module that the workers find as well: this one has another name there.
    search = partial(hunt, limit=LIMIT)
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count() or 1) as pool, capsys.disabled():
        print()
        found = [_print(one) for one in pool.imap_unordered(search, MUTATIONS)]
        counts = sorted(count for _, count, _ in found if count)
        print(f"{len(counts)} of {len(found)} found, median {counts[len(counts) // 2]} seeds")
    missed = [name for name, count, _ in found if not count]
    assert len(counts) >= 30, f"not found within {LIMIT} seeds: {missed}"
