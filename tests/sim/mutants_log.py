"""The bugs themselves, first half: votes, acknowledgements, commits, reads.

Each function's docstring is its rule and, after the colon, the bug. The replacements are written
as the wrong code would look: short, plausible, and wrong in one place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from myqueue.daemons.raft import quorum
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.candidate import Candidate
from myqueue.daemons.raft.follower import Follower
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.leader import Leader
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.node import RaftNode
from myqueue.wal.groups import Group


def bug_vote_before_sync() -> list[Any]:
    """R1: a vote is sent before it is on disk (PySyncObj, camunda)."""
    return [(Follower, "voted", lambda self, out: self._send_vote(out))]


def bug_hard_state_not_persisted() -> list[Any]:
    """R1: term and vote are kept in memory only."""

    def keep(self: RaftNode, term: int, vote: int, out: t.Effects) -> None:
        self.term = self.durable_term = term
        self.vote = self.durable_vote = vote
        if self.role == t.Role.FOLLOWER and vote == self.replica:
            out.persist.append(t.PersistHardState(self.group, 0, 0))

    def campaign(self: Candidate, now: int, out: t.Effects, transfer: bool = False) -> None:
        node = self._node
        node.term += 1
        node.vote = node.replica
        node.durable_term, node.durable_vote = node.term, node.vote
        node.role, node.leader = t.Role.CANDIDATE, t.NOBODY
        node.deadline = now + node.election_timeout()
        self._votes, self._transfer = {}, transfer
        self.own_vote_persisted(now, out)

    return [(RaftNode, "set_hard_state", keep), (Candidate, "campaign", campaign)]


def bug_forgotten_vote() -> list[Any]:
    """R1: the vote is read back as none after a restart."""
    original = Group.apply

    def apply(self: Group, record: Any, segment: int, payload: bytes) -> None:
        original(self, record, segment, payload)
        self.vote = 0

    return [(Group, "apply", apply)]


def bug_ack_before_sync() -> list[Any]:
    """W1: a follower acknowledges what it has in memory (nats)."""
    return [(Follower, "reply", _reply_with(lambda self, log: self.verified_index))]


def bug_ack_what_was_not_verified() -> list[Any]:
    """R19: a follower acknowledges its own end, though its tail was never compared (nats)."""
    return [(Follower, "reply", _reply_with(lambda self, log: log.persisted_index))]


def _reply_with(index_of: Any) -> Any:
    def reply(self: Follower, out: t.Effects) -> None:
        node = self._node
        if node.leader in (t.NOBODY, node.replica) or self._installing:
            return
        if node.durable_term < node.term:
            self._answer_due = True
            return
        since = node.started_term if node.health is ReplicaHealth.RECOVERING else 0
        out.send.append(
            t.AppendReply(
                node.group,
                node.replica,
                node.leader,
                node.term,
                True,
                index_of(self, node.log),
                since,
                self._context,
                not node.health.votes,
            )
        )

    return reply


def bug_ack_before_the_term_is_durable() -> list[Any]:
    """R1: entries are acknowledged in a term that is not on disk yet."""
    original = Follower.reply

    def reply(self: Follower, out: t.Effects) -> None:
        self._node.durable_term = self._node.term
        original(self, out)

    return [(Follower, "reply", reply)]


def bug_leader_counts_unsynced() -> list[Any]:
    """W1: the leader counts its own entries before its own sync."""
    original = Leader.advance

    def advance(self: Leader, now: int, out: t.Effects) -> None:
        log = self._node.log
        kept, log.persisted_index = log.persisted_index, log.last_index
        original(self, now, out)
        log.persisted_index = min(kept, log.last_index)

    return [(Leader, "advance", advance), (RaftNode, "_hand_over", _apply_all)]


def _apply_all(self: RaftNode, out: t.Effects) -> None:
    first, last = self.applying_index + 1, self.commit_index
    if last >= first:
        entries = self.log.in_memory(first, last)
        out.apply.append(t.Apply(self.group, first, last, entries))
        self.applying_index = last


def bug_apply_ahead_of_the_log() -> list[Any]:
    """R25: committed entries are applied before they are on the own disk."""
    return [(RaftNode, "_hand_over", _apply_all)]


def bug_commit_to_the_local_end() -> list[Any]:
    """R3: the commit index is the leader's, up to the local last index (ra, PySyncObj)."""

    def learn(self: Follower, commit: int, out: t.Effects) -> None:
        self._node.commit(min(commit, self._node.log.last_index), out)

    return [(Follower, "learn_commit", learn)]


def bug_commit_of_older_terms() -> list[Any]:
    """R5: entries of an older term are committed by counting (PySyncObj, nats)."""

    def advance(self: Leader, now: int, out: t.Effects) -> None:
        node, log = self._node, self._node.log
        matches = [
            log.persisted_index if voter == node.replica else self.followers[voter].match_index
            for voter in node.config.voters
            if voter == node.replica or voter in self.followers
        ]
        index = min(quorum.committed_index(matches), log.last_index)
        if index > node.commit_index and index >= log.first_index:
            node.commit(index, out)
            self._answer_reads(out)

    return [(Leader, "advance", advance)]


def bug_truncation_by_a_stale_message() -> list[Any]:
    """R6: an append removes whatever stands behind what it brings (Redpanda, raftos)."""

    def new_entries(self: Follower, entries: list[t.Entry], out: t.Effects) -> list[t.Entry]:
        log = self._node.log
        if entries and entries[0][t.INDEX] <= log.last_index:
            self._truncate(entries[0][t.INDEX], out)
        return entries

    return [(Follower, "_new_entries", new_entries)]


def bug_no_check_of_the_entry_before() -> list[Any]:
    """R6: an append is taken without comparing the term of the entry before it."""
    original = RaftLog.has

    def has(self: RaftLog, index: int, term: int) -> bool:
        return original(self, index, term) or 0 < index <= self.last_index

    return [(RaftLog, "has", has)]


def bug_answers_of_older_terms() -> list[Any]:
    """R8: a leader takes answers that were given in an older term (nats, little-raft)."""
    original = RaftNode.step

    def step(self: RaftNode, message: t.Message, now: int, out: t.Effects) -> None:
        ours = message.group == self.group and message.target == self.replica
        if ours and isinstance(message, t.AppendReply) and message.term < self.term:
            message = replace(message, term=self.term)
        original(self, message, now, out)

    return [(RaftNode, "step", step)]


def bug_messages_of_older_terms() -> list[Any]:
    """R8: a follower takes entries from a leader of an older term."""
    original = RaftNode._stale

    def stale(self: RaftNode, message: t.Message, out: t.Effects) -> None:
        if isinstance(message, t.Append) and self.role == t.Role.FOLLOWER:
            self.follower.append(message, out)
            return
        original(self, message, out)

    return [(RaftNode, "_stale", stale)]


def bug_read_without_a_round() -> list[Any]:
    """R10: a leader answers reads because it thinks that it leads (etcd)."""

    def read(self: Leader, context: int, now: int, out: t.Effects) -> None:
        out.reads.append(t.ReadReady(self._node.group, context, self._node.commit_index))

    return [(Leader, "read", read)]


def bug_read_before_the_own_noop() -> list[Any]:
    """R9: a new leader answers reads at a commit index it inherited (etcd, tikv)."""

    def read(self: Leader, context: int, now: int, out: t.Effects) -> None:
        self._reads.append([0, context, self._node.commit_index])
        self._round_due = True

    original = Leader._answer_reads

    def answer(self: Leader, out: t.Effects) -> None:
        kept, self._term_start = self._term_start, 0
        original(self, out)
        self._term_start = kept

    return [(Leader, "read", read), (Leader, "_answer_reads", answer)]
