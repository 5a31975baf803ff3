"""The proposal queues of this broker's groups, and the reason why a group can't be written to.

A queue is created when its group's replica leads here and is ready, or earlier for a batch that
waits for that. It *is led* while its replica leads and is ready: only then requests may be added to
it. A queue that is neither led nor waited for is dropped.

`Broker` opens and closes the queues as leadership changes. The handlers of requests read `led` and
say with `propose_with_turn` which queues got a request in this turn. `propose_all` makes one
proposal of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from myqueue import errors
from myqueue.daemons.broker.proposals import CommandWaiter, ProposalQueue, Refused, Ticket
from myqueue.daemons.broker.replies import RETRY_MS
from myqueue.daemons.partition.machine import PartitionMachine

if TYPE_CHECKING:
    from myqueue.daemons.broker.orders import FollowedOrders
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

BATCH_BYTES_MAX: Final = 16 << 20  # whatever a topic allows
BATCH_OVERHEAD_BYTES: Final = 1024
BATCHES_PER_SEGMENT_MIN: Final = 4  # the journal refuses larger records
DISK_FULL_RETRY_MS: Final = 1000

FailRequests = Callable[[list[Ticket], list[CommandWaiter], Refused], None]


class GroupQueues:
    """All queues of this broker, and the topics' settings that limit them."""

    def __init__(self, engine: Engine, orders: FollowedOrders, segment_bytes: int) -> None:
        self._engine, self._orders = engine, orders
        self._segment_bytes = segment_bytes
        self._queues: dict[int, ProposalQueue] = {}
        self.led: dict[int, ProposalQueue] = {}  # by group; to be read only
        self._to_propose: dict[ProposalQueue, None] = {}  # with requests of this turn
        self._settings: dict[int, dict[str, Any]] = {}  # of topics, by group, as last ordered

    def get(self, group: int) -> ProposalQueue | None:
        return self._queues.get(group)

    def get_or_create(self, group: int) -> ProposalQueue:
        queue = self._queues.get(group)
        if queue is None:
            replica = self._engine.replicas[group]
            machine = cast(PartitionMachine, replica.machine)
            queue = self._queues[group] = ProposalQueue(replica, machine)
            queue.batch_bytes_max = self._batch_bytes_max(group)
        return queue

    def follow_leadership(self, replica: Replica) -> ProposalQueue | None:
        """Make the group's queue led or not, as its replica is; return it if it has become led."""
        group, term = replica.uid, replica.raft.term
        queue = self._queues.get(group)
        if queue is not None and queue.term and (not replica.is_leader or queue.term != term):
            del self.led[group]
            queue.end_term()
        if not (replica.is_leader and replica.is_ready):
            return None
        queue = self.get_or_create(group)
        if queue.term:
            return None
        queue.start_term(term)
        self.led[group] = queue
        return queue

    def propose_with_turn(self, queue: ProposalQueue) -> None:
        """Propose this queue's requests when the turn ends."""
        self._to_propose[queue] = None

    def propose_all(self, fail: FailRequests) -> None:
        """Propose the requests of this turn; those that can't be proposed fail."""
        queues, self._to_propose = self._to_propose, {}
        for queue in queues:
            if queue.has_new_batches or queue.new_rows:
                self._propose(queue, fail)

    def _propose(self, queue: ProposalQueue, fail: FailRequests) -> None:
        """Propose batches and commands together, else the commands alone: these may have room."""
        refusal = self._try_propose(queue)
        if refusal is not None and queue.has_new_batches:
            fail(queue.withdraw_batches(), [], refusal)
            refusal = self._try_propose(queue) if queue.new_rows else None
        if refusal is not None:
            fail(*queue.withdraw(), refusal)

    def _try_propose(self, queue: ProposalQueue) -> Refused | None:
        """Propose all requests of the queue; else return why that can't be done."""
        engine, replica, is_urgent = self._engine, queue.replica, not queue.has_new_batches
        if queue.term != replica.raft.term or not replica.is_leader:
            return self.refusal(replica.uid)
        try:
            if is_urgent:
                engine.disk.check_room_for_commands()
            items, waiters_by_command = queue.build_proposals(engine.wall_ms())
            first = engine.propose(replica, items, urgent=is_urgent)
        except errors.NotLeader:
            return self.refusal(replica.uid)
        except errors.MyQueueError as error:
            is_full = error.code == errors.DiskFull.code
            retry_ms = DISK_FULL_RETRY_MS if is_full else RETRY_MS
            return Refused(error.code, {"message": str(error), "retry_ms": retry_ms})
        queue.mark_proposed(first, waiters_by_command)
        return None

    def remove(self, group: int) -> ProposalQueue | None:
        """Remove and return the queue of a group whose replica is not here any more."""
        self.led.pop(group, None)
        return self._queues.pop(group, None)

    def drop_idle(self) -> None:
        """Drop what needs no memory any more: applied batches, and queues without requests."""
        for queue in self.led.values():
            queue.drop_applied()
        idle = [uid for uid, queue in self._queues.items() if not queue.term and queue.is_idle]
        for group in idle:
            del self._queues[group]

    # -- settings of topics --------------------------------------------------------------------

    def settings(self, group: int) -> dict[str, Any]:
        """Return the settings of the group's topic; empty if no orders have named it."""
        return self._settings.get(group, {})

    def set_settings(self, group: int, settings: dict[str, Any]) -> None:
        self._settings[group] = settings
        queue = self._queues.get(group)
        if queue is not None:
            queue.batch_bytes_max = self._batch_bytes_max(group)

    def forget_settings(self, group: int) -> None:
        self._settings.pop(group, None)

    def _batch_bytes_max(self, group: int) -> int:
        """Return the size of a batch with one message that is as large as its topic allows.

        Packing adds to it, and so does compressing incompressible data (five bytes for each sixteen
        thousand).
        """
        message = self.settings(group).get("message_bytes_max", BATCH_BYTES_MAX)
        packed: int = message + BATCH_OVERHEAD_BYTES + message // 1024
        return min(packed, BATCH_BYTES_MAX, self._segment_bytes // BATCHES_PER_SEGMENT_MIN)

    # -- refusals ------------------------------------------------------------------------------

    def refusal(self, group: int) -> Refused:
        """Return why this group can't be written to here now, and which broker leads it."""
        replica = self._engine.replicas.get(group)
        if replica is None:
            return Refused(errors.UnknownPartition.code, None)
        if replica.is_leader:
            return Refused(errors.NotReady.code, {"retry_ms": RETRY_MS})
        leader = replica.leader_node
        if not leader or leader == self._engine.node:
            return Refused(errors.NotLeader.code, None)
        details: dict[str, Any] = {"leader": leader}
        address = self._orders.broker_addresses.get(leader)
        if address:
            details["address"] = address
        return Refused(errors.NotLeader.code, details)

    def refusal_unless_leader(self, group: int) -> Refused | None:
        """Return why this group can't be written to; None if it is led here and ready soon."""
        replica = self._engine.replicas.get(group)
        if replica is not None and replica.is_leader:
            return None
        return self.refusal(group)
