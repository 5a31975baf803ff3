"""What to ask which broker next, and what its answers mean. Pure.

A partition's position is looked up (OFFSETS) unless it is known, then it is fetched, all
partitions of a broker in one request. One that came from another member of the group is fenced
first (COMMIT): what the other one still commits can't be missed then, it is refused. Where a group
begins at the end, without a position or with one that retention took, that is committed before
anything is read: the next owner must not begin at a later end, past messages that nobody handled.
Whatever fails only makes it wait, with its position unchanged, for news of its leader or a later
time. An answer is used only by partitions that still wait for that very request, so an answer that
a seek made useless is dropped. That is how nothing is lost or doubled when leaders change.

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

    def __init__(self, address: str, partitions: list[PartitionState]) -> None:
        self.address = address
        self.partitions = partitions

    def claim_waiting(self) -> list[PartitionState]:
        """Those that still wait for this very answer; they wait no longer."""
        waiting = [partition for partition in self.partitions if partition.request is self]
        for partition in waiting:
            partition.request = None
        return waiting


class FetchRequest(BrokerRequest):
    """A FETCH."""

    def __init__(
        self, address: str, partitions: list[PartitionState], wait_ms: int, limits: FetchLimits
    ) -> None:
        super().__init__(address, partitions)
        self.wait_ms = wait_ms
        parts = [[partition.group, partition.next_offset] for partition in partitions]
        self.fields = (wait_ms, limits.min_bytes, limits.fetch_bytes, parts)


class FenceRequest(BrokerRequest):
    """A COMMIT: from now on only the epochs of this member count (C7). It moves nothing, or says
    where the group begins.
    """

    def __init__(self, address: str, partitions: list[PartitionState], who: str) -> None:
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
        self.fields = (who, parts)


class OffsetsRequest(BrokerRequest):
    """An OFFSETS for partitions with one name and one time."""

    def __init__(
        self, address: str, partitions: list[PartitionState], who: str, time_ms: int | None
    ):
        super().__init__(address, partitions)
        self.fields = (who or None, time_ms, [partition.group for partition in partitions])


class FetchPlan:
    """Requests of a consumer to its brokers; `routes_wanted` says that leaders are not known."""

    def __init__(
        self,
        partitions: Mapping[int, PartitionState],
        turns: RoundRobin,
        limits: FetchLimits,
        on_out_of_range: str,
    ) -> None:
        self.limits = limits
        self.routes_wanted = False
        self.log_lines: list[str] = []  # for the log: what must not happen in silence
        self._partitions = partitions  # by group; shared with the subscription, which changes it
        self._round_robin = turns
        self._on_out_of_range = on_out_of_range
        self._unanswered: dict[str, list[FetchRequest]] = {}  # by address

    # -- asking -----------------------------------------------------------------------------------

    def requests(self, now: int) -> list[BrokerRequest]:
        """What to send now; to be asked after every event and at `next_retry`."""
        hungry: dict[tuple[str, int], list[PartitionState]] = {}
        lost: dict[tuple[str, str, int | None, int], list[PartitionState]] = {}
        ours: dict[tuple[str, str, int], list[PartitionState]] = {}
        room = self.buffered_bytes < self.limits.buffer_bytes
        for partition in self._partitions.values():
            if partition.request is not None or partition.retry_at > now:
                continue
            if not partition.is_fenced:
                may_ask = partition.is_admitted or partition.group_start is None
                if may_ask and self._has_leader(partition, now):
                    fence = (partition.leader, partition.committer, partition.isolated_as)
                    ours.setdefault(fence, []).append(partition)
            elif partition.start_rule is not None:
                if self._has_leader(partition, now):
                    key = (
                        partition.leader,
                        partition.committer,
                        partition.start_rule.time_ms,
                        partition.isolated_as,
                    )
                    lost.setdefault(key, []).append(partition)
            elif room and self.has_room_for(partition) and self._has_leader(partition, now):
                hungry.setdefault((partition.leader, partition.isolated_as), []).append(partition)
        out: list[BrokerRequest] = [
            OffsetsRequest(address, partitions, who, time_ms)
            for (address, who, time_ms, _), partitions in lost.items()
        ]
        out += [
            FenceRequest(address, partitions, who) for (address, who, _), partitions in ours.items()
        ]
        out += filter(None, (self._fetch(*key, found) for key, found in hungry.items()))
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
        # A broker fills its answer in this order: who has least comes first.
        partitions.sort(key=lambda partition: partition.buffered_bytes)
        fetch = FetchRequest(address, partitions, wait_ms, self.limits)
        under_way.append(fetch)
        return fetch

    def has_room_for(self, partition: PartitionState) -> bool:
        """It has room, and no answer is on its way."""
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
        """When there will be something to ask though nothing happens; None: never."""
        times = (r.retry_at for r in self._partitions.values() if r.request is None)
        return min((time for time in times if time > now), default=None)

    def set_leader(self, partition: PartitionState, address: str, now: int) -> None:
        """Where its leader is, by the newest routes; "": not known."""
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
        """The answer to a FETCH: its `parts` and payload frames as they came."""
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
            partition.note_failure(now)  # not mentioned at all: ask again, but not in a tight loop

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
            partition.note_failure(now)  # what came before it stays, the rest is asked for again
        except Internal as error:
            partition.error = error
        self._round_robin.add(partition)

    def on_offsets(self, lookup: OffsetsRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """The answer to an OFFSETS."""
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
            what = partition.start_rule.kind
            partition.move_to(partition.start_rule.choose(start, end, position, at_time))
            partition.handled_position = partition.position
            if what == "skipped" or (what == "resumed" and position is None):
                partition.commit_group_start()
            partition.note_success()

    def on_fenced(self, fence: FenceRequest, parts: Sequence[Sequence[Any]], now: int) -> None:
        """The answer to a COMMIT that fences. Who is fenced itself will hear from the managers."""
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
        """A request that got no answer, or an error instead of one."""
        if isinstance(request, FetchRequest):
            self._forget_fetch(request)
        partitions = request.claim_waiting()
        if not error.retriable and len(request.partitions) > 1:
            # One of them may be wrong: each is asked for alone now, and only it has an error.
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
        """Only what the application chose happens by itself (C6)."""
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
