"""The engine: does for the raft groups of one daemon what the Raft core asks for, in order.

Packets of peers, reports of the journal, and calls of the owner (a broker or a manager) come in.
Records for the journal, packets for peers, and applied entries for the owner go out. The core alone
decides about consensus; state machines and owners alone decide what entries mean.

A turn ends with `end_turn`: persist ▶ send ▶ submit ▶ apply ▶ notify the owner. Packets leave while
the disk is still writing: a packet claims nothing that the journal has not reported as persisted
(see `raft/DESIGN.md`).

Everything happens in the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from myqueue import errors
from myqueue.daemons.clock import Clock
from myqueue.daemons.interfaces import Client, DuplicateDaemon, MessageTransport, Owner, Peer
from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import Packet, RaftGroups
from myqueue.daemons.raft.health import START, ReplicaHealth, Unhealthy
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.repair.coordinator import RepairCoordinator
from myqueue.daemons.repair.messages import EntriesRequest, EntryReply
from myqueue.daemons.replication import packets as peerwire
from myqueue.daemons.replication.catch_up import CatchUpServer
from myqueue.daemons.replication.close_group import ClosedReplicas
from myqueue.daemons.replication.disk_health import DiskHealth
from myqueue.daemons.replication.log_prefix import LogPrefix
from myqueue.daemons.replication.open_group import (
    CannotOpen,
    GroupContext,
    MakeStateMachine,
    create_group,
    open_group,
    replica_id_of,
    snapshot_parts,
)
from myqueue.daemons.replication.reclaim_pace import ReclaimPace
from myqueue.daemons.replication.replica import (
    Defect,
    Replica,
    Report,
    raft_errors_translated,
    report_health,
)
from myqueue.daemons.replication.state_saver import StateSaver
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.log import Log
from myqueue.wire.protocol import Envelope

APPLY_RETRY_MS = 100  # until an entry that could not be read is tried again
Buffer = bytes | memoryview


class Engine:
    """The raft groups of one daemon, between the core, the log, the transport and the owner."""

    def __init__(
        self,
        kind: str,
        node: int,
        incarnation: int,
        log: Log,
        settings: t.RaftSettings,
        clock: Clock,
        random: Random,
        wire: MessageTransport,
        owner: Owner,
    ) -> None:
        self.kind, self.node, self.incarnation = kind, node, incarnation
        self.log, self.clock, self.wire, self.owner = log, clock, wire, owner
        self.now = clock.now_ms()
        self.counts = DaemonMetrics()
        self.host = RaftGroups(node, incarnation, settings)
        self.replicas: dict[int, Replica] = {}
        # By number of the connected daemon
        self.rivals: dict[tuple[str, int], DuplicateDaemon] = {}
        self.not_open: dict[int, Unhealthy] = {}  # groups on this disk that take no part
        self.failure: Exception | None = None  # not None: the daemon must end
        make: MakeStateMachine = owner.make_state_machine
        self._opening = GroupContext(log, settings, random, self.host.suspicion.alive_until, make)
        self.starts = LogPrefix(log, self.replicas, self.counts, self.host)
        self._saver = StateSaver(log, self.replicas, self.starts, self.host)
        self._reclaiming = ReclaimPace(log, self.starts, self.counts)
        self._rows = peerwire.RowCache()
        self._pending_hard_states: deque[tuple[int, int, int, int]] = (
            deque()
        )  # batch, group, term, vote
        self._pending_snapshots: deque[tuple[int, int, int]] = deque()  # batch, group, index
        # Context -> group and index, once confirmed
        self._confirmed_reads: dict[int, tuple[int, int]] = {}
        # group -> batch that holds the record of its removal, and id of the removed replica
        self._pending_removals: dict[int, tuple[int, int]] = {}
        # Group -> when to retry applying an entry that could not be read
        self._apply_retry_at: dict[int, int] = {}
        self._catch_up = CatchUpServer(self)
        self.disk = DiskHealth(self)
        self.repair = RepairCoordinator(self)
        self.closing = ClosedReplicas(self)
        self.scrub_bytes_per_s = 0  # 0: the log is not scrubbed
        self.fill_bytes_per_s = 0  # sent to new replicas; 0: no limit
        self.report: Report = lambda *_, **__: None
        self._has_new_work = False
        self._last_stamp = 0
        owner.attach(self)

    def open_groups(self) -> None:
        """Open every group that the log recovered; those that can't be opened go to `not_open`."""
        self.repair.before_groups_open()
        self.closing.before_groups_open()
        for uid, group in sorted(self.log.journal.groups.by_uid.items()):
            if why := self.closing.restore_closed(group):
                self.leave_out(uid, ReplicaHealth.CLOSED, why)
                continue
            try:
                replica = open_group(self._opening, group, self.now)
            except CannotOpen as error:
                if error.health is ReplicaHealth.CLOSED:
                    is_defect = isinstance(error.__cause__, Defect)
                    self.closing.close_unopenable(group, str(error), is_defect=is_defect)
                else:
                    self.leave_out(uid, error.health, str(error))
                continue
            self._add(replica)
            if replica.raft.applied_index > replica.commit_saved:
                self._saver.note(replica)
            self.starts.mend(replica)
        self.closing.after_groups_open()
        self.repair.after_groups_open()
        self.log.journal.submit()
        self.owner.started(self.now)

    def _add(self, replica: Replica) -> None:
        self.replicas[replica.uid] = replica
        self.host.add(replica.raft)
        self.starts.note(replica, self.now)
        replica.note_health(self.report)

    def leave_out(
        self, uid: int, health: ReplicaHealth, reason: str, before: str = START, **more: Any
    ) -> None:
        """Note and log that a replica on this disk takes no part."""
        self.not_open[uid] = Unhealthy(health, reason)
        report_health(self.report, uid, before, health, reason, **more)

    def unhealthy(self) -> dict[int, Unhealthy]:
        """Group -> health of each replica on this disk that is not HEALTHY, with the reason."""
        return self.not_open | {
            uid: Unhealthy(one.health, one.health_reason)
            for uid, one in self.replicas.items()
            if not one.raft.health.votes
        }

    @property
    def refused(self) -> dict[int, str]:
        """Group -> why it takes no part, or stands still, for people."""
        found = {uid: one.reason for uid, one in self.not_open.items()}
        for uid, replica in self.replicas.items():
            if problem := replica.repair_problem or replica.catch_up_problem:
                found[uid] = problem
        return found

    def status(self, unhealthy: dict[int, Unhealthy]) -> dict[str, Any]:
        """Return the fields of STATUS that brokers and managers share."""
        states = islice(unhealthy.items(), 1000)
        return {
            "incarnation": self.incarnation,
            "refused": {str(uid): why for uid, why in islice(self.refused.items(), 100)},
            "health": {
                str(uid): {"state": str(health), "reason": why} for uid, (health, why) in states
            },
            "repair": self.repair.status(),
        }

    def wall_ms(self) -> int:
        """Return the time for an entry: the wall clock, but never less than before."""
        self._last_stamp = max(self._last_stamp, self.clock.wall_ms())
        return self._last_stamp

    # -- calls of the owner --------------------------------------------------------------------

    def create(
        self, uid: int, replica: int, voters: Iterable[int], learners: Iterable[int], about: bytes
    ) -> Replica:
        """Create a replica of a group that this daemon does not hold.

        Raises NotReady while another replica of this group is being removed here: reports of the
        journal and the store about that one must not be taken for reports about the new one.
        """
        if uid in self._pending_removals:
            raise errors.NotReady("another replica of this group is being removed from the disk")
        config = t.Config(tuple(voters), tuple(learners))
        made = create_group(self._opening, uid, replica, config, about, self.now)
        self._add(made)
        return made

    def remove(self, uid: int) -> None:
        """Remove a replica from this daemon for good. Call it only on a committed order."""
        self.not_open.pop(uid, None)
        if self.replicas.pop(uid, None) is not None:
            self.host.remove(uid)
        out = self.host.out  # may hold effects of this turn for the group
        out.persist = [one for one in out.persist if one.group != uid]
        name = replica_id_of(self.log.journal.group(uid))
        self._pending_removals[uid] = self.log.journal.remove_group(uid), name
        self._reclaiming.note()
        self.closing.note_removal(uid)
        self._forget_pending(uid)

    def _forget_pending(self, uid: int) -> None:
        """Forget reports that are due for this replica: they say nothing about a later one."""
        self._saver.release(uid)
        self.repair.lost_entries.pop(uid, None)
        self._pending_hard_states = deque(one for one in self._pending_hard_states if one[1] != uid)
        self._pending_snapshots = deque(one for one in self._pending_snapshots if one[1] != uid)
        self._confirmed_reads = {
            context: one for context, one in self._confirmed_reads.items() if one[0] != uid
        }

    def _close_broken(self) -> None:
        """Close the groups that broke an invariant; all other groups go on."""
        broken, self.host.broken = self.host.broken, {}
        for uid, error in broken.items():
            replica = self.replicas.pop(uid, None)
            if replica is None:
                continue
            self._forget_pending(uid)
            self.closing.close(replica, error)
            self.owner.closed(replica)

    def prepare_removal(self, uid: int) -> bool:
        """Keep the segments of a closed replica. False: not done yet; the order comes again."""
        return self.closing.prepare_removal(uid)

    def note_segment_removed(self) -> None:
        """Repair removed a segment, so reclaim may be able to remove others."""
        self._reclaiming.note()

    def propose(self, replica: Replica, items: list[t.Proposal], *, urgent: bool = False) -> int:
        """Propose entries, which leave with the end of the turn. Return the index of the first.

        `urgent` is for small commands: they go on when the disk has no room for messages. Raises
        NotLeader, NotReady, Busy, DiskFull or UnknownPartition.
        """
        if not urgent:
            self.disk.check_room_for_messages()
        node = self.host.touch(replica.uid)
        if node is None:
            raise errors.UnknownPartition("this replica was removed")
        with raft_errors_translated(partial(self.host.mark_broken, replica.uid)):
            return node.propose(items)[0]

    def read(self, replica: Replica, context: int) -> None:
        """Request a linearizable read: `owner.read_ready(context)` says when to answer it.

        It never comes if leadership is lost first; then `owner.changed` does.
        """
        with raft_errors_translated(partial(self.host.mark_broken, replica.uid)):
            self._touch(replica).read(context, self.now, self.host.out)

    def transfer(self, replica: Replica, node: int, *, at_once: bool = False) -> None:
        """Transfer leadership to the voter on that node. Raises NotReady if it can't lead.

        Nothing is proposed until the voter has caught up. `at_once` raises NotReady instead if it
        lags behind.
        """
        for member in replica.raft.config.voters:
            if t.node_of(member) == node:
                if at_once and not replica.raft.leading.is_caught_up(member, self.now):
                    raise errors.NotReady("it lags behind")
                with raft_errors_translated(partial(self.host.mark_broken, replica.uid)):
                    self._touch(replica).transfer(member, self.now, self.host.out)
                return
        raise errors.NotReady(f"no voter of this group is on node {node}")

    def change(self, replica: Replica, config: t.Config) -> None:
        """Propose other members for a group that is led here. Raises NotLeader or NotReady."""
        with raft_errors_translated(partial(self.host.mark_broken, replica.uid)):
            self._touch(replica).change(config, self.now)

    @property
    def removals_in_progress(self) -> dict[int, int]:
        """Group -> id of a removed replica that a restart would still find on the disk."""
        return {uid: name for uid, (_, name) in self._pending_removals.items()}

    def held(self) -> dict[int, int]:
        """Group -> id of each replica that stays on this disk; 0: the log lost its id."""
        out = {uid: replica_id_of(self.log.journal.group(uid)) for uid in self.not_open}
        return out | {uid: replica.replica_id for uid, replica in self.replicas.items()}

    def campaign_soon(self, replica: Replica) -> None:
        replica.campaign_soon(self.now)
        self._touch(replica)

    def _touch(self, replica: Replica) -> Any:
        return self.host.touch(replica.uid) or replica.raft

    def reply(self, client: Client, frames: list[Buffer]) -> None:
        self.wire.reply(client, frames)

    def reply_to_peer(self, peer: Peer, frame: bytes) -> None:
        self.wire.reply_to_peer(peer, frame)

    def check_connected(self, peer: Peer) -> bool:
        """Whether this peer's connection to our peer listener still stands; sends a probe."""
        return self.wire.check_connected(peer.identity)

    def send_to_peer(self, peer: tuple[str, int], frames: list[Buffer]) -> bool:
        return self.wire.send_to_peer(peer, frames)

    def peer_problem(self, peer: tuple[str, int]) -> str:
        """Why nothing can be sent to this peer; "": it can, or there is no connection to it."""
        return self.wire.peer_problem(peer)

    def set_peer_address(self, peer: tuple[str, int], address: str) -> None:
        self.wire.set_peer_address(peer, address)

    # -- events --------------------------------------------------------------------------------

    def begin_turn(self, wait_ms: int) -> None:
        """Compare the time that passed since the last turn with the longest wait for events."""
        if late_ms := self.host.begin_turn(self.now, wait_ms):
            self.disk.note_late(late_ms)

    def receive_packet(self, source: int, envelope: Envelope, frames: list[Buffer]) -> None:
        """Give a packet of a peer to the core; IdentityMismatch if it speaks for another node."""
        if not peerwire.is_from_node(envelope, source):
            raise errors.IdentityMismatch(f"{self.kind} {source} sends for another node")
        try:
            packet = peerwire.decode(envelope, frames)
        except peerwire.MalformedPacket:
            self.counts["peer_packets_malformed_total"] += 1
            return
        for message in packet.repair_messages:
            if isinstance(message, EntriesRequest):
                self.repair.serve_entries(message)
            elif isinstance(message, EntryReply):
                self.repair.receive_entry(message)
        self.host.receive(source, packet, self.now)

    def receive_journal_reports(self) -> None:
        for event in self.log.poll():
            if isinstance(event, Persisted):
                self._persisted(event)
                self.disk.note_activity(is_report=True)
            elif isinstance(event, Stopped):
                self.failure = event.error

    def _persisted(self, event: Persisted) -> None:
        """Pass a report to the core: hard states first, then snapshots, then entries
        (see `raft/DESIGN.md`).
        """
        host, now, out = self.host, self.now, self.host.out
        self.counts.histograms["wal_flush_seconds"].add(event.took_s)
        self.counts["wal_bytes_total"] += event.bytes
        while self._pending_hard_states and self._pending_hard_states[0][0] <= event.batch:
            _, group, term, vote = self._pending_hard_states.popleft()
            host.call(group, RaftNode.hard_state_persisted, term, vote, now, out)
        for uid in [
            uid for uid, (batch, _) in self._pending_removals.items() if batch <= event.batch
        ]:
            del self._pending_removals[uid]
            self.closing.removal_persisted(uid)
        while self._pending_snapshots and self._pending_snapshots[0][0] <= event.batch:
            _, group, index = self._pending_snapshots.popleft()
            if all(one[1] != group for one in self._pending_snapshots):
                self._saver.release(group)
            host.call(group, RaftNode.snapshot_persisted, index, out)
        for group, (term, index) in event.tails.items():
            host.call(group, RaftNode.persisted, term, index, now, out)

    def tick(self) -> None:
        self.host.tick(self.now)
        self.counts["late_turns_total"] = self.host.late_turns
        self.counts["peer_silences_total"] = self.host.silences
        self.disk.tick()
        self._saver.tick(self.now)
        self.starts.tick(self.now)
        self._reclaiming.tick(self.now)
        self._catch_up.tick(self.now)
        self.repair.tick(self.now)
        self.closing.tick(self.now)
        if self._apply_retry_at:
            self._retry_apply()

    # -- the end of a turn ---------------------------------------------------------------------

    def end_turn(self) -> bool:
        """Do what the core asks. True: that made new work, so another turn must follow at once.

        Packets leave before the journal gets its batch, and before plain entries are encoded for
        it: the way to the followers' disks is longer than to our own.
        """
        effects, packets = self.host.end_turn(self.now)
        if self.host.broken:
            self._close_broken()
        has_only_entries = all(type(one) is t.PersistEntries for one in effects.persist)
        if not has_only_entries:
            self._persist(effects.persist)
            if self.host.broken:  # a leader's snapshot could not be restored
                self.host.leave_out(effects, packets)
                self._close_broken()
        if packets:
            self._send(packets)
        if has_only_entries:
            self._persist(effects.persist)
        journal = self.log.journal
        journal.submit()
        if journal.queued_bytes:
            self.disk.note_activity(is_report=False)
        self._has_new_work = bool(effects.fetch)
        for order in effects.apply:
            self._apply(order)
        for fetch in effects.fetch:
            try:
                self._catch_up.fetch(fetch)
            except t.InvariantBroken as error:
                self.host.mark_broken(fetch.group, error)
        if effects.changed or effects.dropped or effects.reads:
            self._notify_owner(effects)
            self._has_new_work = True
        return self._has_new_work or self.host.is_stirred

    def send_repair_messages(self, packets: dict[int, Packet]) -> None:
        """Send packets of repair. They claim nothing that is not on disk."""
        self._send(packets)

    def _send(self, packets: dict[int, Packet]) -> None:
        for target, packet in packets.items():
            peer = (self.kind, target)
            for frames in peerwire.encode(packet, self._rows):
                if not self.wire.send_to_peer(peer, frames):
                    self.counts["peer_packets_dropped_total"] += 1
        self._rows.clear()

    def _persist(self, orders: list[t.Persist]) -> None:
        journal = self.log.journal
        for order in orders:
            if order.group in self.host.broken:
                continue
            if isinstance(order, t.PersistEntries):
                journal.append(order.group, order.entries, urgent=True)
            elif isinstance(order, t.PersistHardState):
                batch = journal.hard_state(*order)
                self._pending_hard_states.append((batch, order.group, order.term, order.vote))
                self.replicas[order.group].note_health(self.report)
            elif isinstance(order, t.PersistTruncate):
                journal.truncate(order.group, order.index, order.term, order.offset, order.chain)
            else:
                self._persist_snapshot(order.group, order.snapshot)

    def _persist_snapshot(self, uid: int, snapshot: t.Snapshot) -> None:
        """Persist a leader's snapshot: its state, unless ours is newer, and the log's new start.

        A state that this machine can't restore never gets into the log.
        """
        replica = self.replicas[uid]
        if replica.raft.applied_index == snapshot.index:
            try:
                replica.restore(snapshot)
            except t.InvariantBroken as error:
                self.host.mark_broken(uid, error)
                return
        journal = self.log.journal
        journal.snapshot(uid, snapshot.index, snapshot.term, snapshot_parts(snapshot))
        batch = journal.start(
            uid,
            snapshot.start_index,
            snapshot.start_term,
            snapshot.start_offset,
            snapshot.start_chain,
            reset=True,
        )
        self._pending_snapshots.append((batch, uid, snapshot.index))
        self.counts["snapshots_installed_total"] += 1
        self._saver.hold(replica)

    def _apply(self, order: t.Apply) -> None:
        replica = self.replicas.get(order.group)
        if replica is not None and order.group not in self.host.broken:
            try:
                done = replica.apply(order)
            except t.InvariantBroken as error:  # entries that contradict the state
                self.host.mark_broken(replica.uid, error)
            else:
                self._after_apply(replica, done)

    def _retry_apply(self) -> None:
        """Apply entries that could not be read before; repair may have fetched them since."""
        for uid in [one for one, when in self._apply_retry_at.items() if when <= self.now]:
            del self._apply_retry_at[uid]
            replica = self.replicas.get(uid)
            if replica is not None and replica.has_unapplied and uid not in self.host.broken:
                try:
                    done = replica.retry_apply()
                except t.InvariantBroken as error:
                    self.host.mark_broken(uid, error)
                else:
                    self._after_apply(replica, done)

    def _after_apply(self, replica: Replica, done: list[tuple[list[t.Entry], list[Any]]]) -> None:
        raft = replica.raft
        for entries, results in done:
            if not replica.is_ready and replica.is_leader and entries[-1][t.TERM] == raft.term:
                replica.is_ready = True  # an entry of its own term, so all before it is applied
                self._has_new_work = True
                self.owner.changed(replica)
            self.owner.applied(replica, entries, results)
        self._saver.note(replica)
        if replica.has_unapplied:
            self._apply_retry_at.setdefault(replica.uid, self.now + APPLY_RETRY_MS)
        if self._confirmed_reads:
            group, last = replica.uid, raft.applied_index
            ready = [
                c
                for c, (of, index) in self._confirmed_reads.items()
                if of == group and index <= last
            ]
            for context in ready:
                del self._confirmed_reads[context]
                self.owner.read_ready(context)

    def _notify_owner(self, effects: t.Effects) -> None:
        for change in effects.changed:
            replica = self.replicas.get(change.group)
            if replica is not None:
                replica.is_ready = replica.is_ready and change.role == t.Role.LEADER
                self.counts["raft_elections_total"] += change.role == t.Role.LEADER
                self.owner.changed(replica)
        for dropped in effects.dropped:
            replica = self.replicas.get(dropped.group)
            if replica is not None:
                self.owner.dropped(replica, dropped.first)
        for ready in effects.reads:
            replica = self.replicas.get(ready.group)
            if replica is None:
                continue
            if replica.raft.applied_index >= ready.index:
                self.owner.read_ready(ready.context)
            else:
                self._confirmed_reads[ready.context] = ready.group, ready.index

    def close(self) -> bool:
        """Save what was applied, then close the log; False if the disk took too long."""
        self._saver.finish()
        return self.log.close()
