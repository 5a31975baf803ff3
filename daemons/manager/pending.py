"""Requests that wait at a manager: updates for their entries, reads for an index or a round.

It decides nothing about the answers. It keeps each waiting request with a deadline and returns it
when its event has happened. All of it is bounded: over the limit no request is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from myqueue.errors import Busy
from myqueue.wire.protocol import Envelope

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Client

WAITING_MAX: Final = 4096  # of each kind


@dataclass(slots=True)
class PendingUpdate:
    """A client's command on its way through the log."""

    client: Client
    request: int
    payload: bytes  # another payload at its index means that this one was lost
    deadline: int
    key: bytes


@dataclass(slots=True, eq=False)
class PendingRead:
    """A READ or ROUTE that cannot be answered yet."""

    client: Client
    envelope: Envelope
    at_least_index: int
    deadline: int


class PendingRequests:
    """All requests that wait at this manager."""

    def __init__(self) -> None:
        self.updates: dict[int, PendingUpdate] = {}  # by the index of the entry
        self.reads_awaiting_round: dict[PendingRead, None] = {}  # until leadership is confirmed
        self.reads_awaiting_index: list[PendingRead] = []  # until their index is applied

    def check_room(self, waiting: Any) -> None:
        if len(waiting) >= WAITING_MAX:
            raise Busy(f"{len(waiting)} requests wait at this manager already")

    def add_round_read(self, reader: PendingRead) -> None:
        self.check_room(self.reads_awaiting_round)
        self.reads_awaiting_round[reader] = None

    def remove_round_read(self, reader: PendingRead) -> bool:
        """Remove a read that waits for a round; False if it expired."""
        return self.reads_awaiting_round.pop(reader, True) is None

    def add_index_read(self, reader: PendingRead) -> None:
        self.check_room(self.reads_awaiting_index)
        self.reads_awaiting_index.append(reader)

    def take_ready_reads(self, applied: int) -> list[PendingRead]:
        """Remove and return the reads that wait for this index or an earlier one."""
        ready = [read for read in self.reads_awaiting_index if read.at_least_index <= applied]
        if ready:
            self.reads_awaiting_index = [
                read for read in self.reads_awaiting_index if read.at_least_index > applied
            ]
        return ready

    def take_round_reads(self) -> list[PendingRead]:
        """Remove and return all reads that wait for a round: leadership is lost."""
        reads = list(self.reads_awaiting_round)
        self.reads_awaiting_round.clear()
        return reads

    def take_updates(self, first: int) -> list[PendingUpdate]:
        """Remove and return the updates with entries from `first` on."""
        return [self.updates.pop(index) for index in [i for i in self.updates if i >= first]]

    def take_expired(self, now: int) -> tuple[list[PendingUpdate], list[PendingRead]]:
        """Remove and return the requests whose deadline has passed."""
        if not (self.updates or self.reads_awaiting_round or self.reads_awaiting_index):
            return [], []
        late = [index for index, update in self.updates.items() if update.deadline <= now]
        updates = [self.updates.pop(index) for index in late]
        readers = [read for read in self.reads_awaiting_round if read.deadline <= now]
        for read in readers:
            del self.reads_awaiting_round[read]
        readers += [read for read in self.reads_awaiting_index if read.deadline <= now]
        self.reads_awaiting_index = [
            read for read in self.reads_awaiting_index if read.deadline > now
        ]
        return updates, readers
