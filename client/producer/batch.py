"""The batch: messages of one partition that are sent together and end together.

Its state says where it is. `Accumulator` alone changes it, with `Batch.become`, under the
producer's lock; `_NEXT` has the changes that exist, with a picture.

`offset` and `stored_ms`, or `error`, are set before the state says that they are. So any thread may
read them without the lock once it has seen STORED or FAILED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from myqueue.errors import MyQueueError
from myqueue.wire import batch as wire

if TYPE_CHECKING:
    from myqueue.producer.lane import Lane

COUNT_MAX: Final = 16_384  # messages of a batch
MESSAGE_OVERHEAD_BYTES: Final = 24  # counted for each message: packing may add so much
HEADER_OVERHEAD_BYTES: Final = 10  # the same for each header of a message


class BatchState(Enum):
    """Where a batch is on its way."""

    OPEN = auto()  # takes messages
    QUEUED = auto()  # takes no more messages; has no sequence
    AWAITING = auto()  # in flight: the broker's answer is awaited
    REPEATING = auto()  # in flight: to be sent again
    PARKED = auto()  # in flight: refused after a gap and certainly not stored; waits for an epoch
    STORED = auto()
    FAILED = auto()


# Names of the module, because an attribute of an Enum costs 40 ns.
OPEN, QUEUED, AWAITING, REPEATING, PARKED, STORED, FAILED = BatchState

#   OPEN ──seal──▶ QUEUED ──take──▶ AWAITING ──rewind──▶ REPEATING
#                    ▲               │    ▲                  │
#                    │             park   └───────take───────┘
#                    │               ▼
#                    └───restart── PARKED
#
#   any but OPEN ──stored──▶ STORED: an answer counts whenever it arrives
#            any ──give_up──▶ FAILED
_NEXT: Final = {
    OPEN: {QUEUED, FAILED},
    QUEUED: {AWAITING, STORED, FAILED},
    AWAITING: {REPEATING, PARKED, STORED, FAILED},
    REPEATING: {AWAITING, STORED, FAILED},
    PARKED: {QUEUED, STORED, FAILED},
    STORED: set[BatchState](),
    FAILED: set[BatchState](),
}
IN_FLIGHT: Final = frozenset({AWAITING, REPEATING, PARKED})


class Batch:
    """Messages of one partition, and what became of them."""

    __slots__ = (
        *("lane", "state", "opened", "deadline"),
        *("values", "keys", "headers", "times", "time_ms", "count", "size", "size_max"),
        *("sequence", "data", "attempts", "attempts_in_doubt", "last_error"),
        *("offset", "stored_ms", "error", "listeners"),
    )

    def __init__(self, lane: Lane, now: int, wall_ms: int, deadline: int) -> None:
        self.lane, self.state = lane, OPEN
        self.opened, self.deadline = now, deadline
        self.values: list[bytes] = []
        # Columns: None until a message needs one; it may end before the last message.
        self.keys: list[bytes | None] | None = None
        self.headers: list[dict[str, bytes] | None] | None = None
        self.times: list[int | None] | None = None  # ms since 1970
        self.time_ms = wall_ms  # of messages that name none
        self.count = self.size = 0
        self.size_max = lane.batch_bytes
        self.sequence = -1  # none yet
        self.data = b""  # packed
        self.attempts = self.attempts_in_doubt = 0
        self.last_error: MyQueueError | None = None  # of an attempt
        self.offset = self.stored_ms = 0
        self.error: MyQueueError | None = None  # why it FAILED
        self.listeners: list[Callable[[Batch], None]] = []

    # -- messages ---------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Does a message of this size fit, with its overhead?"""
        return self.count < COUNT_MAX and self.size + size <= self.size_max

    def add_keys(self, keys: Sequence[bytes | None]) -> None:
        """Add the keys of the messages that come next."""
        self.keys = _continued(self.keys, self.count, keys)

    def describe_next(
        self, key: bytes | None, headers: dict[str, bytes] | None, time_ms: int | None
    ) -> None:
        """Add key, headers and time of the message that comes next."""
        if key is not None:
            self.add_keys([key])
        if headers:
            self.headers = _continued(self.headers, self.count, [headers])
        if time_ms is not None:
            self.times = _continued(self.times, self.count, [time_ms])

    def columns(self) -> tuple[list[bytes], Any, Any, Any]:
        """Values, keys, headers and times; each column is None, or has an item a message."""
        columns: tuple[list[Any] | None, ...] = (self.keys, self.headers, self.times)
        keys, headers, times = (
            None if column is None else _continued(column, self.count, ()) for column in columns
        )
        return self.values, keys, headers, times

    def pack(self, producer: int, epoch: int, codec: int) -> bytes:
        """Pack the batch once; every attempt sends the same bytes."""
        if not self.data:
            values, keys, headers, times = self.columns()
            first_ms = self.time_ms
            if times is not None:
                times = [self.time_ms if time_ms is None else time_ms for time_ms in times]
                first_ms = min(times)
                times = [time_ms - first_ms for time_ms in times]
            self.data = wire.make(
                (values, keys, headers, times),
                first_ms,
                producer=producer,
                epoch=epoch,
                sequence=max(0, self.sequence),
                codec=codec,
            )
        return self.data

    # -- state ------------------------------------------------------------------------------------

    def become(self, state: BatchState) -> None:
        """Change the state; raise ValueError if no batch may change so."""
        if state not in _NEXT[self.state]:
            raise ValueError(f"a batch that is {self.state.name} cannot become {state.name}")
        self.state = state

    @property
    def is_settled(self) -> bool:
        return self.state is STORED or self.state is FAILED

    def call_listeners(self) -> None:
        """Call each listener of a settled batch once; threads may race: `pop` is atomic."""
        while self.is_settled and self.listeners:
            try:
                listener = self.listeners.pop(0)
            except IndexError:
                return
            listener(self)

    def listen(self, listener: Callable[[Batch], None]) -> None:
        """Call the listener once when the batch is settled; at once if it is. In any thread."""
        self.listeners.append(listener)
        self.call_listeners()  # another thread may have settled it just now

    def unlisten(self, listener: Callable[[Batch], None]) -> None:
        with suppress(ValueError):  # it was called just now
            self.listeners.remove(listener)


def _continued(column: list[Any] | None, before: int, items: Sequence[Any]) -> list[Any]:
    """Add items to a column after `before` messages, of which the column may lack some."""
    column = [] if column is None else column
    column += [None] * (before - len(column))
    column += items
    return column
