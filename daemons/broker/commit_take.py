"""COMMIT and TAKE: commands in the partition's own log that move consumers' positions.

A *commit* sets a position. A *take* moves a position over the next messages of one partition and
returns them: reading and committing in one step. The step is replicated before the messages are
read, and the client names it by a *key*. So a client that lost the answer takes again with the same
key and gets the same messages, and no message goes to two clients. A take that finds no message, or
whose key is known, needs no entry in the log.

Both become rows of a command that the group's queue proposes with the turn. A COMMIT may name many
partitions; it is answered when the last result is known. A TAKE has many takes, which are answered
one by one with the batches that hold their messages. Takes of one turn share an entry of the log,
and takes of one client an answer (TAKEN), with each batch in it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from myqueue import errors
from myqueue.daemons.broker.proposals import CommandWaiter, Details, ProposalQueue
from myqueue.daemons.broker.replies import (
    RETRY_MS,
    PartsReply,
    check_consumer_name,
    read_batches,
)
from myqueue.daemons.partition.machine import COMMIT, FORGET, TAKE
from myqueue.daemons.partition.positions import OK
from myqueue.daemons.raft.types import INDEX, OFFSET, PAYLOAD, Entry
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.broker.group_queues import GroupQueues
    from myqueue.daemons.interfaces import Buffer, Client
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

TAKE_MESSAGES_MAX: Final = 4096  # in one take
ROWS_PER_TURN_MAX: Final = 1 << 16  # of one raft group in one turn
# In one TAKEN. The client fetches by offset what does not fit: it owns it already.
REPLY_ROWS_MAX: Final = 4096
REPLY_BATCHES_MAX: Final = 4096
REPLY_BYTES_MAX: Final = 32 << 20  # but for a single larger batch
INDEX_ROWS_PER_TAKE_MAX: Final = 4096  # examined to see what fits


class _CommitPart:
    """One partition's row of a COMMIT, as a `CommandWaiter`."""

    __slots__ = ("group", "place", "reply")

    def __init__(self, reply: PartsReply, place: int, group: int) -> None:
        self.reply, self.place, self.group = reply, place, group

    def succeed(self, result: Any) -> None:
        code, position = result
        self.reply.fill(self.place, [self.group, code, position, None])

    def fail(self, code: int, details: Details) -> None:
        self.reply.fill(self.place, [self.group, code, 0, details])


class _PendingTake:
    """One take, as a `CommandWaiter`. Its messages are read from `replica`."""

    __slots__ = ("client", "handler", "replica", "request")

    def __init__(
        self, handler: CommitTakeHandler, client: Client, request: int, replica: Replica
    ) -> None:
        self.handler, self.client, self.request = handler, client, request
        self.replica = replica

    def succeed(self, result: Any) -> None:
        code, first, next_offset = result
        if code == OK:
            self.handler.reply_with_messages(self, first, next_offset)
        else:
            self.fail(code, None)

    def fail(self, code: int, details: Details) -> None:
        self.handler.reply_with_error(self.client, self.request, code, details)


class _TakenReply:
    """The next TAKEN of one client: each batch once, even if several takes share it."""

    __slots__ = ("payload_bytes", "frames", "frame_numbers", "rows")

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.frames: list[Buffer] = []
        self.frame_numbers: dict[tuple[int, int], int] = {}  # (group, index) -> place in frames
        self.payload_bytes = 0

    def has_room(self, group: int, entries: Sequence[Entry]) -> bool:
        """True if one more row with these batches fits."""
        new = [entry for entry in entries if (group, entry[INDEX]) not in self.frame_numbers]
        new_bytes = sum(len(entry[PAYLOAD]) for entry in new)
        return (
            len(self.rows) < REPLY_ROWS_MAX
            and len(self.frames) + len(new) <= REPLY_BATCHES_MAX
            and self.payload_bytes + new_bytes <= REPLY_BYTES_MAX
        )

    def add(self, group: int, entries: list[Entry]) -> list[list[int]]:
        batches = []
        for entry in entries:
            name = (group, entry[INDEX])
            place = self.frame_numbers.get(name)
            if place is None:
                place = self.frame_numbers[name] = len(self.frames)
                self.frames.append(entry[PAYLOAD])
                self.payload_bytes += len(entry[PAYLOAD])
            batches.append([entry[OFFSET], place])
        return batches


class CommitTakeHandler:
    """Serve COMMIT and TAKE."""

    def __init__(self, engine: Engine, queues: GroupQueues) -> None:
        self._engine, self._queues = engine, queues
        self._replies: dict[Client, _TakenReply] = {}  # in this turn
        self._entries_read: dict[tuple[int, int, int], list[Entry]] = {}  # read in this turn
        self._active_consumers: set[int] = set()  # since `pop_active_consumers`

    def commit(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, consumer, parts = envelope
        self._check_and_note_consumer(consumer)
        reply = PartsReply(self._engine, client, protocol.COMMITTED, request, len(parts))
        for place, (group, offset, member, assignment) in enumerate(parts):
            row = [COMMIT, consumer, offset, member, assignment]
            if offset == protocol.FORGET:
                row = [FORGET, consumer, member, assignment]
            part = _CommitPart(reply, place, group)
            queue = self._queues.led.get(group)
            if queue is None:
                part.fail(*self._queues.refusal(group))
            else:
                self._add_row(queue, row, part)

    def take(self, client: Client, envelope: protocol.Envelope) -> None:
        """Serve a TAKE. Its first row has this request number, the others count on."""
        _, _, request, takes = envelope
        if len(takes) > protocol.TAKES_MAX:
            raise errors.InvalidRequest(f"{len(takes)} takes; {protocol.TAKES_MAX} at most")
        for number, row in enumerate(takes, request):
            try:
                self._answer_or_enqueue(client, number, *row)
            except errors.MyQueueError as error:
                self.reply_with_error(client, number, error.code, {"message": str(error)})

    def _answer_or_enqueue(
        self,
        client: Client,
        request: int,
        group: int,
        consumer: str,
        key: bytes,
        messages_max: int,
        remember_empty: bool,
    ) -> None:
        """Answer one take from the applied state if that is enough, or add a row for it."""
        self._check_and_note_consumer(consumer)
        if not messages_max:
            raise errors.InvalidRequest("a take of no messages")
        queue = self._queues.led.get(group)
        if queue is None:
            self.reply_with_error(client, request, *self._queues.refusal(group))
            return
        take = _PendingTake(self, client, request, queue.replica)
        machine = queue.machine
        taken_before = machine.positions.taken(consumer, key)
        first = machine.positions.next_to_take(consumer, machine.start)
        if taken_before is not None:
            take.succeed((OK, *taken_before))
        elif first >= machine.end and not remember_empty:
            take.succeed((OK, first, first))
        else:
            allowed = min(messages_max, TAKE_MESSAGES_MAX)
            messages_max = self._fitting_messages(queue, first, allowed)
            self._add_row(queue, [TAKE, consumer, key, messages_max, remember_empty], take)

    def reply_with_messages(self, take: _PendingTake, first: int, next_offset: int) -> None:
        """Add the messages to the client's reply: they are its own, as a replicated fact."""
        if next_offset <= first:
            row = [take.request, OK, first, next_offset, [], None]
            self._reply_for(take.client).rows.append(row)
            return
        replica, counts = take.replica, self._engine.counts
        wanted = (replica.uid, first, next_offset)
        entries = self._entries_read.get(wanted)
        if entries is None:
            try:
                entries = read_batches(
                    replica, first, next_offset, REPLY_BYTES_MAX, REPLY_BATCHES_MAX, True
                )
            except errors.MyQueueError as error:
                counts["reads_failed_total"] += 1
                take.fail(error.code, {"message": str(error)})
                return
            self._entries_read[wanted] = entries
        reply = self._reply_for(take.client, replica.uid, entries)
        bytes_before = reply.payload_bytes
        batches = reply.add(replica.uid, entries)
        reply.rows.append([take.request, OK, first, next_offset, batches, None])
        counts["fetched_messages_total"] += next_offset - first
        counts["fetched_batches_total"] += len(batches)
        counts["fetched_bytes_total"] += reply.payload_bytes - bytes_before

    def reply_with_error(self, client: Client, request: int, code: int, details: Details) -> None:
        details = details or {}
        details = details | {"message": str(details.get("message", errors.error_of(code)))}
        self._reply_for(client).rows.append([request, code, 0, 0, [], details])

    def _reply_for(
        self, client: Client, group: int = 0, entries: Sequence[Entry] = ()
    ) -> _TakenReply:
        """Return the client's next reply, with room for one more row with these batches."""
        reply = self._replies.get(client)
        if reply is not None and not reply.has_room(group, entries):
            self._send(client, reply)
            reply = None
        if reply is None:
            reply = self._replies[client] = _TakenReply()
        return reply

    def _send(self, client: Client, reply: _TakenReply) -> None:
        head = protocol.encode(protocol.TAKEN, 0, reply.rows)
        self._engine.reply(client, [head, *reply.frames])

    def end_turn(self) -> None:
        """Send each client one message with everything it took in this turn."""
        if self._replies:
            replies, self._replies = self._replies, {}
            self._entries_read.clear()
            for client, reply in replies.items():
                self._send(client, reply)

    def _fitting_messages(self, queue: ProposalQueue, first: int, messages_max: int) -> int:
        """Return how many messages from `first` on fit into one answer, by the index alone."""
        machine = queue.machine
        if messages_max <= 1 or machine.bytes_kept <= REPLY_BYTES_MAX or first >= machine.end:
            return messages_max
        index = queue.replica.index_at_offset(first)
        if index is None:
            return messages_max
        last = min(machine.applied_index, index + INDEX_ROWS_PER_TAKE_MAX - 1)
        rows = self._engine.log.index.rows(queue.replica.uid, index, last, REPLY_BYTES_MAX)
        fitting = max((row.offset + row.count - first for row in rows if row.count), default=0)
        return min(fitting, messages_max) if fitting > 0 else messages_max

    def _check_and_note_consumer(self, consumer: str) -> None:
        check_consumer_name(consumer)
        if consumer.isascii() and consumer.isdigit() and len(consumer) < 20:
            self._active_consumers.add(int(consumer))

    def _add_row(self, queue: ProposalQueue, row: list[Any], waiter: CommandWaiter) -> None:
        if queue.new_rows >= ROWS_PER_TURN_MAX:
            waiter.fail(errors.Busy.code, {"retry_ms": RETRY_MS})
        else:
            queue.add_row(row, waiter)
            self._queues.propose_with_turn(queue)

    def pop_active_consumers(self) -> set[int]:
        """Return the consumers with a numeric id that committed or took since the last call."""
        active, self._active_consumers = self._active_consumers, set()
        return active
