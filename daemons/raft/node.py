"""One replica of one group: events in, effects out.

    step(message) tick() propose(items) read(context) transfer(to) change(config)
    persisted(term, index) hard_state_persisted(term, vote) snapshot_persisted(index) applied(index)
    fetched(entries) snapshot_made(snapshot)

Each takes `now` (ms of a monotonic clock) where time matters and adds to an `Effects`. `flush`
ends a turn: whatever was proposed since becomes one persist and one message for each follower.

Here is what all roles share: the rules about terms, voting, committing, and the only place that
changes roles:

| from | to | when |
|---|---|---|
| any | follower | a higher term was seen; a leader of this term spoke |
| follower | pre-candidate | no live leader for a random time; a healthy voter |
| pre-candidate | candidate | a majority would vote for it (or the leader handed over) |
| candidate | leader | a majority voted, its own vote on disk included |
| leader | follower | no contact to a majority; removed; its disk stalls |

Invariants: term, commit_index and applying_index never go back (R4); nothing at or below
commit_index is truncated (R7); no reply that claims durability is sent before the journal
reported it (W1, R1).
"""

from __future__ import annotations

from random import Random
from typing import Final

from myqueue.daemons.raft.candidate import Candidate
from myqueue.daemons.raft.follower import Follower
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.leader import Leader
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.types import (
    NEVER,
    NOBODY,
    Append,
    AppendReply,
    Apply,
    Changed,
    Config,
    Effects,
    Entry,
    InstallSnapshot,
    InvariantBroken,
    Message,
    NotLeader,
    PersistHardState,
    Proposal,
    RaftSettings,
    Role,
    Snapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    node_of,
    require,
)

EAGER_TIMES: Final = 4


class RaftNode:
    """See the module's docstring. `alive_until` is shared by all groups of a process."""

    __slots__ = (
        "_has_unreadable_entries",
        "_may_miss_entries",
        "alive_until",
        "applied_index",
        "applying_index",
        "candidate",
        "commit_index",
        "configs",
        "deadline",
        "doubt_from",
        "doubt_term",
        "durable_term",
        "durable_vote",
        "eager",
        "follower",
        "group",
        "has_waited",
        "ignored",
        "leader",
        "leading",
        "log",
        "may_found",
        "may_lead",
        "random",
        "replica",
        "role",
        "settings",
        "started_term",
        "term",
        "vote",
    )

    def __init__(
        self,
        group: int,
        replica: int,
        configs: ConfigHistory,
        log: RaftLog,
        *,
        term: int,
        vote: int,
        applied_index: int,
        commit_index: int,
        settings: RaftSettings,
        random: Random,
        alive_until: dict[int, int],
        now: int,
        may_miss_entries: bool = False,
        has_unreadable_entries: bool = False,
    ) -> None:
        self.group, self.replica = group, replica
        self.configs, self.log, self.settings, self.random = configs, log, settings, random
        self.term, self.vote = term, vote
        self.durable_term, self.durable_vote, self.started_term = term, vote, term
        self.doubt_from, self.doubt_term = NEVER, 0
        self.alive_until = alive_until  # node -> when it counts as silent (`suspicion`)
        # A commit index ahead of the log is clamped: the log is the truth (R25).
        require(applied_index >= log.first_index - 1, "no state reaches the log's start (W20)")
        self.applied_index = self.applying_index = applied_index
        self.commit_index = min(max(commit_index, applied_index), log.last_index)
        # Two facts that are on disk, too; both may be true. Read `health` instead (R2).
        self._may_miss_entries = may_miss_entries  # some that it acknowledged; not known which
        self._has_unreadable_entries = has_unreadable_entries  # some committed ones; known which
        self.may_lead = True
        self.eager = 0  # times that it asks again without an election timeout
        self.has_waited = False  # for the one that should lead, when it first reached another
        self.may_found = True  # stand, and vote for one that stands, with an empty log
        self.role, self.leader = Role.FOLLOWER, NOBODY
        self.follower, self.candidate, self.leading = Follower(self), Candidate(self), Leader(self)
        self.ignored = 0  # messages for another incarnation or from a stale sender
        self.deadline = now + self.election_timeout()

    # -- what the roles share ------------------------------------------------------------------

    @property
    def config(self) -> Config:
        return self.configs.current

    @property
    def is_voter(self) -> bool:
        return self.replica in self.configs.current.voters

    @property
    def health(self) -> ReplicaHealth:
        """HEALTHY, REPAIRING or RECOVERING, the worst that is true."""
        if self._may_miss_entries:
            return ReplicaHealth.RECOVERING
        return ReplicaHealth.REPAIRING if self._has_unreadable_entries else ReplicaHealth.HEALTHY

    @property
    def is_first(self) -> bool:
        """The first voter of a configuration: the one that should lead, where possible."""
        return self.config.voters[:1] == (self.replica,)

    def election_timeout(self) -> int:
        """Draw an election timeout, a new one each time (R31)."""
        low, high = self.settings.election_timeout_ms_min, self.settings.election_timeout_ms_max
        return self.random.randint(low, high)

    def is_heard(self, replica: int, now: int) -> bool:
        return now < self.alive_until.get(node_of(replica), now)

    def leader_is_alive(self, now: int) -> bool:
        return self.leader != NOBODY and (
            self.leader == self.replica or self.is_heard(self.leader, now)
        )

    def become_follower(self, term: int, leader: int, now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            self.leading.stop(out)
        if term > self.term:
            self.set_hard_state(term, NOBODY, out)
        changed = self.role != Role.FOLLOWER or self.leader != leader
        self.role, self.leader = Role.FOLLOWER, leader
        if leader != NOBODY:
            self.eager = 0
        self.follower.begin()
        self.deadline = NEVER if leader != NOBODY else now + self.election_timeout()
        if changed:
            self.tell(out)

    def become_leader(self, now: int, out: Effects) -> None:
        require(self.role == Role.CANDIDATE and self.health.votes, "only a candidate is elected")
        self.role, self.leader = Role.LEADER, self.replica
        self.tell(out)
        self.leading.begin(now, out)

    def tell(self, out: Effects) -> None:
        out.changed.append(Changed(self.group, self.role, self.term, self.leader))

    def set_hard_state(self, term: int, vote: int, out: Effects) -> None:
        """Term and vote in one record (R1)."""
        require(term > self.term or (term == self.term and self.vote in (NOBODY, vote)), "vote")
        self.term, self.vote = term, vote
        self._persist_hard_state(out)

    def _persist_hard_state(self, out: Effects) -> None:
        facts = self._may_miss_entries, self._has_unreadable_entries
        out.persist.append(PersistHardState(self.group, self.term, self.vote, *facts))

    def end_recovery(self, out: Effects) -> None:
        """All that this replica acknowledged is here again (`Follower._maybe_recovered`)."""
        self._may_miss_entries = False
        self._persist_hard_state(out)

    def set_repairing(self, repairing: bool, now: int, out: Effects) -> None:
        """Committed entries can't be read on our disk any more; or all are readable again.

        R2: a restart has to know, and the leader whether we count. Called in every role.
        """
        self._has_unreadable_entries = repairing
        self._persist_hard_state(out)
        if self.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            self.become_follower(self.term, NOBODY, now, out)
        elif self.role == Role.LEADER:
            self.leading.advance(now, out)
        self.follower.reply(out)

    def commit(self, index: int, out: Effects) -> None:
        """Everything up to `index` is committed."""
        if index <= self.commit_index:
            return
        if index > self.log.last_index:
            raise InvariantBroken(f"commit {index} beyond {self.log.last_index}")
        self.commit_index = index
        self._hand_over(out)

    def _hand_over(self, out: Effects) -> None:
        """Committed entries are applied once they are on *our* disk as well.

        The applied state is saved by itself. Were it ahead of the log, a crash could leave a state
        that knows entry i beside a log with another, older entry i; after the restart that one
        would pass for committed.
        """
        first, last = self.applying_index + 1, min(self.commit_index, self.log.persisted_index)
        if last >= first:
            out.apply.append(Apply(self.group, first, last, self.log.in_memory(first, last)))
            self.applying_index = last

    # -- events --------------------------------------------------------------------------------

    def step(self, message: Message, now: int, out: Effects) -> None:
        if message.group != self.group or message.target != self.replica:
            self.ignored += 1  # another incarnation is meant (R26)
            return
        if message.term > self.term and not self._higher_term(message, now, out):
            return
        if message.term < self.term:
            self._stale(message, out)
        elif isinstance(message, VoteRequest):
            self._vote_request(message, now, out)
        elif isinstance(message, AppendReply):
            if self.role == Role.LEADER:
                self.leading.reply(message, now, out)
            else:
                self.ignored += 1
        elif isinstance(message, Append | InstallSnapshot):
            self._from_leader(message, now, out)
        elif isinstance(message, VoteReply):
            self.candidate.reply(message, now, out)
        elif isinstance(message, TimeoutNow):
            self._timeout_now(now, out)

    def _higher_term(self, message: Message, now: int, out: Effects) -> bool:
        """False if the message does not make its term ours, and was dealt with."""
        if isinstance(message, VoteRequest):
            if message.pre:
                self._vote_request(message, now, out)
                return False
            if not message.transfer and self.leader_is_alive(now):
                self.ignored += 1  # a live leader is not disturbed (R13)
                return False
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            self.candidate.reply(message, now, out)
            return False
        from_leader = isinstance(message, Append | InstallSnapshot)
        self.become_follower(message.term, message.source if from_leader else NOBODY, now, out)
        return True

    def _stale(self, message: Message, out: Effects) -> None:
        """Tell a sender of an older term about ours; answers of older terms are nothing (R8)."""
        self.ignored += 1
        group, source, target = self.group, self.replica, message.source
        if isinstance(message, Append | InstallSnapshot):
            out.send.append(AppendReply(group, source, target, self.term, False, 0))
        elif isinstance(message, VoteRequest):
            out.send.append(VoteReply(group, source, target, self.term, False, message.pre))

    def _vote_request(self, ask: VoteRequest, now: int, out: Effects) -> None:
        """Pre-votes change no state (R12); votes are persisted before they are sent."""
        theirs, ours = (ask.last_term, ask.last_index), (self.log.last_term, self.log.last_index)
        current = theirs >= ours and (self.may_found or ask.last_index > 0)
        if ask.pre:
            # One that we know as removed gets none; but if its log is ahead of ours, it may know of
            # a configuration that makes it a voter, and we do not.
            member = ask.source in self.config.voters or theirs > ours
            granted = (
                current
                and ask.term > self.term
                and self.health.votes
                and not self.leader_is_alive(now)
                and member
            )
            term = ask.term if granted else self.term
            reply = VoteReply(self.group, self.replica, ask.source, term, granted, True)
            out.send.append(reply)
            return
        free = self.vote in (NOBODY, ask.source) and self.role < Role.CANDIDATE
        if not (current and free and self.health.votes and self.leader in (NOBODY, ask.source)):
            reply = VoteReply(self.group, self.replica, ask.source, self.term, False, False)
            out.send.append(reply)
            return
        if self.role == Role.PRE_CANDIDATE:
            self.become_follower(self.term, NOBODY, now, out)
        if self.vote != ask.source:
            self.set_hard_state(self.term, ask.source, out)
        self.deadline = now + self.election_timeout()
        self.follower.voted(out)

    def _from_leader(self, message: Append | InstallSnapshot, now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            raise InvariantBroken(f"two leaders in term {self.term}")
        if self.role != Role.FOLLOWER or self.leader != message.source:
            self.become_follower(self.term, message.source, now, out)
        if isinstance(message, Append):
            self.follower.append(message, out)
        else:
            self.follower.install(message.snapshot, out)

    def _timeout_now(self, now: int, out: Effects) -> None:
        if self.role == Role.FOLLOWER and self.can_campaign():
            self.candidate.campaign(now, out, transfer=True)

    def can_campaign(self) -> bool:
        founds = self.may_found or self.log.last_index > 0
        return self.is_voter and self.may_lead and self.health.votes and founds

    def tick(self, now: int, out: Effects) -> None:
        """Call it when `deadline` has come; it costs nothing to call it more often."""
        if now < self.deadline:
            return
        if self.role == Role.LEADER:
            self.leading.tick(now, out)
            return
        self.deadline = now + self.election_timeout()
        if self.leader_is_alive(now):
            self.follower.tick(now, out)
        elif self.can_campaign():
            self.candidate.begin(now, out)
        elif self.role != Role.FOLLOWER:
            self.become_follower(self.term, NOBODY, now, out)

    def stand_soon(self, now: int) -> None:
        """It should lead, and may be reached only now: it asks at once, and some times more.

        Those whom it asks may not have this group yet, or no connection for their answer. Only
        the question whether it would be elected is asked so often: that changes nothing (R12).
        """
        if self.leader == NOBODY and self.role in (Role.FOLLOWER, Role.PRE_CANDIDATE):
            self.eager, self.deadline = EAGER_TIMES, now

    def reaches(self, now: int) -> None:
        """Another voter can be reached, and nobody leads: after a start of all, say. The one that
        should lead asks at once; the others give it a timeout for that, once.
        """
        if self.is_first:
            self.stand_soon(now)
        elif self.role in (Role.FOLLOWER, Role.PRE_CANDIDATE) and not self.has_waited:
            self.has_waited = True
            self.deadline = now + self.election_timeout()

    def leader_lost(self, now: int, out: Effects) -> None:
        """The leader's node is silent, or says that it does not lead this group."""
        if self.role == Role.FOLLOWER and self.leader not in (NOBODY, self.replica):
            self.leader = NOBODY
            spread = self.settings.election_timeout_ms_max - self.settings.election_timeout_ms_min
            self.deadline = now + self.random.randint(0, spread)
            self.tell(out)

    def leader_announced(self, source: int, term: int, now: int, out: Effects) -> None:
        """Another node says that its replica leads this group in `term`. It may not know of a
        newer one: a quiet leader sends nothing that could be answered so.
        """
        if term < self.term:
            out.send.append(AppendReply(self.group, self.replica, source, self.term, False, 0))
        elif term > self.term or self.leader == NOBODY:
            self.become_follower(term, source, now, out)
            self.follower.ask(now, out)

    def commit_hint(self, source: int, term: int, commit: int, out: Effects) -> None:
        if term == self.term and source == self.leader and self.role == Role.FOLLOWER:
            self.follower.learn_commit(commit, out)

    def persisted(self, term: int, index: int, now: int, out: Effects) -> None:
        """The journal has all up to this entry; ignored if another one is there by now (W11).

        One that was removed may come back, the same, while the report of its first write is under
        way: until the term of the removal is on disk, nothing is believed about removed places.
        """
        log = self.log
        if index <= log.persisted_index or index >= self.doubt_from or not log.has(index, term):
            return
        log.persisted_index = index
        self._hand_over(out)
        if self.role == Role.LEADER:
            self.leading.advance(now, out)
        else:
            self.follower.reply(out)

    def hard_state_persisted(self, term: int, vote: int, now: int, out: Effects) -> None:
        if (term, vote) < (self.durable_term, self.durable_vote):
            return
        self.durable_term, self.durable_vote = term, vote
        if term >= self.doubt_term:
            self.doubt_from = NEVER
        if (term, vote) != (self.term, self.vote):
            return
        if self.role == Role.CANDIDATE:
            self.candidate.own_vote_persisted(now, out)
        elif self.role == Role.FOLLOWER:
            self.follower.hard_state_persisted(out)

    def snapshot_persisted(self, index: int, out: Effects) -> None:
        """The journal has a snapshot that was installed, and the log's new start."""
        self.follower.snapshot_persisted(index, out)

    def peer_is_back(self, peer: int, now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            self.leading.peer_is_back(peer, now, out)

    def applied(self, index: int) -> None:
        """The state machine is there: what it needed may leave memory, in large steps."""
        self.applied_index = max(self.applied_index, index)
        self.configs.applied(self.applied_index)
        log, limit = self.log, self.settings.memory_bytes_max
        if log.memory_bytes > limit:
            needed = min(self.applied_index, self.commit_index, log.persisted_index)
            log.shrink(limit // 2, needed)

    # -- calls of the owner --------------------------------------------------------------------

    def _leader(self) -> Leader:
        if self.role != Role.LEADER:
            raise NotLeader(self.leader)
        return self.leading

    def propose(self, items: list[Proposal]) -> tuple[int, int]:
        """(first index, term) of the new entries; they leave with the next `flush`."""
        return self._leader().propose(items)

    def read(self, context: int, now: int, out: Effects) -> None:
        """Ask for a linearizable read; ReadReady comes when leadership is confirmed (R10)."""
        self._leader().read(context, now, out)

    def transfer(self, target: int, now: int, out: Effects) -> None:
        self._leader().transfer(target, now, out)

    def change(self, config: Config, now: int) -> tuple[int, int]:
        return self._leader().change(config, now)

    def flush(self, now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            self.leading.flush(now, out)

    def fetched(self, follower: int, entries: list[Entry], now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            self.leading.fetched(follower, entries, now, out)

    def snapshot_made(self, follower: int, snapshot: Snapshot, now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            self.leading.snapshot_made(follower, snapshot, now, out)

    def step_down(self, now: int, out: Effects) -> None:
        """Stop leading or wanting to: no quorum, a stalled disk, the end of the process."""
        if self.role != Role.FOLLOWER:
            self.become_follower(self.term, NOBODY, now, out)

    def check_quorum(self, now: int, out: Effects) -> None:
        if self.role == Role.LEADER:
            self.leading.check_quorum(now, out)

    def start_log_at(self, index: int, term: int, offset: int, chain: int) -> None:
        """Retention moved the start of the log; only applied entries may leave it."""
        require(index <= self.applied_index + 1, f"start {index} beyond applied entries")
        self.log.start_at(index, term, offset, chain)
