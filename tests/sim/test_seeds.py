"""The core in a seeded world of faults: `bin/test sim --seeds N`, `bin/test sim --seed N`.

Each run plays new histories, 100 without a number, and prints the first seed and the last; what
fails prints the command that replays it. What it ever found in the product has a test of its own.
Proved here, after every step of every history, over crashes and restarts: R1 (one vote in a term,
terms and votes survive), R2 (a damaged replica is not counted), R3 to R8 (commits and
truncations), R9 and R10 (reads), R12 and R13 (elections under partitions), R14 to R19 (changes of
members, snapshots), R20, R24, R25, R27 (one state at each index), R30, R32 (a repeat is applied
once), R33 (where processes are slow and nothing else is wrong, nobody is deposed), W1 and W4 (what
was acknowledged survives), W16 and W21 (bits that turn in data at rest are never served, and mended
from the peers), and, in peace, that a healed majority goes on and every damaged replica is whole
again.
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
from support.telling import tell

DEFAULT_SEEDS = 100
ALWAYS = (1, 20, 94, 98, 145, 290)  # in each run, so that some histories are the same every day
# What this world found in the product, and what keeps it from coming back. A seed does not: it is a
# history of one version of this world, which draws its chances differently by now.
FOUND = {
    "a rejection at index 0 kept a new leader from ever sending a snapshot":
        "a_new_leader_sends_its_state_to_one_that_has_nothing",
    "old entries were fetched and sent again and again while they were being fetched":
        "an_entry_of_an_older_term_is_committed_only_by_one_of_the_own",
    "a snapshot took a replica back whose log was damaged, but whose state was newer":
        "raft/test_paper.py::test_a_snapshot_that_is_behind_the_state_brings_no_members_of_before",
    "a member that the voter knew as a learner only got no pre-vote":
        "a_pre_vote_is_given_to_a_member_that_is_not_known_yet",
    "a probe below the start of the leader's log went round in circles":
        "a_probe_ends_below_the_start_of_the_log",
    "a state ahead of its log let an older entry pass for committed after a crash":
        "a_state_is_never_ahead_of_its_log",
    "a truncation asked the disk for an entry that had never reached it":
        "a_removed_entry_may_never_have_reached_the_disk",
    "a report about a removed entry was believed when the same entry had come back":
        "a_report_about_a_removed_entry_is_not_believed",
    "the report of one install was taken for that of another at the same index":
        "two_installs_of_one_state_are_two_writes",
    "an install emptied a log whose start was beyond that of the snapshot":
        "a_snapshot_is_refused_by_a_log_that_begins_after_its_start",
    "answers to reads put off what was lost for ever":
        "reads_do_not_put_off_what_was_lost",
    "the state of a snapshot was saved before the log had the snapshot":
        "daemons/test_attack_install.py::"
        "test_state_of_a_snapshot_is_saved_when_the_log_has_the_snapshot",
    "a note on damage sent the vote of a replica that may not vote":
        "raft/test_thesis.py::test_a_note_on_damage_repeats_no_vote",
    "a group that was first met behind a hole came back without its newest vote":
        "wal/test_recovery.py::test_a_lost_vote_is_missed_though_its_group_is_met_behind_it",
    "members learned from the log at a start were not saved with the next state":
        "daemons/test_replica_lives.py::"
        "test_r15_r16_members_that_a_start_learned_from_the_log_are_saved_as_well",
    "one group whose state and log did not fit kept all others of its daemon down":
        "daemons/test_attack_opening.py::"
        "test_a_group_that_can_t_be_opened_keeps_no_other_from_starting",
    "a leader made way for a recovering replica only while somebody wrote or read":
        "a_leader_makes_way_again_when_nobody_took_over",
}  # fmt: skip


@pytest.mark.serial  # it has all cores to itself
def test_new_seeds(
    seeds: int | None, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    first = request.config.getoption("--seed")
    count = seeds or (1 if first is not None else DEFAULT_SEEDS)
    if first is None:
        first = SystemRandom().randrange(10**6, 10**9)

    def say(text: str) -> None:
        tell(capsys, f"\n{text}", end="")

    say(f"seeds {first} to {first + count - 1}")
    total = run(first, count, tell=say)
    say("\n".join(total.lines()))
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


@pytest.mark.parametrize("fault", FOUND)
def test_what_was_found_has_a_test_of_its_own(fault: str) -> None:
    """A golden script, or a test that needs no seed."""
    path, _, name = FOUND[fault].partition("::")
    tests = Path(__file__).parents[1]
    if name:
        assert f"def {name}(" in (tests / path).read_text()
    else:
        assert (tests / f"raft/scripts/{path}.txt").exists()


@pytest.mark.parametrize("seed", ALWAYS)
def test_seeds_that_never_change(seed: int) -> None:
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
