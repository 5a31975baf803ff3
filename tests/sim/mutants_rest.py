"""The bugs themselves, second half: members, snapshots, elections, the disk. See `mutants_log`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.machine import Ledger
from sim.process import Process

from myqueue.daemons.raft import quorum
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.candidate import Candidate
from myqueue.daemons.raft.follower import Follower
from myqueue.daemons.raft.leader import Leader
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.replication.replica import Replica
from myqueue.wal.append.writer import Writer
from myqueue.wal.check.verdict import Judge, StopVerdict
from myqueue.wal.groups import Group
from myqueue.wal.recover import recovery


def bug_two_changes_at_once() -> list[Any]:
    """R14: members change before the last change, or the own no-op, is committed."""

    def change(self: Leader, config: t.Config, now: int) -> tuple[int, int]:
        from myqueue.daemons.raft.membership import encode_config

        node = self._node
        made = node.log.make([t.Proposal(0, 0, t.CONFIG, encode_config(config))], node.term)
        node.configs.appended(made)
        self._reconcile(made[0][t.INDEX])
        return made[0][t.INDEX], node.term

    return [(Leader, "change", change)]


def bug_config_not_rolled_back() -> list[Any]:
    """R15: a configuration stays in force though its entry was truncated (canonical, ra)."""
    return [(ConfigHistory, "truncated", lambda self, index: False)]


def bug_learners_are_counted() -> list[Any]:
    """R18: a learner's disk counts for commits (hashicorp, dragonboat)."""

    def advance(self: Leader, now: int, out: t.Effects) -> None:
        node, log = self._node, self._node.log
        found = [log.persisted_index, *(one.match_index for one in self.followers.values())]
        best = sorted(found, reverse=True)[: len(node.config.voters)]
        index = min(quorum.committed_index(best), log.last_index)
        if index > node.commit_index and log.term(index) == node.term:
            node.commit(index, out)
            self._answer_reads(out)

    return [(Leader, "advance", advance)]


def bug_promotion_of_an_empty_learner() -> list[Any]:
    """R18: a learner becomes a voter before it has the log, and its answers count at once."""
    original = Leader.change

    def change(self: Leader, config: t.Config, now: int) -> tuple[int, int]:
        for replica in set(config.voters) - set(self._node.config.voters):
            if replica in self.followers:
                self.followers[replica].match_index = self._node.log.last_index
        return original(self, config, now)

    return [(Leader, "change", change)]


def bug_snapshot_of_what_is_not_applied() -> list[Any]:
    """R20: a snapshot is labelled with the commit index, not with what was applied (Redpanda)."""

    def make(self: Replica) -> t.Snapshot:
        log, index = self.raft.log, self.raft.log.last_index
        return t.Snapshot(
            index,
            log.term(index),
            self.raft.configs.current,
            log.first_index,
            log.start_term,
            log.start_offset,
            log.start_chain,
            self.machine.snapshot(),
        )

    return [(Replica, "snapshot", make)]


def bug_install_over_a_log_that_reaches_its_start() -> list[Any]:
    """R16: an install empties a log whose entries were acknowledged and are needed."""
    original = Follower.install

    def install(self: Follower, snapshot: t.Snapshot, out: t.Effects) -> None:
        log = self._node.log
        kept = log.has
        try:
            RaftLog.has = lambda self, index, term: False  # type: ignore[method-assign]
            original(self, snapshot, out)
        finally:
            RaftLog.has = kept.__func__  # type: ignore[method-assign]

    return [(Follower, "install", install)]


def bug_other_incarnations_are_heard() -> list[Any]:
    """R26: members are told apart by their node, so what an earlier incarnation said or was sent
    counts for the one that took its place (nats).
    """
    original = RaftNode.step

    def step(self: RaftNode, message: t.Message, now: int, out: t.Effects) -> None:
        if message.group == self.group and t.node_of(message.target) == t.node_of(self.replica):
            for member in self.config.members:
                if t.node_of(member) == t.node_of(message.source):
                    message = replace(message, source=member)
            message = replace(message, target=self.replica)
        original(self, message, now, out)

    return [(RaftNode, "step", step)]


def bug_apply_looks_at_a_clock() -> list[Any]:
    """R27: what is applied depends on the replica that applies it (rabbitmq)."""
    original = Ledger.apply

    def apply(self: Ledger, entry: t.Entry) -> Any:
        result = original(self, entry)
        if result is not None:
            self.hash ^= id(self) >> 5 & 3
        return result

    return [(Ledger, "apply", apply)]


def bug_any_log_gets_a_vote() -> list[Any]:
    """R31: a vote is given without looking at the candidate's log."""
    return [_vote_as(lambda theirs, ours: True)]


def bug_the_longer_log_gets_the_vote() -> list[Any]:
    """R31: logs are compared by length, not by the term of their last entry."""
    return [_vote_as(lambda theirs, ours: theirs[1] >= ours[1])]


def _vote_as(current: Any) -> Any:
    original = RaftNode._vote_request

    def request(self: RaftNode, ask: t.VoteRequest, now: int, out: t.Effects) -> None:
        log = self.log
        theirs, ours = (ask.last_term, ask.last_index), (log.last_term, log.last_index)
        if current(theirs, ours):
            ask = t.VoteRequest(
                ask.group,
                ask.source,
                ask.target,
                ask.term,
                log.last_index,
                log.last_term,
                ask.pre,
                ask.transfer,
            )
            if theirs > ours:
                ask.last_term += 1
        original(self, ask, now, out)

    return (RaftNode, "_vote_request", request)


def bug_own_vote_before_sync() -> list[Any]:
    """R31: a candidate counts its own vote, and asks for others, before its term is on disk."""
    original = Candidate.campaign

    def campaign(self: Candidate, now: int, out: t.Effects, transfer: bool = False) -> None:
        original(self, now, out, transfer)
        self.own_vote_persisted(now, out)

    return [(Candidate, "campaign", campaign)]


def bug_a_repeat_is_applied_again() -> list[Any]:
    """R32: the state machine does not know a command that it has seen."""

    def apply(self: Ledger, entry: t.Entry) -> Any:
        if entry[t.TYPE] != t.DATA:
            return None
        client, sequence = map(int, bytes(entry[t.PAYLOAD]).split(b" ")[:2])
        self.last[client] = max(sequence, self.last.get(client, 0))
        self.count += 1
        return client, sequence, True

    return [(Ledger, "apply", apply)]


def bug_vote_forgotten_when_a_leader_is_lost() -> list[Any]:
    """R1: becoming a follower again in the same term clears the vote."""
    original = RaftNode.become_follower

    def become(self: RaftNode, term: int, leader: int, now: int, out: t.Effects) -> None:
        original(self, term, leader, now, out)
        if leader == t.NOBODY:
            self.vote = t.NOBODY

    return [(RaftNode, "become_follower", become)]


def bug_late_completions_are_believed() -> list[Any]:
    """W11: a report about an index is believed though another entry is there by now (ra)."""

    def persisted(self: RaftNode, term: int, index: int, now: int, out: t.Effects) -> None:
        log = self.log
        index = min(index, log.last_index)
        if index > log.persisted_index:
            log.persisted_index = index
            self._hand_over(out)
            if self.role == t.Role.LEADER:
                self.leading.advance(now, out)
            else:
                self.follower.reply(out)

    return [(RaftNode, "persisted", persisted)]


def bug_half_is_a_majority() -> list[Any]:
    """R5: half of the voters are taken for a majority."""

    def committed(matches: Any) -> int:
        return sorted(matches, reverse=True)[max(0, len(matches) // 2 - 1)] if matches else 0

    from myqueue.daemons.raft import leader

    return [(leader, "committed_index", committed)]


def bug_half_elects() -> list[Any]:
    """R13: half of the voters elect a leader."""

    def result(voters: Any, votes: dict[int, bool]) -> bool | None:
        members = list(voters)
        granted = sum(1 for voter in members if votes.get(voter))
        return True if granted >= max(1, len(members) // 2) else None

    from myqueue.daemons.raft import candidate

    return [(candidate, "vote_result", result)]


def bug_a_damaged_replica_votes() -> list[Any]:
    """R2: a replica that lost acknowledged entries votes, leads and is counted (FAST'18)."""
    original = Process._restart

    def restart(self: Process, group: Group) -> None:
        original(self, group)
        if group.uid in self.host.groups:
            self.host.groups[group.uid]._may_miss_entries = False

    return [(Process, "_restart", restart)]


def bug_a_lost_vote_is_not_missed() -> list[Any]:
    """R2: a replica whose hard state may be lost comes back under its old id."""
    original = Process._restart

    def restart(self: Process, group: Group) -> None:
        group.doubtful = False
        original(self, group)

    return [(Process, "_restart", restart)]


def bug_reported_before_it_was_written() -> list[Any]:
    """W1: the writer reports what it took, and writes it a while later (nats)."""
    original = Writer._flush

    def flush(self: Writer, batches: Any) -> None:
        files, synced = self._files, type(self._files).write

        class Lazy:
            ready = None

            def write(self, name: str, position: int, buffers: Any, sync: bool) -> None:
                synced(files, name, position, buffers, False)

        self._files = Lazy()  # type: ignore[assignment]
        try:
            original(self, batches)
        finally:
            self._files = files

    return [(Writer, "_flush", flush)]


def bug_every_bad_place_is_torn() -> list[Any]:
    """W5: recovery cuts at the first bad record, synced or not (camunda)."""

    def stopped(self: Judge) -> StopVerdict:
        return StopVerdict(False)

    return [(Judge, "stopped", stopped)]


def bug_the_page_cache_is_believed() -> list[Any]:
    """W4: after a kill, what the page cache shows is taken for what is on the disk."""
    return [(recovery, "rewrite_tail", lambda *arguments: None)]


def bug_state_and_applied_index_apart() -> list[Any]:
    """W13: the applied index is saved, the state that belongs to it is not."""

    def save(self: Process, uid: int, applied: int) -> None:
        puts, deletes = self.replicas[uid].saved()
        if self.random.random() < 0.5:
            del puts[b"ledger"]
        self.index.apply({uid: (applied, puts, deletes)})

    return [(Process, "_save_state", save)]


def bug_snapshot_acknowledged_before_sync() -> list[Any]:
    """W20: an installed snapshot is acknowledged before it is on disk."""
    original = Follower.install

    def install(self: Follower, snapshot: t.Snapshot, out: t.Effects) -> None:
        original(self, snapshot, out)
        self.snapshot_persisted(snapshot.index, out)

    return [(Follower, "install", install)]
