"""What goes wrong. Each seed enables a subset of the faults at rates of its own (swarm testing):
a run with only partitions goes deeper into partitions than one with everything at once.

A *fault atlas* keeps count of replicas that lost something for good (a wiped or corrupted disk):
one at a time, so that a majority stays able to go on and progress may be demanded at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.disk import AFTER, BEFORE, MIDDLE, SimDisk

from myqueue.daemons.raft.types import RaftError, Role, node_of

if TYPE_CHECKING:
    from sim.world import Slot, World

KINDS = (
    "crash", "boundary crash", "disk crash", "pause", "partition", "one-way", "isolate", "ring",
    "loss", "duplicates", "delay", "stall", "transfer", "compact", "all at once", "wipe",
    "corruption", "read", "membership",
)  # fmt: skip


class Nemesis:
    def __init__(self, world: World) -> None:
        self.world = world
        random = world.random
        count = random.choice((1, 2, 3, 5, len(KINDS)))
        self.enabled = set(random.sample(KINDS, min(count, len(KINDS)))) | {"compact", "read"}
        self.loss = random.uniform(0, 0.3) if "loss" in self.enabled else 0.0
        self.duplicates = random.uniform(0, 0.5) if "duplicates" in self.enabled else 0.0
        self.delay_ms = random.choice((30, 150, 400)) if "delay" in self.enabled else 5
        self.interval_ms = random.choice((60, 150, 400, 900))
        self._stalled: dict[int, int] = {}  # node -> until
        self._tainted = 0  # the one node whose disk may lose something in this history

    def start(self) -> None:
        if "boundary crash" in self.enabled:
            self.world.crash_rate = self.world.random.choice((0.0005, 0.003))
        self._again()

    def _again(self) -> None:
        self.world.after(self.interval_ms // 2, self.interval_ms * 3 // 2, self._strike)

    def _strike(self) -> None:
        world = self.world
        if world.quiet:
            return
        kind = world.random.choice(sorted(self.enabled))
        action = getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"), None)
        if action is not None:
            world.faults[kind] += 1
            action()
        self._again()

    def _any(self) -> Slot:
        return self.world.random.choice(list(self.world.slots.values()))

    def _unlucky(self) -> Slot:
        """Damage stays on a disk and may be found again: never on more than one."""
        self._tainted = self._tainted or self._any().number
        return self.world.slots[self._tainted]

    # -- processes -----------------------------------------------------------------------------

    def _crash(self) -> None:
        number = self._any().number
        self.world.crash(number, power=self.world.random.random() < 0.6)
        self.world.after(50, 2000, lambda: self.world.boot(number))

    def _disk_crash(self) -> None:
        """The power fails before, in the middle of, or after one of the next disk operations."""
        slot, random = self._any(), self.world.random
        number = len(slot.disk.trace) + random.randint(1, 12)
        slot.disk.stop_at = (number, random.choice((BEFORE, MIDDLE, AFTER)))

    def _all_at_once(self) -> None:
        for number in self.world.slots:
            self.world.crash(number, power=True)
            self.world.after(50, 1500, lambda n=number: self.world.boot(n))

    def _pause(self) -> None:
        self.world.pause(self._any().number, self.world.random.randint(50, 1500))

    # -- network -------------------------------------------------------------------------------

    def deliveries(self) -> list[int]:
        """When a packet arrives, in ms from now: never, once, or more often."""
        random = self.world.random
        if self.world.quiet:
            return [random.randint(0, 2)]
        if self.loss and random.random() < self.loss:
            self.world.faults["lost packet"] += 1
            return []
        times = [random.randint(0, random.choice((2, 5, self.delay_ms)))]
        while self.duplicates and random.random() < self.duplicates and len(times) < 4:
            times.append(random.randint(0, 800))
        return times

    def _cut(self, pairs: set[tuple[int, int]]) -> None:
        world = self.world
        world.blocked = pairs
        world.note(f"cut {sorted(pairs)}")
        world.after(200, 2000, lambda: self._mend(pairs))

    def _mend(self, pairs: set[tuple[int, int]]) -> None:
        if self.world.blocked is pairs:
            self.world.blocked = set()
            self.world.note("mended")

    def _partition(self) -> None:
        numbers = list(self.world.slots)
        side = set(
            self.world.random.sample(numbers, self.world.random.randint(1, len(numbers) - 1))
        )
        self._cut({(a, b) for a in numbers for b in numbers if (a in side) != (b in side)})

    def _one_way(self) -> None:
        numbers = list(self.world.slots)
        side = set(
            self.world.random.sample(numbers, self.world.random.randint(1, len(numbers) - 1))
        )
        self._cut({(a, b) for a in side for b in numbers if b not in side})

    def _isolate(self) -> None:
        """The leader, preferably."""
        world = self.world
        found = world.leader(world.random.choice(world.groups))
        one = found[0].number if found else self._any().number
        self._cut({pair for b in world.slots if b != one for pair in ((one, b), (b, one))})

    def _ring(self) -> None:
        """Each node sees its neighbours only: majorities that overlap, none that agree on all."""
        numbers = list(self.world.slots)
        self.world.random.shuffle(numbers)
        near = {
            (a, b)
            for at, a in enumerate(numbers)
            for b in (numbers[at - 1], numbers[(at + 1) % len(numbers)])
        }
        if len(numbers) == 3:
            near -= {(numbers[0], numbers[2]), (numbers[2], numbers[0])}
        self._cut({(a, b) for a in numbers for b in numbers if a != b and (a, b) not in near})

    # -- disks ---------------------------------------------------------------------------------

    def stall_ms(self, number: int) -> int:
        return max(0, self._stalled.pop(number, 0) - self.world.now_ms)

    def _stall(self) -> None:
        number = self._any().number
        self._stalled[number] = self.world.now_ms + self.world.random.randint(100, 2500)

    def before_write(self, slot: Slot) -> None:
        """A place for faults of the medium that need a moment between two writes."""

    def _wipe(self) -> None:
        """A disk is replaced by an empty one; its replicas come back as new ones (W7)."""
        world, slot = self.world, self._unlucky()
        if not world.operator.all_is_well(ledgers=False):
            return
        world.crash(slot.number, power=True)
        world.faults["wiped disk"] += 1
        slot.disk = SimDisk()
        world.forget_store(slot)
        world.note(f"node {slot.number}: the disk was replaced")
        world.after(50, 500, lambda: world.boot(slot.number))

    def _corruption(self) -> None:
        """A bit turns in what was synced, while the node is down (R2, W5).

        The node was stopped in order: that its last write was synced is proved by a mark. A bit
        that turns in the last write, after a crash and before a mark, is the one case nobody can
        tell.
        """
        world, slot, random = self.world, self._unlucky(), self.world.random
        if not world.operator.all_is_well(ledgers=False):
            return
        if slot.process is not None:
            slot.process.journal.close()
        world.crash(slot.number, power=False)
        names = [name for name in sorted(slot.disk.list()) if name.endswith(".seg")]
        if names:
            name = random.choice(names)
            used = len(bytes(slot.disk.contents(name)).rstrip(b"\0"))
            position = random.randrange(used)
            slot.disk.flip(name, position, 1 << random.randrange(8))
            world.faults["flipped bit"] += 1
            world.note(f"node {slot.number}: a bit turns in {name} at {position}")
            world.forget_store(slot)
        world.after(50, 500, lambda: world.boot(slot.number))

    # -- operations ----------------------------------------------------------------------------

    def _transfer(self) -> None:
        world = self.world
        group = world.random.choice(world.groups)
        found = world.leader(group)
        if found is None:
            return
        process, config = found
        target = world.random.choice(config.voters)

        def transfer(_: object) -> None:
            node = process.host.touch(group)
            if node is not None and node.role == Role.LEADER and target != node.replica:
                try:
                    node.transfer(target, process.now, process.host.out)
                except RaftError as error:
                    world.note(f"transfer to node {node_of(target)} refused: {error}")
                process.turn()

        world.with_process(process.number, transfer)

    def _compact(self) -> None:
        world = self.world
        slot = self._any()
        group = world.random.choice(world.groups)
        keep = world.random.choice((0, 1, 3, 10))
        if slot.process is not None and group in slot.process.host.groups:
            world.with_process(slot.number, lambda process: process.compact(group, keep))

    def _read(self) -> None:
        self.world.clients.read()

    def _membership(self) -> None:
        self.world.operator.shuffle()
