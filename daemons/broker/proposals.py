"""The leader's side of one group: requests to propose, and requests that wait for a proposal.

A `ProposalQueue` exists for each group that clients write to at this broker. While its replica
leads and is ready, it knows everything in the log: the applied entries (the machine's sessions),
and those proposed and not applied yet (`in_flight`). So a batch is judged when it comes, and
proposed entries need no second judgement when they are applied.

Requests of one turn collect here, and one `engine.propose` gets them all. A batch waits for its
result as a *ticket*, a row of a command as a `CommandWaiter`. A ticket is a list, [account,
request, bytes, repeats], because one is made for every batch: to make one, read it and settle it
takes 63 ns; with a class with slots 132 ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from myqueue import errors
from myqueue.daemons.partition.keyed_batches import KEY_REUSED, BatchKey
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.partition.producers import FENCED, NEW, OUT_OF_SEQUENCE
from myqueue.daemons.raft.types import COMMAND, DATA, INDEX, PAYLOAD, TERM, Entry, Proposal
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Buffer, Client
    from myqueue.daemons.replication.replica import Replica

COMMAND_ROWS_MAX: Final = 4096  # in one entry
IN_FLIGHT_PER_PRODUCER_MAX: Final = 128  # batches; beyond, applied ones are forgotten

Details = dict[str, Any] | None

# Places in a ticket. `ACCOUNT` is None once the batch is settled: applied, or failed. `REPEATS` is
# None, or a list of (account, request) that sent the same batch again and get the same answer.
ACCOUNT, REQUEST, BYTES, REPEATS = 0, 1, 2, 3
Ticket = list[Any]
_SETTLED: Final[Ticket] = [None, 0, 0, None]  # stands for "no batch before"


class Stored(NamedTuple):
    """A batch came before and is applied: its first message has this offset."""

    offset: int


class InFlight(NamedTuple):
    """A batch came before and is not applied yet."""

    ticket: Ticket


class Refused(NamedTuple):
    """A request is not carried out: the error's code, and details for the client."""

    code: int
    details: Details


Verdict = Stored | InFlight | Refused | None  # of a batch; None: it is new
_REFUSALS: Final = {
    OUT_OF_SEQUENCE: Refused(errors.OutOfSequence.code, None),
    FENCED: Refused(errors.Fenced.code, None),
    KEY_REUSED: Refused(
        errors.KeyReused.code, {"message": "this key came before, with other messages"}
    ),
}
REFUSED_KEY: Final = _REFUSALS[KEY_REUSED]


class ClientAccount:
    """One client: its bytes in flight, and results that leave when the turn ends."""

    __slots__ = ("client", "inflight_bytes", "results")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.inflight_bytes = 0
        self.results: list[list[Any]] = []


class InFlightBatches:
    """One producer's batches that were proposed and may not be applied yet.

    Once `newest_ticket` is applied, everything before it is. `previous_epoch_ticket` is the last
    one before this epoch.
    """

    __slots__ = (
        "epoch",
        "newest_ticket",
        "next_sequence",
        "previous_epoch_ticket",
        "tickets_by_sequence",
    )

    def __init__(self, epoch: int, older: Ticket) -> None:
        self.epoch, self.next_sequence = epoch, 0
        self.tickets_by_sequence: dict[int, Ticket] = {}  # first sequence -> ticket
        self.newest_ticket = self.previous_epoch_ticket = older

    def add(self, sequence: int, count: int, ticket: Ticket) -> None:
        self.next_sequence = sequence + count
        self.tickets_by_sequence[sequence] = self.newest_ticket = ticket
        if len(self.tickets_by_sequence) > IN_FLIGHT_PER_PRODUCER_MAX:
            self.tickets_by_sequence = {
                first: pending
                for first, pending in self.tickets_by_sequence.items()
                if pending[ACCOUNT] is not None
            }

    def withdraw(self, refused: set[int]) -> None:
        """Forget the newest batches, which were not proposed. `refused`: ids of their tickets."""
        by_sequence = self.tickets_by_sequence
        withdrawn = [first for first, ticket in by_sequence.items() if id(ticket) in refused]
        if withdrawn:
            self.next_sequence = min(withdrawn)
            for first in withdrawn:
                del by_sequence[first]
            self.newest_ticket = next(reversed(by_sequence.values()), self.previous_epoch_ticket)


class CommandWaiter(Protocol):
    """The request that waits for the result of one row of a command."""

    def succeed(self, result: Any) -> None: ...
    def fail(self, code: int, details: Details) -> None: ...


class ProposalQueue:
    """Requests of one group.

    `new_batches` and `new_tickets` are of equal length: only `ProduceHandler` appends to them. So
    are `new_rows` and `new_waiters`: only `add_row` appends to them.
    """

    __slots__ = (
        "replica",
        "machine",
        "term",
        "newest_term_led",
        "last_stamp_ms",
        "batch_bytes_max",
        "in_flight",
        "in_flight_by_key",
        "held_batches",
        "new_batches",
        "new_tickets",
        "new_rows",
        "new_waiters",
        "_waiters_by_command",
        "tickets_by_index",
        "waiters_by_index",
    )

    def __init__(self, replica: Replica, machine: PartitionMachine) -> None:
        self.replica, self.machine = replica, machine
        self.term = 0  # in which this replica leads and is ready; else 0
        self.newest_term_led = 0  # the last such term: of the newest entry that a request waits for
        self.last_stamp_ms = 0  # of the last entry
        self.batch_bytes_max = 0  # set by `GroupQueues`, from the topic's settings
        self.in_flight: dict[int, InFlightBatches] = {}
        self.in_flight_by_key: dict[BatchKey, tuple[int, Ticket]] = {}  # (messages, ticket)
        self.held_batches: list[tuple[ClientAccount, int, Buffer]] = []  # until it is ready
        # This turn's:
        self.new_batches: list[tuple[int, Buffer]] = []  # (messages, batch)
        self.new_tickets: list[Ticket] = []
        self.new_rows: list[list[Any]] = []  # of commands: [operation, …row]
        self.new_waiters: list[CommandWaiter] = []
        self._waiters_by_command: list[list[CommandWaiter]] = []  # for each of the commands
        # By index of their entries:
        self.tickets_by_index: dict[int, Ticket] = {}
        self.waiters_by_index: dict[int, list[CommandWaiter]] = {}

    @property
    def is_idle(self) -> bool:
        return not (
            self.tickets_by_index
            or self.waiters_by_index
            or self.held_batches
            or self.new_batches
            or self.new_rows
        )

    def start_term(self, term: int) -> None:
        """Begin to accept requests: the replica leads, and everything before is applied."""
        self.term = self.newest_term_led = term
        self.last_stamp_ms = self.machine.time_ms
        self.in_flight, self.in_flight_by_key = {}, {}

    def end_term(self) -> None:
        self.term = 0
        self.in_flight, self.in_flight_by_key = {}, {}

    # -- requests of this turn -----------------------------------------------------------------

    def add_row(self, row: list[Any], waiter: CommandWaiter) -> None:
        self.new_rows.append(row)
        self.new_waiters.append(waiter)

    # -- judging batches -----------------------------------------------------------------------

    def judge(self, producer: int, epoch: int, sequence: int, count: int) -> Verdict:
        """Judge a batch by what its producer sent before."""
        in_flight = self.in_flight.get(producer)
        if in_flight is None:
            return _verdict(self.machine.sessions.judge(producer, epoch, sequence, count))
        if epoch > in_flight.epoch:
            return None if sequence == 0 else _REFUSALS[OUT_OF_SEQUENCE]
        if epoch < in_flight.epoch:
            return _REFUSALS[FENCED]
        if sequence == in_flight.next_sequence:
            return None
        ticket = in_flight.tickets_by_sequence.get(sequence)
        if ticket is not None and ticket[ACCOUNT] is not None:
            return InFlight(ticket)
        session = self.machine.sessions.get(producer)
        code = OUT_OF_SEQUENCE if session is None else session.judge(epoch, sequence, count)
        # What the applied state takes for new was proposed already, or has a gap before it.
        return _verdict(OUT_OF_SEQUENCE if code == NEW else code)

    def record_new_batch(
        self, producer: int, epoch: int, sequence: int, count: int, ticket: Ticket
    ) -> None:
        """Note a batch that was judged as new; it will be proposed with this turn."""
        in_flight = self.in_flight.get(producer)
        if in_flight is None or epoch != in_flight.epoch:
            older = _SETTLED if in_flight is None else in_flight.newest_ticket
            in_flight = self.in_flight[producer] = InFlightBatches(epoch, older)
        in_flight.add(sequence, count, ticket)

    def judge_key(self, key: BatchKey, count: int) -> Verdict:
        """Judge a batch that has a key of its own, like `judge`."""
        messages, ticket = self.in_flight_by_key.get(key, (0, None))
        if ticket is not None and ticket[ACCOUNT] is not None:
            return InFlight(ticket) if messages == count else REFUSED_KEY
        return _verdict(self.machine.keys.judge(key, count))

    def earlier_batch(self, earlier: Stored | InFlight) -> Buffer | None:
        """Return the batch that came before; None if it can't be read."""
        try:
            if isinstance(earlier, Stored):
                return cast("Buffer", self.replica.entry_at_offset(earlier.offset)[PAYLOAD])
            for (_, payload), ticket in zip(self.new_batches, self.new_tickets, strict=True):
                if ticket is earlier.ticket:
                    return payload
            for index, ticket in self.tickets_by_index.items():
                if ticket is earlier.ticket:
                    return cast("Buffer", self.replica.read(index, index, 1)[0][PAYLOAD])
        except errors.MyQueueError:
            pass
        return None

    def drop_applied(self) -> None:
        """Forget producers and keys with nothing in flight: the applied state knows them."""
        self.in_flight_by_key = {
            key: sent for key, sent in self.in_flight_by_key.items() if sent[1][ACCOUNT] is not None
        }
        self.in_flight = {
            producer: in_flight
            for producer, in_flight in self.in_flight.items()
            if in_flight.newest_ticket[ACCOUNT] is not None
        }

    # -- proposing -----------------------------------------------------------------------------

    def stamp(self, wall_ms: int) -> int:
        """Return the time of the next entries: the leader's clock, but never less than before."""
        self.last_stamp_ms = max(wall_ms, self.last_stamp_ms)
        return self.last_stamp_ms

    def build_proposals(self, wall_ms: int) -> list[Proposal]:
        """Return all requests of this turn as proposals: batches first, then commands.

        They stay here until `mark_proposed` or `withdraw`.
        """
        stamp = self.stamp(wall_ms)
        counts, batches = zip(*self.new_batches, strict=True) if self.new_batches else ((), ())
        # Plain tuples: a `Proposal` takes six times as long to make, and the log only unpacks it.
        proposals = list(zip(counts, repeat(stamp), repeat(DATA), batches, strict=False))
        items = cast("list[Proposal]", proposals)
        self._waiters_by_command = []
        for payload, waiters in self._packed_commands():
            items.append(Proposal(0, stamp, COMMAND, payload))
            self._waiters_by_command.append(waiters)
        return items

    def _packed_commands(self) -> Iterator[tuple[bytes, list[CommandWaiter]]]:
        """Yield commands with their waiters. Rows of one operation share a command, in order."""
        for operation in sorted({row[0] for row in self.new_rows}):
            row_numbers = [place for place, row in enumerate(self.new_rows) if row[0] == operation]
            for begin in range(0, len(row_numbers), COMMAND_ROWS_MAX):
                part = row_numbers[begin : begin + COMMAND_ROWS_MAX]
                rows = [self.new_rows[place][1:] for place in part]
                yield protocol.pack([operation, rows]), [self.new_waiters[place] for place in part]

    def mark_proposed(self, first: int) -> None:
        """Note that the items of `build_proposals` have the indexes from `first` on."""
        first_command = first + len(self.new_tickets)
        indexes = range(first, first_command)
        self.tickets_by_index.update(zip(indexes, self.new_tickets, strict=True))
        if self._waiters_by_command:
            self.waiters_by_index.update(enumerate(self._waiters_by_command, first_command))
        self._clear()

    def withdraw(self) -> tuple[list[Ticket], list[CommandWaiter]]:
        """Return all requests of this turn, as if never made: certainly none was carried out."""
        tickets, waiters = self.withdraw_batches(), self.new_waiters
        self._clear()
        return tickets, waiters

    def withdraw_batches(self) -> list[Ticket]:
        """Return the batches of this turn alone; commands may be proposed without them."""
        tickets = self.new_tickets
        refused = set(map(id, tickets))
        for in_flight in self.in_flight.values():
            in_flight.withdraw(refused)
        self.in_flight_by_key = {
            key: sent for key, sent in self.in_flight_by_key.items() if id(sent[1]) not in refused
        }
        self.new_batches, self.new_tickets, self._waiters_by_command = [], [], []
        return tickets

    def _clear(self) -> None:
        self.new_batches, self.new_tickets = [], []
        self.new_rows, self.new_waiters, self._waiters_by_command = [], [], []

    def pop_replaced(self, entries: list[Entry]) -> tuple[list[Ticket], list[CommandWaiter]]:
        """Return requests whose entries another leader's took the places of: none is committed.

        Terms never fall in a log, so from the first such entry on nothing here is of these
        requests.
        """
        if entries[-1][TERM] <= self.newest_term_led:
            return [], []
        replaced = (entry[INDEX] for entry in entries if entry[TERM] > self.newest_term_led)
        return self.pop_lost(next(replaced))

    def pop_lost(self, first: int) -> tuple[list[Ticket], list[CommandWaiter]]:
        """Return requests whose entries have indexes from `first` on: their outcome is unknown."""
        indexes = [index for index in self.tickets_by_index if index >= first]
        tickets = [self.tickets_by_index.pop(index) for index in indexes]
        indexes = [index for index in self.waiters_by_index if index >= first]
        waiters = [waiter for index in indexes for waiter in self.waiters_by_index.pop(index)]
        return tickets, waiters


def _verdict(code: int) -> Verdict:
    """Return the verdict for a code of `partition/producers` or `partition/keyed_batches`."""
    if code >= 0:
        return Stored(code)
    return None if code == NEW else _REFUSALS[code]
