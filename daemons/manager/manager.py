"""The manager: which request goes where, and what an event means for those who wait.

An owner in the sense of `engine.Owner`, with one group: the managers' log, whose machine is the
metadata. Updates go through that log at its leader; reads are answered by every manager from what
it applied; who lives and who leads is known from beats (`cluster_view.py`).

| event | settles |
|---|---|
| applied | updates whose entries these are; reads that waited for an index |
| dropped | updates that were proposed and may or may not be done: OUTCOME_UNKNOWN |
| changed: leads no more | reads that waited for a round of heartbeats |
| closed | everything |
| tick | whoever waited for 5 s |

As the leader it also does what nobody asked for (`daemons/manager/balancer/controller.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from myqueue import __version__, errors
from myqueue.daemons.error_details import describe
from myqueue.daemons.manager import founding, queries, status
from myqueue.daemons.manager.audit_log import told_of
from myqueue.daemons.manager.balancer.removal_impact import stranded
from myqueue.daemons.manager.founding import Founding
from myqueue.daemons.manager.group_sessions import Coordinator
from myqueue.daemons.manager.heartbeats import Beats
from myqueue.daemons.manager.pending import Reader, Update, Waiting
from myqueue.daemons.manager.queries import View
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
from myqueue.daemons.raft.types import COMMAND, INDEX, PAYLOAD, Entry, Item, node_of, replica_id
from myqueue.wire import protocol
from myqueue.wire.protocol import Envelope

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.interfaces import Client, Peer
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

GROUP: Final = 1  # of the managers themselves
UPDATE_MS: Final = 5000
READ_MS: Final = 5000
BEAT_MS: Final = 1000  # to the other managers
RETRY_MS: Final = 100
TRANSFER_AGAIN_MS: Final = 500


Buffer = bytes | memoryview
_ALL: Final = 1 << 64  # every index is below it


class Manager:
    """See the module's docstring. `attach` and `started` complete it."""

    def __init__(self, config: DaemonConfig, tell: Callable[..., None]) -> None:
        self._config, self._tell = config, tell
        self._metadata = MetadataMachine(config.cluster)
        self._beats = Beats(config, self._metadata)
        self._waiting = Waiting()
        nodes = [node for node, _ in config.managers]
        self._founding = Founding(config.id, nodes, tell)
        self._groups = Coordinator(
            lambda: self._metadata.tables, self._reply, self._refuse, self._propose_own
        )
        self._replica: Replica | None = None
        self._beat_at = self._transfer_at = 0
        self._was_ready = self._is_stopping = False
        self._peers: dict[tuple[str, int], Peer] = {}  # as they beat last

    # -- the owner's side of the seam ----------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        self._engine = self._beats.engine = self._groups.engine = engine

    def make_machine(self, group: int, about: bytes) -> MetadataMachine:
        return MetadataMachine(self._config.cluster, self._config.log_entries)

    def started(self, now: int) -> None:
        """The group is open, or is made: a manager's first start, unless it may have had it."""
        engine = self._engine
        if GROUP in engine.refused:
            return
        replica, may_have = engine.replicas.get(GROUP), engine.log.journal.recovered.unknown_loss
        if replica is None and may_have:  # and have voted (R2)
            engine.refused[GROUP] = "its log lost what may have been its votes"
            return
        if replica is None:
            voters = [replica_id(node, 1) for node, _ in self._config.managers]
            replica = engine.create(GROUP, replica_id(engine.node, 1), voters, (), b"managers")
        machine = replica.machine
        if not isinstance(machine, MetadataMachine):
            raise errors.Internal("the managers' group has another machine")
        if may_have:
            with suppress(OSError):
                engine.log.clear_unknown_loss()  # there is one group here, and it is not in doubt
        self._replica = replica
        self._metadata = self._beats.metadata = machine
        self._founding.look(replica, self._beats.liveness, now)

    def request(self, client: Client, envelope: Envelope, frames: list[Buffer]) -> None:
        kind = envelope[protocol.KIND]
        if kind == protocol.ROUTE:
            self._read_when(client, envelope, envelope[4])
        elif kind == protocol.READ:
            self._read(client, envelope)
        elif kind == protocol.UPDATE:
            self._update(client, envelope)
        elif kind == protocol.ALIVE:
            self._alive(client, envelope)
        elif kind == protocol.MEMBER:
            self._groups.request(client, envelope, self._leading())
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
        """For those who waited; who is refused at once gets the exception, by the loop."""
        who = error.component or f"manager {self._engine.node}"
        self._reply(client, protocol.ERROR, request, error.code, str(error), who, describe(error))

    # -- updates -------------------------------------------------------------------------------

    def _update(self, client: Client, envelope: Envelope) -> None:
        _, _, request, key, operation, arguments = envelope
        if operation not in CLIENT_OPERATIONS:
            raise errors.Unsupported(f"there is no operation {operation!r} for clients")
        for name in LEADER_ARGUMENTS & set(arguments):
            raise errors.InvalidRequest(f"{operation} knows no argument {name}")
        replica = self._leading()
        if operation in TOPIC_CREATING_OPERATIONS:
            kind, tables = TOPIC_CREATING_OPERATIONS[operation], self._metadata.tables
            known = tables.topics if kind == "topic" else tables.consumer_groups
            check_new_name(kind, arguments.get(kind), known)
        self._waiting.check_room(self._waiting.updates)
        payload = pack_command(key, operation, self._with_news(operation, arguments))
        index = self._propose(replica, payload)
        deadline = self._engine.now + UPDATE_MS
        self._waiting.updates[index] = Update(client, request, payload, deadline, key)

    def _leading(self) -> Replica:
        """The replica, if it leads and may be written to; else the error that says who does."""
        replica = self._replica
        if replica is None:
            raise self._no_part()
        if not replica.is_leader:
            raise self._not_leader(replica)
        if not replica.is_ready:
            error = errors.NotReady("elected a moment ago")
            raise status.with_details(error, retry_ms=RETRY_MS)
        return replica

    def _not_leader(self, replica: Replica) -> errors.MyQueueError:
        leader = replica.leader_node
        if not leader or leader == self._engine.node:
            waits = self._founding.waits_for
            text = self._founding.why if waits else "no majority is connected"
            error = errors.NoQuorum(f"the managers have no leader: {text}")
            return status.with_details(error, retry_ms=5 * RETRY_MS)
        address = self._address(leader)
        details: dict[str, Any] = {"leader": leader} | ({"address": address} if address else {})
        return status.with_details(errors.NotLeader(f"manager {leader} leads"), **details)

    def _address(self, node: int) -> str:
        """Of a manager's clients' door."""
        life = self._beats.liveness.managers.get(node)
        row = self._metadata.tables.managers.get(node)
        return life.address if life else row.address if row else ""

    def _with_news(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if operation not in REPLICA_PLACING_OPERATIONS:
            return arguments
        tables, liveness = self._metadata.tables, self._beats.liveness
        silent = liveness.silent(tables.brokers, self._engine.now)
        more: dict[str, Any] = {"avoid": silent} if silent else {}
        if operation == "remove_broker":
            groups = stranded(tables, liveness, arguments.get("node", 0), self._engine.now)
            more |= {"stranded": groups} if groups else {}
        return arguments | more

    def _propose(self, replica: Replica, payload: bytes) -> int:
        item = Item(0, self._engine.wall_ms(), COMMAND, payload)
        return self._engine.propose(replica, [item], urgent=True)

    def _propose_own(self, operation: str, arguments: dict[str, Any]) -> None:
        self._propose(self._leading(), pack_command(b"", operation, arguments))

    def applied(self, replica: Replica, entries: list[Entry], results: list[Any]) -> None:
        done, self._metadata.done = self._metadata.done, []
        if self._was_ready:
            self._tell_brokers()
            self._groups.news()
            for event, told in told_of(done, self._metadata.tables):
                self._tell("info", event, always=True, **told)
        updates = self._waiting.updates
        for entry, result in zip(entries, results, strict=True):
            update = updates.pop(entry[INDEX], None)
            if update is None:
                continue
            if bytes(entry[PAYLOAD]) != update.payload:
                self._lost(update)
            elif self._is_another(replica, update, entry[INDEX]):
                reused = errors.KeyReused("this key came before, with other arguments")
                self._refuse(update.client, update.request, reused)
            elif isinstance(result, errors.MyQueueError):
                self._refuse(update.client, update.request, result)
            else:
                fields = (entry[INDEX], result)
                self._reply(update.client, protocol.UPDATED, update.request, *fields)

    def _is_another(self, replica: Replica, update: Update, index: int) -> bool:
        """Its key was known, from a command that asked for something else.

        The log has what was asked for; if it was cut since, the first answer is the answer.
        """
        first = self._metadata.tables.result_keys.get(update.key)
        if first is None or first == index:
            return False
        try:
            (entry,) = replica.read(first, first, 1)
        except errors.MyQueueError:
            return False
        return requested_operation(entry[PAYLOAD]) != requested_operation(update.payload)

    def _lost(self, update: Update) -> None:
        error = errors.OutcomeUnknown("leadership was lost before a majority confirmed")
        self._refuse(update.client, update.request, error)

    def dropped(self, replica: Replica, first_index: int) -> None:
        for update in self._waiting.take_updates(first_index):
            self._lost(update)

    # -- reads ---------------------------------------------------------------------------------

    def _read(self, client: Client, envelope: Envelope) -> None:
        _, _, _, query, _, at_least, linearizable = envelope
        if query not in queries.QUERIES:
            names = ", ".join(queries.QUERIES)
            raise errors.InvalidRequest(f"there is no query {query!r}; there are {names}")
        if not linearizable:
            self._read_when(client, envelope, at_least)
            return
        replica = self._leading()
        reader = Reader(client, envelope, at_least, self._engine.now + READ_MS)
        context = self._waiting.begin_round(reader)
        try:
            self._engine.read(replica, context)
        except errors.MyQueueError:
            self._waiting.rounds.pop(context, None)
            raise

    def _read_when(self, client: Client, envelope: Envelope, at_least: int) -> None:
        """Answer now, or when so much is applied."""
        if self._replica is None:
            self._leading()
        if at_least <= self._metadata.applied_index:
            self._answer(client, envelope)
        else:
            deadline = self._engine.now + READ_MS
            self._waiting.add_reader(Reader(client, envelope, at_least, deadline))

    def _answer(self, client: Client, envelope: Envelope) -> None:
        view, request = self._view(), envelope[protocol.REQUEST]
        if envelope[protocol.KIND] == protocol.ROUTE:
            fields = queries.routes(view, envelope[3])
            self._reply(client, protocol.ROUTES, request, *fields)
        else:
            result = queries.answer(view, envelope[3], envelope[4])
            self._reply(client, protocol.ANSWER, request, view.applied, result)

    def _answer_late(self, reader: Reader) -> None:
        try:
            self._answer(reader.client, reader.envelope)
        except errors.MyQueueError as error:
            self._refuse(reader.client, reader.envelope[protocol.REQUEST], error)

    def _is_cut_off(self, kind: str, node: int) -> bool:
        """The connection of its last beat ended, as it does at once when a process is killed."""
        peer = self._peers.get((kind, node))
        return peer is not None and not self._engine.stands(peer)

    def _view(self) -> View:
        engine, replica, beats = self._engine, self._replica, self._beats
        node, leads = replica.node if replica else None, bool(replica and replica.is_leader)
        return View(
            self._config.cluster, __version__, engine.node,
            replica.leader_node if replica else 0, node.term if node else 0,
            [node_of(one) for one in node.config.voters] if node else [],
            self._metadata.applied_index, self._metadata.tables, beats.liveness, beats.activity,
            engine.now, engine.wall_ms(), engine.repair.told(), self._groups.heard if leads else {},
            beats.duties.unreached if leads else set(), engine.closing.told(),
            engine.rivals, self._is_cut_off,
        )  # fmt: skip

    def closed(self, replica: Replica) -> None:
        """The managers' group is closed here: whoever waits is told, and so is whoever comes."""
        self._replica, self._was_ready = None, False
        error = self._no_part()
        for update in self._waiting.take_updates(0):
            self._lost(update)
        self._groups.lost(error)
        for reader in [*self._waiting.take_rounds(), *self._waiting.take_readers(_ALL)]:
            self._refuse(reader.client, reader.envelope[protocol.REQUEST], error)

    def _no_part(self) -> errors.MyQueueError:
        why = self._engine.refused.get(GROUP, "it is starting")
        return errors.NotReady(f"this manager takes no part: {why}")

    def read_ready(self, context: int) -> None:
        if self._groups.read_ready(context):
            return
        reader = self._waiting.rounds.pop(context, None)
        if reader is None:
            return
        if reader.at_least <= self._metadata.applied_index:
            self._answer_late(reader)
        else:
            self._waiting.readers.append(reader)

    def changed(self, replica: Replica) -> None:
        ready = replica.is_leader and replica.is_ready
        if ready and not self._was_ready:
            self._beats.duties.begin(self._engine.now)
            self._groups.begin(self._engine.now)
            self._tell("info", "leads", term=replica.node.term)
        self._was_ready = ready
        if not replica.is_leader:
            self._groups.lost(self._not_leader(replica))
            for reader in self._waiting.take_rounds():
                request = reader.envelope[protocol.REQUEST]
                self._refuse(reader.client, request, self._not_leader(replica))

    # -- signs of life -------------------------------------------------------------------------

    def _alive(self, client: Client, envelope: Envelope) -> None:
        _, _, request, producers, consumers = envelope
        self._beats.heard_now(producers, consumers, own=True)
        self._reply(client, protocol.ALIVE_OK, request)

    def greeted(self, kind: str, node: int, disk: str) -> str:
        return self._beats.problem_with(kind, node, disk)

    def peer_request(self, peer: Peer, envelope: Envelope, frames: list[Buffer]) -> None:
        kind = envelope[protocol.KIND]
        if kind != protocol.BEAT:
            raise errors.Unsupported(f"{protocol.name_of(kind)} is not for a manager's peers")
        if self._replica is None and peer.kind == "broker":
            raise self._no_part()  # what it knows is of some time ago, and stays so
        leads = self._was_ready
        orders = self._beats.answer(peer.kind, peer.node, envelope[3], leads=leads)
        self._engine.peer_reply(peer, protocol.encode(protocol.ORDERS, envelope[2], orders))
        self._peers[peer.kind, peer.node] = peer

    def _tell_brokers(self) -> None:
        """Those for whom something changed need not wait for their next beat to hear of it."""
        for (kind, node), peer in self._peers.items():
            orders = self._beats.news_for(node) if kind == "broker" else None
            if orders is not None:
                self._engine.peer_reply(peer, protocol.encode(protocol.ORDERS, 0, orders))

    def peer_answer(self, peer: tuple[str, int], envelope: Envelope) -> None:
        """Other managers' answers to our beats say nothing that is not known."""
        if envelope[protocol.KIND] == protocol.ERROR:
            self._engine.counts["beats_refused_total"] += 1

    # -- the turn ------------------------------------------------------------------------------

    def before_turn_ends(self, now: int) -> None:
        """Updates are proposed as they come."""

    def end_turn(self, now: int) -> None:
        """After the turn more may be applied, by entries or by a leader's snapshot."""
        if self._waiting.readers:
            for reader in self._waiting.take_readers(self._metadata.applied_index):
                self._answer_late(reader)

    def tick(self, now: int) -> None:
        self._expire(now)
        self._beats.tick(now)
        replica = self._replica
        blank = replica is not None and founding.is_blank(replica)
        if now >= self._beat_at:
            self._beat_at = now + (founding.BEAT_MS if blank else BEAT_MS)
            self._beats.send(replica.leader_node if replica else 0, blank=blank)
        if self._replica is None:
            return
        self._founding.look(self._replica, self._beats.liveness, now)
        if self._replica.is_leader and self._replica.is_ready:
            self._do_duties(self._replica, now)
            self._groups.tick(now)
        if self._is_stopping and now >= self._transfer_at:
            self._hand_over(self._replica, now)

    def _expire(self, now: int) -> None:
        updates, readers = self._waiting.expired(now)
        error = errors.TimedOut(f"not confirmed by a majority within {UPDATE_MS} ms")
        for update in updates:
            self._refuse(update.client, update.request, error)
        for reader in readers:
            applied, request = self._metadata.applied_index, reader.envelope[protocol.REQUEST]
            text = f"this manager has applied {applied}, not yet {reader.at_least}"
            if reader.at_least <= applied:
                text = "no majority confirmed that this manager still leads"
            self._refuse(reader.client, request, errors.NotReady(text))

    def _do_duties(self, replica: Replica, now: int) -> None:
        for todo in self._beats.due(now):
            payload = pack_command(b"", todo.operation, self._with_news(*todo))
            try:
                self._propose(replica, payload)
            except errors.MyQueueError:
                self._engine.counts["duties_postponed_total"] += 1  # they come again

    def stopping(self, now: int) -> None:
        self._is_stopping = True
        if self._replica is not None:
            self._hand_over(self._replica, now)

    def _hand_over(self, replica: Replica, now: int) -> None:
        self._transfer_at = now + TRANSFER_AGAIN_MS
        if follower := replica.best_follower(now) if replica.is_leader else 0:
            try:
                self._engine.transfer(replica, follower)
            except errors.MyQueueError:
                self._engine.counts["transfers_refused_total"] += 1

    # -- for people and for metrics ------------------------------------------------------------

    def _status(self, group: int) -> dict[str, Any]:
        return status.status(self._engine, self._replica, GROUP, group)

    def _stats(self) -> dict[str, Any]:
        gauges = {"updates_waiting": len(self._waiting.updates), "leads": int(self._was_ready)}
        return status.stats(self._engine, self._metadata, self._beats.liveness, gauges)
