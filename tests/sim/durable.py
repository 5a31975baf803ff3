"""What one process knows to be on its disk: all that was reported, in the order of the writes.

The core keeps one number for this, the end of what is persisted, and has to be careful when entries
are removed and come back while reports are late. Here every place is kept, so that each claim that
leaves the process can be compared with what was really reported before (W1, W11, R1).
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.checkers import Violation, check
from sim.disk import SimDisk

from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import AppendReply, Message, VoteReply, VoteRequest
from myqueue.wal import format as f
from myqueue.wal.groups import Op, Relocated
from myqueue.wal.recover.recovery import Recovered


def check_start(disk: SimDisk, found: Recovered, damaged: bool) -> None:
    """What a start has read, it will speak of: no loss of power may take it away any more (W4).

    And a disk that kept its promises is never found corrupt: who finds what was synced unreadable
    believed somebody that it was (W3, W5).
    """
    for number, segment in sorted(found.segments.items()):
        if number <= found.number:
            end = found.position if number == found.number else segment.capacity
            doubt = disk.in_doubt(segment.name, end)
            check(not doubt, f"W4: {segment.name} was read up to {end}, which is not all synced")
    if not damaged:
        told = "; ".join(map(str, found.findings))
        check(not found.corrupt, f"W5: a disk without damage is found corrupt: {told}")


class Durable:
    def __init__(self) -> None:
        self._terms: dict[int, dict[int, int]] = {}  # group -> index -> term
        self._votes: dict[int, tuple[int, int]] = {}  # group -> (term, vote)
        self.lacking: dict[int, bool] = {}  # group -> what the last note of it says

    def restored(self, node: RaftNode) -> None:
        """After recovery all that was found is on disk (W4)."""
        log = node.log
        places = range(log.first_index - 1, log.last_index + 1)
        self._terms[node.group] = {index: log.term(index) for index in places}
        self._votes[node.group] = node.term, node.vote

    def reported(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op, Relocated):
                continue
            if isinstance(op, list):
                for row in op:
                    self._terms.setdefault(row[0], {})[row[1]] = row[7]
            else:
                self._record(op[0])

    def _record(self, record: f.Record) -> None:
        terms = self._terms.setdefault(record.group, {})
        if record.kind == f.TRUNCATE:
            for index in [one for one in terms if one >= record.index]:
                del terms[index]
        elif record.kind == f.START and record.flags & f.RESET:
            self._terms[record.group] = {record.index - 1: record.term}
        elif record.kind == f.HARD_STATE:
            self._votes[record.group] = record.term, record.index
            self.lacking[record.group] = bool(record.flags & f.LACKING)

    def holds(self, group: int, index: int, term: int) -> bool:
        return self._terms.get(group, {}).get(index) == term

    def sent(self, node: RaftNode, message: Message) -> None:
        group, term = node.group, message.term
        state = self._votes.get(group, (0, 0))
        if isinstance(message, AppendReply):
            if message.ok:
                self._acknowledged(node, message)
        elif isinstance(message, VoteReply):
            early = state != (term, message.target)
            if early and message.granted and not message.pre:
                self._fail(node, "R1", "sent a vote too early")
        elif isinstance(message, VoteRequest):
            early = state != (term, message.source)
            if early and not message.pre:
                self._fail(node, "R31", "stands too early")

    def _acknowledged(self, node: RaftNode, reply: AppendReply) -> None:
        index, log = reply.index, node.log
        if self._votes.get(node.group, (0, 0))[0] < reply.term:
            self._fail(node, "R1", "acknowledges in a term not on its disk")
        if not index or not log.first_index - 1 <= index <= log.last_index:
            return  # nothing, or an install ends before it
        if self._terms.get(node.group, {}).get(index) != log.term(index):
            self._fail(node, "W1", f"acknowledges entry {index}, which is not on its disk")

    def _fail(self, node: RaftNode, rule: str, what: str) -> None:
        raise Violation(f"{rule}: {node.replica:x} of group {node.group} {what}")
