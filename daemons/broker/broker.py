"""The broker: it routes requests and decides what each event of a group means for waiting clients.

An owner in the sense of `interfaces.Owner`. It proposes what clients want to write, carries out
orders, and passes the rest to its parts. Nothing here blocks; a waiting request is kept in one of
the parts until an event settles it:

| event | settles |
|---|---|
| applied | results of batches and commands; waiting fetches |
| changed: ready | batches held for a replica that was elected a moment ago |
| changed: leads no more | requests that were not proposed (NOT_LEADER), reads |
| dropped | proposals that are not committed: OUTCOME_UNKNOWN |
| removed by an order, or closed | everything of the group |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from myqueue import errors
from myqueue.daemons.broker.commit_take import CommitTakeHandler
from myqueue.daemons.broker.fetch import FetchHandler
from myqueue.daemons.broker.group_queues import GroupQueues
from myqueue.daemons.broker.key_ageing import KeyAgeing
from myqueue.daemons.broker.manager_answers import JoinStatus, ManagerAnswers
from myqueue.daemons.broker.manager_link import ManagerLink
from myqueue.daemons.broker.orders import BrokerOrders, FollowedOrders, create_replica, unpack_about
from myqueue.daemons.broker.produce import ProduceHandler
from myqueue.daemons.broker.proposals import CommandWaiter, ProposalQueue, Refused, Ticket
from myqueue.daemons.broker.queries import BrokerQueries
from myqueue.daemons.broker.rebuilds import StalledRecoveries
from myqueue.daemons.broker.reconcile_members import MemberReconciler
from myqueue.daemons.broker.retention import Retention
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.types import COUNT, OFFSET, Entry
from myqueue.daemons.read_rounds import ReadRounds
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.interfaces import Buffer, Client, Peer
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

SWEEP_INTERVAL_MS: Final = 1000
TRANSFER_RETRY_MS: Final = 500
OUTCOME_UNKNOWN: Final = Refused(errors.OutcomeUnknown.code, None)


class Broker:
    """Serve clients and managers' orders. `attach` completes the object; call it first."""

    def __init__(self, config: DaemonConfig, log_event: Callable[..., None]) -> None:
        self._config, self._log_event = config, log_event
        self._next_sweep_at = self._next_transfer_at = 0
        self._is_stopping = False

    # -- the owner's side of the seam ----------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        self._engine, config = engine, self._config
        self.manager_answers = ManagerAnswers(engine, config.managers)
        self.orders = FollowedOrders(engine)
        self.manager_link = ManagerLink(engine, config, self.manager_answers, self.orders)
        self.join_status = JoinStatus(engine, self.manager_answers, self._log_event)
        self.queues = GroupQueues(engine, self.orders, config.segment_bytes)
        self.read_rounds = ReadRounds(engine)
        self.key_ageing = KeyAgeing(engine, self.queues)
        self.retention = Retention(engine, self.queues, self.manager_answers, config.segment_bytes)
        self.produce_handler = ProduceHandler(engine, self.queues, self.key_ageing)
        self.commit_take_handler = CommitTakeHandler(engine, self.queues)
        self.fetch_handler = FetchHandler(engine, self.read_rounds)
        self.queries = BrokerQueries(engine, self.queues, self.read_rounds, self.orders)
        self.member_reconciler = MemberReconciler(engine)
        self.stalled_recoveries = StalledRecoveries(engine)

    def make_state_machine(self, group: int, about: bytes) -> PartitionMachine:
        return PartitionMachine()

    def started(self, now: int) -> None:
        """Take over the settings of groups that were on disk; all of them are open now."""
        for replica in self._engine.replicas.values():
            self.queues.set_settings(replica.uid, unpack_about(replica.about).settings)

    def greeted(self, kind: str, node: int, disk: str) -> str:
        """Accept every daemon: managers decide which disk belongs to which number."""
        return ""

    def request(self, client: Client, envelope: protocol.Envelope, frames: list[Buffer]) -> None:
        kind = envelope[1]
        if kind == protocol.PRODUCE:
            self.produce_handler.request(client, envelope, frames)
        elif kind == protocol.FETCH:
            self.fetch_handler.request(client, envelope)
        elif kind == protocol.COMMIT:
            self.commit_take_handler.commit(client, envelope)
        elif kind == protocol.TAKE:
            self.commit_take_handler.take(client, envelope)
        elif kind == protocol.OFFSETS:
            self.queries.offsets(client, envelope)
        elif kind == protocol.WHERE:
            self.queries.where(client, envelope)
        elif kind == protocol.STATUS:
            self.queries.status(client, envelope)
        elif kind == protocol.STATS:
            self.queries.stats(client, envelope, self._gauges())
        else:
            raise errors.Unsupported(f"{protocol.name_of(kind)} is not for a broker")

    def handle_peer_request(
        self, peer: Peer, envelope: protocol.Envelope, frames: list[Buffer]
    ) -> None:
        raise errors.Unsupported(f"{protocol.name_of(envelope[1])} is not for a broker")

    def handle_peer_reply(self, peer: tuple[str, int], envelope: protocol.Envelope) -> None:
        if peer[0] != "manager":
            return
        message = self.manager_link.read_answer(peer[1], envelope)
        if message is not None:
            self._carry_out(self.orders.accept(message))

    # -- the turn ------------------------------------------------------------------------------

    def before_turn_ends(self, now: int) -> None:
        """Propose the requests of this turn, one proposal for each group."""
        self.key_ageing.before_turn_ends(now)
        self.queues.propose_all(self._fail)

    def _fail(self, tickets: list[Ticket], waiters: list[CommandWaiter], refusal: Refused) -> None:
        """Answer requests that fail."""
        self.produce_handler.fail(tickets, *refusal)
        for waiter in waiters:
            waiter.fail(*refusal)

    def applied(self, replica: Replica, entries: list[Entry], results: list[Any]) -> None:
        group = replica.uid
        queue = self.queues.get(group)
        if queue is not None:
            lost = queue.pop_replaced(entries)
            if lost is not None:
                self._fail(*lost, OUTCOME_UNKNOWN)
            self.produce_handler.applied(queue, entries)
            for waiter, result in queue.pop_applied_rows(entries, results):
                waiter.succeed(result)
            if queue.term:
                last = entries[-1]
                self.manager_link.count_stored(last[OFFSET] + last[COUNT] - entries[0][OFFSET])
        self.fetch_handler.applied(group)
        self.manager_link.note_changed(group)

    def dropped(self, replica: Replica, first_index: int) -> None:
        queue = self.queues.get(replica.uid)
        if queue is not None:
            self._fail(*queue.pop_lost(first_index), OUTCOME_UNKNOWN)

    def changed(self, replica: Replica) -> None:
        group = replica.uid
        self.manager_link.note_leadership_changed(group)
        self.member_reconciler.changed(group)
        newly_led = self.queues.follow_leadership(replica)
        if newly_led is not None:
            if len(newly_led.machine.keys):
                self.key_ageing.make_first_step_due(newly_led)
            self.produce_handler.accept_held(newly_led)
        elif not replica.is_leader:
            self.read_rounds.leadership_lost(group)
            queue = self.queues.get(group)
            if queue is not None:
                self._refuse_waiting(queue)

    def _refuse_waiting(self, queue: ProposalQueue) -> None:
        """Refuse the requests that are not proposed yet: the group is not led here any more."""
        refusal = self.queues.refusal(queue.replica.uid)
        self._fail(*queue.withdraw(), refusal)
        self.produce_handler.refuse_held(queue, refusal)

    def read_ready(self, context: int) -> None:
        self.read_rounds.read_ready(context)

    def tick(self, now: int) -> None:
        self.fetch_handler.tick(now)
        self.retention.tick(now)
        self.key_ageing.tick(now)
        self.join_status.tick(now)
        if not (self._is_stopping or self.join_status.is_rejected):
            self.member_reconciler.tick(now)
        elif now >= self._next_transfer_at:
            self._transfer_leaderships(now)
        if now >= self._next_sweep_at:
            self._next_sweep_at = now + SWEEP_INTERVAL_MS
            self.produce_handler.drop_idle_clients()
            self.queues.drop_idle()
            self.stalled_recoveries.update()
            self._create_wanted_replicas(self.orders.wanted)

    def end_turn(self, now: int) -> None:
        self.fetch_handler.end_turn()
        self.produce_handler.end_turn()
        self.commit_take_handler.end_turn()
        self.fetch_handler.read_ahead(now)
        if self.manager_link.is_due(now):
            producers = self.produce_handler.pop_active_producers()
            consumers = self.commit_take_handler.pop_active_consumers()
            self.manager_link.send_heartbeats(now, producers, consumers)

    def begin_stopping(self, now: int) -> None:
        self._is_stopping = True
        self._transfer_leaderships(now)

    def _transfer_leaderships(self, now: int) -> None:
        """Transfer each group led here to the follower that has most of its log."""
        self._next_transfer_at = now + TRANSFER_RETRY_MS
        for replica in self._engine.replicas.values():
            follower = replica.best_successor(now) if replica.is_leader else 0
            if follower:
                self._try_transfer(replica, follower)

    # -- groups --------------------------------------------------------------------------------

    def _carry_out(self, orders: BrokerOrders) -> None:
        for group in orders.remove:
            self._remove_replica(group)
        if orders.wanted is not None:
            for group, wanted in orders.wanted.items():
                self.queues.set_settings(group, wanted.settings)
            members = {group: wanted.members() for group, wanted in orders.wanted.items()}
            if orders.unwanted is None:
                self.member_reconciler.set_wanted(members)
            else:
                self.member_reconciler.update_wanted(members, orders.unwanted)
            self._create_wanted_replicas(orders.wanted)
        for group, node in orders.transfers:
            replica = self._engine.replicas.get(group)
            if replica is not None and replica.is_leader:
                self._try_transfer(replica, node, at_once=True)

    def _create_wanted_replicas(self, among: Iterable[int]) -> None:
        """Create the wanted replicas that are not here. `among`: of these groups.

        Creation fails while the old replica is not removed yet, or on a full disk; it is tried
        again.
        """
        for wanted in self.orders.replicas_to_create(among):
            try:
                create_replica(self._engine, wanted)
            except errors.NotReady:
                continue
            except errors.MyQueueError as error:
                self._log_event(
                    "error",
                    "replica-not-made",
                    group=wanted.group,
                    topic=wanted.topic,
                    partition=wanted.number,
                    error=str(error),
                    do="It is tried again every second; look at this disk's free space and errors.",
                )
            else:
                # An earlier replica's settings went with it.
                self.queues.set_settings(wanted.group, wanted.settings)
                self.manager_link.note_changed(wanted.group)
                self._log_event(
                    "info",
                    "replica-made",
                    group=wanted.group,
                    topic=wanted.topic,
                    partition=wanted.number,
                    joins=bool(wanted.moved),
                )

    def _try_transfer(self, replica: Replica, node: int, *, at_once: bool = False) -> None:
        try:
            self._engine.transfer(replica, node, at_once=at_once)
        except errors.MyQueueError:
            self._engine.counts["transfers_refused_total"] += 1  # managers order it again

    def _remove_replica(self, group: int) -> None:
        """Remove a replica that a committed entry names; its waiting requests are answered."""
        if not self._engine.prepare_removal(group):
            return  # the order comes again
        replica = self._engine.replicas.get(group)
        self._engine.remove(group)
        self.queues.forget_settings(group)
        self._drop_group(group)
        entries = replica.raft.log.last_index if replica is not None else -1  # it was not open
        self._log_event("info", "replica-removed", group=group, entries=entries)

    def closed(self, replica: Replica) -> None:
        """Answer the waiting requests of a closed replica, and report it to the managers."""
        self._drop_group(replica.uid)
        self.member_reconciler.changed(replica.uid)
        self.manager_link.note_closed(replica.uid)

    def _drop_group(self, group: int) -> None:
        """Answer everything that waits for this group: no replica of it takes part here."""
        queue = self.queues.remove(group)
        self.read_rounds.leadership_lost(group)
        if queue is not None:
            self._refuse_waiting(queue)
            self._fail(*queue.pop_lost(0), OUTCOME_UNKNOWN)
        self.fetch_handler.removed(group)

    def _gauges(self) -> dict[str, int]:
        return {
            "groups": len(self._engine.replicas),
            "groups_led": len(self.queues.led),
            "produce_inflight_bytes": self.produce_handler.inflight_bytes,
            "fetches_waiting": self.fetch_handler.waiting,
        }
