"""Reclaim in the simulated world (W12): segments go, and are emptied, while all else goes on.

The world decides when a step is taken, and may end the process within it. Afterwards nobody may
miss anything: the checkers of the world know all that was acknowledged.

Before it, logs lose their beginnings. In the daemons all replicas agree by a replicated entry from
which index on a log is needed; each one's log follows when it likes. Here the first log that is cut
decides so, as if it were by the entry that was applied to it last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from myqueue.errors import MyQueueError

if TYPE_CHECKING:
    from sim.process import Process
    from sim.world import World


class AgreedStarts:
    """From where on the logs of each group are needed."""

    def __init__(self) -> None:
        self._decided: dict[int, list[tuple[int, int]]] = {}  # group -> [(by this entry, start)]

    def decide(self, group: int, applied: int, start: int) -> None:
        self._decided.setdefault(group, []).append((applied, start))

    def start_of(self, group: int, applied: int) -> int:
        """As a replica knows that has applied so much."""
        decided = self._decided.get(group, ())
        return max((start for by, start in decided if by <= applied), default=0)


def step(world: World, process: Process) -> None:
    reclaimer = process.reclaimer
    removed, moved = reclaimer.removed_segments, reclaimer.relocated_bytes
    for _ in range(world.random.choice((1, 4, 16))):
        try:
            if not reclaimer.step():
                reclaimer.begin()
        except (OSError, MyQueueError):  # as the daemon does: repair emptied it meanwhile, say
            reclaimer.cancel()
            world.faults["pass given up"] += 1
        if world.random.random() < 0.3:
            world.store_step(process)  # its thread goes on meanwhile
    world.faults["segment reclaimed"] += reclaimer.removed_segments - removed
    world.faults["entries moved"] += reclaimer.relocated_bytes > moved
    process.flush_due = process.flush_due or process.journal.queued_bytes > 0
    world.writer_soon(process.number)
