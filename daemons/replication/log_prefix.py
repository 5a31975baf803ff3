"""Moves the start of a group's log up, past entries that the state no longer needs.

The machine says from which entry on it needs its log (`start_index`). A partition's moves with the
replicated START entries that retention proposes, so all replicas agree on it; a manager's log may
begin after any applied entry, since the state has it all. The log follows: **first a SNAPSHOT of
the applied state, then the START**. So after any crash there is a state that reaches the start of
the log, also if the store is deleted. Only entries that are applied *and* on our own disk are left
out.

The log may follow late. Each move writes the state once, so it waits until it frees at least as
many bytes as it writes, or for half a minute. The machine refuses messages below the start at once
in any case.
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
    """Moves the starts of logs. Called by the engine, in the loop's thread."""

    def __init__(
        self, log: Log, replicas: dict[int, Replica], counts: DaemonMetrics, host: RaftGroups
    ) -> None:
        self._log, self._replicas, self._counts, self._host = log, replicas, counts, host
        self._waiting: dict[int, int] = {}  # group -> since when
        self._costs: dict[int, int] = {}  # group -> bytes of its last snapshot
        self._gone: dict[int, int] = {}  # group -> the machine's `bytes_gone` at the last move
        self.moved = 0

    def note(self, replica: Replica, now: int) -> None:
        """Entries were applied to this replica, or it was just opened."""
        if replica.machine.start_index > replica.raft.log.first_index:
            self._waiting.setdefault(replica.uid, now)

    def mend(self, replica: Replica) -> None:
        """Replace a snapshot that a crash left incomplete: it would keep all later segments."""
        if self._log.journal.groups.by_uid[replica.uid].pending_from:
            self.write_snapshot(replica)

    def write_snapshot(self, replica: Replica) -> bool:
        """Write a newer snapshot, which replaces the one in the log; False: not possible now."""
        log, applied = replica.raft.log, replica.raft.applied_index
        if replica.is_half_installed or not log.first_index - 1 <= applied <= log.persisted_index:
            return False
        snapshot = self._snapshot(replica)
        if snapshot is None:
            return False
        parts = snapshot_parts(snapshot)
        self._log.journal.snapshot(replica.uid, snapshot.index, snapshot.term, parts)
        return True

    def _snapshot(self, replica: Replica) -> Snapshot | None:
        """Take a snapshot; None: the group is broken, and is closed at the end of the turn."""
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
            if replica is None or replica.machine.start_index <= replica.raft.log.first_index:
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
        """Let the log begin at `index`; False: not possible now, and tried again later."""
        raft, log, journal = replica.raft, replica.raft.log, self._log.journal
        applied = raft.applied_index
        # After a snapshot was installed, the log may not reach the applied index yet.
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
        raft.start_log_at(*place)
        self._costs[replica.uid] = sum(map(len, parts))
        self._gone[replica.uid] = replica.machine.bytes_gone
        self._counts["log_starts_moved_total"] += 1
        self.moved += 1
        return True
