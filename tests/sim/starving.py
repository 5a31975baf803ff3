"""Processes that the machine does not run for a while, and then late, again and again.

Some seeds have this among their faults. A few have nothing else: one process is starved more and
more, or each of them, or the whole machine freezes now and then. The network and the disks are
well, and nobody dies. There, a group that has a leader keeps it (R33). The chances are drawn apart
from all others, so that other seeds stay the histories that they were.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from sim.checkers import check

from myqueue.daemons.raft.node import RaftNode

if TYPE_CHECKING:
    from sim.world import World

BEGIN_MS = 1500  # there are leaders by then
END_MS = 5000
ALONE, AMONG_OTHERS = 0.04, 0.2  # of the seeds
FIRST_MS = 100  # the first pause: shorter than anybody's patience
GROWTH = 1.25  # from one pause to the next: load builds up, and is seen to
RUNS_MS = (1, 60)  # between two pauses
FREEZES_MS = (300, 1500)  # all at once, and without a warning
THAWS_MS = (400, 1000)


class Starvation:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random = Random(f"starved {world.seed}")
        draw = random.random()
        self.is_alone = draw < ALONE
        self._is_on = draw < ALONE + AMONG_OTHERS
        self._how = random.choice(("one", "each", "machine"))
        self._longest_ms = random.choice((150, 300, 450, 700))
        self._leaders: dict[int, int] = {}  # group -> replica, where nobody may be deposed

    def start(self) -> None:
        if not self._is_on:
            return
        begin_ms = BEGIN_MS if self.is_alone else self._random.randint(0, END_MS)
        if self._how == "machine":
            self._world.at(begin_ms, self._freeze)
            return
        self._world.at(begin_ms, self._begin)

    def _begin(self) -> None:
        """One process that leads, or each of them."""
        numbers = sorted(self._world.slots)
        if self._how == "one":
            found = self._world.leader(self._random.choice(self._world.groups))
            numbers = [found[0].number if found else self._random.choice(numbers)]
        for number in numbers:
            self._starve(number, FIRST_MS)

    def _pause(self, number: int, pause_ms: int) -> None:
        if self._world.slots[number].paused_until <= self._world.now_ms:
            self._world.faults["starved"] += 1
            self._world.pause(number, pause_ms)

    def _freeze(self) -> None:
        """All processes stand still; then they go on, one a little after the other."""
        world, random = self._world, self._random
        if world.quiet:
            return
        freeze_ms = random.randint(*FREEZES_MS)
        for number in world.slots:
            self._pause(number, freeze_ms + random.randint(0, 30))
        world.at(world.now_ms + freeze_ms + random.randint(*THAWS_MS), self._freeze)

    def _starve(self, number: int, pause_ms: int) -> None:
        world, random = self._world, self._random
        if world.quiet:
            return
        self._pause(number, pause_ms)
        at_ms = world.now_ms + pause_ms + random.randint(*RUNS_MS)
        next_ms, longest_ms = int(pause_ms * GROWTH), self._longest_ms
        if next_ms > longest_ms:
            next_ms = random.randint(longest_ms // 2, longest_ms)
        world.at(at_ms, partial(self._starve, number, next_ms))

    def leads(self, node: RaftNode) -> None:
        """A replica was elected."""
        if self.is_alone and not self._world.quiet and self._world.now_ms >= BEGIN_MS:
            before = self._leaders.get(node.group, 0)
            check(
                before in (0, node.replica),
                f"R33: {node.replica:x} leads group {node.group} in term {node.term} instead of"
                f" {before:x}, which was slow and not dead",
            )
        self._leaders[node.group] = node.replica
