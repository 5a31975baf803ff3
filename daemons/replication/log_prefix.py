"""Where a group's log begins: moved up on this replica's disk, when its state needs no more of it.

A machine says from which entry on it needs its log (`start_index`): a partition's moves with the
replicated START entries that retention proposes, so all replicas agree on it; a manager's log may
begin behind any applied entry, since the state is all there is. Here the log follows: **a SNAPSHOT
of the applied state first, then the START**, in this order, so that whatever a crash leaves, a
state reaches the log's beginning (W20), also if the store is deleted. Only entries that are applied
*and* on the own disk may be left out (R20).

The log may follow late: each move writes the state once, so a large state waits until the move
gives back at least as many bytes as it costs, or for half a minute. Messages below the start are
refused at once in any case; that is the machine's business.
"""

from __future__ import annotations

from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.raft.groups import RaftGroups
from myqueue.daemons.raft.types import InvariantBroken, Snapshot
from myqueue.daemons.replication.open_group import snapshot_parts
from myqueue.daemons.replication.replica import Replica
from myqueue.wal.log import Log

LATEST_MS = 30_000  # after this a move is made, whatever it gives back
MOVES_MAX = 50  # in one tick


class LogPrefix:
    """See the module's docstring."""

    def __init__(
        self, log: Log, replicas: dict[int, Replica], counts: DaemonMetrics, host: RaftGroups
    ) -> None:
        self._log, self._replicas, self._counts, self._host = log, replicas, counts, host
        self._waiting: dict[int, int] = {}  # group -> since when
        self._costs: dict[int, int] = {}  # group -> bytes of its last snapshot
        self._gone: dict[int, int] = {}  # group -> bytes that its machine had let go by then
        self.moved = 0

    def note(self, replica: Replica, now: int) -> None:
        """Something was applied to it, or it is here since a moment ago."""
        if replica.machine.start_index > replica.node.log.first_index:
            self._waiting.setdefault(replica.uid, now)

    def mend(self, replica: Replica) -> None:
        """After a start: a snapshot of which a crash left the first parts only would hold all
        segments from there on; a newer one takes its place.
        """
        if self._log.journal.groups.by_uid[replica.uid].pending_from:
            self.write_snapshot(replica)

    def write_snapshot(self, replica: Replica) -> bool:
        """A newer snapshot, so that the one in the log is needed no more; False: not now."""
        log, applied = replica.node.log, replica.node.applied_index
        if replica.is_half_installed or not log.first_index - 1 <= applied <= log.persisted_index:
            return False
        snapshot = self._snapshot(replica)
        if snapshot is None:
            return False
        parts = snapshot_parts(snapshot)
        self._log.journal.snapshot(replica.uid, snapshot.index, snapshot.term, parts)
        return True

    def _snapshot(self, replica: Replica) -> Snapshot | None:
        """None: the group is broken, and is closed with this turn."""
        if replica.uid in self._host.broken:
            return None
        try:
            return replica.snapshot()
        except InvariantBroken as error:
            self._host.mark_broken(replica.uid, error)
            return None

    def tick(self, now: int) -> None:
        done = 0
        for uid, since in list(self._waiting.items()):
            replica = self._replicas.get(uid)
            if replica is None or replica.machine.start_index <= replica.node.log.first_index:
                self._forget(uid, gone=replica is None)
            elif self._is_worth_it(replica) or now - since >= LATEST_MS:
                done += self.move(replica, replica.machine.start_index)
            if done >= MOVES_MAX:
                return

    def _forget(self, uid: int, *, gone: bool) -> None:
        del self._waiting[uid]
        if gone:
            self._costs.pop(uid, None)
            self._gone.pop(uid, None)

    def _is_worth_it(self, replica: Replica) -> bool:
        gain = replica.machine.bytes_gone - self._gone.get(replica.uid, 0)
        return gain >= self._costs.get(replica.uid, 0)

    def move(self, replica: Replica, index: int) -> bool:
        """Let the log begin at `index`; False if that can't be now: it is asked for again."""
        node, log, journal = replica.node, replica.node.log, self._log.journal
        applied = node.applied_index
        # While the log is filled behind an installed state, it does not reach what is applied.
        if applied > log.persisted_index or not log.first_index < index <= applied + 1:
            return False
        before = self._log.index.row(replica.uid, index - 1)
        if before is None or before.term != log.term(index - 1):
            return False
        snapshot = self._snapshot(replica)
        if snapshot is None:
            return False
        parts = snapshot_parts(snapshot)
        place = (index, before.term, before.offset + before.count, before.chain)
        journal.snapshot(replica.uid, snapshot.index, snapshot.term, parts)
        journal.start(replica.uid, *place)
        node.start_log_at(*place)
        self._costs[replica.uid] = sum(map(len, parts))
        self._gone[replica.uid] = replica.machine.bytes_gone
        self._counts["log_starts_moved_total"] += 1
        self.moved += 1
        return True
