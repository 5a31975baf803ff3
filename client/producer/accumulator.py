"""The messages that wait to be sent, by partition: batches, their order, sequences and repeats.

Pure: no clock, no socket, no lock. The producer and its sender call it under the producer's lock,
with the time. Without the lock, the I/O thread packs batches, calls their listeners, and reads what
it alone changes (flights and their batches).

New messages go into the open batch of their lane. A sealed batch takes no more and moves on, in
order: into the lane's queue, then into its flight, where it stays until it is settled. Its state
says where it is; the picture is in `batch`, beside the table of changes.

A lane is *ready* if the sender should look at it: something in it may be sent now or after its
pause. `take_ready` takes these lanes, `take` the batches of one.

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
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Final

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

PRUNE_BATCHES_MIN: Final = 256  # settled batches that are kept for nothing, at most


class Accumulator:
    """All lanes of a producer."""

    def __init__(
        self, *, linger_ms: int, max_in_flight: int, delivery_timeout_ms: int, backoff_ms: int = 20
    ) -> None:
        self.linger_ms, self.max_in_flight = linger_ms, max_in_flight
        self.delivery_timeout_ms, self.backoff_ms = delivery_timeout_ms, backoff_ms
        self.buffered = 0
        self._lanes: dict[int, Lane] = {}  # by raft group
        self._ready: dict[Lane, None] = {}  # in order
        self._without_leader: dict[Lane, None] = {}  # taken, but their leader could not be reached
        self._lingering: deque[Batch] = deque()  # opened while others were in flight
        self._by_deadline: deque[Batch] = deque()  # all; settled ones leave late
        self._prune_at = PRUNE_BATCHES_MIN  # batches in it

    # -- gathering --------------------------------------------------------------------------------

    def add_lane(self, lane: Lane) -> Lane:
        self._lanes[lane.group] = lane
        return lane

    def remove_lanes(self, lanes: Iterable[Lane]) -> list[Batch]:
        """Forget lanes of a topic that is gone; return their batches, for `give_up`."""
        batches: list[Batch] = []
        for lane in lanes:
            batches += lane.unsettled()
            self._lanes.pop(lane.group, None)
            self._ready.pop(lane, None)
            self._without_leader.pop(lane, None)
        return batches

    def unsettled(self) -> list[Batch]:
        """List the batches of all lanes. Without the lock some may be missing."""
        return [batch for lane in tuple(self._lanes.values()) for batch in lane.unsettled()]

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
            self._make_ready(lane)
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
            self._make_ready(lane)

    def seal_all(self) -> list[Batch]:
        """Seal every open batch; return all unsettled batches."""
        for lane in self._lanes.values():
            self.seal(lane)
        return self.unsettled()

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
        self._prune()
        moments = [self._lingering[0].opened + self.linger_ms] if self._lingering else []
        moments += [self._by_deadline[0].deadline] if self._by_deadline else []
        return min(moments, default=None)

    def _prune(self) -> None:
        """Forget settled batches, also those behind one that waits for its leader for long."""
        while self._by_deadline and self._by_deadline[0].is_settled:
            self._by_deadline.popleft()
        if len(self._by_deadline) >= self._prune_at:
            self._by_deadline = deque(one for one in self._by_deadline if not one.is_settled)
            self._prune_at = 2 * len(self._by_deadline) + PRUNE_BATCHES_MIN

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def _make_ready(self, lane: Lane) -> None:
        if self._lanes.get(lane.group) is lane:  # else it was removed
            self._ready[lane] = None

    @property
    def lacks_leader(self) -> bool:
        """Does a lane wait for its leader?"""
        return bool(self._without_leader)

    def note_without_leader(self, lane: Lane, now: int) -> None:
        """Keep a lane that was taken, but whose leader cannot be reached, for the next turn."""
        lane.note_blocked(now)
        self._without_leader[lane] = None

    def take_ready(self, now: int) -> tuple[list[Lane], int | None]:
        """Take the lanes that may send now, in order; and when the first pause of a lane ends.

        Lanes without a leader come first, and lanes in a pause stay ready. The caller then calls
        `take` or `note_without_leader` for each, under the same hold of the lock.
        """
        lanes = self._without_leader | self._ready
        self._without_leader.clear()
        self._ready.clear()
        taken: list[Lane] = []
        pause_ends: int | None = None
        for lane in lanes:
            if not lane.has_unsettled:
                lane.note_nothing_to_send()
            elif lane.retry_at > now:
                self._ready[lane] = None
                lane.note_blocked(now)
                pause_ends = min(lane.retry_at, pause_ends or lane.retry_at)
            else:
                taken.append(lane)
        return taken, pause_ends

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
        self._make_ready(lane)

    def resend_to_new_leaders(
        self, leader: Callable[[int], str | None], now: int, may_repeat: bool
    ) -> None:
        """Send unanswered batches to a new leader, without a pause.

        Only if `may_repeat`: without sequences a repeat could store a message twice, so a missing
        answer alone is no reason.
        """
        for lane in self._lanes.values():
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
            self._make_ready(lane)

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
            self._make_ready(lane)

    # -- a new epoch ------------------------------------------------------------------------------

    @property
    def has_gap(self) -> bool:
        return any(lane.gap >= 0 for lane in self._lanes.values())

    @property
    def may_restart(self) -> bool:
        """Can no batch that was sent still be stored?"""
        return all(batch.state is PARKED for lane in self._lanes.values() for batch in lane.flight)

    def restart(self) -> None:
        """Begin a new epoch: each lane counts from 0, and parked batches go first."""
        for lane in self._lanes.values():
            for batch in reversed(lane.flight):
                batch.sequence, batch.data = -1, b""
                batch.become(QUEUED)
                lane.queue.appendleft(batch)
            lane.flight.clear()
            lane.next_sequence, lane.gap, lane.retry_at = 0, -1, 0
            self._make_ready(lane)

    def check_invariants(self) -> None:
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        lanes = self._lanes.values()
        if not {*self._ready, *self._without_leader} <= set(lanes):
            yield "a lane that was removed is ready"
        for lane in set(lanes) - set(self._ready) - set(self._without_leader):
            if any(batch.state is REPEATING for batch in lane.flight):
                yield "a batch is to be sent again, but its lane has no turn"
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
