"""The fetched messages of one partition that were not handed out yet. Pure.

    position  ≤  next_offset
      │            └ to fetch next: the offset after everything that is buffered
      └ the offset after the last message that the application got

Between the two lie the *opened* batch, as an iterator over its messages, and the *packed* batches.
The position is not counted message by message: it is `opened_end` minus the messages left in the
iterator. That one makes each message out of the next value of a list, and the list's iterator knows
how many values are left. So handing out a message is one step of C code, whether the application
iterates or polls. No message is handed out twice: there is only one iterator, and `move_to`
exhausts it, so a loop that still holds it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import length_hint
from typing import NamedTuple

from myqueue.consumer.message import Message, MessageRun
from myqueue.wire import batch


class PackedBatch(NamedTuple):
    """A batch as it was received."""

    offset: int  # of its first message
    count: int  # type: ignore[assignment]  # tuple.count is not used
    frame: batch.Buffer

    @property
    def end(self) -> int:
        return self.offset + self.count


class BatchBuffer:
    """An opened batch, packed batches after it, and the two offsets that enclose them."""

    def __init__(self) -> None:
        self.opened: Iterator[Message] = iter([])
        self._left: Iterator[object] = self.opened  # yields one item for each message of `opened`
        self.opened_end = 0
        self.packed: deque[PackedBatch] = deque()
        self.packed_bytes = 0
        self.next_offset = 0

    @property
    def opened_count(self) -> int:
        """Number of messages of the opened batch that were not handed out."""
        return length_hint(self._left)

    @property
    def position(self) -> int:
        return self.opened_end - length_hint(self._left)

    @property
    def has_messages(self) -> bool:
        return bool(self.packed) or length_hint(self._left) > 0

    def move_to(self, offset: int) -> None:
        """Drop all messages and go on from this offset."""
        deque(self._left, maxlen=0)  # ends `opened` as well
        self.packed.clear()
        self.packed_bytes = 0
        self.opened_end = self.next_offset = offset

    def drop(self) -> None:
        """Drop all messages. The position stays, so they are fetched again."""
        self.move_to(self.position)

    def detach_iterator(self) -> None:
        """Keep the rest of the opened batch, but end the loop that iterates over it."""
        self.opened = iter(list(self.opened))
        self._left = self.opened

    def receive(self, offset: int, frame: batch.Buffer) -> bool:
        """Add a batch, unless it holds nothing new; False: messages before it are missing.

        Offsets are dense, so a gap would lose messages. Raises BatchInvalid for a broken header.
        """
        if offset > self.next_offset:
            return False
        received = PackedBatch(offset, batch.header(frame).count, frame)
        if received.end > self.next_offset:
            self.packed.append(received)
            self.packed_bytes += len(frame)
            self.next_offset = received.end
        return True

    def pop_packed(self) -> PackedBatch:
        """Remove the first packed batch, for `open` or `skip`; the opened one is exhausted."""
        first = self.packed.popleft()
        self.packed_bytes -= len(first.frame)
        return first

    def open(self, popped: PackedBatch, run: MessageRun) -> None:
        """Hand out these messages next, those of the batch that was popped."""
        handed_out = self.opened_end - popped.offset  # its first ones, before the position
        (self.opened, self._left), self.opened_end = run, popped.end
        if handed_out > 0:
            deque(islice(self.opened, handed_out), maxlen=0)

    def skip(self, popped: PackedBatch) -> int:
        """Go on after the batch that was popped; return how many messages that skips."""
        skipped = popped.end - max(self.opened_end, popped.offset)
        self.opened_end = popped.end
        return skipped

    def contradictions(self) -> list[str]:
        """Name the invariants that do not hold; for tests."""
        packed, end = self.packed, self.opened_end
        checks = {
            "packed_bytes": self.packed_bytes == sum(len(row.frame) for row in packed),
            "next_offset": self.next_offset == (packed[-1].end if packed else end),
            "gap after the opened batch": not packed or packed[0].offset <= end,
            "gap between batches": all(a.end >= b.offset for a, b in pairwise(packed)),
        }
        return [name for name, holds in checks.items() if not holds]
