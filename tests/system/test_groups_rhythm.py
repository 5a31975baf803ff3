"""A group in which somebody comes or dies every five seconds, whatever the group is about.

Members are processes, and they die by SIGKILL. Every fourth time another one dies soon after, in
the middle of the hand-over of what the first one had. C7, C8, P12.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from support.groups import PositionWatch, ends_of, is_assigned
from support.members import Process, judge_group, orphaned_partitions
from support.processes import Cluster, wait_for
from support.traffic import Writer

GROUP, PARTITIONS, MEMBERS = "rhythm", 24, 6
EVENTS, EVERY_S = 60, 5.0
SESSION_S = 2.0  # of support.members as a program


class Crowd:
    """Those who live, and all that ever lived."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.living: list[Process] = []
        self.all: list[Process] = []
        self.deaths: dict[str, float] = {}

    def add(self) -> None:
        name = f"member-{len(self.all) + 1}"
        one = Process(self._folder, self._cluster.address, GROUP, name, GROUP)
        self.living.append(one)
        self.all.append(one)

    def kill(self, one: Process) -> None:
        assert one.process.poll() is None, f"{one.name} ended by itself"
        self.living.remove(one)
        self.deaths[one.name] = time.monotonic()
        one.kill()

    def end(self) -> None:
        for one in self.living:
            one.kill()


def one_event(crowd: Crowd, number: int, random: Random) -> None:
    if number % 2 == 0 and len(crowd.living) < MEMBERS + 2:
        crowd.add()
        return
    crowd.kill(random.choice(crowd.living))
    if number % 4 == 1:
        time.sleep(random.uniform(0.0, SESSION_S + 0.5))
        crowd.kill(random.choice(crowd.living))
        crowd.add()


@pytest.mark.full
def test_c8_somebody_comes_or_dies_every_five_seconds(tmp_path: Path, seed: int | None) -> None:
    chosen = int(time.time()) if seed is None else seed
    print(f"a group in its rhythm: --seed {chosen}")
    random = Random(chosen)
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic(GROUP, partitions=PARTITIONS)
        writer = Writer(cluster.address, GROUP, "w", 600)
        writer.start()
        crowd = Crowd(cluster, tmp_path)
        try:
            for _ in range(MEMBERS):
                crowd.add()
            wait_for("all six to have a share", lambda: is_assigned(cluster, GROUP, MEMBERS), 40)
            watch = PositionWatch(cluster, GROUP, GROUP)
            watch.start()
            begin = time.monotonic()
            for number in range(EVENTS):
                time.sleep(max(0.0, begin + number * EVERY_S - time.monotonic()))
                one_event(crowd, number, random)
            time.sleep(EVERY_S)
            writer.finish(60)
            ends = ends_of(writer)

            def all_read() -> bool:
                seen = {(one.partition, one.offset) for of in crowd.all for one in of.seen}
                return len(seen) >= sum(ends.values())

            wait_for("everything to be read", all_read, 60)
            watch.finish()
        finally:
            crowd.end()
    judged(crowd, ends)


def judged(crowd: Crowd, ends: dict[int, int]) -> None:
    seen = [one for of in crowd.all for one in of.seen]
    print(f"{len(crowd.deaths)} of {len(crowd.all)} members killed,", judge_group(seen, ends))
    found = orphaned_partitions(seen, crowd.deaths)
    alone = sorted(one.waited_s for one in found if one.waited_s == one.since_last_death_s)
    amid = sorted(one.since_last_death_s for one in found if one.waited_s > one.since_last_death_s)
    assert len(alone) > EVENTS, "each had some partitions"
    for what, waits in (
        ("orphaned partitions", alone),
        ("and those during whose hand-over another one died, since then", amid),
    ):
        middle = waits[len(waits) // 2] if waits else 0
        longest = max(waits, default=0)
        print(f"{what}: {len(waits)}, median {middle:.2f} s, longest {longest:.2f} s")
    assert max(alone) <= SESSION_S + 1
    assert max(amid, default=0) <= SESSION_S + 1
