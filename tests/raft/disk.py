"""What one replica has written: a list of the core's own effects, of which the first ones are safe.

A crash keeps the first `durable` of them, whatever they are, and `reopen` makes of these what a
real journal would recover. That is all that the tests of this folder need; the real journal, with
its bytes and sectors, meets the core in the simulator.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    CHAIN,
    COUNT,
    INDEX,
    OFFSET,
    TERM,
    Config,
    Entry,
    Persist,
    PersistEntries,
    PersistHardState,
    PersistSnapshot,
    PersistTruncate,
    RaftSettings,
)


class Start(NamedTuple):
    """Retention: the log begins at `index`; the rest is about the entry before."""

    index: int  # type: ignore[assignment]
    term: int
    offset: int
    chain: int


class Disk:
    """See the module's docstring. `applied` and `state` are the state machine's, always safe."""

    def __init__(self, config: Config) -> None:
        self.first_config = config
        self.ops: list[Persist | Start] = []
        self.durable = 0
        self.applied = 0
        self.state: list[str] = []
        self.replaced: tuple[int, list[str]] | None = None  # by an install that is not safe yet
        self.damaged = False

    def write(self, op: Persist | Start) -> None:
        self.ops.append(op)

    def sync(self, count: int | None = None) -> list[Persist | Start]:
        """The next writes are safe, all or some; which ones they were."""
        end = len(self.ops) if count is None else min(len(self.ops), self.durable + count)
        done, self.durable = self.ops[self.durable : end], end
        return done

    def install(self, applied: int, state: list[str]) -> None:
        self.replaced = self.replaced or (self.applied, self.state)
        self.applied, self.state = applied, state

    def crash(self) -> None:
        del self.ops[self.durable :]
        if self.replaced:
            self.applied, self.state = self.replaced
            self.replaced = None

    def lose_entries(self, first: int) -> None:
        """Damage: the entries from `first` on can't be read any more; the hard state can."""
        lost = Recovered(self)
        before = lost.entries[first - 1 - lost.start.index] if first > lost.start.index else None
        offset = before[OFFSET] + before[COUNT] if before else lost.start.offset
        term, chain = (before[TERM], before[CHAIN]) if before else lost.start[1::2]
        self.ops.append(PersistTruncate(0, first, term, offset, chain))
        self.durable = len(self.ops)
        self.damaged = True


class Recovered:
    """The operations, replayed."""

    def __init__(self, disk: Disk) -> None:
        self.term = self.vote = 0
        self.start = Start(1, 0, 0, 0)
        self.entries: list[Entry] = []
        self.configs = ConfigHistory(0, disk.first_config)
        self.snapshot = None
        for op in disk.ops[: disk.durable]:
            self._replay(op)

    def _replay(self, op: Persist | Start) -> None:
        if isinstance(op, PersistHardState):
            self.term, self.vote = op.term, op.vote
        elif isinstance(op, PersistEntries):
            assert op.entries[0][INDEX] == self.start.index + len(self.entries), "a gap (W10)"
            self.entries += op.entries
            self.configs.appended(op.entries)
        elif isinstance(op, PersistTruncate):
            del self.entries[op.index - self.start.index :]
            self.configs.truncated(op.index)
        elif isinstance(op, PersistSnapshot):
            made = op.snapshot
            self.start = Start(
                made.start_index, made.start_term, made.start_offset, made.start_chain
            )
            self.entries, self.snapshot = [], made
            self.configs.installed(made.index, made.config)
        else:
            del self.entries[: op.index - self.start.index]
            self.start = op

    @property
    def last_index(self) -> int:
        return self.start.index + len(self.entries) - 1


def reopen(
    disk: Disk,
    group: int,
    replica: int,
    settings: RaftSettings,
    alive_until: dict[int, int],
    now: int,
    random: Random,
) -> RaftNode:
    """A replica, from what its disk holds."""
    found = Recovered(disk)

    def lookup(index: int) -> tuple[int, int]:
        entry = found.entries[index - found.start.index]
        before = found.entries[index - found.start.index - 1]
        return entry[OFFSET], before[CHAIN]

    log = RaftLog(*found.start, lookup=lookup)
    runs: list[tuple[int, int]] = []
    for entry in found.entries:
        if not runs or runs[-1][1] != entry[TERM]:
            runs.append((entry[INDEX], entry[TERM]))
    log.restore(runs, found.entries[-1] if found.entries else None)
    return RaftNode(
        group,
        replica,
        found.configs,
        log,
        term=found.term,
        vote=found.vote,
        applied_index=disk.applied,
        commit_index=disk.applied,
        settings=settings,
        random=random,
        alive_until=alive_until,
        now=now,
        may_miss_entries=disk.damaged,
    )
