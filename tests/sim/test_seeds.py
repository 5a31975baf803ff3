"""The core in a seeded world of faults: `bin/test sim --seeds N`, `bin/test sim --seed N`.

Each run plays new histories, 300 without a number, and prints the first seed and the last; what
fails prints the command that replays it. Seeds that ever failed are played too.
Proved here, after every step of every history, over crashes and restarts: R1 (one vote in a term,
terms and votes survive), R2 (a damaged replica is not counted), R3 to R8 (commits and
truncations), R9 and R10 (reads), R12 and R13 (elections under partitions), R14 to R19 (changes of
members, snapshots), R20, R24, R25, R27 (one state at each index), R30, R32 (a repeat is applied
once), W1 and W4 (what was acknowledged survives), W16 and W21 (bits that turn in data at rest are
never served, and mended from the peers), and, in peace, that a healed majority goes on and every
damaged replica is whole again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import SystemRandom

import pytest
from sim.mutations import play_mutated
from sim.runner import FAILURES_MAX, play, run
from sim.world import REPLAY, Summary

DEFAULT_SEEDS = 300
# Seeds that failed once; what each one found stands beside it. A seed is a history of one version
# of this world, which draws its chances differently now: what keeps these faults from coming back
# are the tests in tests/raft.
REGRESSIONS = {
    1: "a rejection at index 0 kept a new leader from ever sending a snapshot",
    20: "old entries that were fetched and those in flight were sent for ever",
    94: "a snapshot took a replica back whose log was damaged, but whose state was newer",
    98: "a member that the voter knew as a learner only got no pre-vote",
    145: "a probe below the start of the leader's log went round in circles",
    290: "a state ahead of its log let an older entry pass for committed after a crash",
}


def test_new_seeds(
    seeds: int | None, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    first = request.config.getoption("--seed")
    count = seeds or (1 if first is not None else DEFAULT_SEEDS)
    if first is None:
        first = SystemRandom().randrange(10**6, 10**9)

    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    tell(f"seeds {first} to {first + count - 1}")
    total = run(first, count, tell=tell)
    tell("\n".join(total.lines()))
    told = ", ".join(f"{REPLAY} {seed}" for seed in total.failures)
    assert not total.failures, f"each failure's story stands above; replay one with: {told}"


def test_a_run_ends_soon_after_the_first_violations() -> None:
    """And tells each at once, with the command that plays it again."""
    told: list[str] = []
    total = run(1, 1000, 2, told.append, partial(play_mutated, "vote_before_sync"))
    assert FAILURES_MAX <= len(total.failures) <= total.seeds < 100
    for seed in total.failures:
        assert any(
            text.startswith(f"seed {seed} failed; replay: {REPLAY} {seed}\n") for text in told
        )
    assert told[-1] == f"ended after {total.seeds} of 1,000 seeds"


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_failed_once(seed: int) -> None:
    _, outcome, _ = play(seed)
    assert isinstance(outcome, Summary), outcome


def test_a_seed_is_a_history() -> None:
    """The same trace twice, whatever the hash seed of the interpreter (R27)."""
    program = "from sim.world import World; print(World(7).run().trace, World(31).run().trace)"
    traces = set()
    for hash_seed in ("0", "1", "2"):
        env = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        command = [sys.executable, "-P", "-c", program]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        traces.add(done.stdout)
    assert len(traces) == 1, traces
