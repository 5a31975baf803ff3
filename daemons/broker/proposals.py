"""The leader's side of one group: requests to propose, and requests that wait for a proposal.

A `ProposalQueue` exists for each group that is led here. While its replica leads and is ready, it
knows everything in the log: the applied entries (the machine's sessions), and those proposed and
not applied yet (`in_flight`). So a batch is judged when it comes, and proposed entries need no
second judgement when they are applied.

Requests of one turn collect here, and one `engine.propose` gets them all. A batch waits for its
result as a `Ticket`, a row of a command as a `CommandWaiter`.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class Ticket:
    """A batch that waits for its result, and what answers it."""

    __slots__ = ("account", "is_settled", "repeats", "request", "size")

    def __init__(self, account: ClientAccount, request: int, size: int) -> None:
        self.account = account
        self.request = request
        self.size = size  # in bytes
        self.is_settled = False  # its batch is applied, or failed
        # (account, request) of those that sent it again and get the same answer
        self.repeats: list[tuple[ClientAccount, int]] | None = None


class InFlightBatches:
    """One producer's batches that were proposed and may not be applied yet.

    Once `newest_ticket` is applied, everything before it is. `previous_epoch_ticket` is the last
    one before this epoch. Either is None if there was none.
    """

    __slots__ = (
        "epoch",
        "newest_ticket",
        "next_sequence",
        "previous_epoch_ticket",
        "tickets_by_sequence",
    )

    def __init__(self, epoch: int, older: Ticket | None) -> None:
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
                if not pending.is_settled
            }

    @property
    def is_settled(self) -> bool:
        return self.newest_ticket is None or self.newest_ticket.is_settled

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
    """Requests of one group."""

    __slots__ = (
        "replica",
        "machine",
        "term",
        "last_stamp_ms",
        "batch_bytes_max",
        "in_flight",
        "held_batches",
        "_newest_term_led",
        "_in_flight_by_key",
        "_new_batches",
        "_new_rows",
        "pop_ticket",
        "_tickets_by_index",
        "_waiters_by_index",
    )

    def __init__(self, replica: Replica, machine: PartitionMachine) -> None:
        self.replica, self.machine = replica, machine
        self.term = 0  # in which this replica leads and is ready; else 0
        self.last_stamp_ms = 0  # of the last entry
        self.batch_bytes_max = 0  # set by `GroupQueues`, from the topic's settings
        self.in_flight: dict[int, InFlightBatches] = {}  # by producer
        self.held_batches: list[tuple[ClientAccount, int, Buffer]] = []  # until it is ready
        # The last term that was led: of the newest entry that a request waits for.
        self._newest_term_led = 0
        self._in_flight_by_key: dict[BatchKey, tuple[int, Ticket]] = {}  # (messages, ticket)
        # This turn's:
        self._new_batches: list[tuple[int, Buffer, Ticket]] = []  # (messages, batch, ticket)
        self._new_rows: list[tuple[list[Any], CommandWaiter]] = []  # ([operation, …row], waiter)
        # By index of their entries:
        self._tickets_by_index: dict[int, Ticket] = {}
        # (index, None) -> ticket, removed, or None: the dict's own method, called for each entry.
        self.pop_ticket: Final = self._tickets_by_index.pop
        self._waiters_by_index: dict[int, list[CommandWaiter]] = {}

    @property
    def has_new_batches(self) -> bool:
        return bool(self._new_batches)

    @property
    def new_rows(self) -> int:
        """How many rows of commands came in this turn."""
        return len(self._new_rows)

    @property
    def is_idle(self) -> bool:
        """True if no request is in it; batches that producers sent before may be noted."""
        return not (
            self._tickets_by_index
            or self._waiters_by_index
            or self.held_batches
            or self._new_batches
            or self._new_rows
        )

    def start_term(self, term: int) -> None:
        """Begin to accept requests: the replica leads, and everything before is applied."""
        self.term = self._newest_term_led = term
        self.last_stamp_ms = self.machine.time_ms
        self.in_flight, self._in_flight_by_key = {}, {}

    def end_term(self) -> None:
        self.term = 0
        self.in_flight, self._in_flight_by_key = {}, {}

    # -- requests of this turn -----------------------------------------------------------------

    def add_batch(self, count: int, batch: Buffer, ticket: Ticket) -> bool:
        """Add a batch that was judged as new; True if it is the first of its turn."""
        new = self._new_batches
        new.append((count, batch, ticket))
        return len(new) == 1

    def add_row(self, row: list[Any], waiter: CommandWaiter) -> None:
        self._new_rows.append((row, waiter))

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
        if ticket is not None and not ticket.is_settled:
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
            older = None if in_flight is None else in_flight.newest_ticket
            in_flight = self.in_flight[producer] = InFlightBatches(epoch, older)
        in_flight.add(sequence, count, ticket)

    def record_new_key(self, key: BatchKey, count: int, ticket: Ticket) -> None:
        """Note a batch with a key of its own, like `record_new_batch`."""
        self._in_flight_by_key[key] = count, ticket

    def judge_key(self, key: BatchKey, count: int) -> Verdict:
        """Judge a batch that has a key of its own, like `judge`."""
        messages, ticket = self._in_flight_by_key.get(key, (0, None))
        if ticket is not None and not ticket.is_settled:
            return InFlight(ticket) if messages == count else REFUSED_KEY
        return _verdict(self.machine.keys.judge(key, count))

    def earlier_batch(self, earlier: Stored | InFlight) -> Buffer | None:
        """Return the batch that came before; None if it can't be read."""
        try:
            if isinstance(earlier, Stored):
                return cast("Buffer", self.replica.entry_at_offset(earlier.offset)[PAYLOAD])
            for _, payload, ticket in self._new_batches:
                if ticket is earlier.ticket:
                    return payload
            for index, ticket in self._tickets_by_index.items():
                if ticket is earlier.ticket:
                    return cast("Buffer", self.replica.read(index, index, 1)[0][PAYLOAD])
        except errors.MyQueueError:
            pass
        return None

    def drop_applied(self) -> None:
        """Forget producers and keys with nothing in flight: the applied state knows them."""
        if not (self.in_flight or self._in_flight_by_key):
            return
        self._in_flight_by_key = {
            key: sent for key, sent in self._in_flight_by_key.items() if not sent[1].is_settled
        }
        self.in_flight = {
            producer: in_flight
            for producer, in_flight in self.in_flight.items()
            if not in_flight.is_settled
        }

    # -- proposing -----------------------------------------------------------------------------

    def stamp(self, wall_ms: int) -> int:
        """Return the time of the next entries: the leader's clock, but never less than before."""
        self.last_stamp_ms = max(wall_ms, self.last_stamp_ms)
        return self.last_stamp_ms

    def build_proposals(self, wall_ms: int) -> tuple[list[Proposal], list[list[CommandWaiter]]]:
        """Return all requests of this turn as proposals: batches first, then commands.

        Also return the waiters of each command. The requests stay here until `mark_proposed` or
        `withdraw`.
        """
        stamp = self.stamp(wall_ms)
        # Plain tuples: a `Proposal` takes six times as long to make, and the log only unpacks it.
        batches = [(count, stamp, DATA, batch) for count, batch, _ in self._new_batches]
        items = cast("list[Proposal]", batches)
        waiters_by_command = []
        for payload, waiters in self._packed_commands():
            items.append(Proposal(0, stamp, COMMAND, payload))
            waiters_by_command.append(waiters)
        return items, waiters_by_command

    def _packed_commands(self) -> Iterator[tuple[bytes, list[CommandWaiter]]]:
        """Yield commands with their waiters. Rows of one operation share a command.

        Requests of one turn are under way at the same time, so any order of operations is right; a
        client that wants one waits for the reply before it sends the next request.
        """
        for operation in sorted({row[0] for row, _ in self._new_rows}):
            alike = [new for new in self._new_rows if new[0][0] == operation]
            for begin in range(0, len(alike), COMMAND_ROWS_MAX):
                part = alike[begin : begin + COMMAND_ROWS_MAX]
                rows = [row[1:] for row, _ in part]
                yield protocol.pack([operation, rows]), [waiter for _, waiter in part]

    def mark_proposed(self, first: int, waiters_by_command: list[list[CommandWaiter]]) -> None:
        """Note that the items of `build_proposals` have the indexes from `first` on."""
        index = first
        for _, _, ticket in self._new_batches:
            self._tickets_by_index[index] = ticket
            index += 1
        self._waiters_by_index.update(enumerate(waiters_by_command, index))
        self._new_batches, self._new_rows = [], []

    def withdraw(self) -> tuple[list[Ticket], list[CommandWaiter]]:
        """Return all requests of this turn, as if never made: certainly none was carried out."""
        new_rows, self._new_rows = self._new_rows, []
        return self.withdraw_batches(), [waiter for _, waiter in new_rows]

    def withdraw_batches(self) -> list[Ticket]:
        """Return the batches of this turn alone; commands may be proposed without them."""
        tickets = [ticket for _, _, ticket in self._new_batches]
        refused = set(map(id, tickets))
        for in_flight in self.in_flight.values():
            in_flight.withdraw(refused)
        self._in_flight_by_key = {
            key: sent for key, sent in self._in_flight_by_key.items() if id(sent[1]) not in refused
        }
        self._new_batches = []
        return tickets

    # -- settling ------------------------------------------------------------------------------

    def pop_applied_rows(
        self, entries: list[Entry], results: list[Any]
    ) -> list[tuple[CommandWaiter, Any]]:
        """Return the waiter of each row of these commands with the row's result."""
        rows: list[tuple[CommandWaiter, Any]] = []
        if self._waiters_by_index:
            for entry, result in zip(entries, results, strict=True):
                waiters = self._waiters_by_index.pop(entry[INDEX], None)
                if waiters is not None:
                    rows += zip(waiters, result, strict=True)
        return rows

    def pop_replaced(self, entries: list[Entry]) -> tuple[list[Ticket], list[CommandWaiter]] | None:
        """Return requests whose places in the log these entries of another leader took.

        None: there are no such entries. Terms never fall in a log, so from the first one on nothing
        is of these requests.
        """
        newest = self._newest_term_led
        if entries[-1][TERM] <= newest:
            return None
        return self.pop_lost(next(entry[INDEX] for entry in entries if entry[TERM] > newest))

    def pop_lost(self, first: int) -> tuple[list[Ticket], list[CommandWaiter]]:
        """Return requests whose entries have indexes from `first` on: their outcome is unknown."""
        indexes = [index for index in self._tickets_by_index if index >= first]
        tickets = [self._tickets_by_index.pop(index) for index in indexes]
        indexes = [index for index in self._waiters_by_index if index >= first]
        waiters = [waiter for index in indexes for waiter in self._waiters_by_index.pop(index)]
        return tickets, waiters


def _verdict(code: int) -> Verdict:
    """Return the verdict for a code of `partition/producers` or `partition/keyed_batches`."""
    if code >= 0:
        return Stored(code)
    return None if code == NEW else _REFUSALS[code]
