"""The messages that wait to be sent, by partition: batches, their order, sequences and repeats.

Pure: no clock, no socket, no lock. The producer and its sender call it under the producer's lock,
with the time. Without the lock, the I/O thread packs and settles batches, and reads what it alone
changes (flights and their batches); `Batch.listen` and `unlisten` may be called in any thread.

A *lane* has the messages of one partition. New messages go into its open batch; a sealed batch
takes no more and moves on, in order:

    open ──seal──▶ queue ──take──▶ flight ──stored──▶ done
                     ▲               │ │
                     │               │ └ rewind: to be sent again, the same bytes in the same order
                     │             park: refused after a gap, and certainly not stored
                     │               ▼
                     └── restart ─ parked (still in its lane's flight, but not sent)

    open, queue, flight or parked ──give_up──▶ done, with an error

A batch is sent at once if its lane has nothing in flight, so a single message does not wait. Else
it is sent when it is full, after `linger_ms`, or when nothing is in flight any more. So batches
grow by themselves when answers are slow.

Sequences number the messages of a lane within an epoch, from 0. A batch gets its sequence when it
is first taken and keeps it until it is settled; else a broker could not recognise a repeat.
`attempts_in_doubt` counts the attempts that no answer has called certainly not done
(`attempt_not_stored`). A batch may fail as "not stored" only if it is zero; an answer "stored"
counts whenever it arrives.

A *gap*: a batch with a sequence was given up, so brokers refuse all batches with later ones. Those
are parked when they are refused. When all batches in flight of all lanes are parked, the producer
gets a new epoch; `restart` puts them back into their queues, and they get new sequences.

Invariants (`check_invariants`): sequences in flight rise; a batch in a queue has none; `buffered`
is the sum of the sizes of all unsettled batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from myqueue.cluster.partitioner import Spread
from myqueue.errors import NONE, UNKNOWN, MyQueueError
from myqueue.wire import batch as batches

COUNT_MAX: Final = 16_384  # messages of a batch
MESSAGE_OVERHEAD_BYTES: Final = 24  # counted for each message: packing may add so much
HEADER_OVERHEAD_BYTES: Final = 10  # the same for each header of a message
PAUSE_MS_MAX: Final = 1_000
AVOID_MS: Final = 100  # longer than it takes to connect, shorter than an election


class Batch:
    """Messages of one partition that are sent, stored or failed together."""

    __slots__ = (
        "lane",
        "values",
        "keys",
        "headers",
        "times",
        "time_ms",
        "size",
        "opened",
        "deadline",
        "count",
        "sequence",
        "data",
        "attempt",
        "awaiting",
        "attempts_in_doubt",
        "parked",
        "last_error",
        "done",
        "offset",
        "stored_ms",
        "error",
        "listeners",
    )

    def __init__(self, lane: Lane, now: int, wall_ms: int, deadline: int) -> None:
        self.lane, self.opened, self.time_ms, self.deadline = lane, now, wall_ms, deadline
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[dict[str, bytes] | None] | None = None
        self.times: list[int] | None = None  # ms since 1970
        self.size = self.count = self.attempt = self.attempts_in_doubt = 0
        self.sequence = -1  # none yet
        self.data = b""  # packed
        self.awaiting = self.parked = self.done = False
        self.last_error: MyQueueError | None = None
        self.offset = self.stored_ms = 0
        self.error: MyQueueError | None = None
        self.listeners: list[Callable[[Batch], None]] = []

    def has_room(self, size: int) -> bool:
        """Does a message of this size fit, with its overhead?"""
        return self.count < COUNT_MAX and self.size + size <= self.lane.batch_bytes

    def describe(
        self, key: bytes | None, headers: dict[str, bytes] | None, time_ms: int | None
    ) -> None:
        """Add key, headers and time of the last value; a column begins with its first use."""
        before = len(self.values) - 1
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = []
            self.keys += [None] * (before - len(self.keys))
            self.keys.append(key)
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = []
            self.headers += [None] * (before - len(self.headers))
            self.headers.append(headers or None)
        if time_ms is not None or self.times is not None:
            if self.times is None:
                self.times = []
            self.times += [self.time_ms] * (before - len(self.times))
            self.times.append(self.time_ms if time_ms is None else time_ms)

    def pack(self, producer: int, epoch: int, codec: int) -> bytes:
        """Pack the batch once; every attempt sends the same bytes."""
        if not self.data:
            count, base = self.count, self.time_ms
            for column, filler in (
                (self.keys, None),
                (self.headers, None),
                (self.times, self.time_ms),
            ):
                if column is not None:
                    column += [filler] * (count - len(column))  # type: ignore[operator, list-item]
            relative = None
            if self.times is not None:
                base = min(self.times)
                relative = [time_ms - base for time_ms in self.times]
            self.data = batches.make(
                (self.values, self.keys, self.headers, relative),
                base,
                producer=producer,
                epoch=epoch,
                sequence=max(0, self.sequence),
                codec=codec,
            )
        return self.data

    def settle(self, offset: int, stored_ms: int, error: MyQueueError | None) -> None:
        """Set the outcome, after `stored` or `give_up`, and call the listeners."""
        self.offset, self.stored_ms, self.error = offset, stored_ms, error
        self.data, self.done = b"", True
        if error is None:
            self.values, self.keys, self.headers, self.times = [], None, None, None
        self.call_listeners()

    def call_listeners(self) -> None:
        """Call each listener of a settled batch once; threads may race: `pop` is atomic."""
        while self.done and self.listeners:
            try:
                listener = self.listeners.pop(0)
            except IndexError:
                return
            listener(self)

    def listen(self, listener: Callable[[Batch], None]) -> None:
        self.listeners.append(listener)
        self.call_listeners()  # another thread may have settled it just now

    def unlisten(self, listener: Callable[[Batch], None]) -> None:
        with suppress(ValueError):  # it was called just now
            self.listeners.remove(listener)


class Lane:
    """The batches of one partition, in order."""

    __slots__ = (
        "topic",
        "partition",
        "group",
        "batch_bytes",
        "spread",
        "open",
        "queue",
        "flight",
        "next_sequence",
        "retry_at",
        "pause",
        "gap",
        "address",
        "blocked_since",
    )

    def __init__(
        self, topic: str, partition: int, group: int, batch_bytes: int, spread: Spread
    ) -> None:
        self.topic, self.partition, self.group = topic, partition, group
        self.batch_bytes, self.spread = batch_bytes, spread
        self.open: Batch | None = None
        self.queue: deque[Batch] = deque()  # sealed, no sequence
        self.flight: deque[Batch] = deque()  # has sequences
        self.next_sequence = 0
        self.retry_at = self.pause = 0
        self.gap = -1  # sequence of the first batch that was given up
        self.address = ""  # of the broker that got its last batch
        self.blocked_since = -1  # since when nothing can be sent; -1: it can

    def note_blocked(self, now: int) -> None:
        """Note that nothing can be sent; after AVOID_MS keyless messages avoid this lane."""
        if self.blocked_since < 0:
            self.blocked_since = now
        elif now - self.blocked_since >= AVOID_MS:
            self.spread.avoid(self.partition)

    def note_sendable(self, address: str) -> None:
        """Note that the broker at this address gets the lane's next batches."""
        self.address, self.blocked_since = address, -1
        self.spread.welcome(self.partition)

    def note_nothing_to_send(self) -> None:
        """Forget the broker and that the lane was blocked: the next message tries it again."""
        self.address, self.blocked_since = "", -1
        self.spread.welcome(self.partition)

    def unsettled(self) -> list[Batch]:
        return [*self.flight, *self.queue, *([self.open] if self.open is not None else [])]


class Accumulator:
    """All lanes of a producer."""

    def __init__(
        self, *, linger_ms: int, max_in_flight: int, delivery_timeout_ms: int, backoff_ms: int = 20
    ) -> None:
        self.linger_ms, self.max_in_flight = linger_ms, max_in_flight
        self.delivery_timeout_ms, self.backoff_ms = delivery_timeout_ms, backoff_ms
        self.buffered = 0
        self.lanes_by_group: dict[int, Lane] = {}
        self.ready: dict[Lane, None] = {}  # lanes for the next turn, in order
        self._lingering: deque[Batch] = deque()  # opened while others were in flight
        self._ages: deque[Batch] = deque()  # all, by deadline

    # -- gathering --------------------------------------------------------------------------------

    def add_lane(self, lane: Lane) -> Lane:
        self.lanes_by_group[lane.group] = lane
        return lane

    def open_batch_for(self, lane: Lane, size: int, now: int, wall_ms: int) -> Batch:
        """Find the lane's open batch if a message of this size fits, or open a new one."""
        batch = lane.open
        if batch is not None:
            if batch.has_room(size):
                return batch
            self.seal(lane)
        batch = lane.open = Batch(lane, now, wall_ms, now + self.delivery_timeout_ms)
        self._ages.append(batch)
        if lane.flight:
            self._lingering.append(batch)
        else:
            self.ready[lane] = None
        return batch

    def put(
        self, batch: Batch, values: list[bytes], size: int, keys: list[bytes | None] | None = None
    ) -> None:
        """Put messages with values, perhaps keys; `size` has MESSAGE_OVERHEAD_BYTES for each."""
        if keys is not None:
            batch.keys = batch.keys or []
            batch.keys += [None] * (batch.count - len(batch.keys))
            batch.keys += keys
        batch.values += values
        batch.count += len(values)
        batch.size += size
        self.buffered += size
        if batch.size >= batch.lane.batch_bytes:
            self.seal(batch.lane)

    def seal(self, lane: Lane) -> None:
        batch = lane.open
        if batch is not None:
            lane.spread.count(lane.partition, batch.count)
            lane.queue.append(batch)
            lane.open = None
            self.ready[lane] = None

    def seal_all(self) -> list[Batch]:
        """Seal every open batch; return all unsettled batches."""
        for lane in self.lanes_by_group.values():
            self.seal(lane)
        return [batch for lane in self.lanes_by_group.values() for batch in lane.unsettled()]

    # -- sending ----------------------------------------------------------------------------------

    def tick(self, now: int) -> list[Batch]:
        """Seal batches that lingered enough; return those past their deadline, for `give_up`."""
        while self._lingering and self._lingering[0].opened + self.linger_ms <= now:
            batch = self._lingering.popleft()
            if batch.lane.open is batch:
                self.seal(batch.lane)
        late = []
        while self._ages and (self._ages[0].done or self._ages[0].deadline <= now):
            batch = self._ages.popleft()
            if not batch.done:
                late.append(batch)
        return late

    def next_tick(self) -> int | None:
        """When `tick` has work to do next."""
        while self._lingering and self._lingering[0].lane.open is not self._lingering[0]:
            self._lingering.popleft()
        while self._ages and self._ages[0].done:
            self._ages.popleft()
        moments = [self._lingering[0].opened + self.linger_ms] if self._lingering else []
        moments += [self._ages[0].deadline] if self._ages else []
        return min(moments, default=None)

    def take(self, lane: Lane, now: int, only_repeats: bool = False) -> list[Batch]:
        """Take the batches of a lane to send now, in order; each then awaits an answer."""
        if lane.retry_at > now:
            return []
        taken = [batch for batch in lane.flight if not batch.awaiting and not batch.parked]
        if not only_repeats:
            if lane.open is not None and not lane.flight and not lane.queue:
                self.seal(lane)
            while lane.queue and len(lane.flight) < self.max_in_flight:
                batch = lane.queue.popleft()
                batch.sequence = lane.next_sequence
                lane.next_sequence += batch.count
                lane.flight.append(batch)
                taken.append(batch)
        for batch in taken:
            batch.awaiting = True
            batch.attempt += 1
            batch.attempts_in_doubt += 1
        return taken

    # -- outcomes ---------------------------------------------------------------------------------

    def stored(self, batch: Batch) -> bool:
        """Remove a stored batch; False if it was settled before."""
        if batch.done:
            return False
        self._remove(batch)
        batch.lane.pause = 0
        return True

    def rewind(self, batch: Batch, now: int, at_once: bool = False) -> None:
        """Let this batch and all after it in its lane be sent again."""
        lane = batch.lane
        for other in lane.flight:
            if other.sequence >= batch.sequence:
                other.awaiting = False
        pause = 0 if at_once and not lane.pause else max(self.backoff_ms, lane.pause)
        lane.pause = min(PAUSE_MS_MAX, max(self.backoff_ms, pause * 2))
        lane.retry_at = now + pause
        self.ready[lane] = None

    def resend_to_new_leaders(
        self, leader: Callable[[int], str | None], now: int, may_repeat: bool
    ) -> None:
        """Send unanswered batches to a new leader, without a pause.

        Only if `may_repeat`: without sequences a repeat could store a message twice, so a missing
        answer alone is no reason.
        """
        for lane in self.lanes_by_group.values():
            address = leader(lane.group) if lane.flight else None
            if address is None or address == lane.address:
                continue
            unanswered = next((batch for batch in lane.flight if batch.awaiting), None)
            if unanswered is not None and not may_repeat:
                continue
            lane.pause = 0
            if unanswered is not None:
                self.rewind(unanswered, now, at_once=True)
            lane.retry_at = now
            self.ready[lane] = None

    def attempt_not_stored(self, batch: Batch) -> None:
        """Note the answer that one attempt was certainly not stored."""
        batch.attempts_in_doubt -= 1

    def park(self, batch: Batch) -> None:
        """Keep a batch that was refused after a gap; it is sent again after `restart`.

        Only if no attempt is in doubt: else it could be stored under both epochs.
        """
        batch.parked, batch.awaiting = True, False

    def give_up(self, batch: Batch) -> str | None:
        """Give up a batch; its outcome ("none" or "unknown"), None if it was settled before."""
        if batch.done:
            return None
        if batch.sequence >= 0 and not batch.parked:
            gap = batch.lane.gap
            batch.lane.gap = batch.sequence if gap < 0 else min(gap, batch.sequence)
        self._remove(batch)
        return UNKNOWN if batch.attempts_in_doubt else NONE

    def is_first(self, batch: Batch) -> bool:
        """Is it the oldest in its lane's flight?"""
        return bool(batch.lane.flight) and batch.lane.flight[0] is batch

    def _remove(self, batch: Batch) -> None:
        lane = batch.lane
        self.buffered -= batch.size
        if lane.open is batch:
            lane.open = None
        elif batch.sequence >= 0:
            lane.flight.remove(batch)  # it is the first, or near
        else:
            lane.queue.remove(batch)
        if lane.flight or lane.queue or lane.open is not None:
            self.ready[lane] = None

    # -- a new epoch ------------------------------------------------------------------------------

    @property
    def has_gap(self) -> bool:
        return any(lane.gap >= 0 for lane in self.lanes_by_group.values())

    @property
    def may_restart(self) -> bool:
        """Can no batch that was sent still be stored?"""
        return all(batch.parked for lane in self.lanes_by_group.values() for batch in lane.flight)

    def restart(self) -> None:
        """Begin a new epoch: each lane counts from 0, and parked batches go first."""
        for lane in self.lanes_by_group.values():
            for batch in reversed(lane.flight):
                batch.sequence, batch.data = -1, b""
                batch.parked = batch.awaiting = False
                lane.queue.appendleft(batch)
            lane.flight.clear()
            lane.next_sequence, lane.gap, lane.retry_at = 0, -1, 0
            self.ready[lane] = None

    def check_invariants(self) -> None:
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        unsettled: list[Any] = [
            b for lane in self.lanes_by_group.values() for b in lane.unsettled()
        ]
        if sum(batch.size for batch in unsettled) != self.buffered:
            yield "buffered is not the sum of the sizes of unsettled batches"
        for lane in self.lanes_by_group.values():
            sequences = [batch.sequence for batch in lane.flight]
            if sequences != sorted(set(sequences)):
                yield f"sequences in flight do not rise: {sequences}"
            if any(batch.sequence >= 0 for batch in lane.queue):
                yield "a batch in a queue has a sequence"
            if len(lane.flight) > self.max_in_flight:
                yield f"{len(lane.flight)} batches in flight"
            if any(batch.done for batch in lane.unsettled()):
                yield "a settled batch is still in its lane"
