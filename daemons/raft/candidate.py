"""Wanting to lead: first asking whether it would work (pre-vote), then the election itself.

The pre-vote changes nothing anywhere (R12), so a replica that was cut off comes back without
raising the term of a group that works. The real request leaves only when the own vote is on disk,
and the own vote counts only then (R31).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from myqueue.daemons.raft.quorum import vote_result
from myqueue.daemons.raft.types import NOBODY, Effects, Role, VoteReply, VoteRequest

if TYPE_CHECKING:
    from myqueue.daemons.raft.node import RaftNode


class Candidate:
    __slots__ = ("_node", "_transfer", "_votes")

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._votes: dict[int, bool] = {}
        self._transfer = False

    def begin(self, now: int, out: Effects) -> None:
        """Ask who would vote for us; the answer to ourselves is yes."""
        node = self._node
        node.role, node.leader = Role.PRE_CANDIDATE, NOBODY
        node.deadline = now + self._patience()
        node.tell(out)
        self._votes = {node.replica: True}
        self._ask(node.term + 1, True, out)
        self._count(now, out)

    def _patience(self) -> int:
        node = self._node
        if not node.eager:
            return node.election_timeout()
        node.eager -= 1
        return node.settings.heartbeat_ms

    def campaign(self, now: int, out: Effects, transfer: bool = False) -> None:
        """A new term, a vote for ourselves; the requests wait for the disk."""
        node = self._node
        node.set_hard_state(node.term + 1, node.replica, out)
        node.role, node.leader = Role.CANDIDATE, NOBODY
        node.deadline = now + node.election_timeout()
        node.tell(out)
        self._votes = {}
        self._transfer = transfer

    def own_vote_persisted(self, now: int, out: Effects) -> None:
        node = self._node
        if node.replica not in self._votes:
            self._votes[node.replica] = True
            self._ask(node.term, False, out)
            self._count(now, out)

    def _ask(self, term: int, pre: bool, out: Effects) -> None:
        node, log = self._node, self._node.log
        for voter in sorted(node.config.voters):
            if voter != node.replica:
                out.send.append(
                    VoteRequest(
                        node.group,
                        node.replica,
                        voter,
                        term,
                        log.last_index,
                        log.last_term,
                        pre,
                        self._transfer and not pre,
                    )
                )

    def reply(self, reply: VoteReply, now: int, out: Effects) -> None:
        node = self._node
        role = Role.PRE_CANDIDATE if reply.pre else Role.CANDIDATE
        expected = node.term + 1 if reply.pre and reply.granted else node.term
        if node.role != role or reply.term != expected:
            node.ignored += 1
            return
        self._votes.setdefault(reply.source, reply.granted)
        self._count(now, out)

    def _count(self, now: int, out: Effects) -> None:
        node = self._node
        result = vote_result(node.config.voters, self._votes)
        if result is False:
            node.eager = 0
            node.become_follower(node.term, NOBODY, now, out)
        elif result and node.role == Role.PRE_CANDIDATE:
            self.campaign(now, out)
        elif result and self._votes.get(node.replica):
            node.become_leader(now, out)
