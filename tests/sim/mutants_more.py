"""The bugs themselves, third part: going back, repeating, forgetting. See `mutants_log`."""

from __future__ import annotations

import json
from typing import Any

from sim.machine import Ledger
from sim.process import Process

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.follower import Follower
from myqueue.daemons.raft.leader import Leader
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.progress import Progress
from myqueue.daemons.raft.suspicion import Suspicion
from myqueue.wal.append.journal import Journal
from myqueue.wal.store.store import View


def bug_commit_goes_back() -> list[Any]:
    """R4: a stale message sets the commit index back (PySyncObj, willemt)."""
    original = RaftNode.commit

    def commit(self: RaftNode, index: int, out: t.Effects) -> None:
        if index < self.commit_index:
            self.commit_index = index
        original(self, index, out)

    return [(RaftNode, "commit", commit)]


def bug_term_goes_back() -> list[Any]:
    """R4: a replica follows a leader of an older term."""
    original = RaftNode.step

    def step(self: RaftNode, message: t.Message, now: int, out: t.Effects) -> None:
        mine = message.group == self.group and message.target == self.replica
        if mine and isinstance(message, t.Append) and message.term < self.term:
            self.term = message.term
        original(self, message, now, out)

    return [(RaftNode, "step", step)]


def bug_repeats_are_forgotten_in_a_snapshot() -> list[Any]:
    """R32: what was seen of each client is not part of the snapshot (Redpanda)."""

    def save(self: Ledger) -> bytes:
        return json.dumps([self.count, self.hash, []]).encode()

    return [(Ledger, "save", save)]


def bug_applied_again_after_a_restart() -> list[Any]:
    """W13: the applied index is not saved with the state, so entries are applied again (etcd)."""

    def applied(self: View, group: int) -> int:
        return 1

    return [(View, "applied_index", applied)]


def bug_a_wiped_disk_keeps_its_id() -> list[Any]:
    """W7: a replica whose disk was replaced comes back under its old id, with no memory (nats)."""
    original = Process._boot

    def boot(self: Process) -> None:
        original(self)
        first_life = self.world.now_ms == 0
        for group in [] if first_life else self.world.groups:
            if group not in self.journal.groups.by_uid and len(self.world.slots) == 3:
                config = t.Config(tuple(t.replica_id(n, 1) for n in sorted(self.world.slots)))
                self.create(group, t.replica_id(self.number, 1), config)

    return [(Process, "_boot", boot)]


def bug_read_rounds_with_one_context() -> list[Any]:
    """R10: rounds of reads share a context, so an old answer confirms a new read (etcd)."""
    original = Leader._start_round

    def start(self: Leader, now: int, out: t.Effects) -> None:
        self._context = 0
        original(self, now, out)

    return [(Leader, "_start_round", start)]


def bug_truncation_is_not_written() -> list[Any]:
    """W10: entries are removed in memory, but the log on disk is not told."""

    def truncate(self: Journal, uid: int, index: int, *rest: Any) -> int:
        group = self.groups.by_uid[uid]
        number = self.submit() or self.commit_hint(uid, 0)
        group.append(index - 1, *rest)
        return number

    return [(Journal, "truncate", truncate)]


def bug_commit_hints_beyond_what_was_verified() -> list[Any]:
    """R3: a commit that came with a beat is taken up to the local end."""

    def hint(self: RaftNode, source: int, term: int, commit: int, out: t.Effects) -> None:
        if term == self.term and source == self.leader and self.role == t.Role.FOLLOWER:
            self.commit(min(commit, self.log.last_index), out)

    return [(RaftNode, "commit_hint", hint)]


def bug_any_answer_puts_off_sending_again() -> list[Any]:
    """R28: answers without news, of reads, put off the time to send what was lost once more."""
    original = Progress.matched

    def matched(self: Progress, index: int, now: int) -> bool:
        news = original(self, index, now)
        if self._inflight:
            self.retry_at = now + self._settings.retry_ms
        return news

    return [(Progress, "matched", matched)]


def bug_a_report_of_another_install() -> list[Any]:
    """R19: the report of an install is taken for that of all that are under way."""

    def durable(self: Follower, index: int, out: t.Effects) -> None:
        if index in self._installing:
            self._installing.clear()
            self.reply(out)

    return [(Follower, "snapshot_persisted", durable)]


def bug_a_report_of_another_install_at_this_index() -> list[Any]:
    """R19: the report of an install is taken for that of a later one at the same index."""

    def durable(self: Follower, index: int, out: t.Effects) -> None:
        if index in self._installing[-1:]:
            self._installing.clear()
            self.reply(out)
        elif self._installing:
            self._installing.pop(0)

    return [(Follower, "snapshot_persisted", durable)]


def bug_own_lateness_is_silence_of_others() -> list[Any]:
    """R33: a process that did not run for a while takes all others for dead."""
    return [(Suspicion, "note_late", lambda self, late_ms: False)]


def bug_long_gaps_teach_no_patience() -> list[Any]:
    """R33: a node that was slow a moment ago gets no more patience than a fast one."""
    return [(Suspicion, "_stretch", lambda self, known, gap, now: None)]
