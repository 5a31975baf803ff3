"""What goes wrong. Each seed enables a subset of the faults at rates of its own (swarm testing):
a run with only partitions goes deeper into partitions than one with everything at once.

A *fault atlas* keeps count of replicas that lost something (a wiped or corrupted disk, bits that
turn at rest): one disk in a history, so that a majority stays able to go on and progress may be
demanded at the end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sim.disk import AFTER, BEFORE, MIDDLE, Crash, SimDisk
from sim.durable import check_start
from sim.traps import Traps, brings_config

from myqueue.daemons.raft.types import (
    Effects,
    PersistSnapshot,
    PersistTruncate,
    RaftError,
    Role,
    node_of,
)

if TYPE_CHECKING:
    from sim.slot import Slot
    from sim.world import World

TROUBLE_MS = 5000  # of each history, then comes peace
KINDS = (
    "crash",
    "boundary crash",
    "disk crash",
    "pause",
    "partition",
    "one-way",
    "isolate",
    "ring",
    "loss",
    "duplicates",
    "delay",
    "late",
    "clog",
    "stall",
    "transfer",
    "compact",
    "all at once",
    "wipe",
    "corruption",
    "rot",
    "read",
    "membership",
    "trap",
    "relapse",
    "churn",
    "mute",
    "blink",
    "ghost",
)
# What goes deep together: some seeds take one of these, most of it, and a little of anything else.
PROFILES = {
    "members": ("membership", "churn", "trap", "mute", "transfer", "isolate"),
    "terms": ("churn", "mute", "ghost", "late", "duplicates", "clog", "transfer", "trap"),
    "readers": ("read", "mute", "isolate", "partition", "transfer", "clog", "ghost"),
    "disks": ("crash", "disk crash", "boundary crash", "relapse", "stall", "churn", "all at once"),
    "states": ("compact", "isolate", "mute", "stall", "late", "duplicates", "ghost", "trap"),
    "damage": ("rot", "corruption", "transfer", "churn", "crash", "stall"),
}


class Nemesis:
    def __init__(self, world: World) -> None:
        self.world = world
        random = world.random
        self.profile = random.choice(("", "", "", *PROFILES))
        if self.profile:
            kinds = [kind for kind in PROFILES[self.profile] if random.random() < 0.8]
            self.enabled = {*kinds, *random.sample(KINDS, random.choice((0, 1, 3)))}
        else:
            count = random.choice((1, 2, 3, 5, len(KINDS)))
            self.enabled = set(random.sample(KINDS, count))
            if random.random() < 0.3:
                self.enabled |= {"trap", "churn"}
                self.enabled |= random.choice((set[str](), {"membership"}, {"mute"}))
            elif count == 1:  # nearly all else has to go well for it
                self.enabled.add("lag")
        self.enabled |= {"compact", "read"}
        if random.random() < 0.15:
            self.enabled.add("rot")
        if "rot" in self.enabled:
            self.enabled.discard("membership")
        if world.starvation.is_alone:
            self.profile, self.enabled = "starved", {"compact", "read"}
        self.relapse = random.choice((0.3, 0.7)) if "relapse" in self.enabled else 0.0
        # As in figure 8 of the paper: a new leader is cut off before anybody hears of it, or it
        # hears old answers; and the power fails where entries are just being removed. Or a leader
        # is cut off while it changes the members.
        churn = "churn" in self.enabled
        self.behead = random.choice((0.0, 0.3, 0.6)) if churn else 0.0
        self.betray = random.choice((0.0, 0.5, 0.9)) if churn else 0.0
        self.fall = random.choice((0.0, 0.5, 1.0)) if churn else 0.0
        self.echo = random.choice((0.0, 0.5)) if churn else 0.0
        self.keep = random.choice(((0, 1, 3, 10), (10, 40, 100)))
        if self.profile == "states":
            self.keep = (0, 0, 1, 3)
        self.preferred = random.random() < 0.5  # leadership goes back to one and the same member
        self.interval_ms = random.choice((60, 150) if self.profile else (60, 150, 400, 900))
        self._stalled: dict[int, int] = {}  # node -> until
        self._traps = Traps(world)
        self._mute_until_ms = 0
        self._tainted = 0  # the one node whose disk may lose something in this history

    def start(self) -> None:
        if "boundary crash" in self.enabled:
            self.world.crash_rate = self.world.random.choice((0.0005, 0.003))
        random, network = self.world.random, self.world.network
        network.loss = random.uniform(0, 0.3) if "loss" in self.enabled else 0.0
        network.duplicates = random.uniform(0, 0.5) if "duplicates" in self.enabled else 0.0
        network.delay_ms = random.choice((30, 150, 400)) if "delay" in self.enabled else 5
        network.late = random.choice((0.01, 0.1)) if "late" in self.enabled else 0.0
        if random.random() < 0.5 and not self.world.starvation.is_alone:
            # Peace begins with what is sent and not answered.
            begin_ms = random.randint(20, random.choice((60, 200)))
            self.world.at(TROUBLE_MS - begin_ms, self._blink)
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

    def _leader_or_any(self) -> int:
        found = self.world.leader(self.world.random.choice(self.world.groups))
        return found[0].number if found else self._any().number

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
        self.blackout()

    def blackout(self) -> None:
        for number in self.world.slots:
            self.world.crash(number, power=True)
            self.world.after(50, 1500, lambda n=number: self.world.boot(n))

    def booted(self, slot: Slot) -> None:
        """It started; and the power fails again soon after it came back."""
        world = self.world
        if slot.process is not None:
            found = slot.process.journal.recovered
            check_start(slot.disk, found, damaged=slot.number == self._tainted)
        if self.relapse and not world.quiet and world.random.random() < self.relapse:
            incarnation = slot.incarnation
            world.after(20, 900, lambda: self._relapse_of(slot, incarnation))

    def interrupt(self, slot: Slot) -> None:
        """A process ends in the middle of a flush: its bytes may have left, no sync came back."""
        random, busy = self.world.random, slot.writer_at > self.world.now_ms
        if busy and slot.process is not None and random.random() < 0.5:
            number = len(slot.disk.trace) + random.randint(1, 3)
            slot.disk.stop_at = (number, random.choice((MIDDLE, AFTER)))
            try:
                slot.process.write()
            except Crash as crash:
                self.world.note(f"node {slot.number}: within its flush, {crash}")

    def _relapse_of(self, slot: Slot, incarnation: int) -> None:
        if slot.incarnation == incarnation and slot.process is not None and not self.world.quiet:
            self.world.crash(slot.number, power=True)
            self.world.after(50, 500, lambda: self.world.boot(slot.number))

    def _churn(self) -> None:
        """The leader loses its place for a moment, in one way or another, and is soon back."""
        world, random = self.world, self.world.random
        one, how = self._leader_or_any(), random.choice(("cut", "mute", "pause", "crash", "clog"))
        if how == "cut":
            self._depose(one)
        elif how == "mute":
            self.mute(one)
        elif how == "pause":
            world.pause(one, random.randint(300, 700))
        elif how == "clog":
            world.network.clog(world.network.of_one(one, set(), "out"), random.choice((300, 600)))
        else:
            world.crash(one, power=random.random() < 0.7)
            world.after(20, 300, lambda: world.boot(one))

    def _depose(self, one: int) -> None:
        """It goes on with a minority."""
        random, others = self.world.random, sorted(set(self.world.slots) - {one})
        friends = random.sample(others, random.randint(0, (len(others) - 1) // 2))
        if not self.world.quiet:
            self._split({one, *friends}, 250, 800)

    def _trap(self) -> None:
        self._traps.arm()

    def notice(self, number: int, effects: Effects) -> None:
        world = self.world
        self._traps.notice(number, effects)
        led = [one.group for one in effects.changed if one.role == Role.LEADER]
        if led and not world.quiet:
            if world.random.random() < self.behead:
                world.after(0, 4, lambda: self._depose(number))
            if world.random.random() < self.echo:
                world.after(0, world.random.choice((5, 300)), lambda: world.network.echo(number))
            if world.operator.is_hasty:
                world.after(0, 20, lambda: world.operator.fidget(led[0], number))
        if self.betray and brings_config(effects) and world.random.random() < self.betray:
            world.after(0, 4, lambda: self._depose(number))
        if "lag" in self.enabled:
            for order in effects.persist:
                if isinstance(order, PersistSnapshot):
                    world.after(0, 300, partial(self._outrun, order.group))
        if self.fall and any(isinstance(one, PersistTruncate) for one in effects.persist):
            slot = world.slots[number]
            if world.random.random() < self.fall:
                world.after(0, slot.disk_ms, partial(self._relapse_of, slot, slot.incarnation))

    def _pause(self) -> None:
        self.world.pause(self._any().number, self.world.random.randint(50, 1500))

    def _lag(self) -> None:
        """A follower receives nothing until it needs a state. That takes long to write: meanwhile
        the leader's log begins later, and the leader sends another state, perhaps at the same
        index, because nobody writes (R19).
        """
        world, random = self.world, self.world.random
        group = random.choice(world.groups)
        found = world.leader(group)
        nodes = {node_of(one) for one in found[1].members} - {found[0].number} if found else set()
        if not nodes:
            return
        one, lasting_ms = random.choice(sorted(nodes)), random.randint(200, 900)
        world.network.cut(world.network.of_one(one, set(), "in"), lasting_ms, lasting_ms)
        kept = random.choice((0, 3))
        world.after(lasting_ms - 50, lasting_ms, partial(self._outrun, group, kept))
        if random.random() < 0.7:
            world.clients.rest(lasting_ms - 100, lasting_ms + 1000)

    def _outrun(self, group: int, keep: int = 0) -> None:
        """The leader's log begins near its end."""
        found = self.world.leader(group)
        if found is not None and not self.world.quiet:
            self.world.with_process(found[0].number, lambda process: process.compact(group, keep))

    # -- network -------------------------------------------------------------------------------

    def _side(self) -> set[int]:
        numbers, random = sorted(self.world.slots), self.world.random
        return set(random.sample(numbers, random.randint(1, len(numbers) - 1)))

    def _out(self, side: set[int]) -> set[tuple[int, int]]:
        return {(a, b) for a in side for b in self.world.slots if b not in side}

    def _split(self, side: set[int], low_ms: int, high_ms: int) -> None:
        pairs = self._out(side)
        self.world.network.cut(pairs | {(b, a) for a, b in pairs}, low_ms, high_ms)

    def _partition(self) -> None:
        self._split(self._side(), 200, 2000)

    def _one_way(self) -> None:
        self.world.network.cut(self._out(self._side()))

    def _isolate(self) -> None:
        """The leader, preferably."""
        world = self.world
        one = self._leader_or_any()
        world.network.cut(world.network.of_one(one, set()))

    def _mute(self) -> None:
        """A leader, one at a time: more of this, and there would be none."""
        found = self.world.leader(self.world.random.choice(self.world.groups))
        if found is not None and self.world.now_ms >= self._mute_until_ms:
            self.mute(found[0].number)

    def mute(self, one: int) -> None:
        """A node and perhaps some more are not heard by the others, but hear some of these: they
        go on as if nothing were wrong, and learn of nothing that the rest decides.
        """
        world, random = self.world, self.world.random
        others = sorted(set(world.slots) - {one})
        side = {one, *random.sample(others, random.randint(0, (len(others) - 1) // 2))}
        rest = [number for number in others if number not in side]
        unheard = random.sample(rest, random.randint(min(1, len(rest) - 1), len(rest) - 1))
        pairs = self._out(side) | {(other, near) for other in unheard for near in side}
        lasting_ms = random.randint(600, 1800)
        self._mute_until_ms = world.now_ms + lasting_ms
        world.network.cut(pairs, lasting_ms, lasting_ms)

    def _blink(self) -> None:
        """Nothing arrives anywhere, for less than anybody's patience."""
        numbers = self.world.slots
        self.world.network.cut({(a, b) for a in numbers for b in numbers if a != b}, 20, 200)

    def _ghost(self) -> None:
        """A node is not heard, but what it said before comes again and again."""
        world, random = self.world, self.world.random
        one, lasting_ms = self._any().number, random.randint(200, 900)
        world.network.cut(world.network.of_one(one, set(), "out"), lasting_ms, lasting_ms)
        for _ in range(4):
            world.after(0, lasting_ms, lambda: world.network.haunt(one))

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
        every = {(a, b) for a in numbers for b in numbers if a != b}
        self.world.network.cut(every - near)

    def _clog(self) -> None:
        self.clog(self._leader_or_any())

    def clog(self, number: int) -> None:
        """What comes to a node, or leaves it, is old: it goes on as if nothing were wrong."""
        world = self.world
        pairs = world.network.of_one(number, set(), world.random.choice(("in", "out", "both")))
        world.network.clog(pairs, world.random.choice((100, 400, 1200)))

    # -- disks ---------------------------------------------------------------------------------

    def stall_ms(self, number: int) -> int:
        """How much longer the flush takes that begins now."""
        world, process = self.world, self.world.slots[number].process
        stall_ms = max(0, self._stalled.pop(number, 0) - world.now_ms)
        if "lag" in self.enabled and not world.quiet and process is not None and process.snapshots:
            stall_ms = max(stall_ms, world.random.choice((0, world.random.randint(500, 1500))))
        return stall_ms

    def _stall(self) -> None:
        leads = self.world.random.random() < 0.5
        self.stall(self._leader_or_any() if leads else self._any().number)

    def stall(self, number: int) -> None:
        self._stalled[number] = self.world.now_ms + self.world.random.randint(100, 2500)

    def _wipe(self) -> None:
        """A disk is replaced by an empty one; its replicas come back as new ones (W7)."""
        world, slot = self.world, self._unlucky()
        if not world.operator.all_is_well(ledgers=False, settled=True):
            return
        world.crash(slot.number, power=True)
        world.faults["wiped disk"] += 1
        slot.disk, slot.proven = SimDisk(), (0, 0)
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
        if not world.operator.all_is_well(ledgers=False, settled=True):
            return
        if slot.process is not None:
            slot.disk.stop_at = None  # the power has to last until it stopped
            slot.process.journal.close()
            slot.writer_at = -1
        world.crash(slot.number, power=False)
        names = [name for name in sorted(slot.disk.list()) if name.endswith(".seg")]
        if names:
            name = random.choice(names)
            used = len(bytes(slot.disk.contents(name)).rstrip(b"\0"))
            position = random.randrange(used)
            slot.disk.flip(name, position, 1 << random.randrange(8))
            world.rot.hurts(slot, name, position)
            world.forget_store(slot)
        world.after(50, 500, lambda: world.boot(slot.number))

    def _rot(self) -> None:
        """Bits turn in data at rest, in the same place as always, whether its process runs or not
        (R2, W16, W21). Members don't change meanwhile: of two voters each is needed.
        """
        self.world.rot.strike(self._unlucky())

    # -- operations ----------------------------------------------------------------------------

    def _transfer(self) -> None:
        world = self.world
        group = world.random.choice(world.groups)
        found = world.leader(group)
        if found is None:
            return
        process, config = found
        target = config.voters[0] if self.preferred else world.random.choice(config.voters)

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
        keep = world.random.choice(self.keep)
        if slot.process is not None and group in slot.process.host.groups:
            world.with_process(slot.number, lambda process: process.compact(group, keep))

    def _read(self) -> None:
        self.world.clients.read()

    def _membership(self) -> None:
        operator, leader = self.world.operator, self._leader_or_any()
        if operator.is_hasty and self.world.random.random() < 0.7:
            operator.fidget(self.world.random.choice(self.world.groups), leader)
        else:
            operator.shuffle()
