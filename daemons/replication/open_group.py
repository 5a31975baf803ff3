"""Opens the groups that the log recovered at a start, or says why one can't take part.

In: the groups of the journal, the store's rows, the entries. Out: a `Replica` for each group that
may take part; for each other one `CannotOpen` with the reason, which `myq health` shows. The rules:

1. *doubtful* (any record may be missing, the newest vote too): the replica is not opened. It may
   have forgotten a vote, so it must come back under a new replica id, which only managers give.
2. *damaged*: all of its log is read. Unreadable entries that are applied, so committed, are left to
   `repair/coordinator`; the replica is *repairing* until they are back. An unreadable or missing
   entry that is not applied is cut off with all entries after it, and comes from the peers again.
   Then the replica is *recovering* until it has all that it acknowledged. In both states it neither
   votes nor leads.
3. The machine is loaded from the store, or from a newer snapshot, and then applies what the log
   knows to be committed. So a daemon without peers serves old reads, and a deleted store is
   rebuilt.
4. If a snapshot can't be read, or the log does not reach back to the state, the replica is not
   opened.
5. A group that can't be opened for any other reason is left out alone. Errors of the disk, the
   store and memory concern all groups, and end the start.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.replication.replica import (
    APPLY_BYTES,
    CONFIG_KEY,
    Defect,
    Replica,
    as_entry,
    of_one_group,
)
from myqueue.daemons.state_machine import StateMachine
from myqueue.errors import CorruptData, EntryMissing, MyQueueError
from myqueue.wal.groups import Group
from myqueue.wal.log import Log
from myqueue.wire import protocol

SNAPSHOT_PART_BYTES = 1 << 20
MakeStateMachine = Callable[[int, bytes], StateMachine]  # (group, about) -> an empty machine


class GroupContext(NamedTuple):
    """Things that all groups of a daemon share."""

    log: Log
    settings: t.RaftSettings
    random: Random
    alive_until: dict[int, int]
    make_state_machine: MakeStateMachine


class CannotOpen(Exception):
    """This replica can't be opened; the text says why."""

    def __init__(self, health: ReplicaHealth, reason: str) -> None:
        super().__init__(reason)
        self.health = health


def pack_group_description(replica: int, config: t.Config, about: bytes) -> bytes:
    """Pack what the journal records when a group is created."""
    return protocol.pack([replica, config.voters, config.learners, about])


def replica_id_of(group: Group) -> int:
    """Return the id of the replica whose log this is; 0: the record is lost."""
    try:
        return int(protocol.unpack(group.created)[0]) if group.created is not None else 0
    except (ValueError, TypeError, IndexError):
        return 0


def open_group(opening: GroupContext, group: Group, now: int) -> Replica:
    """Open a group that the log recovered. Raises CannotOpen."""
    if group.doubtful or group.created is None:
        raise CannotOpen(
            ReplicaHealth.VOTE_LOST,
            "records of it may be missing, its newest vote too; it needs a new replica",
        )
    try:
        return _open(opening, group, group.created, now)
    except (CorruptData, EntryMissing) as error:
        reason = f"what it needs to start can't be read: {error}"
        raise CannotOpen(ReplicaHealth.UNREADABLE, reason) from error
    except Defect as error:
        raise CannotOpen(ReplicaHealth.CLOSED, f"it can't be opened: {error}") from error
    except t.InvariantBroken as error:  # one group must not keep all others from starting
        reason = f"its state and its log do not fit together: {error}"
        raise CannotOpen(ReplicaHealth.CLOSED, reason) from error
    except (CannotOpen, MyQueueError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = f"it can't be opened: {error!r}"
        raise CannotOpen(ReplicaHealth.CLOSED, reason) from Defect(repr(error))


def _open(opening: GroupContext, group: Group, created: bytes, now: int) -> Replica:
    log = opening.log
    replica, voters, learners, about = protocol.unpack(created)
    configs = ConfigHistory(0, t.Config(tuple(voters), tuple(learners)))
    machine = opening.make_state_machine(group.uid, about)
    saved_config = _load_state(log, group, machine, configs)
    if machine.applied_index < group.first_index - 1:
        reason = f"its state ends before its log begins at {group.first_index}"
        raise CannotOpen(ReplicaHealth.UNREADABLE, reason)
    if (
        group.damaged
        or group.incomplete
        or group.lacking
        or not _is_last_entry_readable(log, group)
    ):
        _cut_unreadable(log, group, machine.applied_index)
    _apply_committed(log, group, machine, configs)
    raft_log = _make_raft_log(log, group)
    node = RaftNode(
        group.uid,
        replica,
        configs,
        raft_log,
        term=group.term,
        vote=group.vote,
        applied_index=machine.applied_index,
        commit_index=group.commit_index,
        settings=opening.settings,
        random=opening.random,
        alive_until=opening.alive_until,
        now=now,
        may_miss_entries=group.incomplete,
        has_unreadable_entries=group.lacking,
    )
    found = Replica(node, machine, about, log)
    found.saved_config = saved_config
    found.commit_saved = group.commit_index  # the state may be ahead of it
    found.dirty = True
    return found


def create_group(
    opening: GroupContext, uid: int, replica: int, config: t.Config, about: bytes, now: int
) -> Replica:
    """Create a group that this daemon does not hold; its record goes to the journal."""
    opening.log.journal.create_group(uid, pack_group_description(replica, config, about))
    node = RaftNode(
        uid,
        replica,
        ConfigHistory(0, config),
        RaftLog(lookup=_index_lookup(opening.log, uid)),
        term=0,
        vote=0,
        applied_index=0,
        commit_index=0,
        settings=opening.settings,
        random=opening.random,
        alive_until=opening.alive_until,
        now=now,
    )
    return Replica(node, opening.make_state_machine(uid, about), about, opening.log)


def _load_state(
    log: Log, group: Group, machine: StateMachine, configs: ConfigHistory
) -> t.Config | None:
    """Load the state from the store, or from the newest snapshot if that is ahead.

    Return the configuration that the store has, or None: a later one, from the log or a snapshot,
    is still to be saved.
    """
    uid = group.uid
    with log.store.view() as view:
        applied = view.applied_index(uid)
        rows = dict(view.states(uid)) if applied else {}
    row, saved = rows.pop(CONFIG_KEY, None), None
    if row is not None:
        voters, learners = protocol.unpack(row)
        saved = t.Config(tuple(voters), tuple(learners))
        # The log may end before it, and is filled with the changes that were made before.
        configs.installed(applied, saved)
    with of_one_group("its state in the store can't be loaded"):
        machine.load(applied, rows.items())
    if group.snapshot_parts and group.snapshot_index > applied:
        raw = b"".join(log.reader.snapshot(group))
        voters, learners, state, *start = protocol.unpack(raw)
        with of_one_group("its snapshot can't be loaded"):
            machine.restore(state)
        configs.installed(group.snapshot_index, t.Config(tuple(voters), tuple(learners)))
        if start:  # else of an older program
            _finish_install(log, group, *start)
        return None
    return saved


def _finish_install(log: Log, group: Group, index: int, term: int, offset: int, chain: int) -> None:
    """Append the START that a crash left out after the snapshot of an install.

    The older log does not belong to that state: its uncommitted entries would pass for committed.
    """
    before = index - 1
    if before < group.first_index:
        return
    if before <= group.last_index:
        row = log.index.row(group.uid, before)
        if group.damaged or row is None or row.term == term:
            return
    log.journal.start(group.uid, index, term, offset, chain, reset=True)


def _apply_committed(log: Log, group: Group, machine: StateMachine, configs: ConfigHistory) -> None:
    """Apply entries known to be committed; take members from the later ones, too."""
    committed = min(group.commit_index, group.last_index)
    at = max(machine.applied_index + 1, group.first_index)
    while at <= group.last_index:
        last = committed if at <= committed else group.last_index
        try:
            found = log.reader.entries(group.uid, at, last, APPLY_BYTES)
        except CorruptData:  # in a segment that recovery had no reason to read
            _cut_unreadable(log, group, machine.applied_index)
            if at <= group.last_index:
                raise
            break
        entries = [as_entry(one) for one in found]
        configs.appended(entries)
        if at <= committed:
            with of_one_group(f"entries from {at} on can't be applied", at):
                machine.apply(entries)
        at = entries[-1][t.INDEX] + 1


def _make_raft_log(log: Log, group: Group) -> RaftLog:
    out = RaftLog(
        group.first_index,
        group.start_term,
        group.start_offset,
        group.start_chain,
        _index_lookup(log, group.uid),
    )
    if group.last_index >= group.first_index:
        row = log.index.row(group.uid, group.last_index)
        if row is None:
            reason = f"its last entry, {group.last_index}, is not in the index"
            raise CannotOpen(ReplicaHealth.UNREADABLE, reason)
        # Nothing uses the payload of the last entry, so it is not read.
        tail = (row.index, row.term, row.offset, row.count, row.time_ms, 0, row.chain, b"")
        # The index may still name entries that were cut off a moment ago.
        runs = [run for run in log.term_runs(group.uid) if run[0] <= group.last_index]
        out.restore(runs, tail)
    return out


def _index_lookup(log: Log, uid: int) -> Callable[[int], tuple[int, int]]:
    """Return a function: index of an entry on disk -> its offset, chain of the entry before."""

    def look(index: int) -> tuple[int, int]:
        group, row = log.journal.groups.by_uid[uid], log.index.row(uid, index)
        if index == group.first_index and row is not None:
            return row.offset, group.start_chain
        before = log.index.row(uid, index - 1)
        if row is None or before is None:
            raise t.InvariantBroken(
                f"entry {index} of group {uid:x} is in the log and not in the index"
            )
        return row.offset, before.chain

    return look


def _is_last_entry_readable(log: Log, group: Group) -> bool:
    """Whether the newest entry can be read; recovery may have had no reason to read it."""
    try:
        if group.last_index >= group.first_index:
            log.reader.entry(group.uid, group.last_index)
    except CorruptData:
        return False
    return True


def _cut_unreadable(log: Log, group: Group, applied: int) -> None:
    """Read the whole log: note entries that are lost, and cut it where it must be cut."""
    index, lacking, size = group.first_index, False, APPLY_BYTES
    while index <= group.last_index:
        try:
            for one in log.reader.entries(group.uid, index, group.last_index, size):
                index = one.record.index + 1
            size = APPLY_BYTES
        except (CorruptData, EntryMissing):
            if index > applied or log.index.row(group.uid, index) is None:
                _truncate_from(log, group, index)
                break
            lacking, index, size = True, index + 1, 1  # the next one may be lost as well
    if lacking or group.lacking:
        log.journal.hard_state(group.uid, group.term, group.vote, group.incomplete, lacking)


def _truncate_from(log: Log, group: Group, index: int) -> None:
    """Truncate the log before this entry; the rest comes from the peers.

    The journal records first that entries are missing: a cut log looks complete at the next start.
    """
    log.journal.hard_state(group.uid, group.term, group.vote, True, group.lacking)
    before = log.index.row(group.uid, index - 1) if index > group.first_index else None
    term = before.term if before else group.start_term
    offset = before.offset + before.count if before else group.start_offset
    chain = before.chain if before else group.start_chain
    log.journal.truncate(group.uid, index, term, offset, chain)


def snapshot_parts(snapshot: t.Snapshot) -> list[bytes]:
    """Pack a snapshot, with the start of its log, into the parts that the journal stores."""
    config = snapshot.config
    start = (snapshot.start_index, snapshot.start_term, snapshot.start_offset, snapshot.start_chain)
    raw = protocol.pack([config.voters, config.learners, snapshot.state, *start])
    return [raw[at : at + SNAPSHOT_PART_BYTES] for at in range(0, len(raw), SNAPSHOT_PART_BYTES)]
