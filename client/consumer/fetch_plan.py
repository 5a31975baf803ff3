"""Decide what a consumer requests from which broker next; take over the answers. Pure.

Comes in: partitions, answers, failures, the time. Goes out: requests. Answers change the state of
the partitions.

Each partition says by its phase what to request (`partition_state.Fetching`): COMMIT, OFFSETS or
FETCH. Partitions that need the same of one broker share a request.

A failure changes no position: the partition waits for a new leader or a later time. An answer
counts only for partitions that still wait for that very request, so an answer that a seek made
useless is dropped. That is how no message is lost or doubled when leaders change.

**An error belongs to one partition.** A request that is refused as a whole is repeated partition by
partition, so that one wrong partition does not stop others. Those that are answered are requested
together again.

**Requests to one broker.** One FETCH waits there for news of all its partitions. Partitions that
get room or a new position while it waits are requested by up to EXTRA_MAX more, with a short wait;
else a seek would wait for the end of the long poll of other partitions. All join one request again
when the first one has returned.

**Memory.** A partition with `partition_bytes` buffered is not requested, and none is when all
together have `buffer_bytes`. Each unanswered request may add one answer of `fetch_bytes`. Buffers
of paused partitions do not count: they must not stop other partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from myqueue.consumer.partition_state import (
    BACKOFF_MS_MIN,
    COMMIT_START,
    FETCH,
    Fetching,
    PartitionState,
    StartRule,
)
from myqueue.consumer.round_robin import RoundRobin
from myqueue.errors import BatchInvalid, Internal, MyQueueError, OffsetOutOfRange, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

if TYPE_CHECKING:
    from myqueue.settings import ConsumerSettings

EXTRA_MAX: Final = 2
EXTRA_WAIT_MS: Final = 30
# Failures after which a new leader is still asked at once. Two brokers that name each other as
# leader are asked more slowly from then on.
PROMPT_RETRIES_MAX: Final = 3


class FetchLimits(NamedTuple):
    """How much is fetched ahead, in bytes, and how long a broker may hold a request."""

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
    """A request to a broker. `FetchPlan` gets it back with its answer or its failure.

    A row of the answer begins with raft group and error code.
    """

    kind: ClassVar[int]
    answer_kind: ClassVar[int]
    answer_has_details: ClassVar[bool] = True  # each row ends with details of its error
    wait_ms = 0  # so long the broker may hold it
    fields: tuple[Any, ...]

    def __init__(self, address: str, partitions: list[PartitionState]) -> None:
        self.address = address
        self.partitions = partitions

    def claim_waiting(self) -> list[PartitionState]:
        """Return the partitions that still wait for this very request, and end their wait."""
        waiting = [partition for partition in self.partitions if partition.request is self]
        for partition in waiting:
            partition.request = None
        return waiting


class FetchRequest(BrokerRequest):
    """A FETCH: batches from the next offset of each partition on."""

    kind, answer_kind = words.FETCH, words.FETCHED

    def __init__(
        self, address: str, partitions: list[PartitionState], wait_ms: int, limits: FetchLimits
    ) -> None:
        super().__init__(address, partitions)
        self.wait_ms = wait_ms
        parts = [[partition.group, partition.buffer.next_offset] for partition in partitions]
        self.fields = (wait_ms, limits.min_bytes, limits.fetch_bytes, parts)


class FenceRequest(BrokerRequest):
    """A COMMIT for FENCE, which moves no position, or for COMMIT_START.

    After it the broker refuses commits under older epochs of the group.
    """

    kind, answer_kind = words.COMMIT, words.COMMITTED

    def __init__(self, address: str, partitions: list[PartitionState], committer: str) -> None:
        super().__init__(address, partitions)
        parts = []
        for partition in partitions:
            is_start = partition.fetching is COMMIT_START
            offset = partition.buffer.position if is_start else words.NO_OFFSET
            parts.append([partition.group, offset, partition.member, partition.epoch])
        self.fields = (committer, parts)


class OffsetsRequest(BrokerRequest):
    """An OFFSETS for partitions that share a committer and a time."""

    kind, answer_kind, answer_has_details = words.OFFSETS, words.POSITIONS, False

    def __init__(
        self, address: str, partitions: list[PartitionState], committer: str, time_ms: int | None
    ):
        super().__init__(address, partitions)
        self.fields = (committer or None, time_ms, [partition.group for partition in partitions])


class _RequestKey(NamedTuple):
    """Partitions with the same key share a request."""

    due: Fetching
    address: str
    isolated_as: int
    committer: str
    time_ms: int | None


def _key_of(partition: PartitionState) -> _RequestKey:
    due = partition.fetching
    rule = partition.start_rule if due is Fetching.LOOK_UP else None
    committer = "" if due is FETCH else partition.committer
    return _RequestKey(
        due, partition.leader, partition.isolated_as, committer, rule and rule.time_ms
    )


class FetchPlan:
    """Decides a consumer's requests. `routes_wanted`: a leader is not known, ask the managers."""

    def __init__(
        self,
        partitions: Mapping[int, PartitionState],
        round_robin: RoundRobin,
        limits: FetchLimits,
        on_out_of_range: str,
    ) -> None:
        self.limits = limits
        self.routes_wanted = False
        self.log_lines: list[str] = []  # to be logged: positions that were reset
        self._partitions = partitions  # by group; shared with the subscription, which changes it
        self._round_robin = round_robin
        self._on_out_of_range = on_out_of_range
        self._unanswered: dict[str, list[FetchRequest]] = {}  # by address

    # -- asking -----------------------------------------------------------------------------------

    def requests(self, now: int) -> list[BrokerRequest]:
        """Return what to send now. Call it after every event, and at `next_retry`."""
        requested: dict[_RequestKey, list[PartitionState]] = {}
        has_room = self.buffered_bytes < self.limits.buffer_bytes
        for partition in self._partitions.values():
            due = partition.due_request(now)
            if due is None or (due is FETCH and not (has_room and self.has_room_for(partition))):
                continue
            if self._has_leader(partition, now):
                requested.setdefault(_key_of(partition), []).append(partition)
        made = (self._request(key, partitions) for key, partitions in requested.items())
        out = [request for request in made if request is not None]
        for request in out:
            for partition in request.partitions:
                partition.request = request
        return out

    def _request(self, key: _RequestKey, partitions: list[PartitionState]) -> BrokerRequest | None:
        if key.due is FETCH:
            return self._fetch(key.address, key.isolated_as, partitions)
        if key.due is Fetching.LOOK_UP:
            return OffsetsRequest(key.address, partitions, key.committer, key.time_ms)
        return FenceRequest(key.address, partitions, key.committer)

    def _fetch(
        self, address: str, isolated_as: int, partitions: list[PartitionState]
    ) -> FetchRequest | None:
        under_way = self._unanswered.setdefault(address, [])
        if len(under_way) > EXTRA_MAX:
            return None
        waits = isolated_as or any(fetch.wait_ms == self.limits.wait_ms for fetch in under_way)
        wait_ms = min(EXTRA_WAIT_MS, self.limits.wait_ms) if waits else self.limits.wait_ms
        # A broker fills its answer in this order: partitions with the least buffered come first.
        partitions.sort(key=lambda partition: partition.buffer.packed_bytes)
        fetch = FetchRequest(address, partitions, wait_ms, self.limits)
        under_way.append(fetch)
        return fetch

    def has_room_for(self, partition: PartitionState) -> bool:
        """Should messages of this partition be requested?"""
        return partition.may_fetch and partition.buffer.packed_bytes < self.limits.partition_bytes

    def _has_leader(self, partition: PartitionState, now: int) -> bool:
        if partition.leader:
            return True
        self.routes_wanted = True
        partition.note_failure(now)
        return False

    @property
    def buffered_bytes(self) -> int:
        return sum(
            partition.buffer.packed_bytes
            for partition in self._partitions.values()
            if not partition.is_paused
        )

    def next_retry(self, now: int) -> int | None:
        """The time of the next request if no event comes before; None: there is none."""
        idle = (state for state in self._partitions.values() if state.request is None)
        return min((state.retry_at for state in idle if state.retry_at > now), default=None)

    def set_leader(self, partition: PartitionState, address: str, now: int) -> None:
        """Take over the leader's address from the newest routes; "": not known."""
        if address == partition.leader:
            return
        partition.leader = address
        if address:
            partition.request = None  # the old leader may be frozen: its answer is not waited for
            hasty = partition.failure_count < PROMPT_RETRIES_MAX
            partition.retry_at = 0 if hasty else min(partition.retry_at, now + BACKOFF_MS_MIN)

    # -- answers ----------------------------------------------------------------------------------

    def on_answer(
        self,
        request: BrokerRequest,
        parts: Sequence[Sequence[Any]],
        frames: Sequence[Buffer],
        now: int,
    ) -> None:
        if isinstance(request, FetchRequest):
            self.on_fetched(request, parts, frames, now)
        elif isinstance(request, FenceRequest):
            self.on_fenced(request, parts, now)
        else:
            self.on_offsets(request, parts, now)

    def on_fetched(
        self,
        fetch: FetchRequest,
        parts: Sequence[Sequence[Any]],
        frames: Sequence[Buffer],
        now: int,
    ) -> None:
        """Take over the answer to a FETCH: its `parts` and payload frames as they came."""
        self._forget_fetch(fetch)
        wanted = {partition.group: partition for partition in fetch.claim_waiting()}
        at = 0
        for group, code, start, end, batches, _ in parts:
            its_frames = frames[at : at + len(batches)]
            at += len(batches)
            partition = wanted.pop(group, None)
            if partition is None:
                continue
            if code == OffsetOutOfRange.code:
                self._apply_out_of_range_policy(partition, start, end, now)
            elif code:
                text = f"{partition.name} can't be read at offset {partition.buffer.next_offset}"
                self._note_error(partition, error_of(code, text, fetch.address), now)
            elif len(its_frames) != len(batches):
                partition.note_failure(now)  # cut on its way: ask again
            else:
                self._receive(partition, batches, its_frames, now)
        for partition in wanted.values():
            partition.note_failure(now)  # not in the answer: ask again, but not at once

    def _receive(
        self,
        partition: PartitionState,
        batches: Sequence[Sequence[int]],
        frames: Sequence[Buffer],
        now: int,
    ) -> None:
        partition.note_success()
        buffer = partition.buffer
        try:
            for (offset, _), frame in zip(batches, frames, strict=True):
                if not buffer.receive(offset, frame):
                    text = f"asked for offset {buffer.next_offset}, and {offset} came"
                    partition.error = Internal(
                        f"{partition.name}: {text}", component=partition.leader
                    )
                    break
        except BatchInvalid:
            partition.note_failure(now)  # keep what came before it, fetch the rest again
        self._round_robin.add(partition)

    def on_offsets(self, lookup: BrokerRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """Take over the answer to an OFFSETS."""
        rows = {row[0]: row[1:] for row in parts}
        for partition in lookup.claim_waiting():
            row = rows.get(partition.group)
            if row is None:
                partition.note_failure(now)
                continue
            code, start, end, committed, at_time, _ = row
            if code:
                self._note_error(partition, error_of(code, component=lookup.address), now)
            else:
                partition.note_offsets(start, end, committed, at_time)

    def on_fenced(self, fence: FenceRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """Take over the answer to a COMMIT that fences.

        If the broker refuses our epoch, the managers' next assignment takes the partition from us.
        """
        rows = {row[0]: (row[1], row[2]) for row in parts}
        for partition in fence.claim_waiting():
            code, committed = rows.get(partition.group, (Internal.code, 0))
            if code:
                partition.note_failure(now)
                self.routes_wanted = True
            else:
                partition.note_fenced(committed)

    def on_failure(self, request: BrokerRequest, error: MyQueueError, now: int) -> None:
        """Take over that a request got an error, or no answer."""
        if isinstance(request, FetchRequest):
            self._forget_fetch(request)
        partitions = request.claim_waiting()
        if not error.retriable and len(request.partitions) > 1:
            # One of them may be wrong: request each alone, so that only that one has an error.
            for partition in partitions:
                partition.isolated_as, partition.retry_at = partition.group, 0
            return
        for partition in partitions:
            self._note_error(partition, error, now)

    def _forget_fetch(self, fetch: FetchRequest) -> None:
        under_way = self._unanswered.get(fetch.address, [])
        others = [other for other in under_way if other is not fetch]
        if others:
            self._unanswered[fetch.address] = others
        else:
            self._unanswered.pop(fetch.address, None)  # addresses come and go; nothing may pile up

    def _note_error(self, partition: PartitionState, error: MyQueueError, now: int) -> None:
        partition.note_failure(now)
        if error.retriable:
            self.routes_wanted = True
        else:
            partition.error = error
            self._round_robin.add(partition)

    def _apply_out_of_range_policy(
        self, partition: PartitionState, start: int, end: int, now: int
    ) -> None:
        """Apply on_out_of_range: never move a position unless the application chose that."""
        text = f"{partition.name}: offset {partition.buffer.next_offset} is not between {start}"
        if self._on_out_of_range == "error":
            partition.error = OffsetOutOfRange(
                f"{text} (start) and {end} (end)", component=partition.leader
            )
            self._round_robin.add(partition)
        elif partition.buffer.has_messages:
            partition.note_failure(now)  # what came before is handed out first
        else:
            self.log_lines.append(
                f"{text} and {end}; going on from the {self._on_out_of_range} one"
            )
            skips = self._on_out_of_range == "latest" and bool(partition.epoch)
            partition.look_up(StartRule("skipped" if skips else self._on_out_of_range))
