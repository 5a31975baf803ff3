"""The leader's side of one group: what waits to be proposed, and who waits for what was.

A *feed* exists for each group that this broker was asked to write to. While its replica leads and
is ready (R9), the feed knows everything that stands in the log: what is applied (the machine's
sessions), and what was proposed and is not applied yet (`ahead`). So a batch is judged when it
comes, and entries that are proposed need no second judgement when they are applied (C2).

Requests of one turn collect here, and one `engine.propose` takes them all. A *ticket* is a list,
not an object, because one is made for every batch: [account, request, bytes, repeats].
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from myqueue import errors
from myqueue.daemons.partition.keyed_batches import KEY_REUSED, BatchKey
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.partition.producers import FENCED, NEW, OUT_OF_SEQUENCE
from myqueue.daemons.raft.types import COMMAND, DATA, PAYLOAD, Item
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Client
    from myqueue.daemons.replication.replica import Replica

COMMAND_ROWS_MAX: Final = 4096  # in one entry
IN_FLIGHT_PER_PRODUCER_MAX: Final = (
    128  # batches of one producer that `InFlightBatches` may name before it forgets done ones
)
BATCH_BYTES_MAX: Final = 16 << 20  # whatever a topic allows

Buffer = bytes | memoryview
Details = dict[str, Any] | None

# Places in a ticket. `ACCOUNT` is None once the batch is applied; `REPEATS` is None, or a list of
# (account, request) that sent the same batch again and get the same answer.
ACCOUNT, REQUEST, BYTES, REPEATS = 0, 1, 2, 3
Ticket = list[Any]


class ClientAccount:
    """One client: what it has in flight, and results that leave when the turn ends."""

    __slots__ = ("client", "inflight", "results")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.inflight = 0
        self.results: list[list[Any]] = []


class InFlightBatches:
    """One producer's batches that were proposed and may not be applied yet.

    `last` is the newest ticket; with it everything before is applied. `older` is the one before
    this epoch.
    """

    __slots__ = ("epoch", "last", "next_sequence", "older", "where")

    def __init__(self, epoch: int, older: Ticket) -> None:
        self.epoch, self.next_sequence = epoch, 0
        self.where: dict[int, Ticket] = {}  # first sequence -> ticket
        self.last = self.older = older

    def add(self, sequence: int, count: int, ticket: Ticket) -> None:
        self.next_sequence = sequence + count
        self.where[sequence] = self.last = ticket
        if len(self.where) > IN_FLIGHT_PER_PRODUCER_MAX:
            self.where = {at: one for at, one in self.where.items() if one[ACCOUNT] is not None}

    def withdraw(self, refused: set[int]) -> None:
        """Tickets, by identity, whose batches were not proposed after all: the newest ones."""
        out = [sequence for sequence, ticket in self.where.items() if id(ticket) in refused]
        if out:
            self.next_sequence = min(out)
            for sequence in out:
                del self.where[sequence]
            self.last = next(reversed(self.where.values()), self.older)


class CommandWaiter(Protocol):
    """Who asked for one row of a command."""

    def done(self, result: Any) -> None: ...
    def failed(self, code: int, details: Details) -> None: ...


class ProposalQueue:
    """See the module's docstring. Invariant: `items` and `tickets` are of equal length."""

    __slots__ = (
        "_made", "in_flight", "asked", "newest_term_led", "bytes_max", "waiters_by_index", "held",
        "items", "keyed",
        "machine", "replica", "rows", "last_stamp_ms", "term", "new_tickets", "waiting",
    )  # fmt: skip

    def __init__(self, replica: Replica, machine: PartitionMachine) -> None:
        self.replica, self.machine = replica, machine
        self.term = 0  # in which this replica leads and is ready; else 0
        self.newest_term_led = (
            0  # the last one of these: of the newest entry that somebody waits for
        )
        self.last_stamp_ms = 0  # of the last entry
        self.bytes_max = BATCH_BYTES_MAX  # of a batch, by the topic's settings
        self.in_flight: dict[int, InFlightBatches] = {}
        self.keyed: dict[BatchKey, tuple[int, Ticket]] = {}  # likewise: messages, ticket
        self.held: list[tuple[ClientAccount, int, Buffer]] = []  # until it is ready
        # This turn's:
        self.items: list[tuple[int, Buffer]] = []  # (messages, batch)
        self.new_tickets: list[Ticket] = []
        self.rows: list[list[Any]] = []  # of commands: [operation, …row]
        self.asked: list[CommandWaiter] = []
        self._made: list[list[CommandWaiter]] = []  # who asked for each of the commands
        # By index of their entries:
        self.waiting: dict[int, Ticket] = {}
        self.waiters_by_index: dict[int, list[CommandWaiter]] = {}

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.waiters_by_index or self.held or self.items or self.rows)

    def begin(self, term: int) -> None:
        """It leads, and everything in the log before is applied."""
        self.term = self.newest_term_led = term
        self.last_stamp_ms = self.machine.time_ms
        self.in_flight, self.keyed = {}, {}

    def stop(self) -> None:
        self.term = 0
        self.in_flight, self.keyed = {}, {}

    # -- judging batches -----------------------------------------------------------------------

    def judge(self, producer: int, epoch: int, sequence: int, count: int) -> int | Ticket:
        """A verdict of `partition/producers`, or the ticket of the same batch, which is on its
        way."""
        ahead = self.in_flight.get(producer)
        if ahead is None or epoch > ahead.epoch:
            if ahead is not None:
                return NEW if sequence == 0 else OUT_OF_SEQUENCE
            return self.machine.sessions.judge(producer, epoch, sequence, count)
        if epoch < ahead.epoch:
            return FENCED
        if sequence == ahead.next_sequence:
            return NEW
        ticket = ahead.where.get(sequence)
        if ticket is not None and ticket[ACCOUNT] is not None:
            return ticket
        known = self.machine.sessions.get(producer)
        verdict = OUT_OF_SEQUENCE if known is None else known.judge(epoch, sequence, count)
        # What the applied state takes for new was proposed already, or has a gap before it.
        return OUT_OF_SEQUENCE if verdict == NEW else verdict

    def record_new_batch(
        self, producer: int, epoch: int, sequence: int, count: int, ticket: Ticket
    ) -> None:
        """A batch that was judged as new will be proposed with this turn."""
        ahead = self.in_flight.get(producer)
        if ahead is None or epoch != ahead.epoch:
            older = [None] if ahead is None else ahead.last
            ahead = self.in_flight[producer] = InFlightBatches(epoch, older)
        ahead.add(sequence, count, ticket)

    def judge_key(self, key: BatchKey, count: int) -> int | Ticket:
        """The same for a batch that has a key of its own."""
        messages, ticket = self.keyed.get(key, (0, None))
        if ticket is not None and ticket[ACCOUNT] is not None:
            return ticket if messages == count else KEY_REUSED
        return self.machine.keys.judge(key, count)

    def sent_batch(self, sent: int | Ticket) -> Buffer | None:
        """What has this offset, or this ticket and is on its way; None if it can't be read."""
        try:
            if isinstance(sent, int):
                return cast(Buffer, self.replica.entry_at_offset(sent)[PAYLOAD])
            for (_, payload), ticket in zip(self.items, self.new_tickets, strict=True):
                if ticket is sent:
                    return payload
            for index, ticket in self.waiting.items():
                if ticket is sent:
                    return cast(Buffer, self.replica.read(index, index, 1)[0][PAYLOAD])
        except errors.MyQueueError:
            pass
        return None

    def drop_applied(self) -> None:
        """Producers and keys with nothing on its way: what is applied speaks for them."""
        self.keyed = {key: one for key, one in self.keyed.items() if one[1][ACCOUNT] is not None}
        done = [one for one, ahead in self.in_flight.items() if ahead.last[ACCOUNT] is None]
        for producer in done:
            del self.in_flight[producer]

    # -- proposing -----------------------------------------------------------------------------

    def take_proposals(self, now_ms: int) -> list[Item]:
        """Everything that this turn asked for, as proposals: batches first, then commands."""
        self.last_stamp_ms = stamp = max(now_ms, self.last_stamp_ms)
        counts, batches = zip(*self.items, strict=True) if self.items else ((), ())
        # Plain tuples: an `Item` takes six times as long to make, and the log only unpacks it.
        made = list(zip(counts, repeat(stamp), repeat(DATA), batches, strict=False))
        items = cast("list[Item]", made)
        for payload, asked in self._packed_commands():
            items.append(Item(0, stamp, COMMAND, payload))
            self._made.append(asked)
        return items

    def _packed_commands(self) -> Iterator[tuple[bytes, list[CommandWaiter]]]:
        """Rows of one operation travel together; their order is kept."""
        for operation in sorted({row[0] for row in self.rows}):
            places = [at for at, row in enumerate(self.rows) if row[0] == operation]
            for begin in range(0, len(places), COMMAND_ROWS_MAX):
                part = places[begin : begin + COMMAND_ROWS_MAX]
                rows = [self.rows[at][1:] for at in part]
                yield protocol.pack([operation, rows]), [self.asked[at] for at in part]

    def proposed(self, first: int) -> None:
        """What `take_proposals` gave has the indexes from `first` on."""
        behind = first + len(self.new_tickets)
        self.waiting.update(zip(range(first, behind), self.new_tickets, strict=True))
        if self._made:
            self.waiters_by_index.update(enumerate(self._made, behind))
        self._clear()

    def refused(self) -> tuple[list[Ticket], list[CommandWaiter]]:
        """This turn's, of which certainly nothing was done: they are as if never asked for."""
        tickets, asked = self.take_refused_batches(), self.asked
        self._clear()
        return tickets, asked

    def take_refused_batches(self) -> list[Ticket]:
        """The same of the batches alone; commands may be proposed without them."""
        tickets = self.new_tickets
        refused = set(map(id, tickets))
        for ahead in self.in_flight.values():
            ahead.withdraw(refused)
        self.keyed = {key: one for key, one in self.keyed.items() if id(one[1]) not in refused}
        self.items, self.new_tickets, self._made = [], [], []
        return tickets

    def _clear(self) -> None:
        self.items, self.new_tickets, self.rows, self.asked, self._made = [], [], [], [], []

    def lost(self, first: int) -> tuple[list[Ticket], list[CommandWaiter]]:
        """Nobody knows what became of the entries from `first` on."""
        indexes = [index for index in self.waiting if index >= first]
        tickets = [self.waiting.pop(index) for index in indexes]
        late = [index for index in self.waiters_by_index if index >= first]
        return tickets, [one for index in late for one in self.waiters_by_index.pop(index)]
