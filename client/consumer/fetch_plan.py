"""Decide what a consumer requests from which broker next; take over the answers. Pure.

Comes in: partitions, answers, failures, the time. Goes out: requests. Answers change the state of
the partitions.

Each partition takes these steps: a member of a consumer group *fences* it (COMMIT), so that its
broker refuses later commits of the previous owner; the position is *looked up* (OFFSETS) unless it
is known; then batches are *fetched* (FETCH), for all partitions of a broker in one request. A group
that begins at the end, because it has no position or retention removed it, commits that position
before it reads. Else the next owner would begin at a later end and skip messages.

A failure changes no position: the partition waits for a new leader or a later time. An answer
counts only for partitions that still wait for that very request, so an answer that a seek made
useless is dropped. That is how no message is lost or doubled when leaders change.

**An error belongs to one partition.** A request that is refused as a whole is repeated partition by
partition, so that one wrong partition does not stop others. Those that are answered are requested
together again.

**Requests to one broker.** One FETCH waits there for news of all its partitions. Partitions that
get room or a new position while it waits are requested by up to EXTRA_MAX more, with a short wait.
All join one request again when the first one has returned.

**Memory.** A partition with `partition_bytes` buffered is not requested, and none is when all
together have `buffer_bytes`. Each unanswered request may add one answer of `fetch_bytes`. Buffers
of paused partitions do not count: they must not stop other partitions.
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
    """A request to a broker. `FetchPlan` gets it back with its answer or its failure."""

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

    def __init__(
        self, address: str, partitions: list[PartitionState], wait_ms: int, limits: FetchLimits
    ) -> None:
        super().__init__(address, partitions)
        self.wait_ms = wait_ms
        parts = [[partition.group, partition.next_offset] for partition in partitions]
        self.fields = (wait_ms, limits.min_bytes, limits.fetch_bytes, parts)


class FenceRequest(BrokerRequest):
    """A COMMIT after which the broker refuses commits under older epochs of the group.

    It moves no position, unless the group has none: then it commits where the group begins.
    """

    def __init__(self, address: str, partitions: list[PartitionState], committer: str) -> None:
        super().__init__(address, partitions)
        parts = [
            [
                one.group,
                NO_OFFSET if one.group_start is None else one.group_start,
                one.member,
                one.epoch,
            ]
            for one in partitions
        ]
        self.fields = (committer, parts)


class OffsetsRequest(BrokerRequest):
    """An OFFSETS for partitions that share a committer and a time."""

    def __init__(
        self, address: str, partitions: list[PartitionState], committer: str, time_ms: int | None
    ):
        super().__init__(address, partitions)
        self.fields = (committer or None, time_ms, [partition.group for partition in partitions])


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
        to_fetch: dict[tuple[str, int], list[PartitionState]] = {}
        to_look_up: dict[tuple[str, str, int | None, int], list[PartitionState]] = {}
        to_fence: dict[tuple[str, str, int], list[PartitionState]] = {}
        room = self.buffered_bytes < self.limits.buffer_bytes
        for partition in self._partitions.values():
            if partition.request is not None or partition.retry_at > now:
                continue
            if not partition.is_fenced:
                may_ask = partition.is_admitted or partition.group_start is None
                if may_ask and self._has_leader(partition, now):
                    fence = (partition.leader, partition.committer, partition.isolated_as)
                    to_fence.setdefault(fence, []).append(partition)
            elif partition.start_rule is not None:
                if self._has_leader(partition, now):
                    key = (
                        partition.leader,
                        partition.committer,
                        partition.start_rule.time_ms,
                        partition.isolated_as,
                    )
                    to_look_up.setdefault(key, []).append(partition)
            elif room and self.has_room_for(partition) and self._has_leader(partition, now):
                to_fetch.setdefault((partition.leader, partition.isolated_as), []).append(partition)
        out: list[BrokerRequest] = [
            OffsetsRequest(address, partitions, who, time_ms)
            for (address, who, time_ms, _), partitions in to_look_up.items()
        ]
        out += [
            FenceRequest(address, partitions, name)
            for (address, name, _), partitions in to_fence.items()
        ]
        out += filter(None, (self._fetch(*key, states) for key, states in to_fetch.items()))
        for request in out:
            for partition in request.partitions:
                partition.request = request
        return out

    def _fetch(
        self, address: str, suspect: int, partitions: list[PartitionState]
    ) -> FetchRequest | None:
        under_way = self._unanswered.setdefault(address, [])
        if len(under_way) > EXTRA_MAX:
            return None
        waits = suspect or any(fetch.wait_ms == self.limits.wait_ms for fetch in under_way)
        wait_ms = min(EXTRA_WAIT_MS, self.limits.wait_ms) if waits else self.limits.wait_ms
        # A broker fills its answer in this order: partitions with the least buffered come first.
        partitions.sort(key=lambda partition: partition.buffered_bytes)
        fetch = FetchRequest(address, partitions, wait_ms, self.limits)
        under_way.append(fetch)
        return fetch

    def has_room_for(self, partition: PartitionState) -> bool:
        """Should this partition be fetched? It has room, is wanted, and nothing is unanswered."""
        full = partition.buffered_bytes >= self.limits.partition_bytes
        unwanted = partition.is_paused or partition.is_leaving
        return not (full or unwanted or partition.request or partition.error)

    def _has_leader(self, partition: PartitionState, now: int) -> bool:
        if partition.leader:
            return True
        self.routes_wanted = True
        partition.note_failure(now)
        return False

    @property
    def buffered_bytes(self) -> int:
        return sum(r.buffered_bytes for r in self._partitions.values() if not r.is_paused)

    def next_retry(self, now: int) -> int | None:
        """The time of the next request if no event comes before; None: there is none."""
        times = (r.retry_at for r in self._partitions.values() if r.request is None)
        return min((time for time in times if time > now), default=None)

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
            own = frames[at : at + len(batches)]
            at += len(batches)
            partition = wanted.pop(group, None)
            if partition is None:
                continue
            partition.start, partition.end = start, end
            if code:
                text = f"{partition.name} can't be read at offset {partition.next_offset}"
                self._note_error(partition, error_of(code, text, fetch.address), now)
            elif len(own) != len(batches):
                partition.note_failure(now)  # cut on its way: ask again
            else:
                self._receive(partition, batches, own, now)
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
        try:
            for (offset, _), frame in zip(batches, frames, strict=True):
                partition.receive(offset, frame)
        except BatchInvalid:
            partition.note_failure(now)  # keep what came before it, fetch the rest again
        except Internal as error:
            partition.error = error
        self._round_robin.add(partition)

    def on_offsets(self, lookup: OffsetsRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """Take over the answer to an OFFSETS."""
        rows = {row[0]: row[1:] for row in parts}
        for partition in lookup.claim_waiting():
            row = rows.get(partition.group)
            if row is None or partition.start_rule is None:
                partition.note_failure(now)
                continue
            code, start, end, position, at_time, _ = row
            if code:
                self._note_error(partition, error_of(code, component=lookup.address), now)
                continue
            partition.start, partition.end, partition.committed = start, end, position
            rule = partition.start_rule.kind
            partition.move_to(partition.start_rule.choose(start, end, position, at_time))
            partition.handled_position = partition.position
            if rule == "skipped" or (rule == "resumed" and position is None):
                partition.commit_group_start()
            partition.note_success()

    def on_fenced(self, fence: FenceRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """Take over the answer to a COMMIT that fences.

        If the broker refuses our epoch, the managers' next answer says what we have to_look_up.
        """
        rows = {row[0]: (row[1], row[2]) for row in parts}
        for partition in fence.claim_waiting():
            code, position = rows.get(partition.group, (Internal.code, 0))
            if code:
                partition.note_failure(now)
                self.routes_wanted = True
            else:
                partition.is_fenced = True
                if partition.group_start is not None:
                    partition.group_start, partition.committed = None, position
                partition.note_success()

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
        left = [other for other in under_way if other is not fetch]
        if left:
            self._unanswered[fetch.address] = left
        else:
            self._unanswered.pop(fetch.address, None)  # addresses come and go; nothing may pile up

    def _note_error(self, partition: PartitionState, error: MyQueueError, now: int) -> None:
        if isinstance(error, OffsetOutOfRange):
            self._apply_out_of_range_policy(partition, now)
            return
        partition.note_failure(now)
        if error.retriable:
            self.routes_wanted = True
        else:
            partition.error = error
            self._round_robin.add(partition)

    def _apply_out_of_range_policy(self, partition: PartitionState, now: int) -> None:
        """Apply on_out_of_range: never move a position unless the application chose that."""
        if self._on_out_of_range == "error":
            partition.error = OffsetOutOfRange(
                f"{partition.name}: offset {partition.next_offset} is not between "
                f"{partition.start} (start) and {partition.end} (end)",
                component=partition.leader,
            )
            self._round_robin.add(partition)
        elif partition.has_messages:
            partition.note_failure(now)  # what came before is handed out first
        else:
            self.log_lines.append(
                f"{partition.name}: offset {partition.next_offset} is not between "
                f"{partition.start} and {partition.end}; "
                f"going on from the {self._on_out_of_range} one"
            )
            skips = self._on_out_of_range == "latest" and bool(partition.epoch)
            partition.look_up(StartRule("skipped" if skips else self._on_out_of_range))
