"""How far each consumer of a partition is: commits, takes, and which members may move a position.

A position is the offset of the next message that a consumer wants. It is part of the partition's
own state, next to the data, and only replicated commands move it. The rules (PROTOCOL.md, section
5) are applied alike on every replica:

- A commit carries the assignment epoch of the partition and the epoch of the member. A commit with
  lower epochs than the known ones is FENCED: its sender lost the partition. The assignment epoch is
  compared first, since a new assignment may go to a member with a lower epoch of its own.
- Within one assignment a position never goes back: a lower offset is answered with the current one.
  A higher assignment epoch may set any offset (reset).
- A commit of NO_OFFSET moves nothing. It only makes its epochs known, so that earlier owners of the
  partition are fenced from then on. Its answer is the position, or NO_OFFSET if there is none.
- A forgotten consumer is as if it had never existed, epochs and takes included. A fenced member
  can't have a consumer forgotten.
- No position is past the end of the partition.
- A take moves the position over the next messages and remembers by the request's key which ones
  these were: the last `TAKE_KEYS_PER_CONSUMER_MAX` keys of each consumer, and the last older keys
  of all consumers (`old_takes.py`). A take that got nothing is remembered only if it asks for that.
  A client that tries several partitions with one key then takes the same path when it repeats.

Pure; the callers give the partition's start and end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from myqueue import errors
from myqueue.daemons.partition.old_takes import OlderTakes
from myqueue.wire import protocol

TAKE_KEYS_PER_CONSUMER_MAX: Final = 16
CONSUMERS_MAX: Final = 100_000

OK: Final = 0
_FENCED: Final = errors.Fenced.code
_OUT_OF_RANGE: Final = errors.OffsetOutOfRange.code
_BUSY: Final = errors.Busy.code


class ConsumerPosition:
    """The position of one consumer. `taken`: key -> (first, next), oldest first."""

    __slots__ = ("assignment", "member", "offset", "taken")

    def __init__(
        self,
        offset: int | None,
        member: int = 0,
        assignment: int = 0,
        taken: Iterable[list[Any]] = (),
    ) -> None:
        self.offset, self.member, self.assignment = offset, member, assignment
        self.taken: dict[bytes, tuple[int, int]] = {
            key: (first, next_offset) for key, first, next_offset in taken
        }

    def packed(self) -> list[Any]:
        taken = [[key, first, next_offset] for key, (first, next_offset) in self.taken.items()]
        return [self.offset, self.member, self.assignment, taken]


class ConsumerPositions:
    """The positions of all consumers of one partition."""

    __slots__ = ("_by_consumer", "_changed", "_forgotten", "older")

    def __init__(self) -> None:
        self.older = OlderTakes()
        self._by_consumer: dict[str, ConsumerPosition] = {}
        self._changed: dict[str, None] = {}
        self._forgotten: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._by_consumer)

    def offset(self, consumer: str) -> int | None:
        """Return the consumer's position; None if it never committed nor took."""
        known = self._by_consumer.get(consumer)
        return None if known is None else known.offset

    def consumers_past(self, offset: int, most: int) -> dict[str, int]:
        """Return consumers whose position is after `offset`, at most `most` of them."""
        found: dict[str, int] = {}
        for consumer, known in self._by_consumer.items():
            if known.offset is not None and known.offset > offset:
                if len(found) == most:
                    break
                found[consumer] = known.offset
        return found

    def commit(
        self, consumer: str, offset: int, member: int, assignment: int, end: int
    ) -> tuple[int, int]:
        """Apply a commit. Return (code, the position afterwards)."""
        known = self._by_consumer.get(consumer)
        current = 0 if known is None else known.offset or 0
        fences = offset == protocol.NO_OFFSET
        if known is None:
            if len(self._by_consumer) >= CONSUMERS_MAX:
                return _BUSY, current
        elif (assignment, member) < (known.assignment, known.member):
            return _FENCED, current
        if offset > end and not fences:
            return _OUT_OF_RANGE, current
        if known is None:
            known = self._new(consumer, None)
        first = known.offset is None
        if not fences and (first or offset > current or assignment > known.assignment):
            known.offset = offset
        known.member, known.assignment = member, assignment
        self._changed[consumer] = None
        return OK, protocol.NO_OFFSET if known.offset is None else known.offset

    def _new(self, consumer: str, offset: int | None) -> ConsumerPosition:
        self._forgotten.pop(consumer, None)
        known = self._by_consumer[consumer] = ConsumerPosition(offset)
        return known

    def forget(self, consumer: str, member: int, assignment: int) -> tuple[int, int]:
        """Forget a consumer. Return (code, NO_OFFSET), or (FENCED, its position)."""
        known = self._by_consumer.get(consumer)
        if known is not None:
            if (assignment, member) < (known.assignment, known.member):
                return _FENCED, known.offset or 0
            del self._by_consumer[consumer]
            self._changed.pop(consumer, None)
            self._forgotten[consumer] = None
            self.older.forget(consumer)
        return OK, protocol.NO_OFFSET

    def taken(self, consumer: str, key: bytes) -> tuple[int, int] | None:
        """Return (first, next) of an earlier take with this key."""
        known = self._by_consumer.get(consumer)
        found = None if known is None else known.taken.get(key)
        return found or self.older.find(consumer, key)

    def next_to_take(self, consumer: str, start: int) -> int:
        """Return the offset where the next take begins: the position, or the start if that is
        higher.
        """
        known = self._by_consumer.get(consumer)
        return start if known is None or known.offset is None else max(known.offset, start)

    def take(
        self,
        consumer: str,
        key: bytes,
        most: int,
        start: int,
        end: int,
        remember_empty: bool = False,
    ) -> tuple[int, int, int]:
        """Apply a take. Return (code, first, next): the client owns messages first … next - 1."""
        before = self.taken(consumer, key)
        if before is not None:
            return OK, *before
        first = self.next_to_take(consumer, start)
        next_offset = max(first, min(first + most, end))
        if next_offset == first and not remember_empty:
            return OK, first, first
        known = self._by_consumer.get(consumer)
        if known is None:
            if len(self._by_consumer) >= CONSUMERS_MAX:
                return _BUSY, first, first
            known = self._new(consumer, next_offset)
        known.offset = next_offset
        known.taken[key] = (first, next_offset)
        if len(known.taken) > TAKE_KEYS_PER_CONSUMER_MAX:
            oldest = next(iter(known.taken))
            self.older.add(consumer, oldest, *known.taken.pop(oldest))
        self._changed[consumer] = None
        return OK, first, next_offset

    # -- saving --------------------------------------------------------------------------------

    def take_changes(self) -> tuple[dict[str, bytes], list[str]]:
        """Return rows of consumers that moved since the last call, and forgotten ones."""
        known = self._by_consumer
        rows = {one: protocol.pack(known[one].packed()) for one in self._changed}
        gone = list(self._forgotten)
        self._changed, self._forgotten = {}, {}
        return rows, gone

    def packed(self) -> list[list[Any]]:
        return [[one, *self._by_consumer[one].packed()] for one in sorted(self._by_consumer)]

    def become(self, packed: list[list[Any]], *, changed: bool) -> None:
        """Replace everything by `packed`. `changed`: the store gets all of it, and the
        deletions.
        """
        before = self._by_consumer
        self._by_consumer = {consumer: ConsumerPosition(*rest) for consumer, *rest in packed}
        if changed:
            self._forgotten.update(dict.fromkeys(before))
            self._changed = dict.fromkeys(self._by_consumer)
            for consumer in self._changed:
                self._forgotten.pop(consumer, None)
        else:
            self._changed, self._forgotten = {}, {}
