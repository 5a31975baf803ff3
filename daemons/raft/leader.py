"""Leading: one persist and one message to each follower a turn, however many proposals came.

What is committed: the highest index that a majority of voters has on disk, if its entry is of
this term (R5). The leader's own disk is one of them, and its entries leave for the followers
while its own sync runs. Reads wait for the own no-op (R9) and for a round of messages sent after
they came (R10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from myqueue.daemons.raft.membership import change_problem, encode_config
from myqueue.daemons.raft.progress import Progress, State
from myqueue.daemons.raft.quorum import committed_index, majority
from myqueue.daemons.raft.types import (
    CONFIG,
    INDEX,
    NEVER,
    NOBODY,
    NOOP,
    PAYLOAD,
    TERM,
    Append,
    AppendReply,
    Config,
    Dropped,
    Effects,
    Entry,
    Fetch,
    InstallSnapshot,
    NeedSnapshot,
    NotPossibleNow,
    PersistEntries,
    Proposal,
    ReadReady,
    Snapshot,
    TimeoutNow,
    node_of,
)

if TYPE_CHECKING:
    from myqueue.daemons.raft.node import RaftNode


class Leader:
    __slots__ = (
        "_acked",
        "_context",
        "_node",
        "_persist_from",
        "_reads",
        "_reads_at",
        "_round_due",
        "_term_start",
        "_transfer_at",
        "_transfer_to",
        "_way_at",
        "_way_pause_ms",
        "_way_to",
        "followers",
    )

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._context = 0  # counts read rounds over the life of the process, never used twice
        self._clear()

    def _clear(self) -> None:
        self.followers: dict[int, Progress] = {}
        self._reads: list[list[int]] = []  # [round, context, index], oldest first
        self._acked: dict[int, int] = {}  # voter -> last round that it answered
        self._round_due, self._reads_at = False, NEVER
        self._persist_from = 0  # first entry that was not given to the journal
        self._term_start = 0
        self._transfer_to, self._transfer_at = NOBODY, NEVER
        self._way_at = NEVER  # when to yield; no replica waits for it now
        self._way_pause_ms, self._way_to = self._node.settings.retry_ms, NOBODY

    def begin(self, now: int, out: Effects) -> None:
        """The first entry of a term is empty: what it commits, commits all before it."""
        node, log = self._node, self._node.log
        self._clear()
        self._persist_from = self._term_start = log.last_index + 1
        self._reconcile(self._term_start)
        log.make([Proposal(0, 0, NOOP, b"")], node.term)
        self.flush(now, out)

    def stop(self, out: Effects) -> None:
        """No longer leading: what is not committed may or may not survive."""
        node = self._node
        if self._persist_from <= node.log.last_index:
            self._persist(out)
        if node.commit_index < node.log.last_index:
            out.dropped.append(Dropped(node.group, node.commit_index + 1, node.term))
        self._clear()

    def _reconcile(self, next_index: int) -> None:
        """One `Progress` for each other member of the configuration in force."""
        node = self._node
        for member in node.config.members:
            if member != node.replica and member not in self.followers:
                self.followers[member] = Progress(next_index, node.settings)
        for gone in set(self.followers) - set(node.config.members):
            del self.followers[gone]  # its answers count for nothing from now on (R17)

    # -- proposals -----------------------------------------------------------------------------

    def propose(self, items: list[Proposal]) -> tuple[int, int]:
        node = self._node
        if self._transfer_to:
            raise NotPossibleNow("leadership is being handed over")
        first = node.log.last_index + 1
        node.log.make(items, node.term)
        return first, node.term

    def change(self, config: Config, now: int) -> tuple[int, int]:
        """Propose a configuration that differs by one member (R14)."""
        node = self._node
        if self._transfer_to:
            raise NotPossibleNow("leadership is being handed over")
        if node.commit_index < self._term_start:
            raise NotPossibleNow("the leader has not committed an entry of its term yet")
        if node.configs.current_index > node.commit_index:
            raise NotPossibleNow("another change of members is under way")
        problem = change_problem(node.config, config)
        if problem:
            raise NotPossibleNow(problem)
        for replica in set(config.voters) - set(node.config.voters):
            if not self.is_caught_up(replica, now):
                raise NotPossibleNow(f"replica {replica:x} has not caught up (R18)")
        made = node.log.make([Proposal(0, 0, CONFIG, encode_config(config))], node.term)
        node.configs.appended(made)
        self._reconcile(made[0][INDEX])  # a new member gets this entry, or asks for what it lacks
        return made[0][INDEX], node.term

    def is_caught_up(self, replica: int, now: int) -> bool:
        """This follower has what is committed, or all but what came a moment ago (R18)."""
        follower = self.followers.get(replica)
        if follower is None or follower.is_unhealthy:
            return False
        return follower.match_index >= self._node.commit_index or follower.is_close(now)

    def flush(self, now: int, out: Effects) -> None:
        """End of a turn: persist what is new, send what each follower may get."""
        node, log = self._node, self._node.log
        if self._persist_from <= log.last_index:
            self._persist(out)
        if self._round_due:
            self._start_round(now, out)
        for replica, follower in self.followers.items():
            if follower.next_index <= log.last_index and node.is_heard(replica, now):
                self._send(replica, follower, now, out)
        self._set_deadline()

    def _persist(self, out: Effects) -> None:
        log = self._node.log
        entries = log.in_memory(self._persist_from, log.last_index)
        self._persist_from = log.last_index + 1
        out.persist.append(PersistEntries(self._node.group, entries or []))

    # -- followers -----------------------------------------------------------------------------

    def _send(self, replica: int, follower: Progress, now: int, out: Effects) -> None:
        log, settings = self._node.log, self._node.settings
        while follower.may_send():
            first = follower.next_index
            if first > log.last_index and follower.state == State.REPLICATE:
                return
            if first < log.first_index:
                follower.wait(State.SNAPSHOT)
                out.fetch.append(NeedSnapshot(self._node.group, replica))
                return
            if first < log.memory_first and first <= log.last_index:
                follower.fetching = True
                last = min(log.memory_first - 1, first + settings.append_entries_max - 1)
                out.fetch.append(Fetch(self._node.group, replica, first, last))
                return
            entries, size = list[Entry](), 0
            if first <= log.last_index:
                entries, size = log.portion(
                    first, settings.append_bytes_max, settings.append_entries_max
                )
            self._send_entries(replica, follower, first, entries, size, now, out)

    def _send_entries(
        self,
        replica: int,
        follower: Progress,
        first: int,
        entries: list[Entry],
        size: int,
        now: int,
        out: Effects,
    ) -> None:
        node, log = self._node, self._node.log
        prev = first - 1
        out.send.append(
            Append(
                node.group,
                node.replica,
                replica,
                node.term,
                prev,
                log.term(prev),
                log.chain(prev),
                entries,
                node.commit_index,
            )
        )
        follower.sent_commit = node.commit_index
        follower.sent(prev + len(entries), size, now)

    def fetched(self, replica: int, entries: list[Entry], now: int, out: Effects) -> None:
        """Old entries came from the disk; they are committed or at least still ours."""
        follower, log = self.followers.get(replica), self._node.log
        if follower is None or not follower.fetching:
            return
        follower.fetching = False
        first = follower.next_index
        usable = bool(entries) and entries[0][INDEX] == first >= log.first_index
        if usable and log.has(entries[-1][INDEX], entries[-1][TERM]):
            size = sum(len(entry[PAYLOAD]) for entry in entries)
            self._send_entries(replica, follower, first, entries, size, now, out)
        self._send(replica, follower, now, out)
        self._set_deadline()

    def snapshot_made(self, replica: int, snapshot: Snapshot, now: int, out: Effects) -> None:
        node, follower = self._node, self.followers.get(replica)
        if follower is None or follower.state != State.SNAPSHOT:
            return
        out.send.append(InstallSnapshot(node.group, node.replica, replica, node.term, snapshot))
        follower.next_index = snapshot.start_index
        follower.retry_at = now + node.settings.snapshot_retry_ms
        self._set_deadline()

    def reply(self, reply: AppendReply, now: int, out: Effects) -> None:
        node, follower = self._node, self.followers.get(reply.source)
        if follower is None:
            node.ignored += 1
            return
        if reply.context:
            self._acked[reply.source] = max(self._acked.get(reply.source, 0), reply.context)
            self._answer_reads(out)
        follower.is_unhealthy = reply.is_unhealthy
        if reply.is_unhealthy and not reply.ok:
            follower.lost()
        if reply.ok:
            if reply.index > node.log.last_index:
                node.ignored += 1
                return
            if follower.state == State.SNAPSHOT and reply.index < node.log.first_index - 1:
                return  # said before it had the snapshot
            follower.matched(reply.index, now)
            follower.end_round(node.log.last_index, now)
            self.advance(now, out)
            if node.leader != node.replica:
                return
            self._hand_over(reply.source, follower, out)
            follower.waits = reply.is_unhealthy and reply.hint_term == node.term
            if follower.waits and self._way_at == NEVER:
                self._make_way(now, out)
        elif 0 < follower.match_index >= reply.index or follower.state == State.SNAPSHOT:
            if not reply.context:
                follower.start_over()
        else:
            log = node.log
            index = min(reply.index, log.last_index)
            if index >= log.first_index - 1:
                index = log.last_not_above(index, reply.hint_term)
            follower.rejected(index + 1)
        if follower.next_index <= node.log.last_index or follower.state == State.PROBE:
            self._send(reply.source, follower, now, out)
        self._set_deadline()

    def advance(self, now: int, out: Effects) -> None:
        """Commit what a majority has on disk by now (R5)."""
        node, log = self._node, self._node.log
        matches = []
        for voter in node.config.voters:
            follower = self.followers.get(voter)
            if voter == node.replica:
                matches.append(log.persisted_index if node.health.votes else 0)
            elif follower is not None and not follower.is_unhealthy:
                matches.append(follower.match_index)
            else:
                matches.append(0)
        index = committed_index(matches)
        if index <= node.commit_index or log.term(index) != node.term:
            return
        node.commit(index, out)
        self._answer_reads(out)
        if node.replica not in node.config.voters and node.configs.current_index <= index:
            node.become_follower(node.term, NOBODY, now, out)  # removed itself (R17)

    # -- reads, transfer, time -----------------------------------------------------------------

    def read(self, context: int, now: int, out: Effects) -> None:
        """Remember how far the group is now; the round is sent with the next flush."""
        node = self._node
        index = max(node.commit_index, self._term_start)
        self._reads.append([0, context, index])
        self._round_due = True

    def _start_round(self, now: int, out: Effects) -> None:
        node = self._node
        self._round_due = False
        self._context += 1
        for read in self._reads:
            if not read[0]:
                read[0] = self._context
        self._acked[node.replica] = self._context
        self._reads_at = now + node.settings.retry_ms  # ask again then; older answers still count
        for replica, follower in self.followers.items():
            if replica in node.config.voters:
                prev = max(follower.match_index, node.log.first_index - 1)
                out.send.append(
                    Append(
                        node.group,
                        node.replica,
                        replica,
                        node.term,
                        prev,
                        node.log.term(prev),
                        0,
                        [],
                        node.commit_index,
                        self._context,
                    )
                )
        self._answer_reads(out)

    def _answer_reads(self, out: Effects) -> None:
        """R9, R10: confirmed by a majority after they came, and the own no-op is committed."""
        node = self._node
        if not self._reads or node.commit_index < self._term_start:
            return
        voters = node.config.voters
        rounds = sorted((self._acked.get(voter, 0) for voter in voters), reverse=True)
        confirmed = rounds[majority(len(voters)) - 1]
        while self._reads and 0 < self._reads[0][0] <= confirmed:
            _, context, index = self._reads.pop(0)
            out.reads.append(ReadReady(node.group, context, index))
        if not self._reads:
            self._reads_at = NEVER

    def transfer(self, target: int, now: int, out: Effects) -> None:
        """Hand over to a voter once it has everything; proposals pause meanwhile (R24)."""
        node, follower = self._node, self.followers.get(target)
        if follower is None or target not in node.config.voters or follower.is_unhealthy:
            raise NotPossibleNow(f"replica {target:x} cannot lead this group")
        if not node.is_heard(target, now):
            raise NotPossibleNow(f"replica {target:x} is not reachable")
        if target != self._transfer_to:  # asked again, it does not last longer
            self._transfer_at = now + node.settings.election_timeout_ms_max
        self._transfer_to = target
        self._hand_over(target, follower, out)
        self._set_deadline()

    def _hand_over(self, replica: int, follower: Progress, out: Effects) -> None:
        node = self._node
        if replica == self._transfer_to and follower.match_index == node.log.last_index:
            out.send.append(TimeoutNow(node.group, node.replica, replica, node.term))

    def _make_way(self, now: int, out: Effects) -> None:
        """A recovering replica needs a newer term to be sure of its log (R2): let another lead.

        It can't be left to the next answer: a quiet group has none. So the leader tries again when
        a node is back, or after a pause that grows, since proposals wait during a transfer.
        """
        node, followers = self._node, self.followers
        if not any(one.is_unhealthy and one.waits for one in followers.values()):
            self._way_at, self._way_pause_ms = NEVER, node.settings.retry_ms
            return
        ready = [
            (replica != self._way_to, follower.match_index, replica)  # another one than the last
            for replica, follower in followers.items()
            if replica in node.config.voters
            and not follower.is_unhealthy
            and node.is_heard(replica, now)
        ]
        if ready and not self._transfer_to:
            self._way_to = max(ready)[2]
            self.transfer(self._way_to, now, out)
        self._way_at = (self._transfer_at if self._transfer_to else now) + self._way_pause_ms
        self._way_pause_ms = min(2 * self._way_pause_ms, node.settings.snapshot_retry_ms)

    def tick(self, now: int, out: Effects) -> None:
        """Answers that did not come; a transfer that took too long."""
        node = self._node
        if now >= self._transfer_at:
            self._transfer_to, self._transfer_at = NOBODY, NEVER
        for replica, follower in self.followers.items():
            if now >= follower.retry_at:
                follower.start_over()
                if node.is_heard(replica, now):
                    self._send(replica, follower, now, out)
        if now >= self._reads_at:
            self._start_round(now, out)
        if now >= self._way_at:
            self._make_way(now, out)
        self._set_deadline()

    def peer_is_back(self, peer: int, now: int, out: Effects) -> None:
        """A node that was silent speaks again; what its replica misses was held back until now."""
        node = self._node
        for replica, follower in self.followers.items():
            if node_of(replica) == peer and follower.match_index < node.log.last_index:
                follower.start_over()
                self._send(replica, follower, now, out)
        if self._way_at != NEVER:
            self._make_way(now, out)
        self._set_deadline()

    def check_quorum(self, now: int, out: Effects) -> None:
        """R13: without contact to a majority there is no leading."""
        node = self._node
        voters = node.config.voters
        alive = sum(1 for v in voters if v == node.replica or node.is_heard(v, now))
        if alive < majority(len(voters)):
            node.become_follower(node.term, NOBODY, now, out)

    def _set_deadline(self) -> None:
        deadline = min(self._transfer_at, self._reads_at, self._way_at)
        for follower in self.followers.values():
            if follower.retry_at < deadline:
                deadline = follower.retry_at
        self._node.deadline = deadline
