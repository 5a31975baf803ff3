"""One simulated daemon: the real host, the real journal and store, on a disk that forgets.

A turn does what a daemon's loop does, in its order: events in, then persist to the journal, send,
apply. The writer is a separate event of the world, some time later, so that a crash may fall
between any two of them. Between the effects of a turn stand `maybe_crash`, where the world may
end the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING

from sim.disk import Crash, SimDisk
from sim.durable import Durable
from sim.machine import Ledger, entry_of

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.host import Host, Packet
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import Configs
from myqueue.daemons.raft.node import RaftNode
from myqueue.wal.groups import Group
from myqueue.wal.index import Index
from myqueue.wal.journal import Journal, JournalConfig
from myqueue.wal.reader import Entry as Stored
from myqueue.wal.reader import Reader
from myqueue.wal.reclaim import Reclaimer
from myqueue.wal.store import Store
from myqueue.wal.writer import Persisted, Stopped

if TYPE_CHECKING:
    from sim.world import World

OWNER = b"simulated daemon"


class Process:
    """From boot to crash; the node's disk and store outlive it."""

    def __init__(self, world: World, number: int, incarnation: int, disk: SimDisk, store: Store):
        self.world, self.number, self.disk, self.store = world, number, disk, store
        self.random = Random(f"{world.seed}/{number}/{incarnation}")
        self.host = Host(number, incarnation, world.settings)
        self.durable = Durable()
        self.ledgers: dict[int, Ledger] = {}
        self.hard_states: list[tuple[int, int, int, int]] = []  # (batch, group, term, vote)
        self.snapshots: list[tuple[int, int, int]] = []  # (batch, group, index)
        self.reads: dict[int, tuple[int, int]] = {}  # context -> (group, acknowledged before)
        self.waiting: dict[tuple[int, int], int] = {}  # (group, index) -> term of a proposal
        self.flush_due = False
        self.stalled = False
        self._boot()

    # -- start ---------------------------------------------------------------------------------

    def _boot(self) -> None:
        watermark = self.store.watermark
        with self.store.view() as view:
            groups = view.groups()
        size = self.world.segment_bytes
        config = JournalConfig(segment_bytes=size, soft_limit_bytes=0, queue_bytes_max=1 << 30)
        self.journal = Journal.open(
            self.disk, OWNER, config, self.world.wall_ms, self.random,
            groups=groups, watermark=watermark, sink=self.store.commit, threads=False,
        )  # fmt: skip
        self.index = Index(self.store, False, self.journal.wake)
        self.reader = Reader(self.disk, self.index, self.journal.segment_name)
        self.reclaimer = Reclaimer(self.disk, self.journal, self.index, self.reader)
        self.flush_due = True
        for group in sorted(self.journal.groups.by_uid.values(), key=lambda g: g.uid):
            if group.doubtful or group.created is None:
                self._retire(group)
            else:
                self._restart(group)

    def _retire(self, group: Group) -> None:
        """Its vote may be lost: it must come back under a new replica id (R2)."""
        self.journal.remove_group(group.uid)
        self.world.note(f"node {self.number}: group {group.uid} retired")

    def _restart(self, group: Group) -> None:
        replica, voters, learners = json.loads(group.created or b"")
        if group.damaged or self.journal.recovered.corrupt:
            self._cut_damage(group)
        recovering = group.incomplete or group.lacking
        stored = self._entries(group, group.first_index, group.last_index)
        log = RaftLog(
            group.first_index, group.start_term, group.start_offset, group.start_chain,
            self._lookup(group.uid),
        )  # fmt: skip
        runs = [(one.record.index, one.record.term) for one in stored]
        log.restore(runs, entry_of(stored[-1]) if stored else None)
        configs = Configs(0, t.Config(tuple(voters), tuple(learners)))
        ledger, applied = Ledger(), 0
        if group.snapshot_parts:
            raw = b"".join(self.reader.snapshot(group))
            snapshot_config, state = json.loads(raw)
            configs.installed(group.snapshot_index, t.Config(*map(tuple, snapshot_config)))
            ledger, applied = Ledger.load(state.encode()), group.snapshot_index
        with self.store.view() as view:
            stored_applied = view.applied_index(group.uid)
            if stored_applied > applied:
                raw_state = view.state(group.uid, b"ledger")
                ledger, applied = Ledger.load(raw_state or b""), stored_applied
        if applied < group.first_index - 1:
            self._retire(group)  # the newest snapshot is damaged; an older one does not do (W20)
            return
        configs.appended([entry_of(one) for one in stored])
        self.ledgers[group.uid] = ledger
        node = RaftNode(
            group.uid, replica, configs, log, term=group.term, vote=group.vote,
            applied_index=applied, commit_index=group.commit_index, settings=self.world.settings,
            random=self.random, heard=self.host.heard, now=self.now, recovering=recovering,
        )  # fmt: skip
        self.world.checkers.restarted(node)
        self.durable.restored(node)
        self.host.add(node)

    def _cut_damage(self, group: Group) -> None:
        """Keep what is whole up to the first bad entry; the rest comes from the peers."""
        uid, index, before = group.uid, group.first_index, None
        while index <= group.last_index:
            try:
                before = self.reader.entry(uid, index).record
            except Exception:
                break
            index += 1
        if index <= group.last_index:
            term = before.term if before else group.start_term
            offset = before.offset + before.count if before else group.start_offset
            chain = before.chain if before else group.start_chain
            self.journal.hard_state(uid, group.term, group.vote, True)
            self.journal.truncate(uid, index, term, offset, chain)
            self._step_writer()

    def _entries(self, group: Group, first: int, last: int) -> list[Stored]:
        out: list[Stored] = []
        while first <= last:
            got = self.reader.entries(group.uid, first, last, 1 << 20)
            out += got
            first += len(got)
        return out

    def _lookup(self, uid: int):
        def look(index: int) -> tuple[int, int]:
            record = self.reader.entry(uid, index).record
            group = self.journal.groups.by_uid[uid]
            first = index == group.first_index
            chain = group.start_chain if first else self.reader.entry(uid, index - 1).record.chain
            return record.offset, chain

        return look

    def create(self, uid: int, replica: int, config: t.Config) -> None:
        """A replica of a group, empty; a learner waits for its leader."""
        if uid in self.journal.groups.by_uid:
            return  # asked twice, because this node was paused the first time
        created = json.dumps([replica, config.voters, config.learners]).encode()
        self.journal.create_group(uid, created)
        self.ledgers[uid] = Ledger()
        node = RaftNode(
            uid, replica, Configs(0, config), RaftLog(lookup=self._lookup(uid)), term=0, vote=0,
            applied_index=0, commit_index=0, settings=self.world.settings, random=self.random,
            heard=self.host.heard, now=self.now,
        )  # fmt: skip
        self.durable.restored(node)
        self.host.add(node)

    # -- a turn --------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.world.clock_of(self.number)

    def turn(self, source: int = 0, packet: Packet | None = None) -> None:
        if packet is not None:
            self.host.receive(source, packet, self.now)
        effects, packets = self.host.end_turn(self.now)
        self._persist(effects.persist)
        self.world.maybe_crash(self.number)
        self._send(packets)
        self.world.maybe_crash(self.number)
        self._tell(effects)
        self._apply(effects.apply)
        for fetch in effects.fetch:
            self._fetch(fetch)
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
                batch = journal.hard_state(order.group, order.term, order.vote, order.recovering)
                self.hard_states.append((batch, order.group, order.term, order.vote))
            elif isinstance(order, t.PersistTruncate):
                checkers.forget_claims(node, order.index)
                journal.truncate(order.group, order.index, order.term, order.offset, order.chain)
            else:
                self._install(node, order.snapshot)
        journal.submit()
        self.flush_due = self.flush_due or journal.queued_bytes > 0
        self.world.writer_soon(self.number)

    def _install(self, node: RaftNode, snapshot: t.Snapshot) -> None:
        self.world.checkers.installing(node, snapshot.start_index)
        if node.applied_index == snapshot.index:  # else ours is newer
            self.ledgers[node.group] = Ledger.load(snapshot.state)
        batch = self._save_snapshot(node.group, snapshot)
        batch = self.journal.start(
            node.group, snapshot.start_index, snapshot.start_term, snapshot.start_offset,
            snapshot.start_chain, reset=True,
        )  # fmt: skip
        self.snapshots.append((batch, node.group, snapshot.index))

    def _save_snapshot(self, uid: int, snapshot: t.Snapshot) -> int:
        raw = json.dumps([list(snapshot.config), snapshot.state.decode()]).encode()
        parts = [raw[at : at + 300] for at in range(0, len(raw), 300)]
        return self.journal.snapshot(uid, snapshot.index, snapshot.term, parts)

    def _save_state(self, uid: int, applied: int) -> None:
        if any(group == uid for _, group, _ in self.snapshots):
            return  # a state ahead of its log: not before the snapshot is persisted
        self.index.apply({uid: (applied, {b"ledger": self.ledgers[uid].save()}, [])})

    def _send(self, packets: dict[int, Packet]) -> None:
        for target, packet in sorted(packets.items()):
            for message in packet.messages:
                node = self.host.groups[message.group]
                self.world.checkers.sent(node, message)
                self.durable.sent(node, message)
            self.world.network.transmit(self.number, target, packet)

    def _tell(self, effects: t.Effects) -> None:
        for change in effects.changed:
            node = self.host.groups[change.group]
            self.world.note(f"node {self.number}: {change.role.name} {change}")
            if change.role == t.Role.LEADER and node.role == t.Role.LEADER:
                self.world.checkers.became(node)
        for ready in effects.reads:
            group, before = self.reads.pop(ready.context)
            self.world.checkers.read_answered(group, ready.index, before)

    def _apply(self, orders: Iterable[t.Apply]) -> None:
        for order in orders:
            node, ledger = self.host.groups[order.group], self.ledgers[order.group]
            entries = order.entries
            if entries is None:
                entries = self._read(order.group, order.first, order.last)
            for entry in entries:
                command = ledger.apply(entry)
                self.world.checkers.applied(node, ledger, entry)
                term = self.waiting.pop((order.group, entry[t.INDEX]), None)
                if command is not None and term == entry[t.TERM]:
                    self.world.acknowledge(order.group, *command[:2], entry[t.INDEX])
            if node.role == t.Role.LEADER:
                replicas = [self.world.replica(node.group, one) for one in node.config.voters]
                self.world.checkers.electable(node, order.last, replicas)
            node.applied(order.last)
            self._save_state(order.group, order.last)

    def _read(self, uid: int, first: int, last: int) -> list[t.Entry]:
        node = self.host.groups[uid]
        memory = node.log.memory_first
        out: list[t.Entry] = []
        at = first
        while at <= min(last, memory - 1):
            got = self.reader.entries(uid, at, min(last, memory - 1), 1 << 20)
            out += [entry_of(one) for one in got]
            at += len(got)
        if at <= last:
            out += node.log.in_memory(at, last) or []
        return out

    def _fetch(self, order: t.Fetch | t.NeedSnapshot) -> None:
        node = self.host.touch(order.group)
        if node is None:
            return
        if isinstance(order, t.Fetch):
            entries = self._read(order.group, order.first, order.last)
            node.fetched(order.follower, entries, self.now, self.host.out)
        else:
            snapshot = self.make_snapshot(node)
            node.snapshot_made(order.follower, snapshot, self.now, self.host.out)
        self.world.turn_soon(self.number)

    def forget(self, uid: int) -> None:
        """The group was removed from this node."""
        del self.ledgers[uid]
        self.hard_states = [one for one in self.hard_states if one[1] != uid]
        self.snapshots = [one for one in self.snapshots if one[1] != uid]

    def make_snapshot(self, node: RaftNode) -> t.Snapshot:
        log, applied = node.log, node.applied_index
        return t.Snapshot(
            applied, log.term(applied), node.configs.at(applied), log.first_index, log.start_term,
            log.start_offset, log.start_chain, self.ledgers[node.group].save(),
        )  # fmt: skip

    def compact(self, uid: int, keep: int) -> None:
        """A snapshot in the log, and an earlier start, as retention does."""
        node = self.host.groups.get(uid)
        if node is None:
            return  # taken away since this was asked for
        log, applied = node.log, node.applied_index
        if not log.first_index - 1 <= applied <= log.persisted_index:
            return
        start = max(log.first_index, applied + 1 - keep)
        if start > log.last_index + 1 or start <= log.first_index:
            return
        self._save_snapshot(uid, self.make_snapshot(node))
        before = self.reader.entry(uid, start - 1).record
        place = start, before.term, before.offset + before.count, before.chain
        self.journal.start(uid, *place)
        self.journal.submit()
        node.start_log_at(*place)
        self.world.writer_soon(self.number)

    def _step_writer(self) -> None:
        self.journal.submit()
        while self.journal.writer.step():
            continue
        for event in self.journal.poll():
            if isinstance(event, Persisted):
                self.index.add(event.ops, event.segment, event.position)

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
        for node in self.host.groups.values():
            checkers.monotonic(node)
        for message in packet.messages if packet is not None else ():
            node = self.host.groups.get(message.group)
            if isinstance(message, t.AppendReply) and node and node.role == t.Role.LEADER:
                checkers.believes(node, self.world.replica)
