"""COMMIT and TAKE: commands in the partition's own log that move consumers' positions.

Both become rows of a command that the group's queue proposes with the turn. A COMMIT may name many
partitions; it is answered when the last result is known. A TAKE is answered with the batches that
hold its messages. Its ownership of them is replicated before they are read, so no message is lost
if the client dies: a request with the same key gets the same messages. Takes of one turn share an
entry of the log, and takes of one client an answer, with each batch in it once.

A take that can find no message, or whose key is known, needs no entry in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from myqueue import errors
from myqueue.daemons.broker.fetch import read_batches
from myqueue.daemons.broker.proposals import Details, ProposalQueue
from myqueue.daemons.partition.machine import COMMIT, FORGET, TAKE
from myqueue.daemons.partition.positions import OK
from myqueue.daemons.raft.types import COUNT, INDEX, OFFSET, PAYLOAD, TERM, Entry
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Client
    from myqueue.daemons.replication.engine import Engine

TAKE_MESSAGES_MAX: Final = 4096  # messages; as many batches fit into one answer
TAKE_BYTES_MAX: Final = 32 << 20  # the client fetches the rest by offset: it owns it already
ROWS_PER_TURN_MAX: Final = 1 << 16  # of one raft group in one turn
REPLY_ROWS_MAX: Final = 4096  # in one TAKEN
_CONSUMER_PATTERN = re.compile(r"(?:group/)?[A-Za-z0-9._-]{1,200}")

# (code, details) for a group that can't be written to here now
RefusalOf = Callable[[int], tuple[int, Details]]


def check_consumer_name(consumer: str) -> None:
    if not _CONSUMER_PATTERN.fullmatch(consumer):
        raise errors.InvalidName(f"{consumer[:220]!r} names no consumer: an id, or group/NAME")


class _PendingCommit:
    """A COMMIT that waits: one row for each of its parts, filled in as results come."""

    __slots__ = ("client", "engine", "missing", "request", "rows")

    def __init__(self, engine: Engine, client: Client, request: int, parts: int) -> None:
        self.engine, self.client, self.request = engine, client, request
        self.rows: list[list[Any]] = [[] for _ in range(parts)]
        self.missing = parts

    def fill(self, place: int, row: list[Any]) -> None:
        self.rows[place] = row
        self.missing -= 1
        if not self.missing:
            answer = protocol.encode(protocol.COMMITTED, self.request, self.rows)
            self.engine.reply(self.client, [answer])


class _CommitPart:
    __slots__ = ("commit", "group", "place")

    def __init__(self, commit: _PendingCommit, place: int, group: int) -> None:
        self.commit, self.place, self.group = commit, place, group

    def succeed(self, result: Any) -> None:
        code, position = result
        self.commit.fill(self.place, [self.group, code, position, None])

    def fail(self, code: int, details: Details) -> None:
        self.commit.fill(self.place, [self.group, code, 0, details])


class _PendingTake:
    __slots__ = ("client", "queue", "handler", "request")

    def __init__(self, owner: CommitTakeHandler, client: Client, request: int) -> None:
        self.handler, self.client, self.request = owner, client, request
        self.queue: ProposalQueue | None = None

    def succeed(self, result: Any) -> None:
        code, first, next_offset = result
        if code == OK:
            self.handler.reply_with_messages(self, first, next_offset)
        else:
            self.fail(code, None)

    def fail(self, code: int, details: Details) -> None:
        details = details or {}
        told = details | {"message": str(details.get("message", errors.error_of(code)))}
        self.handler.add_reply_row(self.client, [self.request, code, 0, 0, [], told])


class _TakenReply:
    """The next TAKEN of one client. A batch is in it once, even if several takes got messages of
    it.
    """

    __slots__ = ("payload_bytes", "frames", "frame_numbers", "rows")

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.frames: list[bytes | memoryview] = []
        self.frame_numbers: dict[tuple[int, int], int] = {}  # (group, index) -> place in frames
        self.payload_bytes = 0

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

    def __init__(
        self,
        engine: Engine,
        leading: dict[int, ProposalQueue],
        asked: dict[ProposalQueue, None],
        refusal: RefusalOf,
    ) -> None:
        self._engine, self._led_queues, self._queues_to_propose = engine, leading, asked
        self._refusal = refusal
        self._replies: dict[Client, _TakenReply] = {}  # in this turn
        self._entries_read: dict[tuple[int, int, int], list[Entry]] = {}  # read in this turn
        self.seen: set[int] = set()  # numeric consumer ids, since the last `take_seen`

    def commit(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, consumer, parts = envelope
        self._check_and_note_consumer(consumer)
        commit = _PendingCommit(self._engine, client, request, len(parts))
        if not parts:
            answer = protocol.encode(protocol.COMMITTED, request, [])
            self._engine.reply(client, [answer])
        for place, (group, offset, member, assignment) in enumerate(parts):
            row = [COMMIT, consumer, offset, member, assignment]
            if offset == protocol.FORGET:
                row = [FORGET, consumer, member, assignment]
            self._enqueue_row(group, row, _CommitPart(commit, place, group))

    def take(self, client: Client, envelope: protocol.Envelope) -> None:
        """Serve a TAKE. Its first row has this request number, the others count on."""
        _, _, request, takes = envelope
        if len(takes) > protocol.TAKES_MAX:
            raise errors.InvalidRequest(f"{len(takes)} takes; {protocol.TAKES_MAX} at most")
        for number, row in enumerate(takes, request):
            one = _PendingTake(self, client, number)
            try:
                self._take_or_enqueue(one, *row)
            except errors.MyQueueError as error:
                one.fail(error.code, {"message": str(error)})

    def _take_or_enqueue(
        self,
        one: _PendingTake,
        group: int,
        consumer: str,
        key: bytes,
        messages_max: int,
        remember_empty: bool,
    ) -> None:
        self._check_and_note_consumer(consumer)
        if not messages_max:
            raise errors.InvalidRequest("a take of no messages")
        queue = one.queue = self._led_queues.get(group)
        if queue is None:
            one.fail(*self._refusal(group))
            return
        machine = queue.machine
        before = machine.positions.taken(consumer, key)
        first = machine.positions.next_to_take(consumer, machine.start)
        if before is not None:
            one.succeed((OK, *before))
        elif first >= machine.end and not remember_empty:
            one.succeed((OK, first, first))
        else:
            messages_max = self._fitting_messages(
                queue, first, min(messages_max, TAKE_MESSAGES_MAX)
            )
            self._enqueue_row(group, [TAKE, consumer, key, messages_max, remember_empty], one)

    def reply_with_messages(self, one: _PendingTake, first: int, next_offset: int) -> None:
        """Add the messages to the client's reply: they are its own, as a replicated fact."""
        if one.queue is None or next_offset <= first:
            self.add_reply_row(one.client, [one.request, OK, first, next_offset, [], None])
            return
        replica, counts = one.queue.replica, self._engine.counts
        wanted = (replica.uid, first, next_offset)
        entries = self._entries_read.get(wanted)
        if entries is None:
            try:
                entries = read_batches(
                    replica, first, next_offset, TAKE_BYTES_MAX, TAKE_MESSAGES_MAX, True
                )
            except errors.MyQueueError as error:
                counts["reads_failed_total"] += 1
                one.fail(error.code, {"message": str(error)})
                return
            self._entries_read[wanted] = entries
        taken = self._reply_for(one.client, len(entries))
        before = taken.payload_bytes
        batches = taken.add(replica.uid, entries)
        taken.rows.append([one.request, OK, first, next_offset, batches, None])
        counts["fetched_messages_total"] += next_offset - first
        counts["fetched_batches_total"] += len(batches)
        counts["fetched_bytes_total"] += taken.payload_bytes - before

    def add_reply_row(self, client: Client, row: list[Any]) -> None:
        self._reply_for(client, 0).rows.append(row)

    def _reply_for(self, client: Client, batches: int) -> _TakenReply:
        """Return the client's next reply, with room for one more row of so many batches."""
        taken = self._replies.get(client)
        if taken is not None and (
            len(taken.rows) >= REPLY_ROWS_MAX
            or taken.payload_bytes > TAKE_BYTES_MAX
            or len(taken.frames) + batches > TAKE_MESSAGES_MAX
        ):
            self._send(client, taken)
            taken = None
        if taken is None:
            taken = self._replies[client] = _TakenReply()
        return taken

    def _send(self, client: Client, taken: _TakenReply) -> None:
        head = protocol.encode(protocol.TAKEN, 0, taken.rows)
        self._engine.reply(client, [head, *taken.frames])

    def end_turn(self) -> None:
        """Send each client one message with everything it took in this turn."""
        if self._replies:
            answering, self._replies = self._replies, {}
            self._entries_read.clear()
            for client, taken in answering.items():
                self._send(client, taken)

    def _fitting_messages(self, queue: ProposalQueue, first: int, messages_max: int) -> int:
        """Return how many messages from `first` on fit into one answer."""
        machine = queue.machine
        next_offset = min(first + messages_max, machine.end)
        if next_offset - first <= 1 or machine.bytes_kept <= TAKE_BYTES_MAX:
            return messages_max
        found = read_batches(
            queue.replica, first, next_offset, TAKE_BYTES_MAX, TAKE_MESSAGES_MAX, True
        )
        return max(1, found[-1][OFFSET] + found[-1][COUNT] - first) if found else messages_max

    def _check_and_note_consumer(self, consumer: str) -> None:
        check_consumer_name(consumer)
        if consumer.isascii() and consumer.isdigit() and len(consumer) < 20:
            self.seen.add(int(consumer))

    def _enqueue_row(self, group: int, row: list[Any], asks: _CommitPart | _PendingTake) -> None:
        queue = self._led_queues.get(group)
        if queue is None:
            asks.fail(*self._refusal(group))
        elif len(queue.new_rows) >= ROWS_PER_TURN_MAX:
            asks.fail(errors.Busy.code, {"retry_ms": 50})
        else:
            queue.new_rows.append(row)
            queue.new_waiters.append(asks)
            self._queues_to_propose[queue] = None

    def applied(self, queue: ProposalQueue, entries: list[Entry], results: list[Any]) -> None:
        commands = queue.waiters_by_index
        for entry, result in zip(entries, results, strict=True):
            waiting = commands.pop(entry[INDEX], None)
            if waiting is None:
                continue
            if entry[TERM] > queue.newest_term_led:  # another leader's entry is at this index
                for one in waiting:
                    one.fail(errors.OutcomeUnknown.code, None)
                continue
            for one, value in zip(waiting, result, strict=True):
                one.succeed(value)

    def take_seen(self) -> list[int]:
        seen, self.seen = self.seen, set()
        return sorted(seen)[:10_000]
