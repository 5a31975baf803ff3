"""What is damaged on this disk, and what follows from it: the values and decisions of `repair`.

Nothing here reads or sends anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.log import chained
from myqueue.wal.groups import Row
from myqueue.wal.salvage import Salvage

LEAD_MS: Final = 1000  # that a leader may lack something; then it makes way


class Way(Enum):
    GONE = 0
    MEMORY = 1
    PEERS = 2


def way_of(index: int, first: int, last: int, memory_first: int) -> Way:
    """How an entry that can't be read comes back; the log is first … last."""
    if not first <= index <= last:
        return Way.GONE
    return Way.MEMORY if index >= memory_first else Way.PEERS


def leader_step(lacking_ms: int) -> str:
    """What a leader does that has lacked something for so long."""
    if lacking_ms < LEAD_MS:
        return ""
    return "hand over" if lacking_ms < 2 * LEAD_MS else "step down"


def is_the_entry(row: Row, chain_before: int, entry: t.Entry) -> bool:
    """Whether this is what the index says that was lost."""
    index, term, offset, count, time_ms, _, chain, payload = entry
    return (
        (index, term, offset, count, time_ms, chain, len(payload))
        == (row.index, row.term, row.offset, row.count, row.time_ms, row.chain, row.length)
        and chained(chain_before, term, payload) == chain
    )  # fmt: skip


class Damaged:
    """One segment with something in it that can't be read."""

    def __init__(self, name: str, position: int, found: str, what: str, salvage: Salvage) -> None:
        self.name, self.position, self.found, self.what = name, position, found, what
        self.salvage = salvage
        self.steps: Iterator[None] = salvage.run()
        self.next_step = 0
        self.since_ms = 0  # wall clock, for people
        self.failed = ""
        self.noted = 0  # of what is unreadable in it


class Lacking:
    """What one group lacks: index -> where it stood, and whether it was given again."""

    def __init__(self, now: int) -> None:
        self.since, self.next_ask, self.asked = now, now, 0
        self.entries: dict[int, tuple[int, int]] = {}  # index -> segment and position
        self.given: set[int] = set()
        self.expected = 0  # of those that were asked for last
        self.is_handed_over = False
