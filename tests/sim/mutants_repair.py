"""The bugs themselves, of repair: what a replica that lost entries may do, and what it may take."""

from __future__ import annotations

from typing import Any

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.leader import Leader
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.repair.coordinator import RepairCoordinator
from myqueue.daemons.repair.messages import EntryReply
from myqueue.wal import format as f
from myqueue.wal.append.journal import Journal
from myqueue.wal.read import reader


def bug_who_lacks_entries_votes() -> list[Any]:
    """R2: a replica that can't read entries of its log goes on voting, leading and counting."""
    votes = property(lambda self: self in (ReplicaHealth.HEALTHY, ReplicaHealth.REPAIRING))
    return [(ReplicaHealth, "votes", votes)]


def bug_a_leader_that_lacks_entries_counts_itself() -> list[Any]:
    """R2: a leader's own disk counts for commits, whatever is lost on it."""
    original = Leader.advance

    def advance(self: Leader, now: int, out: t.Effects) -> None:
        node = self._node
        kept, node._has_unreadable_entries = node._has_unreadable_entries, False
        original(self, now, out)
        node._has_unreadable_entries = kept

    return [(Leader, "advance", advance)]


def bug_what_is_lacking_is_not_noted() -> list[Any]:
    """R2: that entries are lost is kept in memory only; after a restart nobody knows of it."""
    original = Journal.hard_state

    def hard_state(
        self: Journal,
        uid: int,
        term: int,
        vote: int,
        incomplete: bool = False,
        lacking: bool = False,
    ) -> int:
        return original(self, uid, term, vote, incomplete, False)

    return [(Journal, "hard_state", hard_state)]


def bug_a_bad_entry_is_taken_for_a_lost_one() -> list[Any]:
    """R2: a bad entry that is met while it runs makes a replica recover, as only a start may."""
    original = RaftNode.set_repairing

    def set_repairing(self: RaftNode, repairing: bool, now: int, out: t.Effects) -> None:
        original(self, repairing, now, out)
        self._may_miss_entries, self._has_unreadable_entries = repairing, False

    return [(RaftNode, "set_repairing", set_repairing)]


def bug_whole_again_too_early() -> list[Any]:
    """R2: the flag is cleared when entries were given, though others still lack."""
    original = RepairCoordinator._repair_group

    def mend(self: RepairCoordinator, uid: int, now: int) -> int:
        lacking = self.lost_entries[uid]
        if lacking.given:
            lacking.entries.clear()
            lacking.given.clear()
        return original(self, uid, now)

    return [
        (RepairCoordinator, "_repair_group", mend),
        (RepairCoordinator, "_may_find_more", lambda self, lacking: False),
    ]


def bug_repair_takes_what_it_is_given() -> list[Any]:
    """W16: what a peer gives is appended without a look at its term and digest."""

    def given(self: RepairCoordinator, have: EntryReply) -> None:
        lacking, index = self.lost_entries.get(have.group), have.entry[t.INDEX]
        if lacking is not None and index in lacking.entries and index not in lacking.given:
            self._engine.log.journal.append(have.group, [have.entry], relocated=True)
            lacking.was_given(index, len(have.entry[t.PAYLOAD]), self._engine.now)

    return [(RepairCoordinator, "receive_entry", given)]


def bug_bad_bytes_are_read() -> list[Any]:
    """W16: the checksum of what is read is not looked at."""
    original = reader._verified

    def verified(data: memoryview, at: int, row: Any, seed: int, name: str) -> Any:
        record = f.record_at(data, at, row.position, seed)
        if record is None:
            return original(data, at, row, seed, name)
        begin = at + f.RECORD_HEADER_BYTES
        return reader.Entry(record, data[begin : begin + row.length])

    return [(reader, "_verified", verified)]


# A replica that notes damage must not repeat its vote of before (R2; tests/raft/test_thesis proves
# it), but if it did, no promise could break, so no history can show it. The vote was given, and was
# on the disk, when the log was whole; a copy of the message that was sent then could arrive at this
# moment as well. Its candidate had a log as new as the whole one. What was acknowledged later was
# so in that term or a newer one: about a newer term the vote says nothing, and if another replica
# led in that term, the candidate can't win it: each of the leader's majority gave its vote away.


def bug_who_lacks_entries_stands() -> list[Any]:
    """R2: a replica that can't read entries of its log stands for election, and leads."""

    def lead(self: RaftNode, now: int, out: t.Effects) -> None:
        self.role, self.leader = t.Role.LEADER, self.replica
        self.tell(out)
        self.leading.begin(now, out)

    def can(self: RaftNode) -> bool:
        return self.is_voter and self.may_lead and self.health is not ReplicaHealth.RECOVERING

    return [(RaftNode, "can_campaign", can), (RaftNode, "become_leader", lead)]
