"""The network between the nodes: packets are lost, copied, late, overtaken, cut off.

A *cut* loses all packets of some directed pairs of nodes for a while; several may be in force. A
*clog* delays them instead: what arrives is old, and its receiver can't know. A *late* copy comes
seconds after the packet itself, when its sender and receiver may be other incarnations. What goes
beside the core (questions and answers of repair) fares like all else.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from myqueue.daemons.raft.groups import Packet

if TYPE_CHECKING:
    from sim.world import World

Pair = tuple[int, int]
SEEN_MAX = 2000  # packets that may come once more


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.loss = self.duplicates = self.late = 0.0
        self.delay_ms = 5
        self._cuts: list[set[Pair]] = []
        self._seen: deque[tuple[int, int, Packet]] = deque(maxlen=SEEN_MAX)
        self._clogs: dict[Pair, int] = {}  # directed pair -> added delay

    def transmit(self, source: int, target: int, packet: Packet) -> None:
        if target not in self.world.slots or self._is_cut(source, target):
            return
        if packet.messages or packet.repair_messages:
            self._seen.append((source, target, packet))
        for delay in self._deliveries(self._clogs.get((source, target), 0)):
            self.world.at(self.world.now_ms + delay, lambda: self._deliver(source, target, packet))

    def _deliver(self, source: int, target: int, packet: Packet) -> None:
        if not self._is_cut(source, target):
            self.world.with_process(target, lambda process: process.turn(source, packet))

    def _deliveries(self, clog_ms: int) -> list[int]:
        """When a packet arrives, in ms from now: never, once, or more often."""
        random = self.world.random
        if self.world.quiet:
            return [random.randint(0, 2)]
        if self.loss and random.random() < self.loss:
            self.world.faults["lost packet"] += 1
            return []
        times = [clog_ms + random.randint(0, random.choice((2, 5, self.delay_ms)))]
        while self.duplicates and random.random() < self.duplicates and len(times) < 4:
            times.append(random.randint(0, random.choice((40, 800))))
        if self.late and random.random() < self.late:
            self.world.faults["late packet"] += 1
            times.append(random.randint(400, 4000))
        return times

    def echo(self, target: int) -> None:
        """Old packets to a node come once more, some of them, in any order."""
        self._again([one for one in self._seen if one[1] == target])

    def haunt(self, source: int) -> None:
        """Old packets of a node come once more, whether it is cut off or not."""
        if not self.world.quiet:
            self._again([one for one in self._seen if one[0] == source])

    def _again(self, old: list[tuple[int, int, Packet]]) -> None:
        random = self.world.random
        old = old[-random.choice((50, 300, SEEN_MAX)) :]  # what is not so old may still be believed
        for source, target, packet in random.sample(old, min(len(old), 40)):
            self._copy(source, target, packet)

    def _copy(self, source: int, target: int, packet: Packet) -> None:
        """It was under way for long: what is cut off now does not hold it up."""

        def arrive() -> None:
            self.world.with_process(target, lambda process: process.turn(source, packet))

        self.world.after(0, self.world.random.choice((5, 60)), arrive)

    # -- cuts and clogs ------------------------------------------------------------------------

    def _is_cut(self, source: int, target: int) -> bool:
        return any((source, target) in cut for cut in self._cuts)

    def cut(self, pairs: set[Pair], low_ms: int = 200, high_ms: int = 2000) -> None:
        self._cuts.append(pairs)
        self.world.note(f"cut {sorted(pairs)}")
        self.world.after(low_ms, high_ms, lambda: self._mend(pairs))

    def _mend(self, pairs: set[Pair]) -> None:
        if any(cut is pairs for cut in self._cuts):
            self._cuts = [cut for cut in self._cuts if cut is not pairs]
            self.world.note("mended")

    def clog(self, pairs: set[Pair], delay_ms: int) -> None:
        self.world.note(f"clogged by {delay_ms} ms: {sorted(pairs)}")
        self._clogs |= dict.fromkeys(pairs, delay_ms)
        self.world.after(300, 2500, lambda: self._flow(pairs))

    def _flow(self, pairs: set[Pair]) -> None:
        for pair in pairs:
            self._clogs.pop(pair, None)

    def heal(self) -> None:
        self._cuts, self._clogs = [], {}

    def of_one(self, one: int, kept: set[int], ways: str = "both") -> set[Pair]:
        """All pairs between a node and the others but those to be kept."""
        others = [number for number in self.world.slots if number != one and number not in kept]
        pairs = {(one, other) for other in others} if ways != "in" else set()
        return pairs | ({(other, one) for other in others} if ways != "out" else set())
