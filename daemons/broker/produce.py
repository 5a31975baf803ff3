"""PRODUCE: from the client listener into the log, and the results back. The hot path.

Work is per batch and per turn, never per message. A batch is checked (CRC, header, size), judged
against what its producer sent before (`proposals.py`), and waits until the turn ends; then each
group's batches are proposed together. Results that become known in a turn leave together, in one
PRODUCED for each client.

A refusal says what is known about the outcome: before the proposal, certainly nothing was stored;
afterwards, if leadership is lost, the outcome is unknown. A replica that was elected a moment ago
holds batches until it is ready instead of refusing them.

Memory is bounded by bytes in flight, per client and for the daemon: beyond that, BUSY. A batch is
counted until its result is known, so the sums are those of the batches that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from myqueue import errors
from myqueue.daemons.broker.proposals import (
    REFUSED_KEY,
    ClientAccount,
    Details,
    InFlight,
    ProposalQueue,
    Refused,
    Stored,
    Ticket,
    Verdict,
)
from myqueue.daemons.broker.replies import RETRY_MS
from myqueue.daemons.partition.keyed_batches import BatchKey, batch_key
from myqueue.daemons.raft.types import INDEX, OFFSET, TIME, Entry
from myqueue.wire import batch, protocol
from myqueue.wire.batch import KEYED_EPOCH

if TYPE_CHECKING:
    from myqueue.daemons.broker.group_queues import GroupQueues
    from myqueue.daemons.broker.key_ageing import KeyAgeing
    from myqueue.daemons.interfaces import Buffer, Client
    from myqueue.daemons.replication.engine import Engine

CLIENT_INFLIGHT_BYTES_MAX: Final = 32 << 20
DAEMON_INFLIGHT_BYTES_MAX: Final = 128 << 20
RESULTS_PER_REPLY_MAX: Final = 4096  # in one PRODUCED

_BUSY: Final = Refused(errors.Busy.code, {"retry_ms": RETRY_MS})


class ProduceHandler:
    """Serve PRODUCE."""

    def __init__(self, engine: Engine, queues: GroupQueues, key_ageing: KeyAgeing) -> None:
        self._engine, self._queues, self._key_ageing = engine, queues, key_ageing
        self._accounts: dict[Client, ClientAccount] = {}
        self._accounts_with_results: list[ClientAccount] = []  # of this turn
        self.inflight_bytes = 0
        self._active_producers: set[int] = set()  # since `pop_active_producers`

    # -- in ------------------------------------------------------------------------------------

    def request(self, client: Client, envelope: protocol.Envelope, frames: list[Buffer]) -> None:
        _, _, request, groups = envelope
        if len(groups) != len(frames):
            raise errors.InvalidRequest(f"{len(groups)} groups with {len(frames)} batches")
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = ClientAccount(client)
        led = self._queues.led
        for group, frame in zip(groups, frames, strict=True):
            queue = led.get(group)
            if queue is not None:
                self._accept_or_refuse(queue, account, request, frame)
            else:
                self._hold_or_refuse(group, account, request, frame)
            request += 1

    def _accept_or_refuse(
        self, queue: ProposalQueue, account: ClientAccount, request: int, frame: Buffer
    ) -> None:
        """Queue or refuse one batch for a group that this broker leads."""
        size = len(frame)
        try:
            codec, count, producer, epoch, body, sequence, _, _ = batch.check(frame)
            batch.check_beginning(codec, count, frame)
        except errors.BatchInvalid as error:
            self._refuse(account, request, Refused(error.code, {"message": str(error)}))
            return
        bytes_max = queue.batch_bytes_max
        if size > bytes_max or body > bytes_max or count > body:
            self._refuse(account, request, _size_refusal(size, count, body, bytes_max))
            return
        if (
            account.inflight_bytes + size > CLIENT_INFLIGHT_BYTES_MAX
            or self.inflight_bytes + size > DAEMON_INFLIGHT_BYTES_MAX
        ):
            self._refuse(account, request, _BUSY)
            return
        ticket = Ticket(account, request, size)
        if epoch == KEYED_EPOCH:
            verdict = self._judge_keyed(queue, batch_key(producer, sequence), count, frame, ticket)
        elif producer:
            # The usual case, inline: the next batch of a known producer.
            in_flight = queue.in_flight.get(producer)
            if (
                in_flight is not None
                and epoch == in_flight.epoch
                and sequence == in_flight.next_sequence
            ):
                in_flight.add(sequence, count, ticket)
                verdict = None
            else:
                verdict = self._judge_sequenced(queue, producer, epoch, sequence, count, ticket)
        else:
            verdict = None
        if verdict is not None:
            self._answer_old_batch(queue, account, request, verdict)
            return
        account.inflight_bytes += size
        self.inflight_bytes += size
        if queue.add_batch(count, frame, ticket):
            self._queues.propose_with_turn(queue)

    def _judge_keyed(
        self, queue: ProposalQueue, key: BatchKey, count: int, frame: Buffer, ticket: Ticket
    ) -> Verdict:
        """Judge a batch that has a key of its own, and note it if it is new."""
        verdict = queue.judge_key(key, count)
        if verdict is None:
            queue.record_new_key(key, count, ticket)
            self._key_ageing.make_first_step_due(queue)
        elif not isinstance(verdict, Refused) and not _is_repeat(queue, verdict, frame):
            return REFUSED_KEY
        return verdict

    def _judge_sequenced(
        self,
        queue: ProposalQueue,
        producer: int,
        epoch: int,
        sequence: int,
        count: int,
        ticket: Ticket,
    ) -> Verdict:
        """Judge a batch by its producer's sequence, and note it if it is new."""
        verdict = queue.judge(producer, epoch, sequence, count)
        if verdict is None:
            queue.record_new_batch(producer, epoch, sequence, count, ticket)
            self._active_producers.add(producer)
        return verdict

    def _answer_old_batch(
        self,
        queue: ProposalQueue,
        account: ClientAccount,
        request: int,
        verdict: Stored | InFlight | Refused,
    ) -> None:
        """Answer a batch that is not new."""
        if isinstance(verdict, Refused):
            self._refuse(account, request, verdict)
        elif isinstance(verdict, Stored):
            offset = verdict.offset
            self._result(account, [request, 0, offset, _stored_time_ms(queue, offset), None])
        else:  # both get the same answer
            ticket = verdict.ticket
            if ticket.repeats is None:
                ticket.repeats = []
            ticket.repeats.append((account, request))

    def _hold_or_refuse(
        self, group: int, account: ClientAccount, request: int, frame: Buffer
    ) -> None:
        """Hold a batch until its new leader here is ready, or refuse it."""
        refusal = self._queues.refusal_unless_leader(group)
        size = len(frame)
        if refusal is not None:
            self._refuse(account, request, refusal)
        elif (
            account.inflight_bytes + size > CLIENT_INFLIGHT_BYTES_MAX
            or self.inflight_bytes + size > DAEMON_INFLIGHT_BYTES_MAX
        ):
            self._refuse(account, request, _BUSY)
        else:
            account.inflight_bytes += size
            self.inflight_bytes += size
            self._queues.get_or_create(group).held_batches.append((account, request, frame))

    def accept_held(self, queue: ProposalQueue) -> None:
        """Accept the batches that waited for this replica to be ready."""
        for account, request, frame in self._pop_held(queue):
            self._accept_or_refuse(queue, account, request, frame)

    def refuse_held(self, queue: ProposalQueue, refusal: Refused) -> None:
        """Refuse the batches that waited: the replica does not lead any more."""
        for account, request, _ in self._pop_held(queue):
            self._refuse(account, request, refusal)

    def _pop_held(self, queue: ProposalQueue) -> Iterator[tuple[ClientAccount, int, Buffer]]:
        held, queue.held_batches = queue.held_batches, []
        for account, request, frame in held:
            account.inflight_bytes -= len(frame)
            self.inflight_bytes -= len(frame)
            yield account, request, frame

    # -- out -----------------------------------------------------------------------------------

    def applied(self, queue: ProposalQueue, entries: list[Entry]) -> None:
        """Answer the batches of these entries: they are committed, on disk on a majority."""
        pop, answering, done = queue.pop_ticket, self._accounts_with_results, 0
        for entry in entries:
            ticket = pop(entry[INDEX], None)
            if ticket is None:
                continue
            account, size = ticket.account, ticket.size
            ticket.is_settled = True
            account.inflight_bytes -= size
            done += size
            if not account.results:
                answering.append(account)
            account.results.append([ticket.request, 0, entry[OFFSET], entry[TIME], None])
            if ticket.repeats is not None:
                for receiver, number in ticket.repeats:
                    self._result(receiver, [number, 0, entry[OFFSET], entry[TIME], None])
        self.inflight_bytes -= done
        self._engine.counts["produced_bytes_total"] += done

    def fail(self, tickets: list[Ticket], code: int, details: Details = None) -> None:
        for ticket in tickets:
            account, ticket.is_settled = ticket.account, True
            account.inflight_bytes -= ticket.size
            self.inflight_bytes -= ticket.size
            for receiver, number in ((account, ticket.request), *(ticket.repeats or ())):
                self._result(receiver, [number, code, 0, 0, details])

    def _refuse(self, account: ClientAccount, request: int, refusal: Refused) -> None:
        self._result(account, [request, refusal.code, 0, 0, refusal.details])

    def _result(self, account: ClientAccount, result: list[Any]) -> None:
        if not account.results:
            self._accounts_with_results.append(account)
        account.results.append(result)

    def end_turn(self) -> None:
        """Send each client one message with all its results of this turn."""
        engine = self._engine
        if not self._accounts_with_results:
            return
        answering, self._accounts_with_results = self._accounts_with_results, []
        for account in answering:
            results, account.results = account.results, []
            engine.counts["produce_results_total"] += len(results)
            for at in range(0, len(results), RESULTS_PER_REPLY_MAX):
                part = results[at : at + RESULTS_PER_REPLY_MAX]
                engine.reply(account.client, [protocol.encode(protocol.PRODUCED, 0, part)])

    def drop_idle_clients(self) -> None:
        """Forget clients with nothing in flight."""
        self._accounts = {
            client: account
            for client, account in self._accounts.items()
            if account.inflight_bytes or account.results
        }

    def pop_active_producers(self) -> set[int]:
        """Return the producers that wrote since the last call."""
        active, self._active_producers = self._active_producers, set()
        for queue in self._queues.led.values():
            active.update(queue.in_flight)
        return active


def _size_refusal(size: int, count: int, body: int, bytes_max: int) -> Refused:
    """Say what is wrong with the size of a batch whose checksum is right."""
    if body > bytes_max >= size:
        message = (
            f"a batch of {size} bytes has {body} bytes when it is decompressed; this partition"
            f" takes {bytes_max}"
        )
        return Refused(errors.MessageTooLarge.code, {"message": message})
    if size > bytes_max:
        message = f"a batch of {size} bytes; this partition takes {bytes_max}"
        return Refused(errors.MessageTooLarge.code, {"message": message})
    message = f"{count} messages can't be in a body of {body} bytes"
    return Refused(errors.BatchInvalid.code, {"message": message})


def _is_repeat(queue: ProposalQueue, earlier: Stored | InFlight, frame: Buffer) -> bool:
    """True if the batch has the messages that came with its key, or those can't be read."""
    first = queue.earlier_batch(earlier)
    try:
        return first is None or batch.have_same_messages(first, frame)
    except errors.BatchInvalid:  # one of them can't be decompressed
        return False


def _stored_time_ms(queue: ProposalQueue, offset: int) -> int:
    """Return when a repeated batch was stored; 0 if that can't be read any more."""
    try:
        return queue.replica.entry_at_offset(offset)[TIME]
    except errors.MyQueueError:
        return 0
