"""The turn of a daemon: the only file that knows in which order things happen.

    wait ▶ journal's reports ▶ peers ▶ replies of peers ▶ clients ▶ ticks
         ▶ owner.before_turn_ends ▶ engine.end_turn ▶ owner.end_turn
         ▶ a small write ▶ its report ▶ these three again

One thread runs this and decides everything. It never waits for a slow disk: the journal's thread
writes, and reports when it is done. Only a small write to a fast disk is done here, as the last act
of a turn; if it takes long, another thread runs the next turn (`stand_in.py`).

Peers come before clients, and only so much is taken from clients in one turn, so consensus goes on
under any flood. Every client message gets an answer or is counted as dropped; no message ends the
process. A broken invariant closes its raft group alone (`daemons/replication/close_group.py`); one
outside of any group, and a failed disk, end the process.

Without keys a greeting is only a claim. So a PACKET is accepted only from a daemon of our kind that

- we reached ourselves, at the address in the settings or from the managers, and that answered with
  the same node and disk as the greeting;
- is a member of a group that is here;
- sends for replicas on its own node only;
- holds the one connection of its number to this listener: the first that greeted keeps it while it
  stands, and a process that ends loses it at once.

A process that makes up a node or a disk is refused. One that reads a member's disk from the network
and repeats it is taken for that member while the member is not connected. Only keys protect against
intent: with them the peer listener admits only the peers' key, and without them listeners are on
loopback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from myqueue import __version__, errors
from myqueue.daemons.error_details import error_details
from myqueue.daemons.interfaces import Client, Owner, Peer
from myqueue.daemons.network.rivals import Rivals
from myqueue.daemons.network.sockets import Transport
from myqueue.daemons.network.stand_in import LoopThreads
from myqueue.daemons.raft.types import InvariantBroken, node_of
from myqueue.daemons.repeated_warnings import LogPauses
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine

TICK_MS = 50
QUIET_TICK_MS = 150  # while no group has a deadline: as often as heartbeats are due
CLIENT_MESSAGES = 256  # read from the client listener in one turn
CLIENT_BYTES = 8 << 20
PEER_MESSAGES = 1024
PEER_BYTES = 64 << 20
PEER_KINDS = (protocol.GREET, protocol.PACKET, protocol.BEAT, protocol.UPDATE)
CLIENT_KINDS = frozenset(
    (
        *(protocol.HELLO, protocol.STATUS, protocol.STATS, protocol.ROUTE, protocol.UPDATE),
        *(protocol.READ, protocol.ALIVE, protocol.MEMBER, protocol.PRODUCE, protocol.FETCH),
        *(protocol.COMMIT, protocol.TAKE, protocol.OFFSETS, protocol.WHERE),
    )
)
NODE_ID_END = 1 << 31
TEXT_MAX = 300  # of a name or address that a client or peer gives
ERROR_TEXT_MAX = 2000  # characters
CUTS_TOLD_MAX = 20  # lines in one tick
PEERS_MAX = 4096  # connections of peers that greeted
DAEMON_KINDS = ("manager", "broker")
LogEvent = Callable[..., None]


class Loop:
    """Runs the turns of one daemon; `run` returns after a request to stop, or raises."""

    def __init__(
        self, engine: Engine, owner: Owner, transport: Transport, cluster: str, log: LogEvent
    ) -> None:
        self.engine, self.owner, self.transport = engine, owner, transport
        self._cluster, self._log = cluster, log
        self._peers: dict[bytes, Peer] = {}
        # Of daemons that we reached at their own listener
        self._confirmed_disks: dict[tuple[str, int], str] = {}
        # Of its connection to our peer listener
        self._identity_by_daemon: dict[tuple[str, int], bytes] = {}
        self._pauses = LogPauses()
        self._rivals = Rivals(engine.rivals)
        self._group_member_nodes: set[int] = set()  # nodes that are or were members of a group here
        self._next_tick = 0
        self._has_more_work = False
        self._stop_at: int | None = None  # deadline for transferring leadership, once asked to stop
        transport.probe = self._greeting_reply(0)
        transport.known_peers = self._known_peers
        transport.watch(engine.log.journal.fileno())

    # -- the turn ------------------------------------------------------------------------------

    def run(self, stop_asked: Callable[[], bool], stop_within_ms: int = 3000) -> None:
        """Run turns until a stop is asked for and leadership was transferred, or raise."""
        journal = self.engine.log.journal
        threads = LoopThreads(lambda: self._run_turns(threads, stop_asked, stop_within_ms))
        journal.may_hold = True
        try:
            threads.run()
        finally:
            journal.may_hold = False
            journal.change_thread()
        self.engine.end_turn()

    def _run_turns(
        self, threads: LoopThreads, stop_asked: Callable[[], bool], stop_within_ms: int
    ) -> bool:
        """Run turns in this thread. False: another thread runs them from now on."""
        engine, journal = self.engine, self.engine.log.journal
        journal.change_thread()
        while True:
            self.turn()
            if journal.has_held:
                if not threads.write(journal.write_held):
                    journal.wake()  # the other thread waits for the report
                    return False
                engine.receive_journal_reports()
                self._end_turn()
                self._has_more_work |= journal.has_held
            if engine.failure is not None:
                raise errors.JournalStopped(f"the disk failed: {engine.failure}")
            if self._stop_at is None:
                if stop_asked():
                    self._stop_at = engine.now + stop_within_ms
                    self.owner.begin_stopping(engine.now)
                    self._has_more_work = True
            elif engine.now >= self._stop_at or not self._is_leading_any():
                return True

    def _is_leading_any(self) -> bool:
        replicas = self.engine.replicas.values()
        return any(one.is_leader and len(one.raft.config.voters) > 1 for one in replicas)

    def turn(self) -> None:
        engine, transport = self.engine, self.transport
        wait_ms = 0 if self._has_more_work else max(0, self._next_tick - engine.clock.now_ms())
        transport.wait(wait_ms)
        now = engine.now = transport.now = engine.clock.now_ms()
        engine.begin_turn(wait_ms)
        engine.receive_journal_reports()
        for identity, envelope, frames in transport.from_peers(PEER_MESSAGES, PEER_BYTES):
            self._handle_peer_message(identity, envelope, frames)
        for kind, node in transport.take_broken_connections():
            if kind == engine.kind:
                engine.host.disconnected(node, now)
        for peer, frame in transport.from_peer_connections():
            self._handle_peer_reply(peer, frame)
        for identity, envelope, frames in transport.from_clients(CLIENT_MESSAGES, CLIENT_BYTES):
            self._handle_client_message(transport.client(identity), envelope, frames)
        if now >= self._next_tick:
            self._next_tick = now + (QUIET_TICK_MS if engine.host.is_quiet else TICK_MS)
            transport.tick(now)
            self._log_refused_handshakes(now)
            self._rivals.tick(now)
            self._log_cuts()
            engine.tick()
            self.owner.tick(now)
            if not engine.log.journal.queued_bytes:
                engine.log.journal.settle()
        self._end_turn()

    def _end_turn(self) -> None:
        now = self.engine.now
        self.owner.before_turn_ends(now)
        self._has_more_work = self.engine.end_turn()
        self.owner.end_turn(now)

    def _log_refused_handshakes(self, now: int) -> None:
        """Log failed handshakes by listener; ZeroMQ does not say whose they were."""
        for door, count in zip(
            ("clients", "peers"), self.transport.take_handshakes_refused(), strict=True
        ):
            if count and self._pauses.due(("handshake", door), now):
                self._log(
                    "warning",
                    "handshake-refused",
                    door=door,
                    total=self.engine.counts["handshakes_refused_total"],
                    why="another key, or no key",
                )

    def _log_cuts(self) -> None:
        """Log connections that were cut to save memory; of many only the largest."""
        cuts, self.transport.cuts = self.transport.cuts, []
        cuts.sort(key=lambda one: -one.received_bytes)
        for one in cuts[:CUTS_TOLD_MAX]:
            self._log(
                "warning",
                "connection-cut",
                peer=one.address,
                bytes=one.received_bytes,
                why="unread messages took too much memory, most of them from this address",
            )
        if cuts[CUTS_TOLD_MAX:]:
            self._log("warning", "connections-cut", more=len(cuts) - CUTS_TOLD_MAX)

    def _known_peers(self) -> list[bytes]:
        """Return connections of peers that we also reached at their own listener."""
        return [
            one
            for one, it in self._peers.items()
            if self._confirmed_disks.get((it.kind, it.node)) == it.disk
        ]

    # -- the client listener -------------------------------------------------------------------

    def _handle_client_message(
        self, client: Client, frame: bytes, frames: list[Any] | None
    ) -> None:
        counts = self.engine.counts
        counts["requests_total"] += 1
        request: int | None = None
        try:
            envelope = protocol.decode(frame)
            request = envelope[protocol.REQUEST]
            kind = envelope[protocol.KIND]
            if kind not in CLIENT_KINDS:
                name = protocol.name_of(kind)
                raise errors.Unsupported(f"{name} is not a request for clients", request=request)
            if frames is None:
                raise errors.InvalidRequest(f"more than {protocol.FRAMES_MAX} frames")
            if kind == protocol.HELLO:
                self._handle_hello(client, envelope)
            else:
                self.owner.request(client, envelope, frames)
        except errors.MyQueueError as error:
            if isinstance(error, errors.InvalidRequest):
                counts["requests_invalid_total"] += 1
                request = error.request if request is None else request
            if request is None:
                counts["requests_dropped_total"] += 1
                return
            self._reply_error(client, request, error)
        except InvariantBroken:
            raise
        except Exception as error:  # a bug in one request must not end the daemon
            counts["requests_crashed_total"] += 1
            self._log("error", "request-crashed", client=client.name, error=repr(error), trace=True)
            if request is not None:
                self._reply_error(client, request, errors.Internal(repr(error)))

    def _reply_error(self, client: Client, request: int, error: errors.MyQueueError) -> None:
        self.transport.reply(client, [self._error_frame(request, error)])

    def _error_frame(self, request: int, error: errors.MyQueueError) -> bytes:
        component = error.component or f"{self.engine.kind} {self.engine.node}"
        text = str(error)[:ERROR_TEXT_MAX]
        return protocol.encode(
            protocol.ERROR, request, error.code, text, component, error_details(error)
        )

    def _handle_hello(self, client: Client, envelope: protocol.Envelope) -> None:
        _, _, request, name, cluster = envelope
        if cluster not in ("", self._cluster):
            raise errors.ClusterMismatch(f"this is cluster {self._cluster!r}, not {cluster!r}")
        client.name = name[:TEXT_MAX] or client.name
        limits = {"frame_bytes": protocol.FRAME_BYTES_MAX, "frames": protocol.FRAMES_MAX}
        answer = protocol.encode(
            protocol.WELCOME,
            request,
            self._cluster,
            self.engine.kind,
            self.engine.node,
            __version__,
            limits,
        )
        self.transport.reply(client, [answer])

    # -- the peer listener ---------------------------------------------------------------------

    def _handle_peer_message(self, identity: bytes, frame: bytes, frames: list[Any] | None) -> None:
        counts = self.engine.counts
        request: int | None = None
        try:
            envelope = protocol.decode(frame)
            kind, request = envelope[protocol.KIND], envelope[protocol.REQUEST]
            peer = self._peers.get(identity)
            if frames is None:
                raise errors.InvalidRequest(f"more than {protocol.FRAMES_MAX} frames")
            if kind == protocol.GREET:
                self._handle_greeting(identity, envelope)
            elif peer is None:
                raise errors.GreetFirst("send GREET before other messages")
            elif kind == protocol.PACKET and peer.kind == self.engine.kind:
                self._check_may_send_packets(peer)
                self.engine.receive_packet(peer.node, envelope, frames)
            elif kind in PEER_KINDS:
                self.owner.handle_peer_request(peer, envelope, frames)
            else:
                raise errors.Unsupported(f"{protocol.name_of(kind)} is not a message for peers")
        except errors.MyQueueError as error:
            counts["peer_messages_refused_total"] += 1
            if isinstance(error, errors.InvalidRequest) and request is None:
                request = error.request
            if request is None:
                counts["peer_messages_dropped_total"] += 1
            else:
                self.transport.reply_to_identity(identity, self._error_frame(request, error))
        except InvariantBroken:
            raise
        except Exception as error:
            counts["peer_messages_crashed_total"] += 1
            self._log("error", "peer-message-crashed", error=repr(error), trace=True)

    def _check_may_send_packets(self, peer: Peer) -> None:
        """Raise IdentityMismatch unless this peer may send packets (see the module's docstring)."""
        node = peer.node
        if self._confirmed_disks.get((peer.kind, node)) != peer.disk:
            raise errors.IdentityMismatch(f"{peer.name} was not reached at its own listener")
        if node not in self._group_member_nodes:
            for replica in self.engine.replicas.values():
                self._group_member_nodes.update(map(node_of, replica.raft.config.members))
            if node not in self._group_member_nodes:
                raise errors.IdentityMismatch(f"{peer.name} is a member of no group here")

    def _handle_greeting(self, identity: bytes, envelope: protocol.Envelope) -> None:
        try:
            self._accept_peer(identity, envelope)
        except errors.MyQueueError as error:
            self.engine.counts["greetings_refused_total"] += 1
            _, _, _, _, kind, node, _, _, address, _ = envelope
            peer, at = f"{kind} {node}"[:TEXT_MAX], address[:TEXT_MAX]
            if times := self._pauses.due((peer, at, str(error)), self.engine.now):
                self._log("warning", "peer-refused", peer=peer, at=at, why=str(error), times=times)
            raise

    def _accept_peer(self, identity: bytes, envelope: protocol.Envelope) -> None:
        _, _, request, cluster, kind, node, disk, incarnation, address, _software = envelope
        if cluster != self._cluster:
            text = f"this is cluster {self._cluster!r}, not {cluster[:TEXT_MAX]!r}"
            raise errors.ClusterMismatch(text)
        if kind not in DAEMON_KINDS or not 0 < node < NODE_ID_END or len(disk) > TEXT_MAX:
            raise errors.InvalidRequest("no manager and no broker greets like this")
        problem = self.owner.greeted(kind, node, disk)
        if (kind, node) == (self.engine.kind, self.engine.node):
            problem = f"this is {kind} {node} itself; a daemon has a number of its own"
        if problem:
            raise errors.IdentityMismatch(problem)
        peer = Peer(identity, kind, node, disk, incarnation, address[:TEXT_MAX])
        self._refuse_duplicate(identity, peer)
        if identity not in self._peers and len(self._peers) >= PEERS_MAX:
            self._drop_disconnected_peers()
        self._peers[identity] = peer
        self._identity_by_daemon[kind, node] = identity
        self.transport.reply_to_identity(identity, self._greeting_reply(request))

    def _greeting_reply(self, request: int) -> bytes:
        engine = self.engine
        return protocol.encode(
            protocol.GREETED,
            request,
            self._cluster,
            engine.kind,
            engine.node,
            engine.log.identity.disk,
            engine.incarnation,
        )

    def _refuse_duplicate(self, identity: bytes, new: Peer) -> None:
        """Refuse a second connection under one number while the first one stands.

        A daemon has one connection to this listener, which ends with its process.
        """
        number = new.kind, new.node
        other, now = self._identity_by_daemon.get(number, identity), self.engine.now
        peer = self._peers.get(other)
        if other == identity:
            return
        if peer is not None and number != (peer.kind, peer.node):
            peer = None
        if peer is not None and self._rivals.is_probe_due(new, peer, now):
            if not self.transport.check_connected(other):
                del self._peers[other]
                self._rivals.ended(peer, now)
                peer = None
            elif new.incarnation != peer.incarnation:
                self._rivals.knocked(new, peer, now)
        if peer is None:
            if self._rivals.is_held(new, now):
                raise errors.Busy(f"{new.name} lost its connection a moment ago, and may come back")
            return
        if new.incarnation == peer.incarnation:  # it broke, and this end does not know yet
            raise errors.Busy(f"an earlier connection of {peer.name} still stands")
        raise errors.IdentityMismatch(
            f"{peer.name} is connected already, from {peer.address}, and this is another process:"
            " a copy of its folder, or its number given twice. Stop one of them for good"
        )

    def _drop_disconnected_peers(self) -> None:
        """Forget peers that are not connected any more; raise Busy if too many still are."""
        stands = self.transport.check_connected
        self._peers = {one: it for one, it in self._peers.items() if stands(one)}
        self._identity_by_daemon = {(it.kind, it.node): one for one, it in self._peers.items()}
        if len(self._peers) >= PEERS_MAX:
            raise errors.Busy(f"{PEERS_MAX} daemons are connected here already")

    # -- replies on our connections to peers ---------------------------------------------------

    def _handle_peer_reply(self, peer: tuple[str, int], frame: bytes) -> None:
        try:
            envelope = protocol.decode(frame)
        except errors.MyQueueError:
            self.engine.counts["link_messages_invalid_total"] += 1
            return
        kind = envelope[protocol.KIND]
        if kind == protocol.GREETED:
            self._handle_greeting_reply(peer, envelope)
        elif kind == protocol.ERROR and envelope[3] == errors.GreetFirst.code:
            self.transport.greet(peer)
        else:
            self._pass_reply_to_owner(peer, envelope)

    def _pass_reply_to_owner(self, peer: tuple[str, int], envelope: protocol.Envelope) -> None:
        try:
            self.owner.handle_peer_reply(peer, envelope)
        except (errors.MyQueueError, InvariantBroken):
            raise
        except Exception as error:
            self.engine.counts["link_messages_crashed_total"] += 1
            self._log("error", "link-message-crashed", error=repr(error), trace=True)

    def _handle_greeting_reply(self, peer: tuple[str, int], envelope: protocol.Envelope) -> None:
        _, _, _, cluster, kind, node, disk, _incarnation = envelope
        problem = self.owner.greeted(kind, node, disk)
        if cluster != self._cluster or (kind, node) != peer:
            problem = f"{kind} {node} of cluster {cluster!r} answered"
        if problem:
            self.transport.refuse_link(peer, problem)
            name = f"{peer[0]} {peer[1]}"
            if times := self._pauses.due((name, problem), self.engine.now):
                self._log("warning", "link-refused", peer=name, why=problem, times=times)
            return
        self._confirmed_disks[peer] = disk
        self.transport.greeted(peer)
        if kind == self.engine.kind:
            self.engine.host.connected(node, self.engine.now)
