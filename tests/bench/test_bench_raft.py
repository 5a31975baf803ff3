"""The Raft core by itself: `bin/test bench -k raft`.

Three replicas in one process, without disks and sockets: what is left is the cost of deciding. The
process does the work of all three; a daemon does about a third of it.
"""

from __future__ import annotations

import gc
from time import process_time

import pytest
from bench.figures import Row, median
from raft.flock import Flock

from myqueue.daemons.raft.types import DATA, Proposal

ROUNDS = 3
PAYLOAD = b"x" * 100
Report = list[Row]


def commit_rate(turn: int, seconds: float = 0.7) -> float:
    """Entries that node 1 applied for each second of the CPU, with `turn` proposals a turn."""
    flock = Flock()
    flock.elect_all()
    flock.elapse(300)
    leader = flock.leader(1)
    assert leader is not None
    host = flock.hosts[flock.leader_at(1)]
    items = [Proposal(1, 0, DATA, PAYLOAD)] * turn
    first, turns = leader.commit_index, 0
    began = process_time()
    while process_time() - began < seconds:
        node = host.touch(1)
        assert node is not None
        node.propose(items)
        flock.settle()
        turns += 1
        if turns % 100 == 0:
            flock.elapse(50)
            for other in flock.hosts.values():  # retention, or the memory would grow
                log = other.groups[1].log
                log.forget_before(other.groups[1].applied_index)
    took = process_time() - began
    assert leader.commit_index - first == turn * turns
    return (leader.commit_index - first) / took


@pytest.mark.parametrize(("turn", "goal"), [(1, None), (16, 60_000), (256, 250_000)])
def test_commits(report: Report, turn: int, goal: int | None) -> None:
    rate = median([commit_rate(turn) for _ in range(ROUNDS)])
    what = f"raft, 3 replicas in one process, {turn} x 100 B a turn"
    report.append(Row(what, rate, "commits/s", f"{1e6 / rate:.1f} us CPU, all three", goal))


@pytest.mark.parametrize(("groups", "goal"), [(1_000, 1.0), (10_000, 3.0)])
def test_quiet_groups(report: Report, groups: int, goal: float) -> None:
    """The share of one core that a daemon with nothing to do needs."""
    flock = Flock(groups=range(1, groups + 1))
    flock.elect_all()
    flock.elapse(1_000)
    shares = []
    for _ in range(ROUNDS):
        gc.collect()
        began = process_time()
        flock.elapse(20_000)
        shares.append((process_time() - began) / 20 / len(flock.hosts) * 100)
    assert all(flock.agreed(group) for group in range(1, groups + 1))
    what = f"raft, {groups:,} quiet groups: of a core, for each daemon"
    report.append(Row(what, median(shares), "%", "", goal, -1))


def test_elections_of_many_groups(report: Report) -> None:
    """A node that led a third of 3,000 groups dies: CPU until all are led again, all daemons."""
    flock = Flock(groups=range(1, 3_001))
    flock.elect_all()
    flock.elapse(1_000)
    flock.cut = {flock.leader_at(1)}
    began = process_time()
    flock.elapse(4_000)
    took = process_time() - began
    assert all(flock.leader(group) for group in range(1, 3_001))
    report.append(Row("raft, 3,000 groups: death of a node, all daemons", took, "s CPU"))
