"""The messages that wait to be sent, by partition: batches, their order, sequences and repeats.

Pure: no clock, no socket, no lock. The producer and its sender call it under the producer's lock,
with the time. Without the lock, the I/O thread packs batches, calls their listeners, and reads what
it alone changes (flights and their batches).

New messages go into the open batch of their lane. A sealed batch takes no more and moves on, in
order; its state says where it is:

    open ──seal──▶ queue ──take──▶ flight: AWAITING ──stored──▶ STORED
    OPEN           QUEUED            │         ▲  │
                     ▲               │   take  │  │ rewind: to be sent again, in the same order
                     │               │         │  ▼
                     │              park     REPEATING
                     │               ▼
                     └── restart ─ PARKED (still in its lane's flight, but not sent)

    any of these ──give_up──▶ FAILED

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

Invariants (`check_invariants`): each batch has the state of its place; sequences in flight rise; a
batch in a queue has none; `buffered` is the sum of the sizes of all unsettled batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy

from myqueue.cluster.repeats import with_outcome
from myqueue.errors import MyQueueError
from myqueue.producer.batch import (
    AWAITING,
    FAILED,
    IN_FLIGHT,
    OPEN,
    PARKED,
    QUEUED,
    REPEATING,
    STORED,
    Batch,
)
from myqueue.producer.lane import Lane


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
        self._by_deadline: deque[Batch] = deque()  # all; settled ones leave late

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
        self._by_deadline.append(batch)
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
            batch.add_keys(keys)
        batch.values += values
        batch.count += len(values)
        batch.size += size
        self.buffered += size
        if batch.size >= batch.size_max:
            self.seal(batch.lane)

    def seal(self, lane: Lane) -> None:
        batch = lane.open
        if batch is not None:
            batch.become(QUEUED)
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
        while self._by_deadline and (
            self._by_deadline[0].is_settled or self._by_deadline[0].deadline <= now
        ):
            batch = self._by_deadline.popleft()
            if not batch.is_settled:
                late.append(batch)
        return late

    def next_tick(self) -> int | None:
        """When `tick` has work to do next."""
        while self._lingering and self._lingering[0].lane.open is not self._lingering[0]:
            self._lingering.popleft()
        while self._by_deadline and self._by_deadline[0].is_settled:
            self._by_deadline.popleft()
        moments = [self._lingering[0].opened + self.linger_ms] if self._lingering else []
        moments += [self._by_deadline[0].deadline] if self._by_deadline else []
        return min(moments, default=None)

    def take(self, lane: Lane, now: int, only_repeats: bool = False) -> list[Batch]:
        """Take the batches of a lane to send now, in order; each then awaits an answer."""
        if lane.retry_at > now:
            return []
        taken = [batch for batch in lane.flight if batch.state is REPEATING]
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
            batch.become(AWAITING)
            batch.attempts += 1
            batch.attempts_in_doubt += 1
        return taken

    # -- outcomes ---------------------------------------------------------------------------------

    def stored(self, batch: Batch, offset: int, stored_ms: int) -> bool:
        """Settle a batch that is stored; False if it was settled before.

        The caller then calls its listeners, without the lock.
        """
        if batch.is_settled:
            return False
        self._remove(batch)
        batch.lane.pauses.reset()
        batch.offset, batch.stored_ms = offset, stored_ms
        batch.values, batch.keys, batch.headers, batch.times = [], None, None, None
        batch.become(STORED)
        return True

    def give_up(self, batch: Batch, error: MyQueueError) -> bool:
        """Settle a batch that failed, with a copy of the error; False if it was settled before.

        The copy's outcome is "none" only if no attempt is in doubt. The caller then calls the
        listeners, without the lock.
        """
        if batch.is_settled:
            return False
        lane = batch.lane
        if batch.state in (AWAITING, REPEATING):
            lane.gap = batch.sequence if lane.gap < 0 else min(lane.gap, batch.sequence)
        self._remove(batch)
        batch.error = with_outcome(copy(error), batch.attempts_in_doubt > 0)
        batch.become(FAILED)
        return True

    def rewind(
        self, batch: Batch, now: int, error: MyQueueError | None = None, at_once: bool = False
    ) -> None:
        """Let this batch and all after it in its lane be sent again, after a pause.

        `error`: why, with a broker's advice for the pause. `at_once`: without a first pause.
        """
        lane = batch.lane
        for other in lane.flight:
            if other.sequence >= batch.sequence and other.state is AWAITING:
                other.become(REPEATING)
        if error is not None:
            lane.pauses.advise(error)
        lane.retry_at = now + lane.pauses.next_ms(at_once=at_once)
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
            unanswered = next((batch for batch in lane.flight if batch.state is AWAITING), None)
            if unanswered is not None and not may_repeat:
                continue
            lane.pauses.reset()
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
        batch.become(PARKED)

    def is_first(self, batch: Batch) -> bool:
        """Is it the oldest in its lane's flight?"""
        return bool(batch.lane.flight) and batch.lane.flight[0] is batch

    def _remove(self, batch: Batch) -> None:
        """Take a batch that is settled next out of its lane."""
        lane = batch.lane
        self.buffered -= batch.size
        batch.data = b""
        if batch.state is OPEN:
            lane.open = None
        elif batch.state is QUEUED:
            lane.queue.remove(batch)
        else:
            lane.flight.remove(batch)  # it is the first, or near
        if lane.flight or lane.queue or lane.open is not None:
            self.ready[lane] = None

    # -- a new epoch ------------------------------------------------------------------------------

    @property
    def has_gap(self) -> bool:
        return any(lane.gap >= 0 for lane in self.lanes_by_group.values())

    @property
    def may_restart(self) -> bool:
        """Can no batch that was sent still be stored?"""
        return all(
            batch.state is PARKED for lane in self.lanes_by_group.values() for batch in lane.flight
        )

    def restart(self) -> None:
        """Begin a new epoch: each lane counts from 0, and parked batches go first."""
        for lane in self.lanes_by_group.values():
            for batch in reversed(lane.flight):
                batch.sequence, batch.data = -1, b""
                batch.become(QUEUED)
                lane.queue.appendleft(batch)
            lane.flight.clear()
            lane.next_sequence, lane.gap, lane.retry_at = 0, -1, 0
            self.ready[lane] = None

    def check_invariants(self) -> None:
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        lanes = self.lanes_by_group.values()
        if sum(batch.size for lane in lanes for batch in lane.unsettled()) != self.buffered:
            yield "buffered is not the sum of the sizes of unsettled batches"
        for lane in lanes:
            sequences = [batch.sequence for batch in lane.flight]
            if sequences != sorted(set(sequences)):
                yield f"sequences in flight do not rise: {sequences}"
            if any(batch.sequence >= 0 for batch in lane.queue):
                yield "a batch in a queue has a sequence"
            if len(lane.flight) > self.max_in_flight:
                yield f"{len(lane.flight)} batches in flight"
            if not {batch.state for batch in lane.flight} <= IN_FLIGHT:
                yield "a batch in flight has another state"
            if not {batch.state for batch in lane.queue} <= {QUEUED}:
                yield "a batch in a queue has another state"
            if lane.open is not None and lane.open.state is not OPEN:
                yield "an open batch has another state"
