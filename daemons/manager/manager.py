"""The manager: dispatches requests, and settles waiting ones when an event of the engine comes.

It is an `interfaces.Owner` with one raft group: the managers' log, whose state machine is the
metadata. Updates go through that log at its leader. Every manager answers reads from what it has
applied. Heartbeats say which daemons are alive and which replicas lead (`cluster_view`).

| event | settles |
|---|---|
| applied | updates whose entries these are; reads that waited for an index |
| dropped | updates that were proposed and may or may not take effect: OUTCOME_UNKNOWN |
| changed, no longer leader | reads that waited for a round of heartbeats |
| closed | everything |
| tick | requests that waited for 5 s |

As the leader it also proposes what is due without a request (`balancer/controller`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from myqueue import __version__, errors
from myqueue.daemons.error_details import error_details
from myqueue.daemons.manager import founding, queries, status
from myqueue.daemons.manager.audit_log import audit_lines
from myqueue.daemons.manager.balancer.controller import ClusterController
from myqueue.daemons.manager.balancer.removal_impact import stranded_groups
from myqueue.daemons.manager.founding import MetadataFounding
from myqueue.daemons.manager.group_sessions import GroupSessions
from myqueue.daemons.manager.heartbeats import ManagerHeartbeats
from myqueue.daemons.manager.pending import PendingRead, PendingRequests, PendingUpdate
from myqueue.daemons.manager.queries import QueryContext
from myqueue.daemons.metadata.arguments import check_new_name
from myqueue.daemons.metadata.machine import (
    LEADER_ARGUMENTS,
    MetadataMachine,
    pack_command,
    requested_operation,
)
from myqueue.daemons.metadata.operations import (
    CLIENT_OPERATIONS,
    REPLICA_PLACING_OPERATIONS,
    TOPIC_CREATING_OPERATIONS,
)
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.types import COMMAND, INDEX, PAYLOAD, Entry, Proposal, node_of, replica_id
from myqueue.daemons.read_rounds import ReadRounds
from myqueue.wire import protocol
from myqueue.wire.protocol import Envelope

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.interfaces import Client, Peer
    from myqueue.daemons.metadata.tables import Tables
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

MANAGERS_RAFT_UID: Final = 1  # the managers' raft group
UPDATE_TIMEOUT_MS: Final = 5000
READ_TIMEOUT_MS: Final = 5000
HEARTBEAT_INTERVAL_MS: Final = 1000  # between heartbeats to the other managers
RETRY_MS: Final = 100
TRANSFER_RETRY_MS: Final = 500


Buffer = bytes | memoryview
_INDEX_END: Final = 1 << 64  # every index is below it


class Manager:
    """Owner of the managers' raft group. `attach` and `started` complete it."""

    def __init__(self, config: DaemonConfig, log_event: Callable[..., None]) -> None:
        self._config, self._log_event = config, log_event
        self._metadata = MetadataMachine(config.cluster)
        self._heartbeats = ManagerHeartbeats(config, self._metadata)
        self._controller = ClusterController(
            self._heartbeats.cluster_view, self._heartbeats.activity
        )
        self._pending = PendingRequests()
        nodes = [node for node, _ in config.managers]
        self._founding = MetadataFounding(config.id, nodes, log_event)
        self._group_sessions = GroupSessions(
            lambda: self._metadata.tables, self._reply, self._refuse, self._propose_own
        )
        self._replica: Replica | None = None
        self._next_heartbeat_at = self._next_transfer_at = 0
        self._is_ready_leader = self._is_stopping = False
        self._heartbeat_peers: dict[tuple[str, int], Peer] = {}  # of the last heartbeats

    # -- Owner: start and requests --------------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        self._engine = self._heartbeats.engine = self._group_sessions.engine = engine
        self._read_rounds = self._group_sessions.read_rounds = ReadRounds(engine)

    def make_state_machine(self, group: int, about: bytes) -> MetadataMachine:
        return MetadataMachine(self._config.cluster, self._config.log_entries)

    def started(self, now: int) -> None:
        """The managers' group is open, or is created: a first start, unless it may have existed."""
        engine = self._engine
        if MANAGERS_RAFT_UID in engine.not_open:
            return
        replica, may_have = (
            engine.replicas.get(MANAGERS_RAFT_UID),
            engine.log.journal.recovered.unknown_loss,
        )
        # A replica that voted and forgot it must not take part.
        if replica is None and may_have:
            reason = "its log lost what may have been its votes"
            engine.leave_out(MANAGERS_RAFT_UID, ReplicaHealth.VOTE_LOST, reason)
            return
        if replica is None:
            voters = [replica_id(node, 1) for node, _ in self._config.managers]
            replica = engine.create(
                MANAGERS_RAFT_UID, replica_id(engine.node, 1), voters, (), b"managers"
            )
        machine = replica.machine
        if not isinstance(machine, MetadataMachine):
            raise errors.Internal("the state machine of the managers' group is not the metadata")
        if may_have:
            with suppress(OSError):
                engine.log.clear_unknown_loss()  # this daemon has one group, and it is not in doubt
        self._replica = replica
        self._metadata = self._heartbeats.metadata = machine
        self._founding.update(replica, self._heartbeats.cluster_view, now)

    def request(self, client: Client, envelope: Envelope, frames: list[Buffer]) -> None:
        kind = envelope[protocol.KIND]
        if kind == protocol.ROUTE:
            self._answer_when_applied(client, envelope, envelope[4])
        elif kind == protocol.READ:
            self._handle_read(client, envelope)
        elif kind == protocol.UPDATE:
            self._handle_update(client, envelope)
        elif kind == protocol.ALIVE:
            self._handle_alive(client, envelope)
        elif kind == protocol.MEMBER:
            self._group_sessions.handle_member_heartbeat(client, envelope, self._leader_replica())
        elif kind == protocol.STATUS:
            self._reply(client, protocol.INFO, envelope[2], self._status(envelope[3]))
        elif kind == protocol.STATS:
            self._reply(client, protocol.INFO, envelope[2], self._stats())
        else:
            raise errors.Unsupported(f"{protocol.name_of(kind)} is not for a manager")

    def _reply(self, client: Client, kind: int, request: int, *fields: Any) -> None:
        frame = protocol.encode(kind, request, *fields)
        if len(frame) > protocol.ENVELOPE_BYTES_MAX:
            raise errors.InvalidRequest(
                f"the answer has {len(frame)} bytes; the limit is 1 MiB",
                hint="Ask for less at once: name the topics, or leave out details.",
            )
        self._engine.reply(client, [frame])

    def _refuse(self, client: Client, request: int, error: errors.MyQueueError) -> None:
        """Refuse a request that waited. One that is refused at once raises instead."""
        sender = error.component or f"manager {self._engine.node}"
        self._reply(
            client, protocol.ERROR, request, error.code, str(error), sender, error_details(error)
        )

    # -- updates -------------------------------------------------------------------------------

    def _handle_update(self, client: Client, envelope: Envelope) -> None:
        _, _, request, key, operation, arguments = envelope
        if operation not in CLIENT_OPERATIONS:
            raise errors.Unsupported(f"there is no operation {operation!r} for clients")
        for name in LEADER_ARGUMENTS & set(arguments):
            raise errors.InvalidRequest(f"{operation} knows no argument {name}")
        replica = self._leader_replica()
        if operation in TOPIC_CREATING_OPERATIONS:
            kind, tables = TOPIC_CREATING_OPERATIONS[operation], self._metadata.tables
            known = tables.topics if kind == "topic" else tables.consumer_groups
            check_new_name(kind, arguments.get(kind), known)
        self._pending.check_room(self._pending.updates)
        payload = pack_command(key, operation, self._with_leader_arguments(operation, arguments))
        index = self._propose(replica, payload)
        deadline = self._engine.now + UPDATE_TIMEOUT_MS
        self._pending.updates[index] = PendingUpdate(client, request, payload, deadline, key)

    def _leader_replica(self) -> Replica:
        """The replica, if it leads and is ready; else raises the error that names the leader."""
        replica = self._replica
        if replica is None:
            raise self._not_participating_error()
        if not replica.is_leader:
            raise self._not_leader_error(replica)
        if not replica.is_ready:
            error = errors.NotReady("this manager was elected a moment ago and is not ready yet")
            raise status.add_details(error, retry_ms=RETRY_MS)
        return replica

    def _not_leader_error(self, replica: Replica) -> errors.MyQueueError:
        leader = replica.leader_node
        if not leader or leader == self._engine.node:
            waits = self._founding.missing_managers
            text = self._founding.waiting_reason if waits else "no majority is connected"
            error = errors.NoQuorum(f"the managers have no leader: {text}")
            return status.add_details(error, retry_ms=5 * RETRY_MS)
        address = self._manager_address(leader)
        details: dict[str, Any] = {"leader": leader} | ({"address": address} if address else {})
        return status.add_details(errors.NotLeader(f"manager {leader} leads"), **details)

    def _manager_address(self, node: int) -> str:
        """The client address of a manager; "" if it is not known."""
        life = self._heartbeats.cluster_view.managers.get(node)
        row = self._metadata.tables.managers.get(node)
        return life.address if life else row.address if row else ""

    def _with_leader_arguments(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if operation not in REPLICA_PLACING_OPERATIONS:
            return arguments
        tables, cluster_view = self._metadata.tables, self._heartbeats.cluster_view
        silent = cluster_view.silent_brokers(tables.brokers, self._engine.now)
        more: dict[str, Any] = {"avoid": silent} if silent else {}
        if operation == "remove_broker":
            groups = stranded_groups(
                tables, cluster_view, arguments.get("node", 0), self._engine.now
            )
            more |= {"stranded": groups} if groups else {}
        return arguments | more

    def _propose(self, replica: Replica, payload: bytes) -> int:
        item = Proposal(0, self._engine.wall_ms(), COMMAND, payload)
        return self._engine.propose(replica, [item], urgent=True)

    def _propose_own(self, operation: str, arguments: dict[str, Any]) -> None:
        self._propose(self._leader_replica(), pack_command(b"", operation, arguments))

    def applied(self, replica: Replica, entries: list[Entry], results: list[Any]) -> None:
        done, self._metadata.done = self._metadata.done, []
        if self._is_ready_leader:
            self._push_orders()
            self._group_sessions.reply_news()
            for event, fields in audit_lines(done, self._metadata.tables):
                self._log_event("info", event, always=True, **fields)
        updates = self._pending.updates
        for entry, result in zip(entries, results, strict=True):
            update = updates.pop(entry[INDEX], None)
            if update is None:
                continue
            if bytes(entry[PAYLOAD]) != update.payload:
                self._fail_unknown(update)
            elif self._is_key_reused(replica, update, entry[INDEX]):
                reused = errors.KeyReused("this key was used before, with other arguments")
                self._refuse(update.client, update.request, reused)
            elif isinstance(result, errors.MyQueueError):
                self._refuse(update.client, update.request, result)
            else:
                index = entry[INDEX]
                self._reply(update.client, protocol.UPDATED, update.request, index, result)

    def _is_key_reused(self, replica: Replica, update: PendingUpdate, index: int) -> bool:
        """Whether its key was used before, by a command with other arguments.

        The log has the first command's arguments. If that part of the log is removed, the first
        result is the answer.
        """
        first = self._metadata.tables.result_keys.get(update.key)
        if first is None or first == index:
            return False
        try:
            (entry,) = replica.read(first, first, 1)
        except errors.MyQueueError:
            return False
        return requested_operation(entry[PAYLOAD]) != requested_operation(update.payload)

    def _fail_unknown(self, update: PendingUpdate) -> None:
        error = errors.OutcomeUnknown("leadership was lost before a majority confirmed")
        self._refuse(update.client, update.request, error)

    def dropped(self, replica: Replica, first_index: int) -> None:
        for update in self._pending.take_updates(first_index):
            self._fail_unknown(update)

    # -- reads ---------------------------------------------------------------------------------

    def _handle_read(self, client: Client, envelope: Envelope) -> None:
        _, _, _, query, _, at_least, linearizable = envelope
        if query not in queries.QUERIES:
            names = ", ".join(queries.QUERIES)
            raise errors.InvalidRequest(f"there is no query {query!r}; there are {names}")
        if not linearizable:
            self._answer_when_applied(client, envelope, at_least)
            return
        replica = self._leader_replica()
        reader = PendingRead(client, envelope, at_least, self._engine.now + READ_TIMEOUT_MS)
        self._pending.add_round_read(reader)
        try:
            self._read_rounds.begin(replica, partial(self._answer_confirmed, reader))
        except errors.MyQueueError:
            self._pending.remove_round_read(reader)
            raise

    def _answer_confirmed(self, reader: PendingRead) -> None:
        if not self._pending.remove_round_read(reader):
            return
        if reader.at_least_index <= self._metadata.applied_index:
            self._answer_or_refuse(reader)
        else:
            self._pending.reads_awaiting_index.append(reader)

    def _answer_when_applied(self, client: Client, envelope: Envelope, at_least: int) -> None:
        """Answer now, or when this index is applied."""
        if self._replica is None:
            self._leader_replica()
        if at_least <= self._metadata.applied_index:
            self._answer(client, envelope)
        else:
            deadline = self._engine.now + READ_TIMEOUT_MS
            self._pending.add_index_read(PendingRead(client, envelope, at_least, deadline))

    def _answer(self, client: Client, envelope: Envelope) -> None:
        view, request = self._query_context(), envelope[protocol.REQUEST]
        if envelope[protocol.KIND] == protocol.ROUTE:
            fields = queries.routes(view, envelope[3])
            self._reply(client, protocol.ROUTES, request, *fields)
        else:
            result = queries.run_query(view, envelope[3], envelope[4])
            self._reply(client, protocol.ANSWER, request, view.applied, result)

    def _answer_or_refuse(self, reader: PendingRead) -> None:
        try:
            self._answer(reader.client, reader.envelope)
        except errors.MyQueueError as error:
            self._refuse(reader.client, reader.envelope[protocol.REQUEST], error)

    def _check_disconnected(self, kind: str, node: int) -> bool:
        """Whether the connection of its last heartbeat has ended, as when a process is killed."""
        peer = self._heartbeat_peers.get((kind, node))
        return peer is not None and not self._engine.check_connected(peer)

    def _query_context(self) -> QueryContext:
        engine, replica, beats = self._engine, self._replica, self._heartbeats
        raft, leads = replica.raft if replica else None, bool(replica and replica.is_leader)
        return QueryContext(
            self._config.cluster,
            __version__,
            engine.node,
            replica.leader_node if replica else 0,
            raft.term if raft else 0,
            [node_of(one) for one in raft.config.voters] if raft else [],
            self._metadata.applied_index,
            self._metadata.tables,
            beats.cluster_view,
            beats.activity,
            engine.now,
            engine.wall_ms(),
            engine.repair.damage_report(),
            self._group_sessions.last_seen if leads else {},
            self._controller.unreachable_brokers if leads else set(),
            engine.closing.report(),
            engine.rivals,
            self._check_disconnected,
        )

    def closed(self, replica: Replica) -> None:
        """The managers' group is closed here: refuse waiting requests, and all that come."""
        self._replica, self._is_ready_leader = None, False
        self._read_rounds.leadership_lost(replica.uid)
        error = self._not_participating_error()
        for update in self._pending.take_updates(0):
            self._fail_unknown(update)
        self._group_sessions.fail_all(error)
        for reader in [
            *self._pending.take_round_reads(),
            *self._pending.take_ready_reads(_INDEX_END),
        ]:
            self._refuse(reader.client, reader.envelope[protocol.REQUEST], error)

    def _not_participating_error(self) -> errors.MyQueueError:
        here = self._engine.not_open.get(MANAGERS_RAFT_UID)
        why = here.reason if here else "it is starting"
        return errors.NotReady(f"this manager takes no part: {why}")

    def read_ready(self, context: int) -> None:
        self._read_rounds.read_ready(context)

    def changed(self, replica: Replica) -> None:
        ready = replica.is_leader and replica.is_ready
        if ready and not self._is_ready_leader:
            self._controller.become_leader(self._engine.now)
            self._group_sessions.become_leader(self._engine.now)
            self._log_event("info", "leads", term=replica.raft.term)
        self._is_ready_leader = ready
        if not replica.is_leader:
            self._read_rounds.leadership_lost(replica.uid)
            self._group_sessions.fail_all(self._not_leader_error(replica))
            for reader in self._pending.take_round_reads():
                request = reader.envelope[protocol.REQUEST]
                self._refuse(reader.client, request, self._not_leader_error(replica))

    # -- heartbeats and clients ----------------------------------------------------------------

    def _handle_alive(self, client: Client, envelope: Envelope) -> None:
        _, _, request, producers, consumers = envelope
        self._heartbeats.record_client_activity(producers, consumers, is_direct=True)
        self._reply(client, protocol.ALIVE_OK, request)

    def greeted(self, kind: str, node: int, disk: str) -> str:
        return self._heartbeats.refusal_reason(kind, node, disk)

    def handle_peer_request(self, peer: Peer, envelope: Envelope, frames: list[Buffer]) -> None:
        kind = envelope[protocol.KIND]
        if kind != protocol.BEAT:
            raise errors.Unsupported(f"{protocol.name_of(kind)} is not for a manager's peers")
        if self._replica is None and peer.kind == "broker":
            raise self._not_participating_error()  # its tables are outdated and stay so
        orders = self._heartbeats.receive(peer.kind, peer.node, envelope[3], self._next_transfers)
        self._send_orders(peer, envelope[2], orders)
        self._heartbeat_peers[peer.kind, peer.node] = peer

    def _next_transfers(self, tables: Tables, node: int, now: int) -> list[list[int]]:
        return self._controller.next_transfers(tables, node, now) if self._is_ready_leader else []

    def _push_orders(self) -> None:
        """Send new orders at once to brokers for which something changed."""
        for (kind, node), peer in self._heartbeat_peers.items():
            orders = self._heartbeats.take_newer_orders(node) if kind == "broker" else None
            if orders is not None:
                self._send_orders(peer, 0, orders)

    def _send_orders(self, peer: Peer, heartbeat: int, orders: dict[str, Any]) -> None:
        parts = [orders]
        if peer.kind == "broker":
            parts = self._heartbeats.divide_orders(peer.node, orders)
        for part in parts:
            frame = protocol.encode(protocol.ORDERS, heartbeat, part)
            self._engine.counts["orders_bytes_total"] += len(frame)
            self._engine.reply_to_peer(peer, frame)

    def handle_peer_reply(self, peer: tuple[str, int], envelope: Envelope) -> None:
        """Other managers' answers to our heartbeats are empty; only refusals are counted."""
        if envelope[protocol.KIND] == protocol.ERROR:
            self._engine.counts["beats_refused_total"] += 1

    # -- the turn ------------------------------------------------------------------------------

    def before_turn_ends(self, now: int) -> None:
        """Nothing to do: updates are proposed as they come."""

    def end_turn(self, now: int) -> None:
        """Answer reads whose index the turn applied, by entries or by a leader's snapshot."""
        if self._pending.reads_awaiting_index:
            for reader in self._pending.take_ready_reads(self._metadata.applied_index):
                self._answer_or_refuse(reader)

    def tick(self, now: int) -> None:
        self._expire_pending(now)
        self._heartbeats.tick(now)
        replica = self._replica
        is_log_empty = replica is not None and founding.is_log_empty(replica)
        if now >= self._next_heartbeat_at:
            self._next_heartbeat_at = now + (
                founding.EMPTY_LOG_HEARTBEAT_INTERVAL_MS if is_log_empty else HEARTBEAT_INTERVAL_MS
            )
            self._heartbeats.send_to_managers(
                replica.leader_node if replica else 0, is_log_empty=is_log_empty
            )
        if self._replica is None:
            return
        self._founding.update(self._replica, self._heartbeats.cluster_view, now)
        if self._replica.is_leader and self._replica.is_ready:
            self._propose_due_operations(self._replica, now)
            self._group_sessions.tick(now)
        if self._is_stopping and now >= self._next_transfer_at:
            self._transfer_leadership(self._replica, now)

    def _expire_pending(self, now: int) -> None:
        updates, readers = self._pending.take_expired(now)
        error = errors.TimedOut(f"not confirmed by a majority within {UPDATE_TIMEOUT_MS} ms")
        for update in updates:
            self._refuse(update.client, update.request, error)
        for reader in readers:
            applied, request = self._metadata.applied_index, reader.envelope[protocol.REQUEST]
            text = f"this manager has applied {applied}, not yet {reader.at_least_index}"
            if reader.at_least_index <= applied:
                text = "no majority confirmed that this manager still leads"
            self._refuse(reader.client, request, errors.NotReady(text))

    def _propose_due_operations(self, replica: Replica, now: int) -> None:
        managers = self._heartbeats.all_managers()
        for todo in self._controller.next_operations(self._metadata.tables, managers, now):
            payload = pack_command(b"", todo.operation, self._with_leader_arguments(*todo))
            try:
                self._propose(replica, payload)
            except errors.MyQueueError:
                self._engine.counts["duties_postponed_total"] += 1  # they are proposed again later

    def begin_stopping(self, now: int) -> None:
        self._is_stopping = True
        if self._replica is not None:
            self._transfer_leadership(self._replica, now)

    def _transfer_leadership(self, replica: Replica, now: int) -> None:
        self._next_transfer_at = now + TRANSFER_RETRY_MS
        if follower := replica.best_successor(now) if replica.is_leader else 0:
            try:
                self._engine.transfer(replica, follower)
            except errors.MyQueueError:
                self._engine.counts["transfers_refused_total"] += 1

    # -- for people and for metrics ------------------------------------------------------------

    def _status(self, group: int) -> dict[str, Any]:
        return status.manager_status(self._engine, self._replica, MANAGERS_RAFT_UID, group)

    def _stats(self) -> dict[str, Any]:
        gauges = {
            "updates_waiting": len(self._pending.updates),
            "leads": int(self._is_ready_leader),
        }
        return status.manager_stats(
            self._engine, self._metadata, self._heartbeats.cluster_view, gauges
        )
