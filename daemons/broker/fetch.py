"""FETCH: committed batches out of the log, and the requests that wait for more.

Only applied entries are served: they are committed, and on this broker's disk. Any replica may
serve them; it need not lead. Batches go out as they came in. Fresh ones are in the memory of the
group's log, old ones are read from disk and verified: a batch that fails its checksum is an error
of its part, never data. An offset outside the partition is an error as well, never silently another
offset. But a replica that lags, or lost leadership without knowing it, must not reject an offset
that it only has not seen yet. So above the end a request waits, and only a leader rejects it, after
a round of heartbeats that began after the request came.

A request that finds less than it wants waits under each of its groups. Bytes that a group gains are
subtracted from those that its waiters await. A waiter that awaits no more is answered when the turn
ends, by reading again.

A consumer that catches up with old batches finds the next ones read already, see
`replication/read_ahead.py`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from myqueue import errors
from myqueue.daemons.broker.replies import RETRY_MS, read_batches
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.types import COUNT, OFFSET, PAYLOAD, TIME, Entry
from myqueue.daemons.replication.read_ahead import ReadAhead
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Buffer, Client
    from myqueue.daemons.read_rounds import ReadRounds
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

WAIT_MS_MAX: Final = 30_000
REPLY_BYTES_MAX: Final = 32 << 20  # in one answer, but for a single larger batch
REPLY_FRAMES_MAX: Final = protocol.FRAMES_MAX - 1
PARTS_MAX: Final = 4096
WAITERS_MAX: Final = 16_384
WAITERS_PER_CLIENT_MAX: Final = 1024
SLOT_MS: Final = 50  # deadlines are checked so often


class WaitingFetch:
    """One FETCH. It is answered before its deadline once `bytes_awaited` came."""

    __slots__ = (
        "bytes_awaited",
        "bytes_max",
        "bytes_min",
        "client",
        "confirmed",
        "deadline",
        "parts",
        "request",
        "slot",
    )

    def __init__(self, client: Client, envelope: protocol.Envelope, now: int) -> None:
        _, _, self.request, wait_ms, self.bytes_min, bytes_max, self.parts = envelope
        self.client = client
        self.deadline = now + min(wait_ms, WAIT_MS_MAX)
        self.bytes_max = min(bytes_max, REPLY_BYTES_MAX)
        self.bytes_min = min(self.bytes_min, self.bytes_max)
        self.bytes_awaited = 0
        self.confirmed: set[int] = set()  # groups that we led for certain after it was asked
        self.slot: int = -(-self.deadline // SLOT_MS)


class _FetchReply:
    """The reply to one FETCH: rows of its parts, and their batches."""

    __slots__ = ("bytes", "failed", "frames", "messages", "rows")

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.frames: list[Buffer] = []
        self.bytes = self.messages = 0
        self.failed = False


class FetchHandler:
    """Serve FETCH, and keep the requests that wait."""

    def __init__(self, engine: Engine, read_rounds: ReadRounds) -> None:
        self._engine, self._read_rounds = engine, read_rounds
        self._waiters_by_group: dict[int, dict[WaitingFetch, None]] = {}
        self._bytes_seen: dict[int, int] = {}  # group -> its bytes when last checked
        self._woken_groups: dict[int, None] = {}  # groups that gained something in this turn
        self._waiters_by_slot: dict[int, dict[WaitingFetch, None]] = {}  # by deadline
        self._waiters_per_client: dict[Client, int] = {}
        self._read_ahead = ReadAhead(self._read_from_disk)
        self.waiting = 0

    # -- requests ------------------------------------------------------------------------------

    def request(self, client: Client, envelope: protocol.Envelope) -> None:
        now = self._engine.now
        waiter = WaitingFetch(client, envelope, now)
        if not 0 < len(waiter.parts) <= PARTS_MAX:
            raise errors.InvalidRequest(f"{len(waiter.parts)} parts; 1 to {PARTS_MAX} are allowed")
        answer = self._collect(waiter)
        enough = answer.bytes >= waiter.bytes_min or len(answer.frames) == REPLY_FRAMES_MAX
        above = [] if enough or answer.failed else self._replicas_asked_beyond_end(waiter)
        if enough or answer.failed or (waiter.deadline <= now and not above):
            self._reply(waiter, answer)
            return
        if (
            self.waiting >= WAITERS_MAX
            or self._waiters_per_client.get(client, 0) >= WAITERS_PER_CLIENT_MAX
        ):
            raise errors.Busy("too many requests wait for messages")
        self._add_waiter(waiter, waiter.bytes_min - answer.bytes)
        for replica in above:
            self._confirm_end(waiter, replica)

    def _replicas_asked_beyond_end(self, waiter: WaitingFetch) -> list[Replica]:
        """Return ready leaders here whose end is below the requested offset."""
        return [
            replica
            for group, offset in waiter.parts
            if (replica := self._engine.replicas[group]).is_ready
            and offset > cast(PartitionMachine, replica.machine).end
        ]

    def _confirm_end(self, waiter: WaitingFetch, replica: Replica) -> None:
        """Ask for a round of heartbeats: is our end still the end of the partition?"""
        confirmed = partial(self._end_confirmed, waiter, replica.uid)
        with suppress(errors.MyQueueError):  # not the leader now
            self._read_rounds.begin(replica, confirmed)  # else it waits, as at any other replica

    def _end_confirmed(self, waiter: WaitingFetch, group: int) -> None:
        if waiter in self._waiters_by_group.get(group, ()):
            waiter.confirmed.add(group)
            waiter.bytes_awaited = 0
            self._woken_groups[group] = None

    def _collect(self, waiter: WaitingFetch) -> _FetchReply:
        answer = _FetchReply()
        for group, offset in waiter.parts:
            replica = self._engine.replicas.get(group)
            if replica is None:
                answer.failed = True
                code = errors.UnknownPartition.code
                answer.rows.append([group, code, 0, 0, [], None])
                continue
            machine = cast(PartitionMachine, replica.machine)
            start, end = machine.start, machine.end
            if offset == end or (offset > end and group not in waiter.confirmed):
                answer.rows.append([group, 0, start, end, [], None])
            elif offset < start or offset > end:
                answer.failed = True
                code = errors.OffsetOutOfRange.code
                answer.rows.append([group, code, start, end, [], None])
            else:
                self._read_part(waiter, answer, replica, machine, offset)
        return answer

    def _read_part(
        self,
        waiter: WaitingFetch,
        answer: _FetchReply,
        replica: Replica,
        machine: PartitionMachine,
        offset: int,
    ) -> None:
        bytes_left = waiter.bytes_max - answer.bytes
        frames_left = REPLY_FRAMES_MAX - len(answer.frames)
        start, end = machine.start, machine.end
        details: dict[str, Any] | None = None
        try:
            entries = self._read_ahead.take(
                replica.uid, offset, bytes_left, frames_left
            ) or read_batches(replica, offset, end, bytes_left, frames_left, not answer.frames)
        # It is being filled after a leader's snapshot, or repaired.
        except (errors.EntryMissing, errors.NotReady):
            code, details = errors.NotReady.code, {"retry_ms": RETRY_MS}
        except errors.MyQueueError as error:
            self._engine.counts["reads_failed_total"] += 1
            code, details = error.code, {"message": str(error)}
        else:
            batches = [[entry[OFFSET], entry[TIME]] for entry in entries]
            frames = [entry[PAYLOAD] for entry in entries]
            answer.rows.append([replica.uid, 0, start, end, batches, None])
            answer.frames += frames
            answer.bytes += sum(map(len, frames))
            answer.messages += sum(entry[COUNT] for entry in entries)
            if entries and entries[-1][OFFSET] + entries[-1][COUNT] < end:
                now = self._engine.now
                self._read_ahead.note_reply(replica.uid, offset, entries[-1], bytes_left, now)
            return
        answer.failed = True
        answer.rows.append([replica.uid, code, start, end, [], details])

    def _read_from_disk(self, group: int, offset: int, bytes_max: int) -> list[Entry]:
        replica = self._engine.replicas.get(group)
        if replica is None or replica.raft.log.index_at_offset(offset) is not None:
            return []  # gone, or in memory
        end = cast(PartitionMachine, replica.machine).end
        return read_batches(replica, offset, end, bytes_max, REPLY_FRAMES_MAX, True)

    def _reply(self, waiter: WaitingFetch, answer: _FetchReply) -> None:
        counts = self._engine.counts
        counts["fetched_batches_total"] += len(answer.frames)
        counts["fetched_bytes_total"] += answer.bytes
        counts["fetched_messages_total"] += answer.messages
        head = protocol.encode(protocol.FETCHED, waiter.request, answer.rows)
        self._engine.reply(waiter.client, [head, *answer.frames])

    # -- waiting requests ----------------------------------------------------------------------

    def _add_waiter(self, waiter: WaitingFetch, bytes_awaited: int) -> None:
        waiter.bytes_awaited = bytes_awaited
        for group, _ in waiter.parts:
            waiters = self._waiters_by_group.get(group)
            if waiters is None:
                waiters = self._waiters_by_group[group] = {}
                machine = cast(PartitionMachine, self._engine.replicas[group].machine)
                self._bytes_seen[group] = machine.bytes_total
            waiters[waiter] = None
        self._waiters_by_slot.setdefault(waiter.slot, {})[waiter] = None
        self._waiters_per_client[waiter.client] = self._waiters_per_client.get(waiter.client, 0) + 1
        self.waiting += 1

    def _remove_waiter(self, waiter: WaitingFetch) -> None:
        for group, _ in waiter.parts:
            waiters = self._waiters_by_group.get(group)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters_by_group[group], self._bytes_seen[group]
        slot = self._waiters_by_slot.get(waiter.slot)
        if slot is not None:
            slot.pop(waiter, None)
            if not slot:
                del self._waiters_by_slot[waiter.slot]
        others = self._waiters_per_client[waiter.client] - 1
        if others:
            self._waiters_per_client[waiter.client] = others
        else:
            del self._waiters_per_client[waiter.client]
        self.waiting -= 1

    def applied(self, group: int) -> None:
        if group in self._waiters_by_group:
            self._woken_groups[group] = None

    def removed(self, group: int) -> None:
        """Answer all waiters of a group that is not here any more."""
        self._read_ahead.removed(group)
        for waiter in self._waiters_by_group.get(group, ()):
            waiter.bytes_awaited = 0
        if group in self._waiters_by_group:
            self._woken_groups[group] = None

    def end_turn(self) -> None:
        """Answer the waiters that got enough."""
        if not self._woken_groups:
            return
        woken, self._woken_groups = self._woken_groups, {}
        for group in woken:
            waiters, replica = self._waiters_by_group.get(group), self._engine.replicas.get(group)
            if waiters is None:
                continue
            gained = 0
            if replica is not None:
                machine = cast(PartitionMachine, replica.machine)
                gained = machine.bytes_total - self._bytes_seen[group]
                self._bytes_seen[group] = machine.bytes_total
            for waiter in list(waiters):
                waiter.bytes_awaited -= gained
                if waiter.bytes_awaited <= 0:
                    self._reply_to_waiter(waiter)

    def read_ahead(self, now: int) -> None:
        """Read what the consumers that got replies ask for next. The last work of a turn."""
        self._read_ahead.end_turn(now)

    def tick(self, now: int) -> None:
        """Answer the waiters whose deadline has come, with what there is."""
        self._read_ahead.tick(now)
        for slot in [slot for slot in self._waiters_by_slot if slot * SLOT_MS <= now]:
            for waiter in self._waiters_by_slot.pop(slot):
                self._reply_to_waiter(waiter)

    def _reply_to_waiter(self, waiter: WaitingFetch) -> None:
        answer = self._collect(waiter)
        self._remove_waiter(waiter)
        self._reply(waiter, answer)
