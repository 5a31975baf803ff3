"""One raft group on this daemon: its Raft node, its state machine, and where its entries are.

The engine owns replicas and calls them in the loop's thread. A replica reads entries (from memory,
else from the log on disk), applies committed ones, and returns the rows of state to save. The owner
keeps track of the requests that wait for proposals.

Invariant: the machine has applied exactly up to `raft.applied_index`. State is saved only in one
transaction with the applied index that it belongs to, and never ahead of the log on our own disk.

A committed entry that can't be read holds up applying, nothing else: the
replica `is_behind` what it was told to apply until `repair/coordinator` has brought the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.health import START, ReplicaHealth, may_follow
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.state_machine import RowChanges, StateMachine
from myqueue.errors import (
    CorruptData,
    DiskFull,
    EntryMissing,
    JournalStopped,
    NotLeader,
    NotReady,
    StoreBroken,
)
from myqueue.wal.read.reader import Entry as Stored
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.wal.log import Log

CONFIG_KEY = b"\xffconfig"  # a row like the machine's: the members at the applied index
APPLY_BYTES = 4 << 20  # read from disk at a time when applying lags behind memory
READ_ROWS_MAX = 1024
Report = Callable[..., None]  # writes to the event log: level, event, fields
_LEVELS = {
    ReplicaHealth.HEALTHY: "info",
    ReplicaHealth.REPAIRING: "warning",
    ReplicaHealth.RECOVERING: "warning",
}
# Errors of the whole process or its disk: they end the daemon and close no group.
OF_ALL = (OSError, MemoryError, JournalStopped, DiskFull, StoreBroken)


class Defect(t.InvariantBroken):
    """One group's machine can't apply what is in the log, or can't give its state.

    No other replica contradicts the group: another version, or the next start, may open it.
    """


class Replica:
    """One raft group on this daemon."""

    __slots__ = (
        "about",
        "apply_to",
        "catch_up_problem",
        "commit_saved",
        "dirty",
        "is_ready",
        "log",
        "machine",
        "noted_health",
        "raft",
        "recovery_problem",
        "repair_problem",
        "saved_config",
        "uid",
    )

    def __init__(self, raft: RaftNode, machine: StateMachine, about: bytes, log: Log) -> None:
        self.uid, self.raft, self.machine = raft.group, raft, machine
        self.about, self.log = about, log
        self.is_ready = False  # it leads, and an entry of its own term is applied
        self.apply_to = 0  # index of the last entry to apply
        self.dirty = False  # applied since the last save
        self.commit_saved = raft.commit_index  # the last commit hint in the log
        self.saved_config: t.Config | None = None
        # What can't be read here is not expected back soon (`repair/coordinator`); "": it is.
        self.repair_problem = ""
        self.catch_up_problem = ""  # why the leader can't serve a follower (`catch_up`)
        self.recovery_problem = ""  # why its recovery can't end (`broker/rebuilds`)
        self.noted_health: str = START

    @property
    def health(self) -> ReplicaHealth:
        """The core's state, and whether it is expected to end by itself."""
        health = self.raft.health
        if health is ReplicaHealth.REPAIRING and self.repair_problem:
            return ReplicaHealth.REPAIR_STALLED
        if health is ReplicaHealth.RECOVERING and self.recovery_problem:
            return ReplicaHealth.RECOVERY_STALLED
        return health

    @property
    def health_reason(self) -> str:
        """Why its health does not get better by itself; "": it does."""
        health = self.health
        if health is ReplicaHealth.RECOVERY_STALLED:
            return self.recovery_problem
        return self.repair_problem if health is ReplicaHealth.REPAIR_STALLED else ""

    def note_health(self, report: Report) -> None:
        """Log a change of health. Call it after each change of a fact that it is made from."""
        before, after = self.noted_health, self.health
        self.noted_health = after
        if after != before and (before, after) != (START, ReplicaHealth.HEALTHY):
            report_health(report, self.uid, before, after, self.health_reason)

    @property
    def is_leader(self) -> bool:
        return self.raft.role == t.Role.LEADER

    @property
    def leader_node(self) -> int:
        return t.node_of(self.raft.leader)

    @property
    def replica_id(self) -> int:
        return self.raft.replica

    @property
    def is_half_installed(self) -> bool:
        """Whether a snapshot came in this turn: the core is at its index already, and the machine
        gets its state at the end of the turn. State and index must not be saved before they match.
        """
        return self.machine.applied_index != self.raft.applied_index

    # -- reading -------------------------------------------------------------------------------

    def read(self, first: int, last: int, max_bytes: int) -> list[t.Entry]:
        """Return consecutive entries from `first`: at least one, then up to the limits.

        They come from memory if the first one is there, else from disk, where each is verified.
        Raises EntryMissing if there is no such entry; for one that can't be read NotReady while
        it is being repaired, and CorruptData after repair has stalled.
        """
        log = self.raft.log
        if first >= log.memory_first:
            if first > min(last, log.last_index):
                raise EntryMissing(f"group {self.uid:x} has no entry {first}")
            entries, _ = log.portion(first, max_bytes, last - first + 1)
            return entries
        if first < log.first_index:
            raise EntryMissing(f"entry {first} of group {self.uid:x} is gone")
        last = min(last, log.memory_first - 1, first + READ_ROWS_MAX - 1)
        try:
            stored = self.log.reader.entries(self.uid, first, last, max_bytes)
        except CorruptData as error:
            if self.repair_problem:
                raise
            raise NotReady(f"it is being repaired: {error}", component=error.component) from error
        return [as_entry(one) for one in stored]

    def index_at_offset(self, offset: int) -> int | None:
        """Return the index of the entry that holds this message; None: there is none (yet)."""
        log = self.raft.log
        if offset >= log.next_offset or offset < log.start_offset:
            return None
        index = log.index_at_offset(offset)
        if index is not None:
            return index
        row = self.log.index.row_at_offset(self.uid, offset)
        return None if row is None else row.index

    def entry_at_offset(self, offset: int) -> t.Entry:
        index = self.index_at_offset(offset)
        if index is None:
            raise EntryMissing(f"group {self.uid:x} has no message at offset {offset}")
        return self.read(index, index, 1)[0]

    def offset_at_time(self, time_ms: int) -> int | None:
        """Return the offset of the first message with a time of at least `time_ms`, or None.

        The search is over offsets, not indexes: entries without messages may have no time.
        """
        log, row_at = self.raft.log, self.log.index.row_at_offset
        low = high = log.start_offset
        last = self.machine.applied_index
        if last >= log.first_index:
            entry = self.read(last, last, 1)[0]
            high = entry[t.OFFSET] + entry[t.COUNT]
        end = high
        while low < high:
            row = row_at(self.uid, (low + high) // 2)
            if row is None:
                raise EntryMissing(f"group {self.uid:x} has a gap between {low} and {high}")
            if row.time_ms >= time_ms:
                high = row.offset
            else:
                low = row.offset + row.count
        return None if low >= end else low

    def where(self, offset: int) -> dict[str, Any]:
        """Describe for people where one message is: segment, bytes, index and term."""
        index = self.index_at_offset(offset)
        row = None if index is None else self.log.index.row(self.uid, index)
        if row is None:
            raise EntryMissing(f"group {self.uid:x} has no message at offset {offset} on disk")
        named = self.log.journal.segment_name(row.segment)
        return {
            "group": self.uid,
            "offset": offset,
            "index": row.index,
            "term": row.term,
            "segment": named[0] if named else "",
            "position": row.position,
            "length": row.length,
            "batch_offset": row.offset,
            "batch_count": row.count,
            "time_ms": row.time_ms,
            "committed": row.index <= self.raft.commit_index,
        }

    # -- applying ------------------------------------------------------------------------------

    def apply(self, order: t.Apply) -> list[tuple[list[t.Entry], list[Any]]]:
        """Apply committed entries, in portions if they are read from disk; return the results."""
        follows = order.first == self.raft.applied_index + 1
        self.apply_to = order.last
        return self._apply(order.entries if follows else None)

    @property
    def has_unapplied(self) -> bool:
        """Whether a committed entry could not be read when it was to be applied."""
        return self.apply_to > self.raft.applied_index

    def retry_apply(self) -> list[tuple[list[t.Entry], list[Any]]]:
        """Go on applying: entries that could not be read may be back."""
        return self._apply(None)

    def _apply(self, entries: list[t.Entry] | None) -> list[tuple[list[t.Entry], list[Any]]]:
        done: list[tuple[list[t.Entry], list[Any]]] = []
        at = self.raft.applied_index + 1
        while at <= self.apply_to:
            if entries is None:
                try:
                    entries = self.read(at, self.apply_to, APPLY_BYTES)
                except (CorruptData, NotReady):
                    break  # the reader has noted it, for `repair/coordinator`
                except EntryMissing as error:
                    raise t.InvariantBroken(
                        f"a committed entry is not here: {error}", at
                    ) from error
            done.append((entries, self._applied(entries)))
            at, entries = entries[-1][t.INDEX] + 1, None
        if done:
            self.raft.applied(at - 1)
            self.dirty = True
        return done

    def _applied(self, entries: list[t.Entry]) -> list[Any]:
        first, last = entries[0][t.INDEX], entries[-1][t.INDEX]
        with of_one_group(f"entries {first}..{last} can't be applied", first):
            results = self.machine.apply(entries)
        return results

    def restore(self, snapshot: t.Snapshot) -> None:
        """Replace the machine's state by the leader's snapshot."""
        with of_one_group(f"the state at {snapshot.index} can't be taken over", snapshot.index):
            self.machine.restore(snapshot.state)

    def saved(self) -> RowChanges:
        """Take the rows to save now: the machine's, and the configuration if it changed."""
        with of_one_group("its state can't be saved"):
            puts, deletes = self.machine.take_changes()
        config = self.raft.configs.at(self.raft.applied_index)
        if config is not self.saved_config:
            self.saved_config = config
            puts[CONFIG_KEY] = protocol.pack([config.voters, config.learners])
        self.dirty = False
        return puts, deletes

    def snapshot(self) -> t.Snapshot:
        log, applied = self.raft.log, self.raft.applied_index
        with of_one_group("its state can't be packed"):
            state = self.machine.snapshot()
        return t.Snapshot(
            applied,
            log.term(applied),
            self.raft.configs.at(applied),
            log.first_index,
            log.start_term,
            log.start_offset,
            log.start_chain,
            state,
        )

    # -- leadership ----------------------------------------------------------------------------

    def campaign_soon(self, now: int) -> None:
        """Campaign without waiting for an election timeout: this is the preferred leader."""
        self.raft.stand_soon(now)

    def best_successor(self, now: int) -> int:
        """Return the node of the reachable voter with most of our log; 0: there is none."""
        if not self.is_leader:
            return 0
        raft = self.raft
        known = raft.leading.followers
        able = [
            one
            for one in raft.config.voters
            if one in known and not known[one].is_unhealthy and raft.is_heard(one, now)
        ]
        if not able:
            return 0
        return t.node_of(max(able, key=lambda one: (known[one].match_index, -one)))


def report_health(
    report: Report, uid: int, before: str, after: ReplicaHealth, reason: str, **more: Any
) -> None:
    """Log that the health of a replica changed: with another event if that can't be (a bug)."""
    event = "replica-health-changed" if may_follow(before, after) else "replica-health-impossible"
    report(
        _LEVELS.get(after, "error"),
        event,
        always=after is ReplicaHealth.CLOSED,
        group=f"{uid:x}",
        **{"from": str(before), "to": str(after)},
        reason=reason,
        **more,
    )


def as_entry(stored: Stored) -> t.Entry:
    record = stored.record
    return (
        record.index,
        record.term,
        record.offset,
        record.count,
        record.time_ms,
        record.entry_type,
        record.chain,
        stored.payload,
    )


@contextmanager
def of_one_group(what: str, index: int = 0) -> Iterator[None]:
    """Turn an exception of one group's machine into a `Defect`; pass on those of `OF_ALL`."""
    try:
        yield
    except (t.InvariantBroken, *OF_ALL):
        raise
    except Exception as error:
        raise Defect(f"{what}: {error!r}", index) from error


@contextmanager
def raft_errors_translated(broke: Callable[[t.InvariantBroken], None]) -> Iterator[None]:
    """Translate the core's errors into those of `myqueue.errors`. `broke` closes the group."""
    try:
        yield
    except t.NotLeader as error:
        raise NotLeader(str(error)) from None
    except t.RaftError as error:
        raise NotReady(str(error)) from None
    except t.InvariantBroken as error:
        broke(error)
        raise NotReady(f"this replica is being closed: {error}") from None
