"""A cluster on a starved machine: `bin/test bench -k overload [--seconds S]`.

Three managers and three brokers with 61 groups, 1,000 messages a second, and beside them four busy
loops for each core (or MYQ_BENCH_LOOPS), at the same priority. Nobody is dead then, so nobody
should be deposed: counted are the elections that were won. A leader that is really dead is replaced
as fast as ever; the gaps are those that a producer sees after `kill -9`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.figures import Row, percentile
from support.processes import Cluster, wait_for
from support.traffic import Writer, interruptions

from myqueue.cli.bench import measurements
from myqueue.errors import MyQueueError
from myqueue.wire import protocol

PARTITIONS = 60  # and the managers' group
RATE, SIZE = 1000.0, 100
LOOPS = int(os.environ.get("MYQ_BENCH_LOOPS", 4 * (os.cpu_count() or 1)))
KILL_EVERY_S, BACK_AFTER_S = 6.0, 3.0
SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
COUNTERS = "raft_elections_total", "peer_silences_total", "late_turns_total", "disk_stalls_total"
Report = list[Row]


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--seconds"))


@pytest.fixture
def cluster(disk: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(disk / request.node.name) as made:
        yield made


@contextmanager
def busy(loops: int, limit_s: float) -> Iterator[None]:
    """Run processes that only take CPU. They end with this, or by themselves after the limit."""
    command = [sys.executable, "-c", SPIN.format(limit_s)]
    running = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
        for one in running:
            one.wait(10)


def counted(cluster: Cluster, name: str) -> dict[str, int]:
    """A counter, summed over all daemons of a kind."""

    def ask(kind: str, address: str) -> int:
        while True:
            try:
                answer = cluster.session.call(address, protocol.STATS, timeout_ms=10_000).result()
            except MyQueueError:
                continue
            return int(answer.envelope[protocol.FIELDS]["counters"].get(name, 0))

    out = {"manager": 0, "broker": 0}
    for one in cluster.processes:
        out[one[0]] += ask(one[0], f"tcp://{cluster.door(one)}")
    return out


def settle(cluster: Cluster) -> None:
    """Wait until leaders are where they belong: until none was elected for some seconds."""
    seen, since = counted(cluster, "raft_elections_total"), time.monotonic()

    def is_settled() -> bool:
        nonlocal seen, since
        now = counted(cluster, "raft_elections_total")
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 5

    wait_for("leaders that stay", is_settled, 90)


@pytest.mark.parametrize("loops", [0, LOOPS])
def test_overload(cluster: Cluster, report: Report, seconds: float, loops: int) -> None:
    """Nobody is deposed for being slow."""
    cluster.admin.create_topic("overload", partitions=PARTITIONS)
    cluster.wait_healthy(60)
    settle(cluster)
    before = {name: counted(cluster, name) for name in COUNTERS}
    with busy(loops, seconds + 120):
        found = measurements.end_to_end(cluster.address, "overload", SIZE, RATE, seconds)
        after = {name: counted(cluster, name) for name in COUNTERS}
    won, silences, late, stalls = (
        {kind: after[name][kind] - before[name][kind] for kind in after[name]} for name in COUNTERS
    )
    what = f"overload, {loops} busy loops"
    bare = (
        f"managers {won['manager']}, brokers {won['broker']}; silences {sum(silences.values())},"
        f" late turns {sum(late.values())}, disk stalls {sum(stalls.values())}"
    )
    report.append(Row(f"{what}: elections", sum(won.values()), "", bare, 0, -1))
    p50, p99, worst = (found[f"e2e_{name}_us"] / 1000 for name in ("p50", "p99", "max"))
    bare = f"p50 {p50:.1f}, max {worst:,.0f} ms, {found['e2e_rate']:,}/s for {seconds:.0f} s"
    report.append(Row(f"{what}: end to end p99", p99, "ms", bare, 200, -1))


@pytest.mark.parametrize("loops", [0, LOOPS])
def test_overload_kills(cluster: Cluster, report: Report, seconds: float, loops: int) -> None:
    """A dead leader is replaced: the time without acknowledgements of one of its partitions."""
    cluster.admin.create_topic("overload", partitions=6)
    cluster.wait_healthy(60)
    settle(cluster)
    writers = [Writer(cluster.address, "overload", f"w{n}", RATE / 4) for n in range(2)]
    for writer in writers:
        writer.start()
    gaps = list[float]()
    kills = max(3, round(seconds / KILL_EVERY_S))
    with busy(loops, 60 * kills):
        for number in range(kills):
            partition = number % 6
            victim, began = cluster.leader_of("overload", partition), time.monotonic()
            cluster.kill(victim)
            time.sleep(BACK_AFTER_S)  # the measurement itself
            cluster.start(victim)
            time.sleep(KILL_EVERY_S - BACK_AFTER_S)
            end = time.monotonic()
            gaps.append(interruptions(writers, partition, began, end))
            cluster.wait_healthy(60)
    for writer in writers:
        writer.finish(60)
    print(f"gaps in s, in order: {[round(gap, 2) for gap in gaps]}")
    what = f"overload, {loops} busy loops: gap after kill -9"
    bare = f"p50 {percentile(gaps, 0.5):.2f}, longest {max(gaps):.2f} s, {kills} kills"
    goal = 4.0 if loops else 1.5
    report.append(Row(what, percentile(gaps, 0.99), "s (p99)", bare, goal, -1))
