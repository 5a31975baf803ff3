"""What must hold after every step, whoever crashed, whatever was lost. Each check names its rule.

The checkers see what a god would see: every vote, every entry that any replica ever took, every
commit, every acknowledgement. They keep the truth in plain dictionaries and compare.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from sim.machine import Ledger

from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.membership import decode_config
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    CHAIN,
    CONFIG,
    INDEX,
    OFFSET,
    PAYLOAD,
    TERM,
    TYPE,
    AppendReply,
    Config,
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
    """Where it is called for each entry or message, raise by hand: the text costs more."""
    if not condition:
        raise Violation(what)


class Checkers:
    def __init__(self) -> None:
        self.leaders: dict[tuple[int, int], int] = {}  # (group, term) -> replica
        self.votes: dict[tuple[int, int, int], int] = {}  # (group, term, voter) -> candidate
        self.entries: dict[tuple[int, int, int], tuple[int, int]] = {}  # (group, index, term)
        self.configs: dict[tuple[int, int, int], Config] = {}  # (group, index, term), of entries
        self.changes: dict[int, list[tuple[int, Config]]] = {}  # group -> members, from where on
        self.committed: dict[int, dict[int, tuple[int, bytes]]] = {}  # group -> index -> entry
        self.seen: dict[int, dict[int, int]] = {}  # group -> term -> highest index applied in it
        self.states: dict[tuple[int, int], tuple[int, int]] = {}  # (group, index) -> ledger
        self.acked: dict[tuple[int, int, int], int] = {}  # (group, client, sequence) -> index
        self.claims: dict[tuple[int, int], dict[int, int]] = {}  # (group, replica) -> index: term
        # (group, replica) -> a log ends there or later
        self.highest: dict[tuple[int, int], int] = {}
        # (group, replica) that lost something -> the term of its start
        self.recovers: dict[tuple[int, int], int] = {}
        self.terms: dict[tuple[int, int], int] = {}  # (group, replica) -> highest term it claimed
        self.answers: dict[tuple[int, int, int], int] = {}  # (group, replica, term) -> index
        self.newest: dict[int, int] = {}  # group -> highest index that was acknowledged
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
            log, answer = node.log, (*key, message.term)
            if not message.is_unhealthy and message.term > self.recovers.get(key, message.term):
                del self.recovers[key]
                self._has_recovered(node)
            self.answers[answer] = max(message.index, self.answers.get(answer, 0))
            if log.first_index - 1 <= message.index <= log.last_index:  # an install ends before it
                claims = self.claims.setdefault(key, {})
                claims[message.index] = log.term(message.index)
                self.highest[key] = max(message.index, self.highest.get(key, 0))
            if not message.is_unhealthy and log.last_index < self.highest.get(key, 0):
                self._lost_what_it_said(node, self.highest[key])
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

        if not pre and not refusal and isinstance(message, VoteReply | VoteRequest):
            for index, entry_term in self.claims.get(key, {}).items():
                if index >= node.log.first_index and not node.log.has(index, entry_term):
                    self._lost_what_it_said(node, index)

    def _lost_what_it_said(self, node: RaftNode, index: int) -> None:
        raise Violation(
            f"R2: {node.replica:x} of group {node.group} acknowledged entry {index}, has lost it "
            f"(log {node.log.first_index}..{node.log.last_index}), and speaks as if it had not"
        )

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
            if entry[TYPE] == CONFIG:
                self.configs[key] = decode_config(bytes(entry[PAYLOAD]))
                self._one_change(node, entry)
            truth = (entry[CHAIN], hash_of(entry))
            if self.entries.setdefault(key, truth) != truth:
                raise Violation(f"log matching: two entries at {key}")
            before = entry[INDEX] - 1
            if before >= node.log.first_index and node.log.term(before) > entry[TERM]:
                raise Violation(f"terms fall at {key}")

    def _one_change(self, node: RaftNode, change: Entry) -> None:
        """R14: members change after an entry of the leader's term, and the change before, are
        committed. Who has entries from a leader has them in the leader's order.
        """
        if node.role != Role.LEADER or change[TERM] != node.term:
            return
        log, commit = node.log, node.commit_index
        who = f"{node.replica:x} of group {node.group} changes members at {change[INDEX]}"
        own = commit >= log.first_index - 1 and log.term(commit) == node.term
        check(own, f"R14: {who} before an entry of its term {node.term} is committed")
        for index in range(max(commit + 1, log.first_index), change[INDEX]):
            other = (node.group, index, log.term(index)) in self.configs
            check(not other, f"R14: {who} while the change at {index} is under way")

    def forget_claims(self, node: RaftNode, index: int) -> None:
        """A higher term took these entries away, or a snapshot covers them."""
        claims = self.claims.get((node.group, node.replica), {})
        for claimed in [at for at in claims if at >= index]:
            del claims[claimed]
        key = node.group, node.replica
        self.highest[key] = min(index - 1, self.highest.get(key, 0))

    def _has_recovered(self, node: RaftNode) -> None:
        """A leader of a newer term has what was committed of its claims. The others it took away,
        or it put other entries in the place of those that were lost.
        """
        self.forget_claims(node, node.log.last_index + 1)
        committed = self.committed.get(node.group, {})
        claims, log = self.claims.get((node.group, node.replica), {}), node.log
        for index in [at for at in claims if at >= log.first_index]:
            term = claims[index]
            if not log.has(index, term) and committed.get(index, (0,))[0] != term:
                del claims[index]

    def installing(self, node: RaftNode, start_index: int) -> None:
        """A log is emptied, to go on at `start_index`: nothing of what it must keep is in it."""
        committed = self.committed.get(node.group, {})
        for index, term in self.claims.get((node.group, node.replica), {}).items():
            check(
                index < start_index
                or _is_recovering(node)
                or committed.get(index, (0,))[0] != term,
                f"R19: {node.replica:x} of group {node.group} acknowledged the committed entry "
                f"{index} and throws it away for a state that goes on at {start_index}",
            )
        self.forget_claims(node, 0)

    def became(self, node: RaftNode) -> None:
        """Election safety, leader completeness."""
        if node.role != Role.LEADER:
            return
        before = self.leaders.setdefault((node.group, node.term), node.replica)
        check(
            before == node.replica,
            f"two leaders of group {node.group} in term {node.term}: {before:x}, {node.replica:x}",
        )
        # Of an older term that is won late, on a vote that was long under way, nothing is demanded.
        seen = self.seen.get(node.group, {})
        index = max((at for term, at in seen.items() if term < node.term), default=0)
        if index:
            term = self.committed[node.group][index][0]
            check(
                index < node.log.first_index or node.log.has(index, term),
                f"leader completeness: {node.replica:x} leads group {node.group} in term "
                f"{node.term} without the committed entry {index}",
            )

    def applied(self, node: RaftNode, ledger: Ledger, entry: Entry) -> None:
        """State machine safety: one entry, one state at each index, on all replicas (R27)."""
        seen = self.seen.setdefault(node.group, {})
        seen[node.term] = max(seen.get(node.term, 0), entry[INDEX])
        committed = self.committed.setdefault(node.group, {})
        truth = (entry[TERM], bytes(entry[PAYLOAD]))
        if entry[TYPE] == CONFIG and entry[INDEX] not in committed:  # each is first met in order
            change = (entry[INDEX], decode_config(truth[1]))
            self.changes.setdefault(node.group, []).append(change)
        before = committed.setdefault(entry[INDEX], truth)
        if before != truth:
            raise Violation(
                f"group {node.group}: {node.replica:x} applies another entry {entry[INDEX]} "
                f"(term {entry[TERM]}) than was committed before (term {before[0]})"
            )
        state = (ledger.count, ledger.hash)
        if self.states.setdefault((node.group, entry[INDEX]), state) != state:
            raise Violation(f"R27: group {node.group} has two states at index {entry[INDEX]}")

    def acknowledged(self, group: int, client: int, sequence: int, index: int) -> None:
        committed = self.committed.get(group, {})
        check(index in committed, f"acknowledged at {index}, which is not committed")
        self.acked[group, client, sequence] = index
        self.newest[group] = max(index, self.newest.get(group, 0))

    # -- always --------------------------------------------------------------------------------

    def monotonic(self, node: RaftNode) -> None:
        """R4, within one life of a process."""
        log, configs = node.log, node.configs
        if configs.current_index > node.commit_index:
            self._config_is_of_the_log(node)
        now = (node.term, node.commit_index, node.applying_index)
        before = self.last.get((node.group, node.replica))
        if before == now:
            return
        self.last[node.group, node.replica] = now
        if before is not None and (now[0] < before[0] or now[1] < before[1] or now[2] < before[2]):
            raise Violation(f"R4: {node.replica:x} went back from {before} to {now}")
        check(log.persisted_index <= log.last_index, "persisted beyond the end")
        self._commit_is_true(node)
        if configs.current_index <= node.applied_index:
            self._config_is_of_the_state(node)

    def believes(self, leader: RaftNode, replica: Callable[[int, int], RaftNode | None]) -> None:
        """What a leader counts a follower to have, the follower said in this term, itself (R8,
        R26), and has (R4, R19).
        """
        for member, progress in leader.leading.followers.items():
            index, node = progress.match_index, replica(leader.group, member)
            said = self.answers.get((leader.group, member, leader.term), 0)
            if index > said:
                raise Violation(
                    f"R8: {leader.replica:x} leads group {leader.group} in term {leader.term} and "
                    f"counts {member:x} up to {index}, which in this term acknowledged {said}"
                )
            if not index or node is None or node.term > leader.term or _is_recovering(node):
                continue  # a newer term may have taken it away; who lost it will say so
            theirs, ours = node.log, leader.log
            lowest = max(ours.first_index, theirs.first_index) - 1  # below, only the end tells
            if theirs.last_index < index or (
                index >= lowest and theirs.term(index) != ours.term(index)
            ):
                raise Violation(
                    f"{leader.replica:x} leads group {leader.group} in term {leader.term} and "
                    f"believes that {member:x} has all up to {index} (log {theirs.first_index}.."
                    f"{theirs.last_index})"
                )

    def counted(self, leader: RaftNode, own: bool) -> None:
        """R5, W1: what a leader commits in its term, a majority of the voters have said in this
        term to have on their disks; and the leader itself, if it counts, has it on its own.
        """
        index, term, replica = leader.commit_index, leader.term, leader.replica
        if leader.log.term(index) != term:
            return  # it knew that before it led
        voters, answers = leader.config.voters, self.answers
        have = sum(answers.get((leader.group, one, term), 0) >= index for one in voters)
        have += own and replica in voters
        if have <= len(voters) // 2:
            raise Violation(
                f"R5: {replica:x} leads group {leader.group} in term {term} and commits {index}, "
                f"which {have} of {len(voters)} voters have on their disks"
            )

    def electable(self, leader: RaftNode, index: int, found: list[RaftNode | None]) -> None:
        """Leader completeness, before it comes to it: nobody without the entry that was just
        committed would now be elected by those who are up (R5, paper 5.4.3).
        """
        voters = {
            node.replica: node for node in found if node is not None and not _is_recovering(node)
        }
        term = leader.log.term(index)
        for node in voters.values():
            log = node.log
            if index < log.first_index or log.has(index, term) or node is leader:
                continue
            mine = log.last_term, log.last_index
            votes = sum(
                1
                for voter in node.config.voters
                if voter in voters
                and (voters[voter].log.last_term, voters[voter].log.last_index) <= mine
            )
            check(
                votes <= len(node.config.voters) // 2,
                f"leader completeness: {node.replica:x} has no entry {index} of term {term}, which "
                f"group {leader.group} just committed, and could be elected",
            )

    def _commit_is_true(self, node: RaftNode) -> None:
        """What it takes for committed is what others applied there (R3, R25)."""
        index, log = node.commit_index, node.log
        term, _ = self.committed.get(node.group, {}).get(index, (0, b""))
        check(
            not term or not log.first_index <= index <= log.last_index or log.term(index) == term,
            f"{node.replica:x} of group {node.group} takes its entry {index} for committed, which "
            f"is not the one of term {term}",
        )

    def _config_is_of_the_log(self, node: RaftNode) -> None:
        """R15: the members that count are those of an entry that is still in the log."""
        index, log = node.configs.current_index, node.log
        if index <= node.applied_index:
            return  # of the state, which may be ahead of a log that was just emptied
        known = None
        if log.first_index <= index <= log.last_index:
            known = self.configs.get((node.group, index, log.term(index)))
        check(
            known == node.config,
            f"R15: {node.replica:x} of group {node.group} counts the members of an entry {index} "
            f"that it does not have (log {log.first_index}..{log.last_index})",
        )

    def _config_is_of_the_state(self, node: RaftNode) -> None:
        """R15, R16: without a newer one in its log, a replica counts the members that the commits
        up to its state have made, whether it took them, found them at a start or was sent them.
        """
        changes = self.changes.get(node.group, ())
        known = next((to for at, to in reversed(changes) if at <= node.applied_index), None)
        if known is not None and known != node.config:
            raise Violation(
                f"R15: {node.replica:x} of group {node.group} has applied {node.applied_index} "
                f"entries and counts {node.config}, not {known}"
            )

    def restarted(self, node: RaftNode) -> None:
        """What it claimed before the crash it still has (W1, R1)."""
        key = (node.group, node.replica)
        self.last.pop(key, None)
        self._commit_is_true(node)
        check(
            node.term >= self.terms.get(key, 0),
            f"R1: {node.replica:x} of group {node.group} spoke in term {self.terms.get(key)} and "
            f"came back in term {node.term}",
        )
        if _is_recovering(node):
            self.recovers[key] = node.started_term
            return
        if node.term > self.recovers.pop(key, node.term):
            self._has_recovered(node)
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


def _is_recovering(node: RaftNode) -> bool:
    return node.health is ReplicaHealth.RECOVERING
