"""What must hold after every step, whoever crashed, whatever was lost. Each check names its rule.

The checkers see what a god would see: every vote, every entry that any replica ever took, every
commit, every acknowledgement. They keep the truth in plain dictionaries and compare.
"""

from __future__ import annotations

from zlib import crc32

from sim.machine import Ledger

from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    CHAIN,
    INDEX,
    OFFSET,
    PAYLOAD,
    TERM,
    AppendReply,
    Entry,
    InstallSnapshot,
    Message,
    Role,
    VoteReply,
    VoteRequest,
)


class Violation(AssertionError):
    """A promise was broken; the text says which and by whom."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Violation(what)


class Checkers:
    def __init__(self) -> None:
        self.leaders: dict[tuple[int, int], int] = {}  # (group, term) -> replica
        self.votes: dict[tuple[int, int, int], int] = {}  # (group, term, voter) -> candidate
        self.entries: dict[tuple[int, int, int], tuple[int, int]] = {}  # (group, index, term)
        self.committed: dict[int, dict[int, tuple[int, bytes]]] = {}  # group -> index -> entry
        self.states: dict[tuple[int, int], tuple[int, int]] = {}  # (group, index) -> ledger
        self.acked: dict[tuple[int, int, int], int] = {}  # (group, client, sequence) -> index
        self.claims: dict[tuple[int, int], dict[int, int]] = {}  # (group, replica) -> index: term
        self.terms: dict[tuple[int, int], int] = {}  # (group, replica) -> highest term it claimed
        self.last: dict[tuple[int, int], tuple[int, int, int]] = {}  # term, commit, applying

    # -- what replicas say ---------------------------------------------------------------------

    def sent(self, node: RaftNode, message: Message) -> None:
        """Everything that leaves a process is a claim it has to stand by after any crash."""
        key = (message.group, message.source)
        if isinstance(message, VoteReply) and not message.pre and message.granted:
            self._vote(message.group, message.term, message.source, message.target)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._vote(message.group, message.term, message.source, message.source)
        elif isinstance(message, AppendReply) and message.ok:
            log = node.log
            if log.first_index <= message.index <= log.last_index:
                claims = self.claims.setdefault(key, {})
                claims[message.index] = log.term(message.index)
        elif isinstance(message, InstallSnapshot):
            check(
                message.snapshot.index <= node.applied_index,
                f"R20: {key} sends a snapshot at {message.snapshot.index} but applied less",
            )
        refusal = isinstance(message, VoteReply) and not message.granted
        refusal = refusal or (isinstance(message, AppendReply) and not message.ok)
        pre = isinstance(message, VoteRequest | VoteReply) and message.pre
        if not pre and not refusal:  # these promise nothing
            self.terms[key] = max(self.terms.get(key, 0), message.term)

    def _vote(self, group: int, term: int, voter: int, candidate: int) -> None:
        before = self.votes.setdefault((group, term, voter), candidate)
        check(
            before == candidate,
            f"R1: replica {voter:x} of group {group} voted for {before:x} and {candidate:x} "
            f"in term {term}",
        )

    # -- what replicas take --------------------------------------------------------------------

    def persisting(self, node: RaftNode, entries: list[Entry]) -> None:
        """Log matching: the same index and term is the same entry, and the same before it."""
        for entry in entries:
            key = (node.group, entry[INDEX], entry[TERM])
            truth = (entry[CHAIN], hash_of(entry))
            before = self.entries.setdefault(key, truth)
            check(before == truth, f"log matching: two entries at {key}")
            check(
                node.log.first_index > entry[INDEX] - 1
                or entry[INDEX] - 1 < node.log.first_index - 1
                or node.log.term(entry[INDEX] - 1) <= entry[TERM],
                f"terms fall at {key}",
            )

    def forget_claims(self, node: RaftNode, index: int) -> None:
        """A higher term took these entries away, or a snapshot covers them."""
        claims = self.claims.get((node.group, node.replica), {})
        for claimed in [at for at in claims if at >= index]:
            del claims[claimed]

    def became(self, node: RaftNode) -> None:
        """Election safety, leader completeness."""
        if node.role != Role.LEADER:
            return
        before = self.leaders.setdefault((node.group, node.term), node.replica)
        check(
            before == node.replica,
            f"two leaders of group {node.group} in term {node.term}: {before:x}, {node.replica:x}",
        )
        committed = self.committed.get(node.group)
        if committed:
            index = max(committed)
            check(
                index < node.log.first_index or node.log.has(index, committed[index][0]),
                f"leader completeness: {node.replica:x} leads group {node.group} in term "
                f"{node.term} without the committed entry {index}",
            )

    def applied(self, node: RaftNode, ledger: Ledger, entry: Entry) -> None:
        """State machine safety: one entry, one state at each index, on all replicas (R27)."""
        committed = self.committed.setdefault(node.group, {})
        truth = (entry[TERM], bytes(entry[PAYLOAD]))
        before = committed.setdefault(entry[INDEX], truth)
        check(
            before == truth,
            f"group {node.group}: {node.replica:x} applies another entry {entry[INDEX]} "
            f"(term {entry[TERM]}) than was committed before (term {before[0]})",
        )
        state = (ledger.count, ledger.hash)
        known = self.states.setdefault((node.group, entry[INDEX]), state)
        check(known == state, f"R27: group {node.group} has two states at index {entry[INDEX]}")

    def acknowledged(self, group: int, client: int, sequence: int, index: int) -> None:
        committed = self.committed.get(group, {})
        check(index in committed, f"acknowledged at {index}, which is not committed")
        self.acked[group, client, sequence] = index

    # -- always --------------------------------------------------------------------------------

    def monotonic(self, node: RaftNode) -> None:
        """R4, within one life of a process."""
        now = (node.term, node.commit_index, node.applying_index)
        before = self.last.get((node.group, node.replica))
        if before is not None:
            check(
                all(a <= b for a, b in zip(before, now, strict=True)),
                f"R4: {node.replica:x} went back from {before} to {now}",
            )
        self.last[node.group, node.replica] = now
        check(node.log.persisted_index <= node.log.last_index, "persisted beyond the end")

    def restarted(self, node: RaftNode) -> None:
        """What it claimed before the crash it still has (W1, R1)."""
        key = (node.group, node.replica)
        self.last.pop(key, None)
        check(
            node.term >= self.terms.get(key, 0),
            f"R1: {node.replica:x} of group {node.group} spoke in term {self.terms.get(key)} and "
            f"came back in term {node.term}",
        )
        if node.recovering:
            return
        for index, term in self.claims.get(key, {}).items():
            check(
                index < node.log.first_index or node.log.has(index, term),
                f"W1: {node.replica:x} of group {node.group} acknowledged entry {index} of term "
                f"{term} and came back without it (log {node.log.first_index}.."
                f"{node.log.last_index})",
            )

    def read_answered(self, group: int, index: int, committed_before: int) -> None:
        check(
            index >= committed_before,
            f"R10: a read of group {group} at {index} misses what was committed before it came "
            f"({committed_before})",
        )


def hash_of(entry: Entry) -> int:
    return crc32(bytes(entry[PAYLOAD]), entry[OFFSET])
