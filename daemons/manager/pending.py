"""Who waits for what at a manager: updates for their entries, reads for an index or a round.

Nothing here decides about the answers; it keeps who waits, with a deadline each, and hands them
back when something has happened. All of it is bounded: over the limit nothing new is taken.
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
class Update:
    """A client's command on its way through the log."""

    client: Client
    request: int
    payload: bytes  # another one at its index means that this one was lost
    deadline: int
    key: bytes


@dataclass(slots=True)
class Reader:
    """A READ or ROUTE that can't be answered yet."""

    client: Client
    envelope: Envelope
    at_least: int
    deadline: int


class Waiting:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.updates: dict[int, Update] = {}  # by the index of the entry
        self.rounds: dict[int, Reader] = {}  # by context: until leadership is confirmed
        self.readers: list[Reader] = []  # until so much is applied
        self._contexts = 0  # never used twice in the life of the process

    def check_room(self, waiting: Any) -> None:
        if len(waiting) >= WAITING_MAX:
            raise Busy(f"{len(waiting)} requests wait here already")

    def begin_round(self, reader: Reader) -> int:
        self.check_room(self.rounds)
        self._contexts += 1
        self.rounds[self._contexts] = reader
        return self._contexts

    def add_reader(self, reader: Reader) -> None:
        self.check_room(self.readers)
        self.readers.append(reader)

    def take_readers(self, applied: int) -> list[Reader]:
        """Those who waited for no more than this."""
        ready = [one for one in self.readers if one.at_least <= applied]
        if ready:
            self.readers = [one for one in self.readers if one.at_least > applied]
        return ready

    def take_rounds(self) -> list[Reader]:
        """All of them: leadership is lost."""
        lost = list(self.rounds.values())
        self.rounds.clear()
        return lost

    def take_updates(self, first: int) -> list[Update]:
        """Those with entries from `first` on."""
        return [self.updates.pop(index) for index in [i for i in self.updates if i >= first]]

    def expired(self, now: int) -> tuple[list[Update], list[Reader]]:
        """Whose deadline has passed; they wait no more."""
        if not (self.updates or self.rounds or self.readers):
            return [], []
        late = [index for index, one in self.updates.items() if one.deadline <= now]
        updates = [self.updates.pop(index) for index in late]
        contexts = [context for context, one in self.rounds.items() if one.deadline <= now]
        readers = [self.rounds.pop(context) for context in contexts]
        readers += [one for one in self.readers if one.deadline <= now]
        self.readers = [one for one in self.readers if one.deadline > now]
        return updates, readers
