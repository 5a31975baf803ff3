"""One group's log as the core sees it: every term, the newest entries, what is on disk.

Entries stay in memory while they may soon be needed; older ones are in the journal and are fetched.
Terms change rarely, so the term of *every* index is known from a short list of runs, and finding
the place where two logs part never needs the disk.

Invariants: first_index <= last_index + 1; memory holds the consecutive entries
memory_first..last_index; persisted_index <= last_index; runs are ascending in index and in term,
the first one begins at or before first_index - 1; an index below the start or above the end has
no term, and asking for it is an error, never term 0 (R22).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from operator import itemgetter
from typing import Any

from myqueue.checksum import crc32
from myqueue.daemons.raft.types import (
    CHAIN,
    COUNT,
    INDEX,
    OFFSET,
    PAYLOAD,
    TERM,
    Entry,
    InvariantBroken,
    Proposal,
    Snapshot,
    require,
)

_payload, _offset = itemgetter(PAYLOAD), itemgetter(OFFSET)


def next_chain(previous: int, term: int, payload: Any) -> int:
    """The running digest of a log: two logs that part anywhere have different ones afterwards.

    Never 0, which means "not known". 32 bits against accidents; the journal's own checksums and the
    producers' guard the bytes themselves.
    """
    return crc32(payload, (previous ^ term * 0x9E3779B1) & 0xFFFFFFFF) or 1


# For an entry that is on disk but not in memory: (its offset, the chain of the entry before it).
Lookup = Callable[[int], tuple[int, int]]


def _nowhere(index: int) -> tuple[int, int]:
    raise InvariantBroken(f"entry {index} is not in memory, and there is no disk to look it up")


class RaftLog:
    """See the module's docstring."""

    __slots__ = (
        "_chain_before",
        "_ends",
        "_entries",
        "_forgotten",
        "_lookup",
        "_run_first",
        "_run_term",
        "first_index",
        "last_chain",
        "last_index",
        "last_term",
        "memory_first",
        "next_offset",
        "persisted_index",
        "start_chain",
        "start_offset",
        "start_term",
    )

    def __init__(
        self,
        first_index: int = 1,
        start_term: int = 0,
        start_offset: int = 0,
        start_chain: int = 0,
        lookup: Lookup = _nowhere,
    ) -> None:
        self._lookup = lookup
        self.reset(first_index, start_term, start_offset, start_chain)

    def reset(self, first_index: int, term: int, offset: int, chain: int) -> None:
        """An empty log that continues at `first_index`; the rest describes the entry before."""
        self.first_index, self.start_term = first_index, term
        self.start_offset, self.start_chain = offset, chain
        self.last_index, self.last_term = first_index - 1, term
        self.next_offset, self.last_chain = offset, chain
        self.persisted_index = first_index - 1
        self._run_first, self._run_term = [first_index - 1], [term]
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # running total of payload bytes after each entry in memory
        self._forgotten = 0  # that total before the first of them
        self._chain_before = chain  # of the entry before the first of them
        self.memory_first = first_index

    def restore(self, runs: list[tuple[int, int]], tail: Entry | None) -> None:
        """After a restart: runs of (first index, term) of what is on disk, and the last entry."""
        for index, term in runs:
            self._add_run(index, term)
        if tail is not None:
            self._set_end(tail)
            self.memory_first, self.persisted_index = self.last_index + 1, self.last_index
            self._chain_before = self.last_chain

    def _add_run(self, index: int, term: int) -> None:
        if term != self._run_term[-1]:
            require(term > self._run_term[-1], f"term {term} after term {self._run_term[-1]}")
            self._run_first.append(index)
            self._run_term.append(term)

    def _set_end(self, entry: Entry) -> None:
        self.last_index, self.last_term = entry[INDEX], entry[TERM]
        self.next_offset, self.last_chain = entry[OFFSET] + entry[COUNT], entry[CHAIN]

    def term(self, index: int) -> int:
        """Of any entry from the one before the start to the end."""
        if not self.first_index - 1 <= index <= self.last_index:
            raise InvariantBroken(
                f"no term at {index}: the log is {self.first_index}..{self.last_index}"
            )
        return self._run_term[bisect_right(self._run_first, index) - 1]

    def has(self, index: int, term: int) -> bool:
        return self.first_index - 1 <= index <= self.last_index and self.term(index) == term

    def chain(self, index: int) -> int:
        """The digest up to an entry, 0 if it is not known: neither it nor the next is in memory."""
        if index == self.last_index:
            return self.last_chain
        if index == self.memory_first - 1:
            return self._chain_before
        if self.memory_first <= index <= self.last_index:
            return self._entries[index - self.memory_first][CHAIN]
        return self.start_chain if index == self.first_index - 1 else 0

    def first_of_term(self, index: int) -> int:
        """The first index of the run of equal terms that holds `index`, not below the start."""
        return max(self._run_first[bisect_right(self._run_first, index) - 1], self.first_index - 1)

    def last_not_above(self, index: int, term: int) -> int:
        """The last index <= `index` with a term <= `term`: where two logs can still agree.

        If there is none in the log, one that is below it.
        """
        at = bisect_right(self._run_term, term)
        end = self._run_first[at] - 1 if at < len(self._run_first) else self.last_index
        return max(min(index, end), self.first_index - 2)

    def make(self, items: list[Proposal], term: int) -> list[Entry]:
        """Append proposals as entries of this term."""
        index, offset, chain = self.last_index, self.next_offset, self.last_chain
        made = []
        for messages, time_ms, kind, payload in items:
            index += 1
            chain = crc32(payload, (chain ^ term * 0x9E3779B1) & 0xFFFFFFFF) or 1
            made.append((index, term, offset, messages, time_ms, kind, chain, payload))
            offset += messages
        self.append(made)
        return made

    def append(self, entries: list[Entry]) -> None:
        """Entries that follow the last one; their terms may rise within."""
        first, last = entries[0], entries[-1]
        if first[INDEX] != self.last_index + 1:
            raise InvariantBroken(f"{first[INDEX]} after {self.last_index}")
        if last[TERM] == self._run_term[-1]:
            pass
        elif first[TERM] == last[TERM]:
            self._add_run(first[INDEX], first[TERM])
        else:
            for entry in entries:
                self._add_run(entry[INDEX], entry[TERM])
        if not self._entries:
            self.memory_first = first[INDEX]
        self._entries += entries
        total = self._ends[-1] if self._ends else self._forgotten
        ends = accumulate(map(len, map(_payload, entries)), initial=total)
        next(ends)
        self._ends += ends
        self._set_end(last)

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on."""
        require(self.first_index <= index <= self.last_index, f"no entry {index} to truncate at")
        before = index - 1
        kept = max(0, index - self.memory_first)
        removed = self._entries[kept] if index >= self.memory_first else None
        del self._entries[kept:], self._ends[kept:]
        while len(self._run_first) > 1 and self._run_first[-1] >= index:
            self._run_first.pop()
            self._run_term.pop()
        self.last_index, self.last_term = before, self._run_term[-1]
        self.persisted_index = min(self.persisted_index, before)
        if self._entries:
            self._set_end(self._entries[-1])
        elif before == self.first_index - 1:
            self.next_offset, self.last_chain = self.start_offset, self.start_chain
            self._chain_before = self.start_chain
        else:
            # The entry before is only on disk; the removed one may not have come that far yet.
            if removed is not None:
                self.next_offset, self.last_chain = removed[OFFSET], self._chain_before
            else:
                self.next_offset, self.last_chain = self._lookup(index)
            self._chain_before = self.last_chain
        self.memory_first = min(self.memory_first, index)

    def in_memory(self, first: int, last: int) -> list[Entry] | None:
        """Entries first..last, or None if not all of them are in memory."""
        if first < self.memory_first or last > self.last_index:
            return None
        return self._entries[first - self.memory_first : last + 1 - self.memory_first]

    def index_at_offset(self, offset: int) -> int | None:
        """The entry that holds this message, if it is in memory."""
        entries = self._entries
        at = bisect_right(entries, offset, key=_offset) - 1
        # An entry without messages has the offset of the next one, so here it is the log's end.
        if at < 0 or offset >= entries[at][OFFSET] + entries[at][COUNT]:
            return None
        return self.memory_first + at

    def portion(self, first: int, bytes_max: int, entries_max: int) -> tuple[list[Entry], int]:
        """Entries from `first` (in memory) to the end or a limit, at least one; and their bytes."""
        start = first - self.memory_first
        before = self._ends[start - 1] if start else self._forgotten
        end = min(len(self._entries), start + entries_max)
        if self._ends[end - 1] - before > bytes_max:
            end = max(bisect_right(self._ends, before + bytes_max), start + 1)
        return self._entries[start:end], self._ends[end - 1] - before

    @property
    def memory_bytes(self) -> int:
        return self._ends[-1] - self._forgotten if self._ends else 0

    def forget_before(self, index: int) -> None:
        """Entries below `index` may leave memory; they stay in the log."""
        count = min(index, self.last_index + 1) - self.memory_first
        if count > 0:
            self._forgotten = self._ends[count - 1]
            self._chain_before = self._entries[count - 1][CHAIN]
            del self._entries[:count], self._ends[:count]
            self.memory_first += count

    def shrink(self, bytes_kept: int, needed: int) -> None:
        """Forget the oldest entries until `bytes_kept` are left; nothing from `needed` on."""
        if self.memory_bytes > bytes_kept:
            count = bisect_left(self._ends, self._ends[-1] - bytes_kept) + 1
            self.forget_before(min(needed, self.memory_first + count))

    def start_at(self, index: int, term: int, offset: int, chain: int) -> None:
        """Move the start up: entries below `index` leave the log."""
        require(self.first_index <= index <= self.last_index + 1, f"cannot start at {index}")
        self.forget_before(index)
        self.first_index, self.start_term = index, term
        self.start_offset, self.start_chain = offset, chain
        while len(self._run_first) > 1 and self._run_first[1] <= index - 1:
            del self._run_first[0], self._run_term[0]

    def snapshot_to(self, snapshot: Snapshot) -> None:
        self.reset(
            snapshot.start_index, snapshot.start_term, snapshot.start_offset, snapshot.start_chain
        )
