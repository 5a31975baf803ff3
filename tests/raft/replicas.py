"""One replica by itself, brought into any role by the same road as in life.

The others are numbers: what they would say is said by the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    CHAIN,
    COUNT,
    DATA,
    INDEX,
    OFFSET,
    TERM,
    Append,
    AppendReply,
    Config,
    Effects,
    Entry,
    Message,
    PersistEntries,
    PersistHardState,
    PersistSnapshot,
    Proposal,
    RaftSettings,
    Role,
    Snapshot,
    VoteReply,
    replica_id,
)

GROUP = 7
ME, TWO, THREE, FOUR, FIVE = (replica_id(number, 1) for number in range(1, 6))
NOW = 10_000


def make_entries(terms: Sequence[int], log: RaftLog | None = None) -> list[Entry]:
    """Entries that follow a log (an empty one): one of each term."""
    log = log or RaftLog()
    copy = RaftLog(log.last_index + 1, log.last_term, log.next_offset, log.last_chain)
    for term in terms:
        copy.make([Proposal(1, 5, DATA, b"%d" % term)], term)
    return copy.in_memory(log.last_index + 1, copy.last_index) or []


class Solo:
    """A replica with entries of the given terms, all on its disk; `out` is what it did last."""

    def __init__(
        self,
        terms: Sequence[int] = (),
        term: int = 1,
        vote: int = 0,
        *,
        voters: Sequence[int] = (ME, TWO, THREE),
        learners: Sequence[int] = (),
        commit: int = 0,
        applied: int = 0,
        recovering: bool = False,
        instant: bool = True,
        settings: RaftSettings | None = None,
    ) -> None:
        self.log = RaftLog()
        if terms:
            self.log.append(make_entries(terms))
            self.log.persisted_index = len(terms)
        self.alive_until: dict[int, int] = {}
        self.now = NOW
        self.instant = instant  # the disk answers at once
        self.out = Effects()
        self.node = RaftNode(
            GROUP,
            ME,
            ConfigHistory(0, Config(tuple(voters), tuple(learners))),
            self.log,
            term=term,
            vote=vote,
            applied_index=applied,
            commit_index=commit,
            settings=settings or RaftSettings(),
            random=Random(1),
            alive_until=self.alive_until,
            now=NOW,
            may_miss_entries=recovering,
        )

    # -- turning it ----------------------------------------------------------------------------

    def do(self, verb: str, *args: Any) -> Effects:
        """Call the node, flush, and give what it did, with what its disk made it do."""
        self.out = Effects()
        getattr(self.node, verb)(*args)
        self.node.flush(self.now, self.out)
        if self.instant:
            self.persist(self.out)
        return self.out

    def persist(self, effects: Effects) -> None:
        """The disk reports what `effects` asked for, and what that leads to."""
        node, done = self.node, 0
        while done < len(effects.persist):
            op = effects.persist[done]
            done += 1
            if isinstance(op, PersistHardState):
                node.hard_state_persisted(op.term, op.vote, self.now, self.out)
            elif isinstance(op, PersistEntries):
                last = op.entries[-1]
                node.persisted(last[TERM], last[INDEX], self.now, self.out)
            elif isinstance(op, PersistSnapshot):
                node.snapshot_persisted(op.snapshot.index, self.out)

    def hear(self, *nodes: int) -> None:
        """Nodes speak now, and count as alive for an election timeout."""
        until = self.now + self.node.settings.election_timeout_ms_min
        self.alive_until.update(dict.fromkeys(nodes, until))

    def step(self, message: Message) -> Effects:
        self.hear(message.source >> 32)
        self.out = Effects()
        self.node.step(message, self.now, self.out)
        self.node.flush(self.now, self.out)
        if self.instant:
            self.persist(self.out)
        return self.out

    def with_out(self, verb: str, *args: Any) -> Effects:
        """For verbs that take (..., now, out)."""
        self.out = Effects()
        getattr(self.node, verb)(*args, self.now, self.out)
        self.node.flush(self.now, self.out)
        if self.instant:
            self.persist(self.out)
        return self.out

    def timeout(self) -> Effects:
        self.node.deadline = self.now
        return self.with_out("tick")

    def append(
        self,
        terms: Sequence[int] = (),
        *,
        after: int | None = None,
        after_term: int | None = None,
        commit: int = 0,
        source: int = TWO,
        term: int | None = None,
        context: int = 0,
    ) -> Effects:
        """A message of a leader whose log agrees with ours up to `after`."""
        after = self.log.last_index if after is None else after
        prev_term = self.log.term(after) if after_term is None else after_term
        offset, chain = 0, 0
        if self.log.memory_first <= after <= self.log.last_index:
            got = self.log.in_memory(after, after)
            assert got
            offset, chain = got[0][OFFSET] + got[0][COUNT], got[0][CHAIN]
        entries = make_entries(terms, RaftLog(after + 1, prev_term, offset, chain))
        return self.step(
            Append(
                GROUP,
                source,
                ME,
                self.node.term if term is None else term,
                after,
                prev_term,
                0,
                entries,
                commit,
                context,
            )
        )

    def ack(self, source: int, index: int, **more: Any) -> Effects:
        return self.step(AppendReply(GROUP, source, ME, self.node.term, True, index, **more))

    def vote(self, source: int, granted: bool = True, pre: bool = False) -> Effects:
        term = self.node.term + (1 if pre and granted else 0)
        return self.step(VoteReply(GROUP, source, ME, term, granted, pre))

    def snapshot(self, index: int, term: int, start: int, start_term: int) -> Snapshot:
        return Snapshot(index, term, self.node.config, start, start_term, start - 1, 0, [])

    # -- roles ---------------------------------------------------------------------------------

    def as_follower(self, leader: int = TWO) -> Solo:
        self.append(source=leader)
        assert self.node.leader == leader
        return self

    def as_pre_candidate(self) -> Solo:
        self.timeout()
        assert self.node.role == Role.PRE_CANDIDATE
        return self

    def as_candidate(self) -> Solo:
        """In the term it was made with: it starts one below."""
        self.node.term -= 1
        self.node.durable_term -= 1
        self.timeout()
        for voter in self.node.config.voters[1:]:
            if self.node.role == Role.PRE_CANDIDATE:
                self.vote(voter, pre=True)
        assert self.node.role == Role.CANDIDATE or len(self.node.config.voters) == 1
        return self

    def as_leader(self) -> Solo:
        self.as_candidate()
        for voter in self.node.config.voters[1:]:
            if self.node.role == Role.CANDIDATE:
                self.vote(voter)
        assert self.node.role == Role.LEADER
        for voter in self.node.config.members:
            self.hear(voter >> 32)
        self.node.flush(self.now, self.out)  # its first entry leaves for those it hears
        return self


def sent(out: Effects, kind: type[Message] | None = None) -> list[Any]:
    return [one for one in out.send if kind is None or isinstance(one, kind)]
