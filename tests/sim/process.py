"""One simulated daemon: the real host, the real journal and store, on a disk that forgets.

Of the daemon's own parts these are the real ones: how groups are opened after a start, replicas
with their applying, what a follower is served from disk, moves of a log's start, and `repair`. To
them the process is the engine. What it does itself: a turn does what a daemon's loop does, in its
order: events in, then persist to the journal, send, apply. The writer is a separate event of the
world, some time later, so that a crash may fall between any two of them. Between the effects of a
turn stand `maybe_crash`, where the world may end the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any

from sim.checkers import check
from sim.disk import Crash, SimDisk
from sim.durable import Durable
from sim.machine import Command, Ledger, LedgerMachine
from sim.simlog import SimLog

from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import Packet, RaftGroups
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.repair.coordinator import RepairCoordinator
from myqueue.daemons.repair.messages import EntriesRequest, EntryReply
from myqueue.daemons.replication.catch_up import CatchUpServer
from myqueue.daemons.replication.log_prefix import LogPrefix
from myqueue.daemons.replication.open_group import (
    CannotOpen,
    GroupContext,
    create_group,
    open_group,
    snapshot_parts,
)
from myqueue.daemons.replication.replica import Replica, raft_errors_translated
from myqueue.errors import EntryMissing
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.groups import Group
from myqueue.wal.store.store import Store

if TYPE_CHECKING:
    from sim.world import World

TICK_MS = 40  # of the world's clock, at most, until the next tick of a process that runs
HINTS = 0.1  # of saved states are followed by a note how far all is committed


class Process:
    """From boot to crash; the node's disk and store outlive it."""

    def __init__(self, world: World, number: int, incarnation: int, disk: SimDisk, store: Store):
        self.world, self.number, self.disk, self.store = world, number, disk, store
        self.random = Random(f"{world.seed}/{number}/{incarnation}")
        self.host = RaftGroups(number, incarnation, world.settings)
        self.durable = Durable()
        self.replicas: dict[int, Replica] = {}
        self.counts = DaemonMetrics()
        self.hard_states: list[tuple[int, int, int, int]] = []  # (batch, group, term, vote)
        self.snapshots: list[tuple[int, int, int]] = []  # (batch, group, index)
        self.reads: dict[int, tuple[int, int]] = {}  # context -> (group, acknowledged before)
        self.waiting: dict[tuple[int, int], int] = {}  # (group, index) -> term of a proposal
        self._counted: dict[int, int] = {}  # group -> commit that was looked at while it leads
        self.flush_due = False
        self.stalled = False
        self.written_to = (0, 0)  # the end of what was reported last
        self.scrub_bytes_per_s = world.rot.scrub_bytes_per_s
        self.fill_bytes_per_s = 0  # as fast as it goes
        self._boot()

    # -- start ---------------------------------------------------------------------------------

    def _boot(self) -> None:
        world, log = self.world, SimLog(self.world, self.disk, self.store, self.random)
        self.log, self.journal, self.index = log, log.journal, log.index
        self.reader, self.reclaimer = log.reader, log.reclaimer
        self.opening = GroupContext(
            log, world.settings, self.random, self.host.suspicion.alive_until, self._make_machine
        )
        self.starts = LogPrefix(log, self.replicas, self.counts, self.host)
        self.serving = CatchUpServer(self)  # type: ignore[arg-type]
        self.repair = RepairCoordinator(self)  # type: ignore[arg-type]
        self.repair.scrub_pace.round_ms = world.rot.scrub_round_ms
        self.flush_due = True
        self.repair.before_groups_open()
        for group in sorted(self.journal.groups.by_uid.values(), key=lambda g: g.uid):
            self._restart(group)
        self.repair.after_groups_open()
        self.journal.submit()
        world.rot.booted(self)

    def _make_machine(self, uid: int, about: bytes) -> LedgerMachine:
        start_of = partial(self.world.starts.start_of, uid)
        return LedgerMachine(partial(self._applied_one, uid), start_of)

    def _retire(self, group: Group, why: str) -> None:
        """It can't take part: it must come back under a new replica id (R2, W20)."""
        self.journal.remove_group(group.uid)
        self.world.note(f"node {self.number}: group {group.uid} retired: {why}")

    def _restart(self, group: Group) -> None:
        try:
            replica = open_group(self.opening, group, self.now)
        except CannotOpen as error:
            # A daemon goes on without this group.
            if isinstance(error.__cause__, t.InvariantBroken | EntryMissing):
                raise error.__cause__ from error
            self._retire(group, str(error))
            return
        self.world.checkers.restarted(replica.raft)
        self._add(replica)
        self.starts.mend(replica)

    def _add(self, replica: Replica) -> None:
        self.replicas[replica.uid] = replica
        self.durable.restored(replica.raft)
        self.host.add(replica.raft)
        replica.note_health(self.report)

    def create(self, uid: int, replica: int, config: t.Config) -> None:
        """A replica of a group, empty; a learner waits for its leader."""
        if uid not in self.journal.groups.by_uid:  # else asked twice: it was paused the first time
            self._add(create_group(self.opening, uid, replica, config, b"", self.now))

    # -- what the daemon's parts ask of their engine ---------------------------------------------

    @property
    def now(self) -> int:
        return self.world.clock_of(self.number)

    @property
    def ledgers(self) -> dict[int, Ledger]:
        return {uid: one.machine.ledger for uid, one in self.replicas.items()}  # type: ignore

    def wall_ms(self) -> int:
        return self.world.wall_ms()

    def report(self, level: str, event: str, **about: Any) -> None:
        check(event != "replica-health-impossible", f"no row of the health's table: {about}")
        self.world.note(f"node {self.number}: {event} {about}")

    def note_segment_removed(self) -> None:
        """Reclaim comes when the world says so."""

    def transfer(self, replica: Replica, number: int) -> None:
        for member in replica.raft.config.voters:
            if t.node_of(member) == number:
                self.host.touch(replica.uid)
                with raft_errors_translated(partial(self.host.mark_broken, replica.uid)):
                    replica.raft.transfer(member, self.now, self.host.out)

    def send_repair_messages(self, packets: dict[int, Packet]) -> None:
        self._send(packets)

    # -- a turn --------------------------------------------------------------------------------

    def tick(self) -> None:
        self.watch_disk()
        now = self.now
        self.host.begin_turn(now, TICK_MS)
        self.host.tick(now)
        self.serving.tick(now)
        met, self.reader.unreadable = self.reader.unreadable, []
        self.repair.tick(now)
        for replica in self.replicas.values():
            if replica.has_unapplied:
                self._applied(replica, replica.retry_apply())
            if self.world.quiet and replica.machine.start_index > replica.raft.log.first_index:
                self.starts.move(replica, replica.machine.start_index)
        self.turn()
        self.world.rot.find_registered(self, met)

    def watch_disk(self) -> None:
        """W17: a leader whose disk stalls goes quiet, so that others can take over."""
        stalled = self.world.is_stalled(self.number)
        if stalled != self.stalled:
            self.stalled = stalled
            for group, node in self.host.groups.items():
                node.may_lead = not stalled
                if stalled:
                    self.host.touch(group)
                    node.step_down(self.now, self.host.out)

    def turn(self, source: int = 0, packet: Packet | None = None) -> None:
        self.host.begin_turn(self.now, TICK_MS)
        if packet is not None:
            for message in packet.repair_messages:
                if isinstance(message, EntriesRequest):
                    self.repair.serve_entries(message)
                else:
                    self.repair.receive_entry(message)
            self.host.receive(source, packet, self.now)
        effects, packets = self.host.end_turn(self.now)
        for error in self.host.broken.values():  # a daemon closes the group, and goes on
            raise error
        self._persist(effects.persist)
        self.world.maybe_crash(self.number)
        self._send(packets)
        self.world.maybe_crash(self.number)
        self._tell(effects)
        for order in effects.apply:
            replica = self.replicas[order.group]
            self._applied(replica, replica.apply(order))
        for fetch in effects.fetch:
            self.serving.fetch(fetch)
            self.world.turn_soon(self.number)
        self._check(packet)
        self.world.nemesis.notice(self.number, effects)

    def _persist(self, orders: Iterable[t.Persist]) -> None:
        journal, checkers = self.journal, self.world.checkers
        for order in orders:
            node = self.host.groups[order.group]
            if isinstance(order, t.PersistEntries):
                checkers.persisting(node, order.entries)
                journal.append(order.group, order.entries, urgent=True)
            elif isinstance(order, t.PersistHardState):
                batch = journal.hard_state(*order)
                self.hard_states.append((batch, order.group, order.term, order.vote))
                self.replicas[order.group].note_health(self.report)
            elif isinstance(order, t.PersistTruncate):
                checkers.forget_claims(node, order.index)
                journal.truncate(order.group, order.index, order.term, order.offset, order.chain)
            else:
                self._install(node, order.snapshot)
        journal.submit()
        if self.flush_due or journal.queued_bytes > 0:
            self.flush_due = True
            self.world.writer_soon(self.number)

    def _install(self, node: RaftNode, snapshot: t.Snapshot) -> None:
        self.world.checkers.installing(node, snapshot.start_index)
        if node.applied_index == snapshot.index:  # else ours is newer
            self.replicas[node.group].machine.restore(snapshot.state)
        parts = snapshot_parts(snapshot)
        self.journal.snapshot(node.group, snapshot.index, snapshot.term, parts)
        batch = self.journal.start(
            node.group,
            snapshot.start_index,
            snapshot.start_term,
            snapshot.start_offset,
            snapshot.start_chain,
            reset=True,
        )
        self.snapshots.append((batch, node.group, snapshot.index))

    def _save_state(self, uid: int, applied: int) -> None:
        if any(group == uid for _, group, _ in self.snapshots):
            return  # a state ahead of its log: not before the snapshot is persisted
        self.index.apply({uid: (applied, *self.replicas[uid].saved())})
        if self.random.random() < HINTS:
            self.journal.commit_hint(uid, applied)

    def _send(self, packets: dict[int, Packet]) -> None:
        for target, packet in sorted(packets.items()):
            for message in packet.messages:
                node = self.host.groups[message.group]
                self.world.checkers.sent(node, message)
                self.durable.sent(node, message)
                self.world.rot.sent(self, node, message)
            packet.repair_messages = [
                self.world.rot.given(one) if isinstance(one, EntryReply) else one
                for one in packet.repair_messages
            ]
            self.world.network.transmit(self.number, target, packet)

    def _tell(self, effects: t.Effects) -> None:
        for change in effects.changed:
            node = self.host.groups[change.group]
            self.world.note(f"node {self.number}: {change.role.name} {change}")
            if change.role == t.Role.LEADER and node.role == t.Role.LEADER:
                self.world.checkers.became(node)
                self.world.starvation.leads(node)
        for ready in effects.reads:
            group, before = self.reads.pop(ready.context)
            self.world.checkers.read_answered(group, ready.index, before)

    def _applied_one(self, uid: int, entry: t.Entry, command: Command | None) -> None:
        replica, checkers = self.replicas.get(uid), self.world.checkers
        if replica is None:  # at a start
            check(
                checkers.committed.get(uid, {}).get(entry[t.INDEX], (0,))[0] == entry[t.TERM],
                f"R25: node {self.number} takes entry {entry[t.INDEX]} for committed",
            )
            return
        checkers.applied(replica.raft, replica.machine.ledger, entry)  # type: ignore[attr-defined]
        term = self.waiting.pop((uid, entry[t.INDEX]), None)
        if command is not None and term == entry[t.TERM]:
            self.world.acknowledge(uid, *command[:2], entry[t.INDEX])

    def _applied(self, replica: Replica, done: list[Any]) -> None:
        raft, world = replica.raft, self.world
        if done and raft.role == t.Role.LEADER:
            others = [world.replica(raft.group, one) for one in raft.config.voters]
            world.checkers.electable(raft, raft.applied_index, others)
        if done:
            self._save_state(replica.uid, raft.applied_index)

    def forget(self, uid: int) -> None:
        """The group was removed from this node."""
        del self.replicas[uid]
        self.repair.lost_entries.pop(uid, None)
        self.hard_states = [one for one in self.hard_states if one[1] != uid]
        self.snapshots = [one for one in self.snapshots if one[1] != uid]

    def compact(self, uid: int, keep: int) -> None:
        """A snapshot in the log, and an earlier start, as retention does."""
        replica = self.replicas.get(uid)
        if replica is not None:  # else taken away since this was asked for
            applied = replica.raft.applied_index
            start = max(replica.raft.log.first_index, applied + 1 - keep)
            if self.starts.move(replica, start):
                self.world.starts.decide(uid, applied, start)
                self.journal.submit()
                self.world.writer_soon(self.number)

    def found(self) -> None:
        """That its groups exist is durable before it is told to anybody."""
        self.journal.submit()
        self.take()
        self.write()
        self.written()

    def take(self) -> None:
        """A flush begins with what waits now; what comes later waits for the next one."""
        writer = self.journal.writer
        while not writer.queue.empty():
            writer.accept(writer.queue.get())

    def write(self) -> None:
        """The writer comes back from a sync (or the machine dies in the middle of it)."""
        writer = self.journal.writer
        later, writer.queue = writer.queue, SimpleQueue()
        writer.step()
        writer.queue = later
        while self.random.random() < 0.3 and self.journal.spares.step():
            continue

    def written(self) -> None:
        """The loop hears of it, perhaps some time later (W11)."""
        for event in self.journal.poll():
            if isinstance(event, Stopped):
                self.world.note(f"node {self.number}: disk failed: {event.error}")
                raise Crash
            if isinstance(event, Persisted):
                self._persisted(event)
        self.index.poll()
        self.flush_due = self.journal.queued_bytes > 0
        if not self.flush_due:
            self.journal.settle()
        self.turn()

    def _persisted(self, event: Persisted) -> None:
        self.index.add(event.ops, event.segment, event.position)
        self.durable.reported(event.ops)
        self.world.rot.reported(self, event)
        host, now = self.host, self.now
        for batch, group, term, vote in self.hard_states:
            node = host.touch(group)
            if batch <= event.batch and node is not None:
                node.hard_state_persisted(term, vote, now, host.out)
        self.hard_states = [one for one in self.hard_states if one[0] > event.batch]
        for batch, group, index in self.snapshots:
            node = host.touch(group)
            if batch <= event.batch and node is not None:
                node.snapshot_persisted(index, host.out)
        done = [one for one in self.snapshots if one[0] <= event.batch]
        self.snapshots = [one for one in self.snapshots if one[0] > event.batch]
        for group in dict.fromkeys(group for _, group, _ in done if group in host.groups):
            self._save_state(group, host.groups[group].applied_index)
        for group, (term, index) in sorted(event.tails.items()):
            node = host.touch(group)
            if node is not None:
                node.persisted(term, index, now, host.out)

    def _check(self, packet: Packet | None) -> None:
        checkers = self.world.checkers
        for group, node in self.host.groups.items():
            checkers.monotonic(node)
            commit = node.commit_index
            if node.role == t.Role.LEADER and commit != self._counted.get(group):
                self._counted[group] = commit
                checkers.counted(node, self.durable.holds(group, commit, node.term))
        self.world.rot.look_at(self)
        for message in packet.messages if packet is not None else ():
            node = self.host.groups.get(message.group)
            if isinstance(message, t.AppendReply) and node and node.role == t.Role.LEADER:
                checkers.believes(node, self.world.replica)
