"""A seeded world: nodes, a network, clocks, disks, clients, and whatever goes wrong between them.

Everything that happens is an event in one queue, ordered by time and number; all chance comes
from the seed. So a seed is a history, and a failing one can be played again: `bin/test sim --seed
N`.

    World(seed).run() -> Summary, or a Violation with the story of what led to it
"""

from __future__ import annotations

import heapq
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from sim import reclaiming
from sim.checkers import Checkers, Violation, check
from sim.clients import Clients
from sim.disk import Crash, SimDisk
from sim.nemesis import TROUBLE_MS, Nemesis
from sim.network import Network
from sim.operator import Operator
from sim.process import TICK_MS, Process
from sim.rot import Rot
from sim.slot import Slot
from sim.starving import Starvation

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.describe import describe_raft_node
from myqueue.daemons.raft.node import RaftNode
from myqueue.wal.store.store import Store

SETTINGS = t.RaftSettings(
    heartbeat_ms=50,
    election_timeout_ms_min=250,
    election_timeout_ms_max=500,
    retry_ms=150,
    snapshot_retry_ms=400,
    inflight_bytes_max=4000,
    inflight_messages_max=4,
    append_bytes_max=600,
    append_entries_max=16,
    memory_bytes_max=1500,
)
NODES = (3, 3, 3, 4, 5, 5)
HEAL_MS = 20_000
MEND_MS = 1_000  # more for each damaged segment: they are emptied at a pace, few at once
STEPS_MAX = 2_000_000  # of a history; the longest ones have some 50,000
STORY_LINES = 60
REPLAY = "bin/test sim --seed"


class NoProgress(Violation):
    """A healed majority did not converge in time: liveness, not safety."""


@dataclass
class Summary:
    seed: int
    steps: int
    simulated_ms: int
    faults: Counter[str]
    acknowledged: int
    trace: int  # running hash of all that happened


class World:
    def __init__(self, seed: int, scratch: str = "/dev/shm") -> None:
        self.seed, self.random = seed, Random(f"world {seed}")
        self.now_ms = 0
        self.steps = 0
        self.trace = 0
        self.story: deque[str] = deque(maxlen=STORY_LINES)
        self.faults: Counter[str] = Counter()
        random = self.random
        # Timeouts close together split votes; slow disks leave much unsynced when the power fails;
        # small messages let entries of two terms travel apart.
        entries, messages = random.choice(((1, 8), (4, 4), (16, 4), (16, 1)))
        self.settings = replace(
            SETTINGS,
            election_timeout_ms_max=250 + random.choice((20, 100, 250, 250)),
            append_entries_max=entries,
            inflight_messages_max=messages,
            memory_bytes_max=random.choice((300, 1500, 1500, 6000)),
        )
        disk_ms, slow_disks = random.choice((4, 4, 30, 120)), random.choice((0.0, 0.4))
        self.report_ms = random.choice((0, 0, 10, 60))  # a report waits until the loop has time
        self.reclaim_rate = random.choice((0.0, 0.2, 0.9))  # steps of reclaim in a tick
        self.store_rate = random.choice((0.1, 0.3, 0.9))  # steps of the store in a tick
        self.checkers = Checkers()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        base = scratch if os.path.isdir(scratch) else "/tmp"
        self._scratch = os.path.join(base, f"myq-sim-{os.getpid()}-{seed}")
        self.quiet = False  # no more trouble
        self.segment_bytes = random.choice((4096, 6144, 16384))
        self.crash_rate = 0.0
        self.slots = {
            number: Slot(
                number,
                SimDisk(),
                os.path.join(self._scratch, str(number)),
                random.uniform(0.9, 1.1),
                random.randrange(10_000),
                random.choice((120, 400)) if random.random() < slow_disks else disk_ms,
            )
            for number in range(1, random.choice(NODES) + 1)
        }
        self.starvation = Starvation(self)
        if self.starvation.is_alone:
            self.report_ms = 0
            for slot in self.slots.values():
                slot.disk_ms = 4
        self.network = Network(self)
        self.nemesis = Nemesis(self)
        self.rot, self.starts = Rot(self), reclaiming.AgreedStarts()
        self.groups = list(range(1, random.choice((1, 1, 2, 3)) + 1))
        self.operator = Operator(self)
        self.clients = Clients(self)

    # -- running -------------------------------------------------------------------------------

    def run(self) -> Summary:
        try:
            self._run()
        except Exception as problem:
            problem.add_note(self.tale())
            raise
        finally:
            for slot in self.slots.values():
                self._close(slot)
            shutil.rmtree(self._scratch, ignore_errors=True)
        return Summary(
            self.seed, self.steps, self.now_ms, self.faults, len(self.checkers.acked), self.trace
        )

    def _run(self) -> None:
        self._found()
        for part in (self.nemesis, self.rot, self.operator, self.clients, self.starvation):
            part.start()
        while self.now_ms < TROUBLE_MS:
            self._step()
        self.heal()
        begin = self.now_ms
        while not (self.rot.is_mended() and self.operator.all_is_well()):
            limit = HEAL_MS + MEND_MS * self.rot.damaged_segments()
            if self.now_ms > begin + limit:
                raise NoProgress(f"no convergence within {limit} ms of peace")
            self._step()
        self.clients.verify()

    def _found(self) -> None:
        """The nodes start, each with its replicas of the groups."""
        for slot in self.slots.values():
            self.boot(slot.number)
        for group in self.groups:
            voters, learners = self.operator.founders()
            config = t.Config(
                tuple(t.replica_id(number, 1) for number in voters),
                tuple(t.replica_id(number, 1) for number in learners),
            )
            for number in (*voters, *learners):
                process = self.slots[number].process
                if process is not None:
                    process.create(group, t.replica_id(number, 1), config)
                    process.found()

    def _step(self) -> None:
        when, order, event = heapq.heappop(self._queue)
        self.now_ms = max(self.now_ms, when)
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise NoProgress(f"{STEPS_MAX:,} steps, and no end at {self.now_ms} ms")
        self.trace = crc32(b"%d %d" % (when, order), self.trace)
        event()

    def at(self, when_ms: int, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (when_ms, self._order, event))

    def after(self, low_ms: int, high_ms: int, event: Callable[[], None]) -> None:
        self.at(self.now_ms + self.random.randint(low_ms, high_ms), event)

    def note(self, line: str) -> None:
        self.story.append(f"{self.now_ms:6} {line}")
        self.trace = crc32(line.encode(), self.trace)

    def tale(self) -> str:
        """What happened last, and where everybody stands."""
        lines = [f"seed {self.seed}; replay: {REPLAY} {self.seed}", *self.story]
        for slot in self.slots.values():
            if slot.process is None:
                lines.append(f"node {slot.number}: down")
                continue
            for node in slot.process.host.groups.values():
                lines.append(f"node {slot.number}: {describe_raft_node(node)}")
        return "\n".join(lines)

    def clock_of(self, number: int) -> int:
        slot = self.slots[number]
        return slot.offset + int(self.now_ms * slot.rate)

    def wall_ms(self) -> int:
        """Wall clocks jump as they like; only stamps in entries come from them."""
        return 1_700_000_000_000 + self.now_ms + self.random.choice((0, 0, 0, -5000, 7000))

    # -- processes -----------------------------------------------------------------------------

    def boot(self, number: int) -> None:
        slot = self.slots[number]
        if slot.process is not None:
            return
        slot.incarnation += 1
        os.makedirs(slot.store_path, exist_ok=True)
        slot.store = Store(slot.store_path, map_bytes=16 << 20, sync=False, checked=True)
        slot.disk.stop_at = None
        try:
            slot.process = Process(self, number, slot.incarnation, slot.disk, slot.store)
        except Crash:
            self.note(f"node {number} crashed while it started")
            self._lost_power(slot)
            self.after(100, 400, lambda: self.boot(number))
            return
        self.note(f"node {number} is up: {list(map(str, slot.process.journal.recovered.findings))}")
        self.nemesis.booted(slot)
        for other in self.slots:
            if other != number:
                slot.process.host.peer(other)
        self._tick(number, slot.incarnation)
        self.writer_soon(number)

    def crash(self, number: int, power: bool) -> None:
        slot = self.slots[number]
        if slot.process is None:
            return
        self.note(f"node {number} {'lost power' if power else 'was killed'}")
        self.faults["power loss" if power else "kill"] += 1
        self.nemesis.interrupt(slot)
        if power:
            self._lost_power(slot)
        else:
            slot.disk = slot.disk.killed()
            self._close(slot)
        slot.paused_until, slot.backlog, slot.writer_at = 0, [], -1

    def _lost_power(self, slot: Slot) -> None:
        slot.disk = slot.disk.crash(self.random)
        if slot.process is not None and self.random.random() < 0.4:
            slot.process.index.step()  # the store's thread was a little faster
        self._close(slot)
        data = os.path.join(slot.store_path, "data.mdb")
        fate = self.random.random()
        if fate < 0.3:
            shutil.rmtree(slot.store_path)  # as after a store that was recognised as broken
            self.note(f"node {slot.number}: the store is gone")
        elif fate < 0.6 and slot.saved:
            with open(data, "wb") as file:
                file.write(slot.saved)

    def forget_store(self, slot: Slot) -> None:
        shutil.rmtree(slot.store_path, ignore_errors=True)
        slot.saved = b""

    def _close(self, slot: Slot) -> None:
        if slot.process is not None:
            self.rot.tally(slot.process)
            slot.process.journal.close_signal()
            slot.process = None
        if slot.store is not None:
            slot.store.close()
            slot.store = None

    def maybe_crash(self, number: int) -> None:
        if self.crash_rate and self.random.random() < self.crash_rate:
            raise Crash

    def with_process(self, number: int, action: Callable[[Process], None]) -> None:
        """Run something in a node's process: later if it is paused, never if it is gone."""
        slot = self.slots[number]
        process = slot.process
        if process is None:
            return
        if slot.paused_until > self.now_ms:
            slot.backlog.append(lambda: self.with_process(number, action))
            return
        try:
            action(process)
        except Crash:
            slot.writer_at = -1  # it is dead already: nothing of it goes on
            self.crash(number, power=self.random.random() < 0.7)
            self.after(100, 1500, lambda: self.boot(number))

    def pause(self, number: int, milliseconds: int) -> None:
        slot = self.slots[number]
        slot.paused_until = self.now_ms + milliseconds
        self.at(slot.paused_until, lambda: self._resume(number))

    def _resume(self, number: int) -> None:
        slot = self.slots[number]
        backlog, slot.backlog = slot.backlog, []
        for action in backlog:
            action()

    def _tick(self, number: int, incarnation: int) -> None:
        slot = self.slots[number]
        if slot.incarnation != incarnation or slot.process is None:
            return

        self.with_process(number, lambda process: process.tick())
        if self.random.random() < self.store_rate:
            self.with_process(number, self.store_step)
        if self.random.random() < self.reclaim_rate:
            self.with_process(number, lambda process: reclaiming.step(self, process))
        self.after(20, TICK_MS, lambda: self._tick(number, incarnation))

    def is_stalled(self, number: int) -> bool:
        return self.slots[number].writer_at > self.now_ms + self.settings.election_timeout_ms_max

    def store_step(self, process: Process) -> None:
        durable = process.index.durable
        process.index.step()
        process.index.poll()
        slot = self.slots[process.number]
        if process.index.durable != durable:
            slot.saved = b""  # no crash goes back behind a sync
        if self.random.random() < 0.2:
            with open(os.path.join(slot.store_path, "data.mdb"), "rb") as file:
                slot.saved = file.read()

    def turn_soon(self, number: int) -> None:
        self.at(self.now_ms, lambda: self.with_process(number, lambda process: process.turn()))

    def writer_soon(self, number: int) -> None:
        """A flush takes a while; one at a time."""
        slot = self.slots[number]
        process = slot.process
        busy = slot.writer_at > self.now_ms
        if busy or process is None or not process.flush_due:
            return
        process.take()
        slow = 4 if self.quiet else slot.disk_ms
        delay = self.random.randint(0, slow) + self.nemesis.stall_ms(number)
        slot.writer_at = self.now_ms + delay
        incarnation = slot.incarnation
        self.at(slot.writer_at, lambda: self._write(number, incarnation))

    def _write(self, number: int, incarnation: int) -> None:
        slot = self.slots[number]
        if slot.incarnation != incarnation:
            return
        self.with_process(number, lambda process: process.write())
        late = 0 if self.quiet else self.random.randint(0, self.report_ms)
        slot.writer_at = self.now_ms + late
        if late:
            self.at(slot.writer_at, lambda: self._report(number, incarnation))
        else:
            self._report(number, incarnation)

    def _report(self, number: int, incarnation: int) -> None:
        """What was written some time ago is told to the loop, which may have gone on since."""
        slot = self.slots[number]
        if slot.incarnation != incarnation:
            return
        slot.writer_at = -1
        self.with_process(number, lambda process: process.written())
        if slot.process is not None and slot.process.flush_due:
            self.writer_soon(number)

    # -- peace ---------------------------------------------------------------------------------

    def heal(self) -> None:
        self.quiet = True
        self.crash_rate = 0.0
        self.network.heal()
        self.note("peace")
        for number, slot in self.slots.items():
            slot.disk.stop_at = None
            if slot.paused_until > self.now_ms:
                slot.paused_until = 0
                self._resume(number)
            self.boot(number)

    def processes(self) -> list[Process]:
        return [slot.process for slot in self.slots.values() if slot.process is not None]

    def replica(self, group: int, replica: int) -> RaftNode | None:
        """The replica itself, if its process is there."""
        process = self.slots[t.node_of(replica)].process
        node = process.host.groups.get(group) if process is not None else None
        return node if node is not None and node.replica == replica else None

    def leader(self, group: int) -> tuple[Process, t.Config] | None:
        """The process that leads a group in the highest term, and its configuration."""
        best = None
        for process in self.processes():
            node = process.host.groups.get(group)
            if node is not None and node.role == t.Role.LEADER:
                check(best is None or best[0] != node.term, "two leaders in one term")
                if best is None or node.term > best[0]:
                    best = (node.term, process, node.config)
        return None if best is None else best[1:]

    def acknowledge(self, group: int, client: int, sequence: int, index: int) -> None:
        self.checkers.acknowledged(group, client, sequence, index)
        self.clients.acknowledged(group, client, sequence)
