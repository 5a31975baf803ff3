"""Requests that change nothing: OFFSETS, WHERE, STATUS, STATS.

Any replica answers for start, end and bytes of a partition, as it knows them. Only the leader
answers for a consumer's position, after a round of heartbeats that began after the request came: a
position that a consumer once saw never seems to have gone back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from myqueue import errors
from myqueue.daemons.broker.replies import PartsReply, check_consumer_name
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.describe import describe_raft_node
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.broker.group_queues import GroupQueues
    from myqueue.daemons.broker.orders import FollowedOrders
    from myqueue.daemons.interfaces import Client
    from myqueue.daemons.read_rounds import ReadRounds
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

STATUS_GROUPS_MAX: Final = 2000  # in one STATUS
WHERE_CONSUMERS_MAX: Final = 100  # in one WHERE
POSITIONS_AWAITED_MAX: Final = 16_384


class BrokerQueries:
    """Answer requests that change nothing."""

    def __init__(
        self,
        engine: Engine,
        queues: GroupQueues,
        read_rounds: ReadRounds,
        orders: FollowedOrders,
    ) -> None:
        self._engine, self._queues, self._read_rounds = engine, queues, read_rounds
        self._orders = orders
        self._positions_awaited = 0  # rows of OFFSETS that wait for a round of heartbeats

    # -- OFFSETS -------------------------------------------------------------------------------

    def offsets(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, consumer, time_ms, groups = envelope
        if consumer is not None:
            check_consumer_name(consumer)
            if self._positions_awaited + len(groups) > POSITIONS_AWAITED_MAX:
                raise errors.Busy("too many questions wait for a round of heartbeats")
        reply = PartsReply(self._engine, client, protocol.POSITIONS, request, len(groups))
        for place, group in enumerate(groups):
            fill = partial(reply.fill, place)
            replica = self._engine.replicas.get(group)
            if replica is None:
                fill(self._refused_row(group, errors.UnknownPartition.code))
            elif consumer is None:
                fill(_offsets_row(replica, None, time_ms))
            else:
                self._fill_when_confirmed(fill, replica, consumer, time_ms)

    def _fill_when_confirmed(
        self,
        fill: Callable[[list[Any]], None],
        replica: Replica,
        consumer: str,
        time_ms: int | None,
    ) -> None:
        """Fill in a row with a consumer's position after a round of heartbeats."""

        def confirmed() -> None:
            self._positions_awaited -= 1
            fill(_offsets_row(replica, consumer, time_ms))

        def lost() -> None:
            self._positions_awaited -= 1
            fill(self._refused_row(replica.uid, self._queues.refusal(replica.uid).code))

        try:
            self._read_rounds.begin(replica, confirmed, lost)
        except errors.MyQueueError as error:
            fill(self._refused_row(replica.uid, error.code))
        else:
            self._positions_awaited += 1

    def _refused_row(self, group: int, code: int) -> list[Any]:
        replica = self._engine.replicas.get(group)
        if replica is None:
            return [group, code, 0, 0, None, None, 0]
        machine = cast(PartitionMachine, replica.machine)
        return [replica.uid, code, machine.start, machine.end, None, None, machine.bytes_kept]

    # -- for people and for metrics ------------------------------------------------------------

    def where(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, group, offset = envelope
        replica = self._engine.replicas.get(group)
        if replica is None:
            raise errors.UnknownPartition(f"no replica of group {group} is here")
        machine = cast(PartitionMachine, replica.machine)
        if not machine.start <= offset < machine.end:
            raise errors.OffsetOutOfRange(
                f"offset {offset} is not in {machine.start}..{machine.end}"
            )
        facts = replica.where(offset)
        facts["node"] = self._engine.node
        facts["past"] = machine.positions.consumers_past(offset, WHERE_CONSUMERS_MAX)
        self._reply_info(client, request, facts)

    def status(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, group = envelope
        engine = self._engine
        if group:
            replica = engine.replicas.get(group)
            if replica is None:
                raise errors.UnknownPartition(f"no replica of group {group} is here")
            self._reply_info(client, request, {"node": engine.node, **replica_details(replica)})
            return
        groups = [
            replica_summary(replica)
            for replica in islice(engine.replicas.values(), STATUS_GROUPS_MAX)
        ]
        self._reply_info(
            client,
            request,
            {
                "daemon": "broker",
                "node": engine.node,
                **engine.status(self._orders.unhealthy()),
                "groups": groups,
                "groups_total": len(engine.replicas),
                "closed": engine.closing.report(),
                "closed_total": engine.closing.total,
            },
        )

    def stats(self, client: Client, envelope: protocol.Envelope, gauges: dict[str, int]) -> None:
        engine = self._engine
        facts = {"daemon": "broker", "node": engine.node, "gauges": gauges}
        self._reply_info(client, envelope[2], facts | engine.counts.as_map())

    def _reply_info(self, client: Client, request: int, answer: dict[str, Any]) -> None:
        self._engine.reply(client, [protocol.encode(protocol.INFO, request, answer)])


def _offsets_row(replica: Replica, consumer: str | None, time_ms: int | None) -> list[Any]:
    machine, code, at_time = cast(PartitionMachine, replica.machine), 0, None
    position = None if consumer is None else machine.positions.offset(consumer)
    if time_ms is not None:
        try:
            at_time = replica.offset_at_time(time_ms)
        except errors.MyQueueError as error:
            code = error.code
    if at_time is not None:
        at_time = max(at_time, machine.start)
    start, end, kept = machine.start, machine.end, machine.bytes_kept
    return [replica.uid, code, start, end, position, at_time, kept]


def replica_summary(replica: Replica) -> dict[str, Any]:
    """Describe one group in a line, for lists."""
    machine, raft = cast(PartitionMachine, replica.machine), replica.raft
    return {
        "group": replica.uid,
        "leads": replica.is_leader,
        "term": raft.term,
        "leader": replica.leader_node,
        "start": machine.start,
        "end": machine.end,
        "bytes": machine.bytes_kept,
        "commit": raft.commit_index,
        "applied": machine.applied_index,
    }


def replica_details(replica: Replica) -> dict[str, Any]:
    """Describe everything about one group, for people."""
    machine = cast(PartitionMachine, replica.machine)
    return {
        **describe_raft_node(replica.raft),
        **replica_summary(replica),
        "ready": replica.is_ready,
        "role": replica.raft.role.name.lower(),
        "producers": len(machine.sessions),
        "consumers": len(machine.positions),
        "last_time_ms": machine.time_ms,
    }
