"""Messages that wait to be sent, partition by partition: gathering, order, sequences, repeats.

Pure: no clock, no socket, no lock. The producer calls it under its lock, with the time.

A *lane* is what goes to one partition. Messages are put into its open batch; a batch that is
sealed takes no more and moves on, in order:

    open ─seal─▶ queue ─take─▶ flight ─settle─▶ done
                   ▲              │ rewind: to be sent again, the same bytes in the same order
                   └──── unpack ──┘ only under a new epoch, only if certainly not stored

When is a batch sent? At once, if its lane has nothing in flight: a single message does not wait.
Else when it is full, when it lingered long enough, or when the flight is empty again. So the
slower the answers, the larger the batches, by themselves.

Sequences number the messages of a lane within an epoch, from 0. A batch gets its sequence when it
is taken for the first time, and keeps it until it is settled (C3). What is known of a batch is
counted in `doubt`: attempts that no answer has yet called certainly not done. A batch may be
called "not stored" only if that is zero; an answer "stored" is believed whenever it comes.

A *gap*: a batch with a sequence was given up, so brokers will refuse what has later ones. Those
are parked when they are refused; when every lane has nothing but parked batches in flight, the
producer gets a new epoch, and `restart` lets them have new sequences.

Invariants (`check_invariants`): in a flight sequences rise; a batch in a queue has none; `buffered`
is the sum of the sizes of all batches that are not settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from myqueue.errors import NONE, UNKNOWN, MyQueueError
from myqueue.producer.partitioner import Spread
from myqueue.wire import batch as batches

COUNT_MAX: Final = 16_384  # messages of a batch
MESSAGE_BYTES: Final = 24  # counted for each message besides its own bytes
HEADER_BYTES: Final = 10  # likewise for each header: what packing its name and content may add
PAUSE_MS_MAX: Final = 1_000
AVOID_MS: Final = 100  # longer than it takes to connect, shorter than an election


class Batch:
    """Messages of one partition that share their fate."""

    __slots__ = (
        "lane", "values", "keys", "headers", "times", "time_ms", "size", "opened", "deadline",
        "count", "sequence", "data", "attempt", "awaiting", "doubt", "parked", "last_error",
        "done", "offset", "stored_ms", "error", "listeners",
    )  # fmt: skip

    def __init__(self, lane: Lane, now: int, wall_ms: int, deadline: int) -> None:
        self.lane, self.opened, self.time_ms, self.deadline = lane, now, wall_ms, deadline
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[dict[str, bytes] | None] | None = None
        self.times: list[int] | None = None  # ms since 1970
        self.size = self.count = self.attempt = self.doubt = 0
        self.sequence = -1  # none yet
        self.data = b""  # packed
        self.awaiting = self.parked = self.done = False
        self.last_error: MyQueueError | None = None
        self.offset = self.stored_ms = 0
        self.error: MyQueueError | None = None
        self.listeners: list[Callable[[Batch], None]] = []

    def describe(
        self, key: bytes | None, headers: dict[str, bytes] | None, time_ms: int | None
    ) -> None:
        """What the last value has besides itself. Columns exist from the first that needs them."""
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
        """The bytes that are sent, this time and every time."""
        if not self.data:
            count, base = self.count, self.time_ms
            for column, filler in (
                (self.keys, None), (self.headers, None), (self.times, self.time_ms)
            ):  # fmt: skip
                if column is not None:
                    column += [filler] * (count - len(column))  # type: ignore[operator, list-item]
            relative = None
            if self.times is not None:
                base = min(self.times)
                relative = [time_ms - base for time_ms in self.times]
            self.data = batches.make(
                (self.values, self.keys, self.headers, relative), base,
                producer=producer, epoch=epoch, sequence=max(0, self.sequence), codec=codec,
            )  # fmt: skip
        return self.data

    def settle(self, offset: int, stored_ms: int, error: MyQueueError | None) -> None:
        self.offset, self.stored_ms, self.error = offset, stored_ms, error
        self.data, self.done = b"", True
        if error is None:
            self.values, self.keys, self.headers, self.times = [], None, None, None
        self.tell()

    def tell(self) -> None:
        """Each listener once, whichever thread comes first: `pop` is atomic."""
        while self.done and self.listeners:
            try:
                listener = self.listeners.pop(0)
            except IndexError:
                return
            listener(self)

    def listen(self, listener: Callable[[Batch], None]) -> None:
        self.listeners.append(listener)
        self.tell()  # if it was settled while we came

    def unlisten(self, listener: Callable[[Batch], None]) -> None:
        with suppress(ValueError):  # it was told just now
            self.listeners.remove(listener)


class Lane:
    """What goes to one partition, in order."""

    __slots__ = (
        "topic", "partition", "group", "batch_bytes", "spread", "open", "queue", "flight",
        "next_sequence", "retry_at", "pause", "gap", "address", "waits_since",
    )  # fmt: skip

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
        self.address = ""  # of whom its batches were sent to last
        self.waits_since = -1  # it could not be sent to since then

    def waits(self, now: int) -> None:
        """Nothing can be sent just now; if that lasts, what has no key goes elsewhere."""
        if self.waits_since < 0:
            self.waits_since = now
        elif now - self.waits_since >= AVOID_MS:
            self.spread.avoid(self.partition)

    def goes_to(self, address: str) -> None:
        self.address, self.waits_since = address, -1
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
        self.lanes: dict[int, Lane] = {}  # by group
        self.ready: dict[Lane, None] = {}  # those to look at, in order
        self._lingering: deque[Batch] = deque()  # opened while others were in flight
        self._ages: deque[Batch] = deque()  # all, by deadline

    # -- gathering --------------------------------------------------------------------------------

    def add_lane(self, lane: Lane) -> Lane:
        self.lanes[lane.group] = lane
        return lane

    def room(self, lane: Lane, size: int, now: int, wall_ms: int) -> Batch:
        """The open batch of the lane if so much fits; else a new one. At least one message does."""
        batch = lane.open
        if batch is not None:
            if batch.count < COUNT_MAX and batch.size + size <= lane.batch_bytes:
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
        """Messages that have a value and perhaps a key. `size` has MESSAGE_BYTES for each."""
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
        """Nothing lingers any more. All batches that are not settled."""
        for lane in self.lanes.values():
            self.seal(lane)
        return [batch for lane in self.lanes.values() for batch in lane.unsettled()]

    # -- sending ----------------------------------------------------------------------------------

    def tick(self, now: int) -> list[Batch]:
        """Seal what lingered enough. What is past its deadline, for `give_up`."""
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
        """When `tick` has something to do, if nothing happens before."""
        while self._lingering and self._lingering[0].lane.open is not self._lingering[0]:
            self._lingering.popleft()
        while self._ages and self._ages[0].done:
            self._ages.popleft()
        moments = [self._lingering[0].opened + self.linger_ms] if self._lingering else []
        moments += [self._ages[0].deadline] if self._ages else []
        return min(moments, default=None)

    def take(self, lane: Lane, now: int, only_repeats: bool = False) -> list[Batch]:
        """What to send of this lane now, in order. Each is then awaited."""
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
            batch.doubt += 1
        return taken

    # -- outcomes ---------------------------------------------------------------------------------

    def stored(self, batch: Batch) -> bool:
        """It is stored; False if it was settled before."""
        if batch.done:
            return False
        self._remove(batch)
        batch.lane.pause = 0
        return True

    def rewind(self, batch: Batch, now: int, at_once: bool = False) -> None:
        """Send this one and all behind it in its lane again."""
        lane = batch.lane
        for other in lane.flight:
            if other.sequence >= batch.sequence:
                other.awaiting = False
        pause = 0 if at_once and not lane.pause else max(self.backoff_ms, lane.pause)
        lane.pause = min(PAUSE_MS_MAX, max(self.backoff_ms, pause * 2))
        lane.retry_at = now + pause
        self.ready[lane] = None

    def follow(self, leader: Callable[[int], str | None], now: int, may_repeat: bool) -> None:
        """News of who leads which group. What is unanswered goes to a new leader, without a pause.

        Not unless it `may_repeat`: without sequences a mere silence is no reason to send it twice.
        """
        for lane in self.lanes.values():
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

    def give_up(self, batch: Batch) -> str | None:
        """Its outcome ("none" or "unknown"); None if it was settled before."""
        if batch.done:
            return None
        if batch.sequence >= 0 and not batch.parked:
            gap = batch.lane.gap
            batch.lane.gap = batch.sequence if gap < 0 else min(gap, batch.sequence)
        self._remove(batch)
        return UNKNOWN if batch.doubt else NONE

    def is_first(self, batch: Batch) -> bool:
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
        return any(lane.gap >= 0 for lane in self.lanes.values())

    @property
    def may_restart(self) -> bool:
        """No batch that was sent may still be stored."""
        return all(batch.parked for lane in self.lanes.values() for batch in lane.flight)

    def restart(self) -> None:
        """A new epoch: every lane counts from 0, and what was parked goes first."""
        for lane in self.lanes.values():
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
        everything: list[Any] = [b for lane in self.lanes.values() for b in lane.unsettled()]
        if sum(batch.size for batch in everything) != self.buffered:
            yield "buffered is not the sum of what is not settled"
        for lane in self.lanes.values():
            sequences = [batch.sequence for batch in lane.flight]
            if sequences != sorted(set(sequences)):
                yield f"sequences in flight do not rise: {sequences}"
            if any(batch.sequence >= 0 for batch in lane.queue):
                yield "a batch in a queue has a sequence"
            if len(lane.flight) > self.max_in_flight:
                yield f"{len(lane.flight)} batches in flight"
            if any(batch.done for batch in lane.unsettled()):
                yield "a settled batch is still in its lane"
