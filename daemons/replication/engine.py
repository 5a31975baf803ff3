"""The groups of one daemon: does what the core asks for, in the order in which it must be done.

In come packets of peers, reports of the journal, calls of the owner (a broker or the managers'
part); out go bytes to the journal, packets to peers, applied entries and news to the owner. It
decides nothing about consensus (the core does) and nothing about meaning (machines and owners do).

A turn ends with `end_turn`: persist ▶ send ▶ submit ▶ apply ▶ tell. Packets leave while the disk
is still writing: nothing in them claims what was not reported (see `raft/DESIGN.md`).

Everything happens in the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from myqueue import errors
from myqueue.daemons.clock import Clock
from myqueue.daemons.interfaces import Client, Owner, Peer, Rival, Wire
from myqueue.daemons.metrics import Counts
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import Host, Packet
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.repair.coordinator import Repair
from myqueue.daemons.replication import packets as peerwire
from myqueue.daemons.replication.catch_up import Serving
from myqueue.daemons.replication.close_group import Closing
from myqueue.daemons.replication.disk_health import DiskWatch
from myqueue.daemons.replication.log_prefix import Starts
from myqueue.daemons.replication.open_group import (
    MakeMachine,
    Opening,
    Refused,
    new_group,
    open_group,
    replica_of,
    snapshot_parts,
)
from myqueue.daemons.replication.reclaim_pace import Reclaiming
from myqueue.daemons.replication.replica import Defect, Replica, refusals
from myqueue.daemons.replication.state_saver import Saver
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.log import Log
from myqueue.wire.protocol import Envelope

BEHIND_MS = 100  # until an entry that could not be read is tried again
Buffer = bytes | memoryview


class Engine:
    """See the module's docstring."""

    def __init__(
        self, kind: str, node: int, incarnation: int, log: Log, settings: t.Settings,
        clock: Clock, random: Random, wire: Wire, owner: Owner,
    ) -> None:  # fmt: skip
        self.kind, self.node, self.incarnation = kind, node, incarnation
        self.log, self.clock, self.wire, self.owner = log, clock, wire, owner
        self.now = clock.now_ms()
        self.counts = Counts()
        self.host = Host(node, incarnation, settings)
        self.replicas: dict[int, Replica] = {}
        self.rivals: dict[tuple[str, int], Rival] = {}  # of daemons that are connected here
        self.refused: dict[int, str] = {}  # groups that can't take part, and why
        self.failure: Exception | None = None  # the daemon has to end
        make: MakeMachine = owner.make_machine
        self._opening = Opening(log, settings, random, self.host.heard, make)
        self.starts = Starts(log, self.replicas, self.counts, self.host)
        self._saver = Saver(log, self.replicas, self.starts, self.host)
        self._reclaiming = Reclaiming(log, self.starts, self.counts)
        self._rows = peerwire.RowCache()
        self._hard_states: deque[tuple[int, int, int, int]] = deque()  # batch, group, term, vote
        self._snapshots: deque[tuple[int, int, int]] = deque()  # batch, group, index
        self._reads: dict[int, tuple[int, int]] = {}  # context -> group and index, once confirmed
        # group -> batch with the record of its removal, and id of the replica that goes
        self._removing: dict[int, tuple[int, int]] = {}
        self._behind: dict[int, int] = {}  # group -> when to apply what could not be read
        self._serving = Serving(self)
        self.disk = DiskWatch(self)
        self.repair = Repair(self)
        self.closing = Closing(self)
        self.scrub_bytes_per_s = 0  # 0: nobody looks for damage by himself
        self.fill_bytes_per_s = 0  # sent to new replicas; 0: as fast as it goes
        self.report: Callable[..., None] = lambda *_, **__: None  # a line for people
        self._stirred = False
        self._last_stamp = 0
        owner.attach(self)

    def open_groups(self) -> None:
        """After recovery: every group that was here before."""
        self.repair.before_groups_open()
        self.closing.before_groups_open()
        for uid, group in sorted(self.log.journal.groups.by_uid.items()):
            if why := self.closing.was_closed(group):
                self.refused[uid] = why
                continue
            try:
                replica = open_group(self._opening, group, self.now)
            except Refused as error:
                self.refused[uid] = str(error)
                if isinstance(cause := error.__cause__, t.Broken):
                    is_defect = isinstance(cause, Defect)
                    self.closing.contradicts_itself(group, str(error), is_defect=is_defect)
                continue
            self._add(replica)
            if replica.node.applied_index > replica.commit_saved:
                self._saver.note(replica)
            self.starts.mend(replica)
        self.closing.groups_are_open()
        self.repair.groups_are_open()
        self.log.journal.submit()
        self.owner.started(self.now)

    def _add(self, replica: Replica) -> None:
        self.replicas[replica.uid] = replica
        self.host.add(replica.node)
        self.starts.note(replica, self.now)

    def wall_ms(self) -> int:
        """For stamps in entries: never less than the last one."""
        self._last_stamp = max(self._last_stamp, self.clock.wall_ms())
        return self._last_stamp

    # -- calls of the owner --------------------------------------------------------------------

    def create(
        self, uid: int, replica: int, voters: Iterable[int], learners: Iterable[int], about: bytes
    ) -> Replica:
        """Refused while another replica of this group is being removed here: what the journal and
        the store are still told of that one must not be taken for news of this one (W11, W13).
        """
        if uid in self._removing:
            raise errors.NotReady("another replica of this group is being removed from the disk")
        config = t.Config(tuple(voters), tuple(learners))
        made = new_group(self._opening, uid, replica, config, about, self.now)
        self._add(made)
        return made

    def remove(self, uid: int) -> None:
        """A replica is gone for good from this daemon; only on a committed order (W6)."""
        self.refused.pop(uid, None)
        if self.replicas.pop(uid, None) is not None:
            self.host.remove(uid)
        out = self.host.out  # what came for it in this turn
        out.persist = [one for one in out.persist if one.group != uid]
        name = replica_of(self.log.journal.group(uid))
        self._removing[uid] = self.log.journal.remove_group(uid), name
        self._reclaiming.note()
        self.closing.removed(uid)
        self._expect_nothing(uid)

    def _expect_nothing(self, uid: int) -> None:
        """What is on its way for a replica that is not here any more is no news of another one."""
        self._saver.let_go(uid)
        self._hard_states = deque(one for one in self._hard_states if one[1] != uid)
        self._snapshots = deque(one for one in self._snapshots if one[1] != uid)
        self._reads = {context: one for context, one in self._reads.items() if one[0] != uid}

    def _close_broken(self) -> None:
        """Groups that found an invariant broken take no part any more; the others go on."""
        broken, self.host.broken = self.host.broken, {}
        for uid, error in broken.items():
            replica = self.replicas.pop(uid, None)
            if replica is None:
                continue
            self._expect_nothing(uid)
            self.refused[uid] = self.closing.close(replica, error).why
            self.owner.closed(replica)

    def may_remove(self, uid: int) -> bool:
        """False while something of it is still to be kept; the order comes again."""
        return self.closing.may_go(uid)

    def segment_is_gone(self) -> None:
        """By repair: others may have stayed for it alone."""
        self._reclaiming.note()

    def propose(self, replica: Replica, items: list[t.Item], *, urgent: bool = False) -> int:
        """Index of the first of these entries; they are on their way with the end of the turn.

        Small commands are `urgent`: they go on when there is no room for messages (W15).
        """
        if not urgent:
            self.disk.check_room()
        node = self.host.touch(replica.uid)
        if node is None:
            raise errors.UnknownPartition("this replica was removed")
        with refusals(partial(self.host.breaks, replica.uid)):
            return node.propose(items)[0]

    def read(self, replica: Replica, context: int) -> None:
        """`read_ready(context)` comes when a linearizable read may be answered (R10)."""
        with refusals(partial(self.host.breaks, replica.uid)):
            self._touch(replica).read(context, self.now, self.host.out)

    def transfer(self, replica: Replica, node: int, *, at_once: bool = False) -> None:
        """Hand leadership to the voter on that node; raises NotReady if it can't lead, or has
        to catch up before it can and that must be `at_once`: nothing is proposed meanwhile.
        """
        for member in replica.node.config.voters:
            if t.node_of(member) == node:
                if at_once and not replica.node.leading.is_whole(member, self.now):
                    raise errors.NotReady("it lags behind")
                with refusals(partial(self.host.breaks, replica.uid)):
                    self._touch(replica).transfer(member, self.now, self.host.out)
                return
        raise errors.NotReady(f"no voter of this group is on node {node}")

    def change(self, replica: Replica, config: t.Config) -> None:
        """Propose other members of a group that is led here; raises NotLeader or NotReady."""
        with refusals(partial(self.host.breaks, replica.uid)):
            self._touch(replica).change(config, self.now)

    @property
    def going(self) -> dict[int, int]:
        """Group -> replica id of what was removed, but not on the disk yet: a start finds it."""
        return {uid: name for uid, (_, name) in self._removing.items()}

    def held(self) -> dict[int, int]:
        """Group -> replica id of all that stays on this disk; 0: nobody can tell any more."""
        out = {uid: replica_of(self.log.journal.group(uid)) for uid in self.refused}
        return out | {uid: replica.replica_id for uid, replica in self.replicas.items()}

    def campaign_soon(self, replica: Replica) -> None:
        replica.campaign_soon(self.now)
        self._touch(replica)

    def _touch(self, replica: Replica) -> Any:
        return self.host.touch(replica.uid) or replica.node

    def reply(self, client: Client, frames: list[Buffer]) -> None:
        self.wire.reply(client, frames)

    def peer_reply(self, peer: Peer, frame: bytes) -> None:
        self.wire.peer_reply(peer, frame)

    def stands(self, peer: Peer) -> bool:
        """Whether the connection by which this peer was heard still stands."""
        return self.wire.stands(peer.identity)

    def link_send(self, peer: tuple[str, int], frames: list[Buffer]) -> bool:
        return self.wire.link_send(peer, frames)

    def link_trouble(self, peer: tuple[str, int]) -> str:
        """Why nothing can be sent to this peer; "": it can, or there is no such link."""
        return self.wire.link_trouble(peer)

    def set_peer(self, peer: tuple[str, int], address: str) -> None:
        self.wire.set_peer(peer, address)

    # -- events --------------------------------------------------------------------------------

    def packet(self, source: int, envelope: Envelope, frames: list[Buffer]) -> None:
        try:
            packet = peerwire.decode(envelope, frames)
        except peerwire.Malformed:
            self.counts["peer_packets_malformed_total"] += 1
            return
        for message in packet.beside:
            if isinstance(message, peerwire.Lack):
                self.repair.asked(message)
            elif isinstance(message, peerwire.Have):
                self.repair.given(message)
        self.host.receive(source, packet, self.now)

    def journal_news(self) -> None:
        for event in self.log.poll():
            if isinstance(event, Persisted):
                self._persisted(event)
                self.disk.works(reported=True)
            elif isinstance(event, Stopped):
                self.failure = event.error

    def _persisted(self, event: Persisted) -> None:
        """Hard states of a report first, then snapshots, then entries (`raft/DESIGN.md`)."""
        host, now, out = self.host, self.now, self.host.out
        self.counts.histograms["wal_flush_seconds"].add(event.took_s)
        self.counts["wal_bytes_total"] += event.bytes
        while self._hard_states and self._hard_states[0][0] <= event.batch:
            _, group, term, vote = self._hard_states.popleft()
            host.call(group, RaftNode.hard_state_persisted, term, vote, now, out)
        for uid in [uid for uid, (batch, _) in self._removing.items() if batch <= event.batch]:
            del self._removing[uid]
            self.closing.is_gone(uid)
        while self._snapshots and self._snapshots[0][0] <= event.batch:
            _, group, index = self._snapshots.popleft()
            if all(one[1] != group for one in self._snapshots):
                self._saver.let_go(group)
            host.call(group, RaftNode.snapshot_persisted, index, out)
        for group, (term, index) in event.tails.items():
            host.call(group, RaftNode.persisted, term, index, now, out)

    def tick(self) -> None:
        self.host.tick(self.now)
        self.disk.tick()
        self._saver.tick(self.now)
        self.starts.tick(self.now)
        self._reclaiming.tick(self.now)
        self._serving.tick(self.now)
        self.repair.tick(self.now)
        self.closing.tick(self.now)
        if self._behind:
            self._apply_rest()

    # -- the end of a turn ---------------------------------------------------------------------

    def end_turn(self) -> bool:
        """Do what the core asks; True if something new came of it, for another turn at once.

        Packets leave before the journal gets its batch: the followers' way to their disks is longer
        than ours, and the writer that wakes up takes the interpreter away from who sends.
        """
        effects, packets = self.host.end_turn(self.now)
        if self.host.broken:
            self._close_broken()
        if effects.persist:
            self._persist(effects.persist)
            if self.host.broken:  # by its leader's snapshot
                self.host.leave_out(effects, packets)
                self._close_broken()
        if packets:
            self._send(packets)
        journal = self.log.journal
        journal.submit()
        if journal.queued_bytes:
            self.disk.works(reported=False)
        self._stirred = bool(effects.fetch)
        for order in effects.apply:
            self._apply(order)
        for fetch in effects.fetch:
            try:
                self._serving.fetch(fetch)
            except t.Broken as error:
                self.host.breaks(fetch.group, error)
        if effects.changed or effects.dropped or effects.reads:
            self._tell(effects)
            self._stirred = True
        return self._stirred or self.host.is_stirred

    def send_beside(self, packets: dict[int, Packet]) -> None:
        """What is not of the core; it claims nothing that is not on disk."""
        self._send(packets)

    def _send(self, packets: dict[int, Packet]) -> None:
        for target, packet in packets.items():
            peer = (self.kind, target)
            for frames in peerwire.encode(packet, self._rows):
                if not self.wire.link_send(peer, frames):
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
                self._hard_states.append((batch, order.group, order.term, order.vote))
            elif isinstance(order, t.PersistTruncate):
                journal.truncate(order.group, order.index, order.term, order.offset, order.chain)
            else:
                self._install(order.group, order.snapshot)

    def _install(self, uid: int, snapshot: t.Snapshot) -> None:
        """A leader's snapshot: its state, unless ours is newer, and the log's new start. Nothing of
        a state that this machine can't take over gets into the log.
        """
        replica = self.replicas[uid]
        if replica.node.applied_index == snapshot.index:
            try:
                replica.restore(snapshot)
            except t.Broken as error:
                self.host.breaks(uid, error)
                return
        journal = self.log.journal
        journal.snapshot(uid, snapshot.index, snapshot.term, snapshot_parts(snapshot))
        batch = journal.start(
            uid, snapshot.start_index, snapshot.start_term, snapshot.start_offset,
            snapshot.start_chain, reset=True,
        )  # fmt: skip
        self._snapshots.append((batch, uid, snapshot.index))
        self.counts["snapshots_installed_total"] += 1
        self._saver.hold(replica)

    def _apply(self, order: t.Apply) -> None:
        replica = self.replicas.get(order.group)
        if replica is not None and order.group not in self.host.broken:
            try:
                done = replica.apply(order)
            except t.Broken as error:  # entries that do not fit to the state
                self.host.breaks(replica.uid, error)
            else:
                self._applied(replica, done)

    def _apply_rest(self) -> None:
        """What could not be read when its turn came, and may be there again
        (`repair/coordinator`)."""
        for uid in [one for one, when in self._behind.items() if when <= self.now]:
            del self._behind[uid]
            replica = self.replicas.get(uid)
            if replica is not None and replica.is_behind and uid not in self.host.broken:
                try:
                    done = replica.apply_rest()
                except t.Broken as error:
                    self.host.breaks(uid, error)
                else:
                    self._applied(replica, done)

    def _applied(self, replica: Replica, done: list[tuple[list[t.Entry], list[Any]]]) -> None:
        node = replica.node
        for entries, results in done:
            if not replica.is_ready and replica.is_leader and entries[-1][t.TERM] == node.term:
                replica.is_ready = True  # an entry of the own term: all before it is applied
                self._stirred = True
                self.owner.changed(replica)
            self.owner.applied(replica, entries, results)
        self._saver.note(replica)
        if replica.is_behind:
            self._behind.setdefault(replica.uid, self.now + BEHIND_MS)
        if self._reads:
            group, last = replica.uid, node.applied_index
            ready = [c for c, (of, index) in self._reads.items() if of == group and index <= last]
            for context in ready:
                del self._reads[context]
                self.owner.read_ready(context)

    def _tell(self, effects: t.Effects) -> None:
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
            if replica.node.applied_index >= ready.index:
                self.owner.read_ready(ready.context)
            else:
                self._reads[ready.context] = ready.group, ready.index

    def close(self) -> bool:
        """Save what was applied, then let go of the log; False if the disk took too long."""
        self._saver.finish()
        return self.log.close()
