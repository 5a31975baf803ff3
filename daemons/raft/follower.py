"""Following: take what the leader sends, say what is on disk.

A stale or repeated message is harmless: entries that are there already are left alone, and only
the first entry whose *term differs* begins a truncation (R6). What the leader's message proved to
match is `verified_index`; commits are never taken beyond it (R3), nor is anything acknowledged
beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.types import (
    CHAIN,
    INDEX,
    NEVER,
    NOBODY,
    TERM,
    Append,
    AppendReply,
    Effects,
    Entry,
    PersistEntries,
    PersistSnapshot,
    PersistTruncate,
    Snapshot,
    VoteReply,
    require,
)

if TYPE_CHECKING:
    from myqueue.daemons.raft.node import RaftNode


class Follower:
    __slots__ = (
        "_answer_due",
        "_asks_ms",
        "_context",
        "_installing",
        "_node",
        "_told_commit",
        "verified_index",
    )

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self.verified_index = 0
        self._context = 0
        self._installing: list[int] = []  # indexes of snapshots that are on their way to the disk
        self._told_commit = 0  # the leader's, perhaps of entries that have not come yet
        self._asks_ms = 0  # the pause before the question is repeated; 0: no answer is missing
        self._answer_due = False  # an answer waits for the hard state to be on disk

    def begin(self) -> None:
        """A new leader, or none: nothing is verified yet."""
        self.verified_index, self._context, self._answer_due = 0, 0, False
        self._told_commit = self._asks_ms = 0

    # -- entries -------------------------------------------------------------------------------

    def append(self, message: Append, out: Effects) -> None:
        node, log = self._node, self._node.log
        self._asks_ms = 0
        self._context = max(self._context, message.context)
        entries, prev_index = message.entries, message.prev_index
        if prev_index < log.first_index - 1:  # below our start all is committed and agrees
            skip = log.first_index - 1 - prev_index
            entries, prev_index = (
                entries[skip:],
                min(log.first_index - 1, prev_index + len(entries)),
            )
            if not entries:
                self.verified_index = max(self.verified_index, prev_index)
                self.reply(out)
                return
        elif not log.has(prev_index, message.prev_term):
            self._reject(message, out)
            return
        elif message.prev_chain and log.chain(prev_index) not in (0, message.prev_chain):
            require(False, f"the logs differ before index {prev_index} in the same terms (W21)")
        last = prev_index + len(entries)
        new = self._new_entries(entries, out)
        if new:
            log.append(new)
            node.configs.appended(new)
            out.persist.append(PersistEntries(node.group, new))
        self.verified_index = max(self.verified_index, last)
        self.learn_commit(message.commit, out)
        if not new or message.context:
            self.reply(out)

    def _new_entries(self, entries: list[Entry], out: Effects) -> list[Entry]:
        """Return the entries that we do not have; entries that contradict it are removed first."""
        log = self._node.log
        if not entries or entries[0][INDEX] > log.last_index:
            return entries
        for at, entry in enumerate(entries):
            index = entry[INDEX]
            if index > log.last_index:
                return entries[at:]
            if log.term(index) != entry[TERM]:
                self._truncate(index, out)
                return entries[at:]
            if log.chain(index) not in (0, entry[CHAIN]):
                require(False, f"the logs differ up to index {index} in the same terms (W21)")
        return []

    def _truncate(self, index: int, out: Effects) -> None:
        node, log = self._node, self._node.log
        what = f"truncation at {index}, committed {node.commit_index}"
        require(index > node.commit_index, what, index)
        if node.durable_term < node.term:  # reports of the old entries may still come
            node.doubt_from, node.doubt_term = min(node.doubt_from, index), node.term
        log.truncate(index)
        node.configs.truncated(index)
        out.persist.append(
            PersistTruncate(node.group, index, log.last_term, log.next_offset, log.last_chain)
        )

    def _reject(self, message: Append, out: Effects) -> None:
        """Name the last place where the logs can still agree, and our term there."""
        node, log = self._node, self._node.log
        require(
            message.prev_index > node.commit_index or message.prev_index > log.last_index,
            f"the leader's entry {message.prev_index} contradicts a committed one",
        )
        index = log.last_not_above(min(message.prev_index, log.last_index), message.prev_term)
        index = max(index, node.commit_index)
        out.send.append(
            AppendReply(
                node.group,
                node.replica,
                message.source,
                node.term,
                False,
                index,
                log.term(index),
                self._context,
                not node.health.votes,
            )
        )

    def learn_commit(self, commit: int, out: Effects) -> None:
        """Keep the leader's commit index: it may come before the entries, and only once."""
        node = self._node
        commit = self._told_commit = max(commit, self._told_commit)
        node.commit(min(commit, self.verified_index), out)
        if self._maybe_recovered(commit, out):
            self.reply(out)  # from now on it counts

    def _maybe_recovered(self, commit: int, out: Effects) -> bool:
        """R2: complete again once all that the leader of a *newer* term committed is on our disk.

        What we acknowledged, we did in terms up to the one we were started in. A leader of a newer
        term has all of that which was committed, and its own first commit is behind it. In the
        term we were started in this would not do: a message that was sent before our start, with
        a commit below what we acknowledged, can't be told from a fresh one.
        """
        node, log = self._node, self._node.log
        if (
            node.health is ReplicaHealth.RECOVERING
            and node.term > node.started_term
            and log.first_index - 1 <= commit <= min(log.persisted_index, self.verified_index)
            and log.term(commit) == node.term
        ):
            node.end_recovery(out)
            return True
        return False

    def reply(self, out: Effects) -> None:
        """Acknowledge what is verified and on disk, once the term is on disk as well."""
        node = self._node
        if node.leader in (NOBODY, node.replica) or self._installing:
            return
        if node.durable_term < node.term:
            self._answer_due = True
            return
        self._maybe_recovered(node.commit_index, out)
        index = min(self.verified_index, node.log.persisted_index)
        since = node.started_term if node.health is ReplicaHealth.RECOVERING else 0
        out.send.append(
            AppendReply(
                node.group,
                node.replica,
                node.leader,
                node.term,
                True,
                index,
                since,
                self._context,
                not node.health.votes,
            )
        )

    def ask(self, now: int, out: Effects) -> None:
        """Have the leader try where our log ends; claims nothing. It is asked until it answers: a
        quiet group has no other message that would make up for one that was lost.
        """
        node, log = self._node, self._node.log
        settings = node.settings
        self._asks_ms = min(2 * self._asks_ms or settings.retry_ms, settings.snapshot_retry_ms)
        node.deadline = now + self._asks_ms
        out.send.append(
            AppendReply(
                node.group,
                node.replica,
                node.leader,
                node.term,
                False,
                log.last_index,
                log.last_term,
                0,
                not node.health.votes,
            )
        )

    def tick(self, now: int, out: Effects) -> None:
        """The leader is alive."""
        self._node.deadline = NEVER
        if self._asks_ms:
            self.ask(now, out)

    # -- hard state ----------------------------------------------------------------------------

    def voted(self, out: Effects) -> None:
        """The vote goes out now if it was on disk before, else when it is."""
        node = self._node
        if (node.durable_term, node.durable_vote) == (node.term, node.vote):
            self._send_vote(out)

    def hard_state_persisted(self, out: Effects) -> None:
        if self._answer_due:
            self._answer_due = False
            self.reply(out)
        node = self._node  # its vote may be older than the damage that it noted now (R2)
        if node.vote not in (NOBODY, node.replica) and node.leader == NOBODY and node.health.votes:
            self._send_vote(out)

    def _send_vote(self, out: Effects) -> None:
        node = self._node
        out.send.append(VoteReply(node.group, node.replica, node.vote, node.term, True, False))

    # -- snapshots -----------------------------------------------------------------------------

    def install(self, snapshot: Snapshot, out: Effects) -> None:
        """Take a state, unless our log reaches its start: then nothing needs to be thrown away.

        Were entries dropped that the leader has as well, they could have been acknowledged by us
        and be missing for a majority afterwards.
        """
        node, log = self._node, self._node.log
        self._asks_ms = 0
        before = snapshot.start_index - 1
        start = log.first_index - 1  # all up to there is committed
        if before < start or log.has(before, snapshot.start_term):
            self.verified_index = max(self.verified_index, before, start)
            self.reply(out)
            return
        if snapshot.index <= node.commit_index:
            self.verified_index = max(self.verified_index, node.commit_index)
            self.reply(out)
            return
        out.apply = [one for one in out.apply if one.group != node.group]  # the state has it
        log.snapshot_to(snapshot)
        # After damage, more may be applied than the log held: then the members of there are newer.
        applied = max(node.applied_index, snapshot.index)
        is_newer = applied > snapshot.index
        config = node.configs.at(applied) if is_newer else snapshot.config
        node.configs.installed(applied, config)
        node.commit_index = max(node.commit_index, before)
        node.applied_index = applied  # a state never goes back
        node.applying_index = max(node.applying_index, snapshot.index)
        self.verified_index = before
        self._installing.append(snapshot.index)
        out.persist.append(PersistSnapshot(node.group, snapshot))

    def snapshot_persisted(self, index: int, out: Effects) -> None:
        """One report for each, in their order; two may have the same index and other starts."""
        if index in self._installing[:1]:
            self._installing.pop(0)
            self.reply(out)
