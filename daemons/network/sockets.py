"""Sockets of a daemon: two listeners, and a connection to each daemon that it sends to.

A *listener* is a bound ROUTER: one for clients, one for peers, so that a flood of clients can't
keep peers out. A *peer connection* is a DEALER, connected to one peer listener. Each direction of a
pair has its own, so sockets need no names; the listener draws an identity for each connection. A
peer connection carries nothing before its greeting was answered. A message that can't be sent now
is dropped and counted: Raft and heartbeats repeat theirs.

With keys all connections are encrypted, and `admission` says which key each listener admits.

Queues of incoming messages have no limit and are never full; `flood_limit.py` bounds their memory.
A full one could end this process: libzmq 4.3.5 stops reading there, and aborts if the connection
breaks and then a heartbeat is due, or a PING is among the unread bytes. Listeners send no
heartbeats: the connecting side does. The time to live that it announces, and TCP's keep-alive, end
dead connections.

Only the loop's thread uses this file. Sending never blocks; "sent" means queued and nothing more.
No rule about order or meaning is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import zmq

from myqueue.daemons.interfaces import Client, Peer
from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.network import admission
from myqueue.daemons.network.flood_limit import Cut, FloodGuard, machine_bytes, room_bytes
from myqueue.errors import DirectoryUnusable
from myqueue.wire import protocol
from myqueue.wire.keyfiles import DoorKeys
from myqueue.wire.ready_sockets import ReadySockets

Buffer = bytes | memoryview
COPY_BELOW_BYTES = 32 << 10  # below it, copying costs less than sending without a copy
SEND_QUEUE_MESSAGES = 4096
LINK_QUEUE_MESSAGES = 1024
LINK_MESSAGES_MAX = 1024  # read from each peer connection in one turn
GREET_EVERY_MS = 200
CLIENTS_MAX = 20_000
SOURCES_MAX = 8192  # connections at the peer listener whose TCP socket is known
# Plain numbers: pyzmq's enumerations cost a microsecond each time.
_NOW, _NOW_MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)
_MORE, _EVENTS, _IN = int(zmq.RCVMORE), int(zmq.EVENTS), int(zmq.POLLIN)
REMAKE_MS = 5000  # libzmq gives up for good after some failures of a handshake
# A handshake is refused for another key, or none. It is unfinished if the connection ends before:
# a client that got its answer from another daemon, a probe of a port, silence. A client that has a
# key and meets a listener without keys may hang up in this way, too; it logs why, and retries.
_UNFINISHED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_FAILED = _REFUSED | _UNFINISHED
_LINK_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED
REFUSED, HANGS_UP = "handshake refused", "it hangs up in the handshake"
# Set on connections, never on listeners: the connecting side gives up after this silence.
HEARTBEATS = (
    (zmq.HEARTBEAT_IVL, 1000),
    (zmq.HEARTBEAT_TIMEOUT, 3000),
    (zmq.HEARTBEAT_TTL, 3000),
)
PAYLOADS_MAX = protocol.FRAMES_MAX - 1  # after an envelope
TOO_MANY_BYTES = 1 << 20  # what a message with more frames counts for
# Identity, envelope, payload frames; None: there were too many of these.
Message = tuple[bytes, bytes, list[Buffer] | None]


def _common(socket: zmq.Socket[bytes], queue: int) -> None:
    """Set limits and liveness before bind or connect; closing never waits for unsent messages."""
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, queue),
        (zmq.RCVHWM, 0),
        (zmq.MAXMSGSIZE, protocol.FRAME_BYTES_MAX),
        (zmq.HANDSHAKE_IVL, 5000),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 2),
        (zmq.TCP_KEEPALIVE_INTVL, 1),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.TCP_MAXRT, 5000),
    ):
        socket.setsockopt(option, value)


class _PeerConnection:
    """A DEALER that is connected to one peer listener."""

    __slots__ = ("address", "greeted", "made_at", "monitor", "next_greeting", "socket", "trouble")

    def __init__(self, socket: zmq.Socket[bytes], address: str, now: int) -> None:
        self.socket, self.address, self.made_at = socket, address, now
        # Reports broken connections: a hint that comes sooner than silence.
        self.monitor = socket.get_monitor_socket(_LINK_EVENTS)
        self.greeted = False
        self.next_greeting = 0
        self.trouble = "it does not answer"  # why nothing can be sent, while it is not greeted

    def hear(self, event: int, value: int, has_keys: bool) -> None:
        """Take the reason for trouble from an event of the monitor.

        Where keys do not fit, now this end hangs up first, now the other one. Then the reason that
        an earlier attempt gave still holds.
        """
        if event == zmq.EVENT_DISCONNECTED:
            return
        said = _said_by(event, value, has_keys)
        if said != HANGS_UP or not self.trouble.startswith(REFUSED):
            self.trouble = said


def _said_by(event: int, value: int, has_keys: bool) -> str:
    if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
        return "it does not answer our greeting"
    if event == zmq.EVENT_CLOSED:
        return "nothing listens there"
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return f"{REFUSED}: our key is not that of its cluster"
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return f"{REFUSED}: it has {'no keys, we do' if has_keys else 'keys, we have none'}"
    if has_keys:
        return f"{REFUSED}: its keys are not ours"
    return HANGS_UP


class Transport:
    """All sockets of a daemon. `greeting` is the encoded GREET that opens each peer connection."""

    def __init__(
        self,
        listen: str,
        peer_listen: str,
        greeting: bytes,
        keys: DoorKeys | None = None,
        *,
        now: int,
    ) -> None:
        self.counts = DaemonMetrics()
        self._greeting, self._keys = greeting, keys
        self._context = zmq.Context(io_threads=1)
        self._sockets = ReadySockets()
        self._ready = self._sockets.ready
        self._peer_connections: dict[tuple[str, int], _PeerConnection] = {}
        self._listening: set[zmq.Socket[bytes]] = set()  # the listeners
        self._clients: dict[bytes, Client] = {}
        self._large_payload_listeners: set[Any] = set()  # listeners whose last payloads were large
        self.floods = FloodGuard(room_bytes(machine_bytes()))
        self.cuts: list[Cut] = []  # not logged yet
        self.known_peers: Callable[[], Iterable[bytes]] = tuple  # identities of our daemons
        self._sources: dict[bytes, int] = {}  # identity at the peer listener -> inode of its socket
        self._ports: set[int] = set()  # of the listeners
        self.probe = b""  # a message that every peer understands and that changes nothing
        self._has_backlog = False  # more messages wait than were read in this turn
        self.now = now  # for connections that are made before the first turn
        self._zap: zmq.Socket[bytes] | None = None
        # Monitors of the listeners -> failed handshakes
        self._handshake_failures: dict[zmq.Socket[bytes], int] = {}
        try:
            if keys is not None:
                self._zap = self._context.socket(zmq.REP)
                self._zap.bind("inproc://zeromq.zap.01")
                self._sockets.add(self._zap)
            self._client_listener = self._make_listener(
                listen, admission.CLIENT_DOMAIN, keys.clients if keys else None
            )
            self._peer_listener = self._make_listener(
                peer_listen, admission.PEER_DOMAIN, keys.peers if keys else None
            )
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _make_listener(
        self, address: str, domain: bytes, pair: tuple[bytes, bytes] | None
    ) -> zmq.Socket[bytes]:
        listener = self._context.socket(zmq.ROUTER)
        _common(listener, SEND_QUEUE_MESSAGES)
        listener.setsockopt(zmq.ROUTER_MANDATORY, 1)
        listener.setsockopt(zmq.BACKLOG, 1024)
        if pair is not None:
            listener.setsockopt(zmq.ZAP_DOMAIN, domain)
            listener.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            listener.curve_server = True
            listener.curve_publickey, listener.curve_secretkey = pair
        try:
            listener.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            raise DirectoryUnusable(
                f"can't listen on {address}: {error.strerror or error}",
                hint="Is another daemon running there? Choose another port.",
            ) from error
        self._ports.add(
            int(bytes(listener.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").rsplit(b":", 1)[1])
        )
        self._sockets.add(listener)
        self._listening.add(listener)
        self._watch_handshakes(listener)
        return listener

    def _watch_handshakes(self, listener: zmq.Socket[bytes]) -> None:
        """Count failed handshakes. The queue has no limit: libzmq's thread would wait for room."""
        name = f"inproc://handshakes-{len(self._handshake_failures)}"
        listener.monitor(name, _FAILED)
        monitor = self._context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.RCVHWM, 0)
        monitor.connect(name)
        self._sockets.add(monitor)
        self._handshake_failures[monitor] = 0

    def watch(self, descriptor: int) -> None:
        """Let `wait` return when this descriptor becomes readable (the journal's reports)."""
        self._sockets.add_descriptor(descriptor)

    def wait(self, timeout_ms: int) -> None:
        """Wait until a socket is readable. Only readable ones are read in this turn: the answer
        "try again" of an empty one costs more than a message.
        """
        if cuts := self.floods.look(self.now, self._is_ours, is_behind=self._has_backlog):
            self.counts["connections_cut_total"] += len(cuts)
            self.cuts += cuts
        self._has_backlog = False
        self._sockets.wait(timeout_ms)
        if self._zap in self._ready:
            self._answer_handshakes()
        for monitor in self._handshake_failures:
            if monitor in self._ready:
                kinds = [event for event, _ in _events(monitor)]
                unfinished = kinds.count(_UNFINISHED)
                self._handshake_failures[monitor] += len(kinds) - unfinished
                self.counts["handshakes_unfinished_total"] += unfinished
                self.counts["handshakes_refused_total"] += len(kinds) - unfinished

    def take_handshakes_refused(self) -> tuple[int, int]:
        """Return and reset the refused handshakes at the client listener and the peer listener."""
        clients, peers = self._handshake_failures.values()
        if clients or peers:
            self._handshake_failures = dict.fromkeys(self._handshake_failures, 0)
        return clients, peers

    def _answer_handshakes(self) -> None:
        """Answer the handshakes that wait; ZeroMQ asks about one after the other."""
        if self._zap is None or self._keys is None:
            return
        while int(self._zap.getsockopt(_EVENTS)) & _IN:
            reply, _ = admission.answer_handshake(self._zap.recv_multipart(_NOW), self._keys)
            self._zap.send_multipart(reply, _NOW)

    # -- in ------------------------------------------------------------------------------------

    def from_clients(self, messages_max: int, bytes_max: int) -> Iterator[Message]:
        return self._drain(self._client_listener, messages_max, bytes_max)

    def from_peers(self, messages_max: int, bytes_max: int) -> Iterator[Message]:
        return self._drain(self._peer_listener, messages_max, bytes_max)

    def _drain(
        self, listener: zmq.Socket[bytes], messages_max: int, bytes_max: int
    ) -> Iterator[Message]:
        """Read waiting messages up to the limits; the rest stays for the next turn."""
        if listener not in self._ready:
            return
        get, recv = listener.getsockopt, listener.recv
        for _ in range(messages_max):
            identity = recv(_NOW)  # a ROUTER puts it before every message
            if listener is self._peer_listener and identity not in self._sources:
                envelope = self._first_of(identity)
            else:
                envelope = recv(_NOW)
            frames = (
                _payloads(listener, listener in self._large_payload_listeners) if get(_MORE) else []
            )
            if frames is not None:
                size = sum(map(len, frames))
                if frames:
                    self._expect_large_payloads(listener, size >= COPY_BELOW_BYTES * len(frames))
                bytes_max -= len(envelope) + size
            else:
                self.counts["messages_with_too_many_frames_total"] += 1
                bytes_max -= TOO_MANY_BYTES
            yield identity, envelope, frames
            if not int(get(_EVENTS)) & _IN:
                self._sockets.note_empty(listener)
                return
            if bytes_max <= 0:
                break
        self._has_backlog = True

    def _first_of(self, identity: bytes) -> bytes:
        """Read the envelope of a connection's first message, and note its TCP socket."""
        frame = self._peer_listener.recv(_NOW, False)
        if len(self._sources) >= SOURCES_MAX:
            del self._sources[next(iter(self._sources))]  # noted again with its next message
        try:
            self._sources[identity] = os.fstat(int(frame.get(zmq.SRCFD))).st_ino
        except (OSError, zmq.ZMQError):  # closed by now; or an old protocol, which has no metadata
            self._sources[identity] = 0
        return bytes(frame.buffer)

    def _is_ours(self, inode: int, port: int) -> bool:
        """Whether a connection is between daemons of this cluster, so `floods` must not cut it."""
        known = (self._sources.get(identity) for identity in self.known_peers())
        return port not in self._ports or inode in known

    def _expect_large_payloads(self, listener: zmq.Socket[bytes], kept: bool) -> None:
        (self._large_payload_listeners.add if kept else self._large_payload_listeners.discard)(
            listener
        )

    def from_peer_connections(self) -> Iterator[tuple[tuple[str, int], bytes]]:
        """Read replies of peers to messages on our connections."""
        if self._ready <= self._listening:
            return
        for peer, link in list(self._peer_connections.items()):
            socket = link.socket
            if socket not in self._ready:
                continue
            for _ in range(LINK_MESSAGES_MAX):
                if not int(socket.getsockopt(_EVENTS)) & _IN:
                    break
                yield peer, socket.recv_multipart(_NOW)[0]
            else:
                self._has_backlog = True

    def take_broken_connections(self) -> Iterator[tuple[str, int]]:
        """Return peers whose connection broke since the last turn, and mark it as not greeted."""
        if self._ready <= self._listening:
            return
        for peer, link in list(self._peer_connections.items()):
            if link.monitor not in self._ready:
                continue
            is_broken = False
            for event, value in _events(link.monitor):
                link.hear(event, value, self._keys is not None)
                is_broken |= event == zmq.EVENT_DISCONNECTED
            if is_broken:
                link.greeted = False
                yield peer

    def client(self, identity: bytes) -> Client:
        client = self._clients.get(identity)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]  # made again with its next message
            client = self._clients[identity] = Client(identity, identity.hex())
        return client

    # -- out -----------------------------------------------------------------------------------

    def reply(self, client: Client, frames: list[Buffer]) -> None:
        if not self._send(self._client_listener, [client.identity, *frames]):
            self._clients.pop(client.identity, None)
            self.counts["replies_dropped_total"] += 1

    def reply_to_peer(self, peer: Peer, frame: bytes) -> None:
        self.reply_to_identity(peer.identity, frame)

    def reply_to_identity(self, identity: bytes, frame: bytes) -> None:
        if not self._send(self._peer_listener, [identity, frame]):
            self.counts["peer_replies_dropped_total"] += 1

    def check_connected(self, identity: bytes) -> bool:
        """Whether this connection of a peer still stands; sends it `probe` to find out."""
        self._sockets.note_use(self._peer_listener)
        try:
            self._peer_listener.send(identity, _NOW_MORE)
            self._peer_listener.send(self.probe, _NOW)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return error.errno == zmq.EAGAIN  # it does not read, but it is connected
        return True

    def send_to_peer(self, peer: tuple[str, int], frames: list[Buffer]) -> bool:
        link = self._peer_connections.get(peer)
        if link is None:
            return False
        if not link.greeted:
            self._greet(link)
            return False
        return self._send(link.socket, frames)

    def _send(self, socket: zmq.Socket[bytes], frames: list[Any]) -> bool:
        """All frames or none: only the first one can be refused."""
        self._sockets.note_use(socket)
        try:
            for frame in frames[:-1]:
                socket.send(frame, _NOW_MORE, copy=len(frame) < COPY_BELOW_BYTES)
            socket.send(frames[-1], _NOW, copy=len(frames[-1]) < COPY_BELOW_BYTES)
        except zmq.ZMQError as error:  # not connected (EHOSTUNREACH) or its queue is full (EAGAIN)
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    # -- connections to peers ------------------------------------------------------------------

    def set_peer_address(self, peer: tuple[str, int], address: str) -> None:
        """Connect to a peer's listener; a connection to another address of it is replaced.

        Brokers send their own addresses, so an address that is invalid is only counted.
        """
        link = self._peer_connections.get(peer)
        if link is not None:
            if link.address == address:
                return
            self.forget_peer(peer)
        socket = self._context.socket(zmq.DEALER)
        _common(socket, LINK_QUEUE_MESSAGES)
        for option, value in HEARTBEATS:
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues for a peer that is not connected
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if self._keys is not None:
            socket.curve_publickey, socket.curve_secretkey = self._keys.peers
            socket.curve_serverkey = self._keys.peers.public
        try:
            socket.connect(f"tcp://{address}")
        except zmq.ZMQError:
            socket.close(0)
            self.counts["peer_addresses_invalid_total"] += 1
            return
        link = self._peer_connections[peer] = _PeerConnection(socket, address, self.now)
        self._sockets.add(socket)
        self._sockets.add(link.monitor)

    def forget_peer(self, peer: tuple[str, int]) -> None:
        link = self._peer_connections.pop(peer, None)
        if link is not None:
            self._sockets.remove(link.socket)
            self._sockets.remove(link.monitor)
            link.socket.disable_monitor()
            link.monitor.close(0)
            link.socket.close(0)

    def greet(self, peer: tuple[str, int]) -> None:
        """Greet again: the peer does not know us (any more)."""
        link = self._peer_connections.get(peer)
        if link is not None:
            link.greeted = False
            self._greet(link)

    def _greet(self, link: _PeerConnection) -> None:
        if self.now >= link.next_greeting:
            link.next_greeting = self.now + GREET_EVERY_MS
            self._send(link.socket, [self._greeting])

    def greeted(self, peer: tuple[str, int]) -> None:
        link = self._peer_connections.get(peer)
        if link is not None:
            link.greeted, link.made_at = True, self.now

    def refuse_link(self, peer: tuple[str, int], why: str) -> None:
        """Note why the daemon that answered there was refused."""
        if link := self._peer_connections.get(peer):
            link.trouble = why

    def peer_problem(self, peer: tuple[str, int]) -> str:
        """Why nothing can be sent to this peer; "": it can, or there is no connection to it."""
        link = self._peer_connections.get(peer)
        return "" if link is None or link.greeted else link.trouble

    def tick(self, now: int) -> None:
        """Greet again where no answer came, and replace connections without one after a while."""
        self.now = now
        for peer, link in list(self._peer_connections.items()):
            if link.greeted:
                link.made_at = now
            elif now - link.made_at >= REMAKE_MS:
                self.forget_peer(peer)
                self.set_peer_address(peer, link.address)
                if peer in self._peer_connections:
                    self._peer_connections[peer].trouble = link.trouble
            else:
                self._greet(link)

    def close(self) -> None:
        """Close all sockets. Replies to clients get half a second to leave."""
        for listener, monitor in zip(
            (self._client_listener, self._peer_listener), self._handshake_failures, strict=True
        ):
            listener.disable_monitor()
            monitor.close(0)
        self._client_listener.close(500)
        self._peer_listener.close(0)
        for peer in list(self._peer_connections):
            self.forget_peer(peer)
        self._sockets.close()
        self._context.destroy(linger=0)


def _events(monitor: zmq.Socket[bytes]) -> Iterator[tuple[int, int]]:
    """Read the events of a monitor: kind and value of each."""
    while int(monitor.getsockopt(_EVENTS)) & _IN:
        frame = monitor.recv_multipart(_NOW)[0]
        yield int.from_bytes(frame[:2], "little"), int.from_bytes(frame[2:6], "little")


def _payloads(listener: zmq.Socket[bytes], kept: bool) -> list[Buffer] | None:
    """Read the frames after an envelope; None: there are too many.

    A frame that is received without a copy (`kept`) costs two microseconds more if it is small, and
    six less if it is large. The last message's size is the best guess.
    """
    frames: list[Buffer] = []
    recv, get = listener.recv, listener.getsockopt
    while len(frames) < PAYLOADS_MAX:
        if kept:
            frame = recv(_NOW, False)
            data = frame.buffer
            frames.append(bytes(data) if len(data) < COPY_BELOW_BYTES else data)
        else:
            frames.append(recv(_NOW))
        if not get(_MORE):
            return frames
    while get(_MORE):
        recv(_NOW)
    return None
