"""Saves applied state to the store, some times a second instead of at every entry.

The rows that a machine changed are saved in one transaction with the applied index they belong to.
After a crash, a restart applies entries again from the saved index on.

Commit hints go into the log: how far a group is known to be committed, for a start without peers
and for tools that read segments. When a group falls quiet, when the daemon ends, and after a start,
every applied entry gets a hint. The log keeps the newest hint of each group as it keeps its vote.

The memory of applied entries is bounded here over all groups: each group bounds its own, but there
may be thousands.

Nothing is saved of a broken group: its machine may have stopped in the middle of an entry, and a
later start would take that for the state at an index.
"""

from __future__ import annotations

from myqueue.daemons.raft.groups import RaftGroups
from myqueue.daemons.raft.types import InvariantBroken
from myqueue.daemons.replication.log_prefix import LogPrefix
from myqueue.daemons.replication.replica import Replica
from myqueue.wal.log import Log

SAVE_EVERY_MS = 500  # a commit of the store syncs, and the log waits for the disk behind it
BOUND_EVERY_MS = 150
HINT_EVERY_MS = 1000
MEMORY_BYTES_MAX = 64 << 20  # entries in memory, all groups of a daemon together
KEEP_BYTES = 256 << 10  # of one group, when memory is short


class StateSaver:
    """Saves state and commit hints of all groups. Called by the engine, in the loop's thread."""

    def __init__(
        self, log: Log, replicas: dict[int, Replica], starts: LogPrefix, host: RaftGroups
    ) -> None:
        self._log, self._replicas, self._starts, self._host = log, replicas, starts, host
        self._dirty: dict[int, None] = {}
        self._hints: dict[int, None] = {}
        self._held: set[int] = set()  # their snapshot is not in the log yet
        self._next_save = self._next_bound = self._next_hint = 0
        self._may_exceed = False  # entries came since memory was bounded

    def note(self, replica: Replica) -> None:
        """Entries were applied to this replica."""
        self._dirty[replica.uid] = None
        self._may_exceed = True

    def tick(self, now: int) -> None:
        if now >= self._next_save and self._dirty:
            self._next_save = now + SAVE_EVERY_MS
            self._hints |= self._dirty
            self._note_starts(now)
            self.save_all()
        if now >= self._next_bound and self._may_exceed:
            self._next_bound, self._may_exceed = now + BOUND_EVERY_MS, False
            self._bound_memory()
        if now >= self._next_hint and self._hints:
            self._next_hint = now + HINT_EVERY_MS
            self._hint()

    def _note_starts(self, now: int) -> None:
        for uid in self._dirty:
            replica = self._of(uid)
            if replica is not None:
                self._starts.note(replica, now)

    def _of(self, uid: int) -> Replica | None:
        return None if uid in self._host.broken else self._replicas.get(uid)

    def save_all(self) -> None:
        """Save all groups that have unsaved state, in one transaction."""
        states, later = {}, dict[int, None]()
        for uid in self._dirty:
            replica = self._of(uid)
            if uid in self._held or (replica is not None and replica.is_half_installed):
                later[uid] = None
            elif replica is not None:
                try:
                    states[uid] = (replica.raft.applied_index, *replica.saved())
                except InvariantBroken as error:
                    self._host.mark_broken(uid, error)
        self._dirty = later
        if states:
            self._log.index.apply(states)

    def finish(self) -> None:
        """Save state and hints of all that was applied, at the end of the daemon."""
        self._hints |= self._dirty
        self.save_all()
        if self._log.journal.error is None:
            self._hint()

    def hold(self, replica: Replica) -> None:
        """Save nothing of this replica until its installed snapshot is on the disk (`release`)."""
        self._held.add(replica.uid)
        self.note(replica)

    def release(self, uid: int) -> None:
        self._held.discard(uid)

    def _hint(self) -> None:
        hints, self._hints = self._hints, {}
        for uid in hints:
            replica = self._of(uid)
            if replica is None or replica.raft.applied_index <= replica.commit_saved:
                continue
            if replica.is_half_installed:  # its hint would come before the snapshot
                self._hints[uid] = None
                continue
            replica.commit_saved = replica.raft.applied_index
            self._log.journal.commit_hint(uid, replica.commit_saved)

    def _bound_memory(self) -> None:
        replicas = self._replicas.values()
        if sum(one.raft.log.memory_bytes for one in replicas) <= MEMORY_BYTES_MAX:
            return
        for replica in replicas:
            raft = replica.raft
            done = min(raft.applied_index, raft.commit_index, raft.log.persisted_index)
            raft.log.shrink(KEEP_BYTES, done)
