"""COMMIT and TAKE: positions of consumers, moved by commands in the partition's own log.

Both become rows of a command that the group's feed proposes with the turn. A COMMIT may name many
partitions; it is answered when the last of them is known. A TAKE is answered with the batches that
hold the messages which it got; that they are its own is replicated before they are read, so a
reader that dies loses them to nobody: the same key gets the same messages again. Takes of one turn
share an entry of the log, and those of one client an answer, with each batch in it once.

A take that can only find nothing, or whose key is known, needs no entry in the log.
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
TAKE_BYTES_MAX: Final = 32 << 20  # the rest is fetched by offset: it is the asker's already
ROWS_PER_TURN_MAX: Final = 1 << 16  # of one group in one turn
REPLY_ROWS_MAX: Final = 4096  # in one TAKEN
_CONSUMER_PATTERN = re.compile(r"(?:group/)?[A-Za-z0-9._-]{1,200}")

# (code, details) for a group that can't be written to here now
RefusalOf = Callable[[int], tuple[int, Details]]


def check_consumer_name(consumer: str) -> None:
    if not _CONSUMER_PATTERN.fullmatch(consumer):
        raise errors.InvalidName(f"{consumer[:220]!r} names no consumer: an id, or group/NAME")


class _PendingCommit:
    """A COMMIT: one row for each of its parts, filled in as they become known."""

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

    def done(self, result: Any) -> None:
        code, position = result
        self.commit.fill(self.place, [self.group, code, position, None])

    def failed(self, code: int, details: Details) -> None:
        self.commit.fill(self.place, [self.group, code, 0, details])


class _PendingTake:
    __slots__ = ("client", "queue", "owner", "request")

    def __init__(self, owner: CommitTakeHandler, client: Client, request: int) -> None:
        self.owner, self.client, self.request = owner, client, request
        self.queue: ProposalQueue | None = None

    def done(self, result: Any) -> None:
        code, first, behind = result
        if code == OK:
            self.owner.give(self, first, behind)
        else:
            self.failed(code, None)

    def failed(self, code: int, details: Details) -> None:
        details = details or {}
        told = details | {"message": str(details.get("message", errors.error_of(code)))}
        self.owner.tell(self.client, [self.request, code, 0, 0, [], told])


class _TakenReply:
    """What one client gets with the next TAKEN. Each batch is in it once, whoever got of it."""

    __slots__ = ("bytes", "frames", "places", "rows")

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.frames: list[bytes | memoryview] = []
        self.places: dict[tuple[int, int], int] = {}  # (group, index) -> place in frames
        self.bytes = 0

    def add(self, group: int, entries: list[Entry]) -> list[list[int]]:
        batches = []
        for entry in entries:
            name = (group, entry[INDEX])
            place = self.places.get(name)
            if place is None:
                place = self.places[name] = len(self.frames)
                self.frames.append(entry[PAYLOAD])
                self.bytes += len(entry[PAYLOAD])
            batches.append([entry[OFFSET], place])
        return batches


class CommitTakeHandler:
    """See the module's docstring."""

    def __init__(
        self,
        engine: Engine,
        leading: dict[int, ProposalQueue],
        asked: dict[ProposalQueue, None],
        refusal: RefusalOf,
    ) -> None:
        self._engine, self._leading, self._asked = engine, leading, asked
        self._refusal = refusal
        self._taken: dict[Client, _TakenReply] = {}  # in this turn
        self._found: dict[tuple[int, int, int], list[Entry]] = {}  # read in this turn, as wanted
        self.seen: set[int] = set()  # consumers whose text is a number, since somebody took them

    def commit(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, consumer, parts = envelope
        self._check(consumer)
        commit = _PendingCommit(self._engine, client, request, len(parts))
        if not parts:
            answer = protocol.encode(protocol.COMMITTED, request, [])
            self._engine.reply(client, [answer])
        for place, (group, offset, member, assignment) in enumerate(parts):
            row = [COMMIT, consumer, offset, member, assignment]
            if offset == protocol.FORGET:
                row = [FORGET, consumer, member, assignment]
            self._ask(group, row, _CommitPart(commit, place, group))

    def take(self, client: Client, envelope: protocol.Envelope) -> None:
        """The first of them is the request of this number, the others count on."""
        _, _, request, takes = envelope
        if len(takes) > protocol.TAKES_MAX:
            raise errors.InvalidRequest(f"{len(takes)} takes; {protocol.TAKES_MAX} at most")
        for number, row in enumerate(takes, request):
            one = _PendingTake(self, client, number)
            try:
                self._take(one, *row)
            except errors.MyQueueError as error:
                one.failed(error.code, {"message": str(error)})

    def _take(
        self, one: _PendingTake, group: int, consumer: str, key: bytes, most: int, nothing_too: bool
    ) -> None:
        self._check(consumer)
        if not most:
            raise errors.InvalidRequest("a take of no messages")
        feed = one.queue = self._leading.get(group)
        if feed is None:
            one.failed(*self._refusal(group))
            return
        machine = feed.machine
        before = machine.positions.taken(consumer, key)
        first = machine.positions.next_to_take(consumer, machine.start)
        if before is not None:
            one.done((OK, *before))
        elif first >= machine.end and not nothing_too:
            one.done((OK, first, first))
        else:
            most = self._fitting_messages(feed, first, min(most, TAKE_MESSAGES_MAX))
            self._ask(group, [TAKE, consumer, key, most, nothing_too], one)

    def give(self, one: _PendingTake, first: int, behind: int) -> None:
        """These messages are the asker's, as a replicated fact; here they come."""
        if one.queue is None or behind <= first:
            self.tell(one.client, [one.request, OK, first, behind, [], None])
            return
        replica, counts = one.queue.replica, self._engine.counts
        wanted = (replica.uid, first, behind)
        entries = self._found.get(wanted)
        if entries is None:
            try:
                entries = read_batches(
                    replica, first, behind, TAKE_BYTES_MAX, TAKE_MESSAGES_MAX, True
                )
            except errors.MyQueueError as error:
                counts["reads_failed_total"] += 1
                one.failed(error.code, {"message": str(error)})
                return
            self._found[wanted] = entries
        taken = self._of(one.client, len(entries))
        before = taken.bytes
        batches = taken.add(replica.uid, entries)
        taken.rows.append([one.request, OK, first, behind, batches, None])
        counts["fetched_messages_total"] += behind - first
        counts["fetched_batches_total"] += len(batches)
        counts["fetched_bytes_total"] += taken.bytes - before

    def tell(self, client: Client, row: list[Any]) -> None:
        self._of(client, 0).rows.append(row)

    def _of(self, client: Client, batches: int) -> _TakenReply:
        """What this client gets next, with room for one more row that has so many batches."""
        taken = self._taken.get(client)
        if taken is not None and (
            len(taken.rows) >= REPLY_ROWS_MAX or taken.bytes > TAKE_BYTES_MAX
            or len(taken.frames) + batches > TAKE_MESSAGES_MAX
        ):  # fmt: skip
            self._send(client, taken)
            taken = None
        if taken is None:
            taken = self._taken[client] = _TakenReply()
        return taken

    def _send(self, client: Client, taken: _TakenReply) -> None:
        head = protocol.encode(protocol.TAKEN, 0, taken.rows)
        self._engine.reply(client, [head, *taken.frames])

    def end_turn(self) -> None:
        """One message a client, with all that it took in this turn."""
        if self._taken:
            answering, self._taken = self._taken, {}
            self._found.clear()
            for client, taken in answering.items():
                self._send(client, taken)

    def _fitting_messages(self, feed: ProposalQueue, first: int, most: int) -> int:
        """How many messages one answer can carry, if they are taken from there."""
        machine = feed.machine
        behind = min(first + most, machine.end)
        if behind - first <= 1 or machine.bytes_kept <= TAKE_BYTES_MAX:
            return most
        found = read_batches(feed.replica, first, behind, TAKE_BYTES_MAX, TAKE_MESSAGES_MAX, True)
        return max(1, found[-1][OFFSET] + found[-1][COUNT] - first) if found else most

    def _check(self, consumer: str) -> None:
        check_consumer_name(consumer)
        if consumer.isascii() and consumer.isdigit() and len(consumer) < 20:
            self.seen.add(int(consumer))

    def _ask(self, group: int, row: list[Any], asks: _CommitPart | _PendingTake) -> None:
        feed = self._leading.get(group)
        if feed is None:
            asks.failed(*self._refusal(group))
        elif len(feed.rows) >= ROWS_PER_TURN_MAX:
            asks.failed(errors.Busy.code, {"retry_ms": 50})
        else:
            feed.rows.append(row)
            feed.asked.append(asks)
            self._asked[feed] = None

    def applied(self, feed: ProposalQueue, entries: list[Entry], results: list[Any]) -> None:
        commands = feed.waiters_by_index
        for entry, result in zip(entries, results, strict=True):
            waiting = commands.pop(entry[INDEX], None)
            if waiting is None:
                continue
            if entry[TERM] > feed.newest_term_led:  # another leader's entry stands there (W11)
                for one in waiting:
                    one.failed(errors.OutcomeUnknown.code, None)
                continue
            for one, value in zip(waiting, result, strict=True):
                one.done(value)

    def take_seen(self) -> list[int]:
        seen, self.seen = self.seen, set()
        return sorted(seen)[:10_000]
