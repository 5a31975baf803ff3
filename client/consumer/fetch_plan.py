"""What to ask which broker next, and what its answers mean. Pure.

A partition's position is looked up (OFFSETS) unless it is known, then it is fetched, all
partitions of a broker in one request. One that came from another member of the group is fenced
first (COMMIT): what the other one still commits can't be missed then, it is refused. Where a group
begins at the end, without a position or with one that retention took, that is committed before
anything is read: the next owner must not begin at a later end, past messages that nobody handled.
Whatever fails only makes it wait, with its position unchanged, for news of its leader or a later
time. An answer is used only by readings that still wait for that very request, so what a seek made
useless is dropped by itself. That is how nothing is lost or doubled when leaders change.

**One refusal is one partition's.** A request for several that is refused as a whole is asked again
partition by partition, so that what is wrong with one of them never keeps the others from being
read; those that are answered go together again.

**Requests of one broker.** One FETCH waits there for news of all its partitions. If some of them
get room or a new position meanwhile, they need not wait for its return: up to EXTRA_MAX more
requests ask for them with a short wait, and all are one again when the first one is back.

**Memory.** A partition that has `partition_bytes` buffered is not asked for, and none is when all
together have `buffer_bytes`; beyond that one answer of `fetch_bytes` of each request under way.
Paused partitions keep what they have, and it does not count: it must not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue.consumer.partition_state import BACKOFF_MS_MIN, PartitionState, StartRule
from myqueue.consumer.round_robin import RoundRobin
from myqueue.errors import BatchInvalid, Internal, MyQueueError, OffsetOutOfRange, error_of
from myqueue.wire.batch import Buffer
from myqueue.wire.protocol import NO_OFFSET

if TYPE_CHECKING:
    from myqueue.settings import ConsumerSettings

EXTRA_MAX: Final = 2
EXTRA_WAIT_MS: Final = 30
# So often news of a leader are followed at once; then two brokers that name each other are asked
# more slowly.
PROMPT_RETRIES_MAX: Final = 3


class FetchLimits(NamedTuple):
    """How much is fetched ahead, and how long a broker may wait for news."""

    buffer_bytes: int = 32 << 20
    partition_bytes: int = 8 << 20
    fetch_bytes: int = 4 << 20
    wait_ms: int = 500
    min_bytes: int = 1


def limits_of(settings: ConsumerSettings) -> FetchLimits:
    fetch_bytes = min(settings.fetch_max_bytes, settings.max_buffered_bytes)
    return FetchLimits(
        buffer_bytes=settings.max_buffered_bytes,
        partition_bytes=min(2 * fetch_bytes, settings.max_buffered_bytes),
        fetch_bytes=fetch_bytes,
        wait_ms=settings.fetch_wait_ms,
        min_bytes=settings.fetch_min_bytes,
    )


class BrokerRequest:
    """One request to send, to be handed back with its answer or failure."""

    fields: tuple[Any, ...]

    def __init__(self, address: str, readings: list[PartitionState]) -> None:
        self.address = address
        self.readings = readings

    def settle(self) -> list[PartitionState]:
        """Those that still wait for this very answer; they wait no longer."""
        waiting = [reading for reading in self.readings if reading.request is self]
        for reading in waiting:
            reading.request = None
        return waiting


class FetchRequest(BrokerRequest):
    """A FETCH."""

    def __init__(
        self, address: str, readings: list[PartitionState], wait_ms: int, limits: FetchLimits
    ) -> None:
        super().__init__(address, readings)
        self.wait_ms = wait_ms
        parts = [[reading.group, reading.next_offset] for reading in readings]
        self.fields = (wait_ms, limits.min_bytes, limits.fetch_bytes, parts)


class FenceRequest(BrokerRequest):
    """A COMMIT: from now on only the epochs of this member count (C7). It moves nothing, or says
    where the group begins.
    """

    def __init__(self, address: str, readings: list[PartitionState], who: str) -> None:
        super().__init__(address, readings)
        parts = [
            [one.group, NO_OFFSET if one.begins is None else one.begins, one.member, one.epoch]
            for one in readings
        ]
        self.fields = (who, parts)


class OffsetsRequest(BrokerRequest):
    """An OFFSETS for readings with one name and one time."""

    def __init__(self, address: str, readings: list[PartitionState], who: str, time_ms: int | None):
        super().__init__(address, readings)
        self.fields = (who or None, time_ms, [reading.group for reading in readings])


class FetchPlan:
    """Requests of a consumer to its brokers; `routes_wanted` says that leaders are not known."""

    def __init__(
        self,
        readings: Mapping[int, PartitionState],
        turns: RoundRobin,
        limits: FetchLimits,
        on_out_of_range: str,
    ) -> None:
        self.limits = limits
        self.routes_wanted = False
        self.notes: list[str] = []  # for the log: what must not happen in silence
        self._readings = readings  # by group; shared with the subscription, which changes it
        self._turns = turns
        self._on_out_of_range = on_out_of_range
        self._under_way: dict[str, list[FetchRequest]] = {}  # by address

    # -- asking -----------------------------------------------------------------------------------

    def requests(self, now: int) -> list[BrokerRequest]:
        """What to send now; to be asked after every event and at `next_retry`."""
        hungry: dict[tuple[str, int], list[PartitionState]] = {}
        lost: dict[tuple[str, str, int | None, int], list[PartitionState]] = {}
        ours: dict[tuple[str, str, int], list[PartitionState]] = {}
        room = self.buffered_bytes < self.limits.buffer_bytes
        for reading in self._readings.values():
            if reading.request is not None or reading.retry_at > now:
                continue
            if not reading.fenced:
                may_ask = reading.ready or reading.begins is None
                if may_ask and self._has_leader(reading, now):
                    fence = (reading.leader, reading.who, reading.suspect)
                    ours.setdefault(fence, []).append(reading)
            elif reading.find is not None:
                if self._has_leader(reading, now):
                    key = (reading.leader, reading.who, reading.find.time_ms, reading.suspect)
                    lost.setdefault(key, []).append(reading)
            elif room and self.wants(reading) and self._has_leader(reading, now):
                hungry.setdefault((reading.leader, reading.suspect), []).append(reading)
        out: list[BrokerRequest] = [
            OffsetsRequest(address, readings, who, time_ms)
            for (address, who, time_ms, _), readings in lost.items()
        ]
        out += [
            FenceRequest(address, readings, who) for (address, who, _), readings in ours.items()
        ]
        out += filter(None, (self._fetch(*key, found) for key, found in hungry.items()))
        for request in out:
            for reading in request.readings:
                reading.request = request
        return out

    def _fetch(
        self, address: str, suspect: int, readings: list[PartitionState]
    ) -> FetchRequest | None:
        under_way = self._under_way.setdefault(address, [])
        if len(under_way) > EXTRA_MAX:
            return None
        waits = suspect or any(fetch.wait_ms == self.limits.wait_ms for fetch in under_way)
        wait_ms = min(EXTRA_WAIT_MS, self.limits.wait_ms) if waits else self.limits.wait_ms
        # A broker fills its answer in this order: who has least comes first.
        readings.sort(key=lambda reading: reading.buffered_bytes)
        fetch = FetchRequest(address, readings, wait_ms, self.limits)
        under_way.append(fetch)
        return fetch

    def wants(self, reading: PartitionState) -> bool:
        """It has room, and no answer is on its way."""
        full = reading.buffered_bytes >= self.limits.partition_bytes
        unwanted = reading.paused or reading.leaving
        return not (full or unwanted or reading.request or reading.error)

    def _has_leader(self, reading: PartitionState, now: int) -> bool:
        if reading.leader:
            return True
        self.routes_wanted = True
        reading.failed(now)
        return False

    @property
    def buffered_bytes(self) -> int:
        return sum(r.buffered_bytes for r in self._readings.values() if not r.paused)

    def next_retry(self, now: int) -> int | None:
        """When there will be something to ask though nothing happens; None: never."""
        times = (r.retry_at for r in self._readings.values() if r.request is None)
        return min((time for time in times if time > now), default=None)

    def led(self, reading: PartitionState, address: str, now: int) -> None:
        """Where its leader is, by the newest routes; "": not known."""
        if address == reading.leader:
            return
        reading.leader = address
        if address:
            reading.request = None  # the old leader may be frozen: its answer is not waited for
            hasty = reading.failures < PROMPT_RETRIES_MAX
            reading.retry_at = 0 if hasty else min(reading.retry_at, now + BACKOFF_MS_MIN)

    # -- answers ----------------------------------------------------------------------------------

    def fetched(
        self,
        fetch: FetchRequest,
        parts: Sequence[Sequence[Any]],
        frames: Sequence[Buffer],
        now: int,
    ) -> None:
        """The answer to a FETCH: its `parts` and payload frames as they came."""
        self._returned(fetch)
        wanted = {reading.group: reading for reading in fetch.settle()}
        at = 0
        for group, code, start, end, batches, _ in parts:
            own = frames[at : at + len(batches)]
            at += len(batches)
            reading = wanted.pop(group, None)
            if reading is None:
                continue
            reading.start, reading.end = start, end
            if code:
                text = f"{reading.name} can't be read at offset {reading.next_offset}"
                self._refused(reading, error_of(code, text, fetch.address), now)
            elif len(own) != len(batches):
                reading.failed(now)  # cut on its way: ask again
            else:
                self._receive(reading, batches, own, now)
        for reading in wanted.values():
            reading.failed(now)  # not mentioned at all: ask again, but not in a tight loop

    def _receive(
        self,
        reading: PartitionState,
        batches: Sequence[Sequence[int]],
        frames: Sequence[Buffer],
        now: int,
    ) -> None:
        reading.succeeded()
        try:
            for (offset, _), frame in zip(batches, frames, strict=True):
                reading.receive(offset, frame)
        except BatchInvalid:
            reading.failed(now)  # what came before it stays, the rest is asked for again
        except Internal as error:
            reading.error = error
        self._turns.add(reading)

    def looked_up(self, lookup: OffsetsRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """The answer to an OFFSETS."""
        rows = {row[0]: row[1:] for row in parts}
        for reading in lookup.settle():
            row = rows.get(reading.group)
            if row is None or reading.find is None:
                reading.failed(now)
                continue
            code, start, end, position, at_time, _ = row
            if code:
                self._refused(reading, error_of(code, component=lookup.address), now)
                continue
            reading.start, reading.end, reading.committed = start, end, position
            what = reading.find.what
            reading.place(reading.find.choose(start, end, position, at_time))
            reading.handled = reading.position
            if what == "skipped" or (what == "resumed" and position is None):
                reading.begin_group()
            reading.succeeded()

    def fenced(self, fence: FenceRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """The answer to a COMMIT that fences. Who is fenced itself will hear from the managers."""
        rows = {row[0]: (row[1], row[2]) for row in parts}
        for reading in fence.settle():
            code, position = rows.get(reading.group, (Internal.code, 0))
            if code:
                reading.failed(now)
                self.routes_wanted = True
            else:
                reading.fenced = True
                if reading.begins is not None:
                    reading.begins, reading.committed = None, position
                reading.succeeded()

    def failed(self, request: BrokerRequest, error: MyQueueError, now: int) -> None:
        """A request that got no answer, or an error instead of one."""
        if isinstance(request, FetchRequest):
            self._returned(request)
        readings = request.settle()
        if not error.retriable and len(request.readings) > 1:
            # One of them may be wrong: each is asked for alone now, and only it has an error.
            for reading in readings:
                reading.suspect, reading.retry_at = reading.group, 0
            return
        for reading in readings:
            self._refused(reading, error, now)

    def _returned(self, fetch: FetchRequest) -> None:
        under_way = self._under_way.get(fetch.address, [])
        left = [other for other in under_way if other is not fetch]
        if left:
            self._under_way[fetch.address] = left
        else:
            self._under_way.pop(fetch.address, None)  # addresses come and go; nothing may pile up

    def _refused(self, reading: PartitionState, error: MyQueueError, now: int) -> None:
        if isinstance(error, OffsetOutOfRange):
            self._out_of_range(reading, now)
            return
        reading.failed(now)
        if error.retriable:
            self.routes_wanted = True
        else:
            reading.error = error
            self._turns.add(reading)

    def _out_of_range(self, reading: PartitionState, now: int) -> None:
        """Only what the application chose happens by itself (C6)."""
        if self._on_out_of_range == "error":
            reading.error = OffsetOutOfRange(
                f"{reading.name}: offset {reading.next_offset} is not between "
                f"{reading.start} (start) and {reading.end} (end)",
                component=reading.leader,
            )
            self._turns.add(reading)
        elif reading.has_messages:
            reading.failed(now)  # what came before is handed out first
        else:
            self.notes.append(
                f"{reading.name}: offset {reading.next_offset} is not between {reading.start} and "
                f"{reading.end}; going on from the {self._on_out_of_range} one"
            )
            skips = self._on_out_of_range == "latest" and bool(reading.epoch)
            reading.search(StartRule("skipped" if skips else self._on_out_of_range))
