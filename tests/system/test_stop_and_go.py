"""Real daemons, killed, paused and restarted under load: nothing acknowledged is lost or doubled.

K1, K3, K4, K8, P5, P8, P10, P11, Q8, Q9, B6: three managers and three brokers, one of each at a
time killed with SIGKILL, paused with SIGSTOP, or restarted, while idempotent producers write and
consumers read and commit. Then all daemons are killed at once.

It takes a minute; `--minutes M` makes it as long, `--full` four minutes.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from support.processes import Cluster, Name
from support.traffic import Reader, Writer, interruptions, judge, wait_until_read

PARTITIONS = 6
ROUND_S = 4.0


class Nemesis:
    """One manager and one broker at a time; the others are a majority."""

    def __init__(self, cluster: Cluster, writers: list[Writer], seed: int) -> None:
        self.cluster, self.writers, self.random = cluster, writers, Random(seed)
        self.gaps_s: list[float] = []
        self.done: dict[str, int] = {}

    def round(self) -> None:
        begin = time.monotonic()
        broker, partition = self._victim()
        manager = ("manager", self.random.randint(1, 3))
        for name in (broker, manager):
            self._hurt(name, self.random.choice(("kill", "kill", "kill", "pause", "restart")))
        killed = broker not in self.cluster.processes
        self._wait_until(begin + ROUND_S * 0.6)
        for name in (broker, manager):
            self._heal(name)
        self._wait_until(begin + ROUND_S)
        if killed:
            self.gaps_s.append(interruptions(self.writers, partition, begin, begin + ROUND_S))
        self.cluster.wait_healthy(20)

    def _victim(self) -> tuple[Name, int]:
        """The broker that leads a partition."""
        partition = self.random.randrange(PARTITIONS)
        return self.cluster.leader_of("t", partition), partition

    def _hurt(self, name: Name, how: str) -> None:
        self.done[f"{how} {name[0]}"] = self.done.get(f"{how} {name[0]}", 0) + 1
        if how == "kill":
            self.cluster.kill(name)
        elif how == "pause":
            self.cluster.pause(name)
        else:
            self.cluster.stop(name)
            self.cluster.start(name)

    def _heal(self, name: Name) -> None:
        if name in self.cluster.paused:
            self.cluster.resume(name)
        elif name not in self.cluster.processes:
            self.cluster.start(name)

    def _wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.monotonic()))


def traffic(cluster: Cluster, count: int, rate: float) -> tuple[list[Writer], list[Reader]]:
    writers = [Writer(cluster.address, "t", f"w{n}", rate) for n in range(count)]
    readers = []
    for n in range(count):
        consumer = cluster.admin.register_consumer("t")["consumer_id"]
        readers.append(Reader(cluster.address, "t", f"r{n}", consumer_id=consumer))
    for one in (*writers, *readers):
        one.start()
    return writers, readers


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@pytest.mark.slow
def test_stop_and_go(tmp_path: Path, full: bool, seed: int | None, minutes: float | None) -> None:
    rounds = round((minutes or (4.0 if full else 0.8)) * 60 / ROUND_S)
    chosen = int(time.time()) if seed is None else seed
    print(f"stop and go: --seed {chosen}")
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=PARTITIONS)
        cluster.wait_healthy()
        writers, readers = traffic(cluster, 4, 150.0)
        nemesis = Nemesis(cluster, writers, chosen)
        for _ in range(rounds):
            nemesis.round()
        for writer in writers:
            writer.finish(30)
        cluster.kill(*list(cluster.processes))  # all at once
        cluster.start()
        cluster.wait_healthy()
        wait_until_read(readers, writers, 30)
        for reader in readers:
            reader.finish()
        counted = judge(readers, writers)
        gaps = nemesis.gaps_s
        p50, p99 = percentile(gaps, 0.5), percentile(gaps, 0.99)
        print(
            f"{counted}\n{nemesis.done}\n{len(gaps)} kills of a leader: p50 {p50:.2f} s,"
            f" p99 {p99:.2f} s, longest {max(gaps):.2f} s"
        )
        assert counted["failed"] == 0, "a majority was there all the time"
        assert p50 <= 1.0, f"interruptions: {sorted(gaps)}"
        if len(gaps) >= 30:  # of fewer, a 99th percentile is just the worst one
            assert p99 <= 2.0, f"interruptions: {sorted(gaps)}"
        cluster.stop(*list(cluster.processes))
