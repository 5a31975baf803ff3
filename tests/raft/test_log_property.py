"""The log in memory against a plain list of entries."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from myqueue.daemons.raft.log import RaftLog, next_chain
from myqueue.daemons.raft.types import (
    CHAIN,
    COUNT,
    DATA,
    INDEX,
    OFFSET,
    PAYLOAD,
    TERM,
    Entry,
    InvariantBroken,
    Proposal,
    Snapshot,
)

payloads = st.binary(max_size=12)
items = st.lists(
    st.builds(Proposal, st.integers(0, 3), st.just(5), st.just(DATA), payloads),
    min_size=1,
    max_size=5,
)


class LogMachine(RuleBasedStateMachine):
    """`entries` is what a disk would hold; `start` describes the entry before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.start = (1, 0, 0, 0)  # first index, and term, offset, chain of the entry before
        self.in_memory_from = 1
        self.term = 1
        self.log = RaftLog(lookup=self.lookup)

    def lookup(self, index: int) -> tuple[int, int]:
        """The disk still has what is being truncated."""
        removed = self.before[index - self.start[0]]
        return removed[OFFSET], self.before[index - self.start[0] - 1][CHAIN]

    @property
    def last_index(self) -> int:
        return self.start[0] + len(self.entries) - 1

    def end(self) -> tuple[int, int, int]:
        if not self.entries:
            return self.start[1], self.start[2], self.start[3]
        last = self.entries[-1]
        return last[TERM], last[OFFSET] + last[COUNT], last[CHAIN]

    # -- what happens --------------------------------------------------------------------------

    @rule(some=items, rise=st.integers(0, 2))
    def make(self, some: list[Proposal], rise: int) -> None:
        """A leader's proposals."""
        self.term += rise
        _, offset, chain = self.end()
        made = []
        for item in some:
            chain = next_chain(chain, self.term, item.payload)
            index = self.last_index + 1 + len(made)
            made.append(
                (index, self.term, offset, item.messages, 5, item.type, chain, item.payload)
            )
            offset += item.messages
        assert self.log.make(some, self.term) == made
        self.entries += made

    @rule(some=items, rises=st.lists(st.integers(0, 1), min_size=5, max_size=5))
    def append(self, some: list[Proposal], rises: list[int]) -> None:
        """A leader's message, with several terms."""
        other = RaftLog(self.last_index + 1, *self.end())
        for item, rise in zip(some, rises, strict=False):
            self.term += rise
            other.make([item], self.term)
        made = other.in_memory(self.last_index + 1, other.last_index) or []
        self.log.append(made)
        self.entries += made

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.start[0], self.last_index))
        self.before = list(self.entries)
        self.log.truncate(index)
        del self.entries[index - self.start[0] :]
        self.term += 1

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.log.forget_before(data.draw(st.integers(1, self.last_index + 3)))

    @rule(kept=st.integers(0, 40), data=st.data())
    def shrink(self, kept: int, data: st.DataObject) -> None:
        needed = data.draw(st.integers(1, self.last_index + 1))
        before = self.log.memory_first
        self.log.shrink(kept, needed)
        first = self.log.memory_first
        assert first == before or first <= needed, "what is needed stays"
        assert self.log.memory_bytes <= kept or first >= min(needed, self.last_index + 1)
        if first > before:
            size = sum(len(e[PAYLOAD]) for e in self.entries if e[INDEX] >= first - 1)
            assert size >= kept or first == needed, "no more than asked for"

    @rule(data=st.data())
    def start_at(self, data: st.DataObject) -> None:
        """Retention."""
        index = data.draw(st.integers(self.start[0], self.last_index + 1))
        if index > self.start[0]:
            last = self.entries[index - self.start[0] - 1]
            self.start = (index, last[TERM], last[OFFSET] + last[COUNT], last[CHAIN])
            del self.entries[: index - self.log.first_index]
        self.log.start_at(*self.start)

    @rule(gap=st.integers(0, 5), offset=st.integers(0, 9), chain=st.integers(0, 9))
    def install(self, gap: int, offset: int, chain: int) -> None:
        """A snapshot: an empty log that goes on elsewhere."""
        self.term += 1
        self.start, self.entries = (self.last_index + 1 + gap, self.term, offset, chain), []
        state = Snapshot(self.start[0] + 1, self.term, None, *self.start, None)  # type: ignore
        self.log.snapshot_to(state)

    @rule()
    def restart(self) -> None:
        """From the disk: runs of terms and the last entry."""
        runs: list[tuple[int, int]] = []
        for entry in self.entries:
            if not runs or runs[-1][1] != entry[TERM]:
                runs.append((entry[INDEX], entry[TERM]))
        self.log = RaftLog(*self.start, lookup=self.lookup)
        self.log.restore(runs, self.entries[-1] if self.entries else None)

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def ends_agree(self) -> None:
        log = self.log
        assert (log.first_index, log.last_index) == (self.start[0], self.last_index)
        assert (log.last_term, log.next_offset, log.last_chain) == self.end()
        assert log.persisted_index <= log.last_index

    @invariant()
    def every_term_is_known(self) -> None:
        """Though the entries may have left memory; and none outside is made up (R22)."""
        log, terms = self.log, [self.start[1]] + [entry[TERM] for entry in self.entries]
        first = self.start[0] - 1
        for at, term in enumerate(terms):
            index = first + at
            assert log.term(index) == term and log.has(index, term)
            assert not log.has(index, term + 1)
            run = next(i for i in range(at + 1) if terms[i] == term)
            assert log.first_of_term(index) == first + run
        for outside in (first - 1, self.last_index + 1):
            assert not log.has(outside, 0)
            with pytest.raises(InvariantBroken):
                log.term(outside)

    @invariant()
    def where_logs_can_agree(self) -> None:
        """The last index at or below one with a term at or below another."""
        terms = {self.start[0] - 1: self.start[1]} | {e[INDEX]: e[TERM] for e in self.entries}
        for limit in {0, self.start[1], self.term - 1, self.term}:
            for index in (self.start[0] - 1, self.last_index):
                good = [i for i, term in terms.items() if i <= index and term <= limit]
                found = self.log.last_not_above(index, limit)
                assert found == max(good) if good else found < self.start[0]

    @invariant()
    def memory_is_the_newest_part(self) -> None:
        log = self.log
        held = [entry for entry in self.entries if entry[INDEX] >= log.memory_first]
        assert log.in_memory(log.memory_first, self.last_index) == held
        assert log.memory_bytes == sum(len(entry[PAYLOAD]) for entry in held)
        assert log.in_memory(log.memory_first - 1, self.last_index) is None
        assert log.in_memory(log.memory_first, self.last_index + 1) is None
        for entry in self.entries:
            known = log.chain(entry[INDEX])
            assert known in (0, entry[CHAIN])
            assert known or entry[INDEX] < log.memory_first - 1, "a leader's first message has it"

    @invariant()
    def portions_keep_their_limits(self) -> None:
        log = self.log
        for bytes_max in (1, 10, 1000):
            for entries_max in (1, 3, 100):
                for first in {log.memory_first, self.last_index}:
                    if log.memory_first <= first <= self.last_index:
                        self.check_portion(first, bytes_max, entries_max)

    def check_portion(self, first: int, bytes_max: int, entries_max: int) -> None:
        naive, size = list[Entry](), 0
        for entry in self.entries[first - self.start[0] :][:entries_max]:
            if naive and size + len(entry[PAYLOAD]) > bytes_max:
                break
            naive.append(entry)
            size += len(entry[PAYLOAD])
        assert self.log.portion(first, bytes_max, entries_max) == (naive, size)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLog = LogMachine.TestCase


def test_a_gap_is_refused() -> None:
    """And a term that falls."""
    log = RaftLog()
    log.make([Proposal(1, 5, DATA, b"a")], 3)
    (entry,) = RaftLog(3, 3).make([Proposal(1, 5, DATA, b"b")], 3)
    with pytest.raises(InvariantBroken, match="3 after 1"):
        log.append([entry])
    (entry,) = RaftLog(2, 1).make([Proposal(1, 5, DATA, b"b")], 2)
    with pytest.raises(InvariantBroken, match="term 2 after term 3"):
        log.append([entry])


def test_two_logs_that_part_anywhere_have_different_digests_afterwards() -> None:
    """W21: whatever differs, payload or term, and however much follows that is equal."""
    digests = set()
    for part in range(4):
        for term, payload in ((1, b"x"), (1, b"y"), (2, b"x")):
            chain = 0
            for at in range(4):
                chain = next_chain(chain, *((term, payload) if at == part else (1, b"x")))
            digests.add(chain)
    assert len(digests) == 1 + 2 * 4
    assert 0 not in digests
