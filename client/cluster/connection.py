"""Connections: one DEALER socket for each daemon's address, its waiting requests, and the poll.

Everything here belongs to the I/O thread of a session (`io_thread.py`), except `Sockets.wake`.

A connection goes through `DOWN → OPENING → GREETING → READY → DOWN …`. Its first request opens it
and waits until it is ready. Invariant: each request is sent on one connection, once; if that
breaks, its sender learns that the outcome is unknown, and decides. Four properties of ZeroMQ would
break this or delay it:

- It reconnects silently and delivers messages that were queued for the old connection. So
  reconnecting is off, nothing is queued without a connection (IMMEDIATE), and after any failure the
  socket is replaced by a new one, with a fresh identity and a new HELLO.
- "Sent" means queued. Only an answer proves that a daemon received a request.
- It notices dead hosts late. So heartbeats are on, and a monitor on each socket reports
  disconnects, refusals and failed handshakes within milliseconds.
- It counts messages, not bytes. Senders limit their own bytes in flight. Every answer was requested
  with a limit, so receiving needs no other; and it must have none, because libzmq 4.3.5 ends the
  process if a connection breaks while its receive queue is full.

An answer finds its request by its id. PRODUCED and TAKEN carry results of several requests
(`Waiter.produced`, `Waiter.taken`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final

import zmq

from myqueue.cluster.waiters import Envelope, Waiter, failure
from myqueue.errors import (
    UNKNOWN,
    Closed,
    ClusterMismatch,
    MyQueueError,
    OutcomeUnknown,
    Unreachable,
)
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer
from myqueue.wire.clock import now_ms
from myqueue.wire.keyfiles import ClientKey, Keypair
from myqueue.wire.ready_sockets import READABLE, WRITABLE, ReadySockets

log = logging.getLogger("myqueue.client")

DOWN, OPENING, GREETING, READY, SHUT = "down", "opening", "greeting", "ready", "shut"
# Below this size copying a frame costs less than keeping its buffer for ZeroMQ (DESIGN.md).
COPY_BYTES_MAX: Final = 64 << 10
RECEIVE_AT_ONCE: Final = 512
BACKOFF_MS_MIN: Final = 20
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1_000, 3_000
_OPTIONS: Final = (
    (zmq.LINGER, 0),
    (zmq.IMMEDIATE, 1),
    (zmq.RECONNECT_IVL, -1),
    (zmq.SNDHWM, 64),
    (zmq.RCVHWM, 0),
    (zmq.MAXMSGSIZE, words.FRAME_BYTES_MAX),
    (zmq.HANDSHAKE_IVL, 5_000),
    (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
    (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
    (zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS),
)
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
REFUSED: Final = "connection refused, or no such host"
NO_HANDSHAKE: Final = (
    "handshake failed: the daemon requires a client key (set MYQ_KEY), or a key was given to a"
    " cluster without keys"
)
_SAID: Final[dict[int, str]] = {
    zmq.EVENT_DISCONNECTED: "the connection was lost",
    zmq.EVENT_CLOSED: REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not accept our key",
}


def new_keypair() -> Keypair:
    return Keypair(*zmq.curve_keypair())


class Greeting:
    """The content of every HELLO, and the cluster that answered; all connections share it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cluster_id = ""


class Sockets:
    """A ZeroMQ context, and one poll over all its sockets and a wake-up."""

    def __init__(self, key: ClientKey | None = None) -> None:
        self.now = now_ms()  # of this turn
        self._key = key
        self._context = zmq.Context()
        self._ready = ReadySockets()
        self.note_use = self._ready.note_use
        self._handlers: dict[Any, Callable[[], object]] = {}
        # Reentrant: a finalizer may call `wake` in the middle of `wake`.
        self._bell_lock = threading.RLock()
        bell = self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready.add_descriptor(bell)
        self._handlers[bell] = lambda: os.eventfd_read(bell)

    def wake(self) -> None:
        """Let the current or next poll return at once; from any thread."""
        with self._bell_lock:  # else it could be closed between the check and the write
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def poll(self, timeout_ms: int) -> None:
        """Wait for at most this time, then run the handlers of all readable sockets."""
        self._ready.wait(timeout_ms)
        self.now = now_ms()
        for socket in tuple(self._ready.ready):
            handler = self._handlers.get(socket)  # None if another handler closed it just now
            try:
                if handler is not None:
                    handler()
            except Exception:
                log.exception("a callback in the I/O thread failed")

    def dealer(self, ipv6: bool) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, ipv6)
        for option, value in _OPTIONS:
            socket.setsockopt(option, value)
        if self._key is not None:
            public, secret, door = self._key
            socket.curve_publickey, socket.curve_secretkey = public, secret
            socket.curve_serverkey = door
        return socket

    def watch(self, socket: zmq.Socket[bytes], handler: Callable[[], None]) -> None:
        self._handlers[socket] = handler
        self._ready.add(socket)

    def has_more(self, socket: zmq.Socket[bytes]) -> bool:
        events: Any = socket.getsockopt(zmq.EVENTS)
        return bool(events & zmq.POLLIN)

    def want_room(self, socket: zmq.Socket[bytes], wanted: bool) -> None:
        self._ready.want(socket, READABLE | WRITABLE if wanted else READABLE)

    def drop(self, socket: zmq.Socket[bytes]) -> None:
        if self._handlers.pop(socket, None) is not None:
            self._ready.remove(socket)
        socket.close(linger=0)

    def close(self) -> None:
        self._ready.close()
        self._context.destroy(linger=0)
        with self._bell_lock:
            bell, self._bell = self._bell, -1
            os.close(bell)


class Connection:
    """Requests to the daemon at one address."""

    def __init__(
        self,
        sockets: Sockets,
        address: str,
        greeting: Greeting,
        connect_timeout_ms: int = 3_000,
        backoff_ms_max: int = 1_000,
    ) -> None:
        self.address, self.state = address, DOWN
        self.error: MyQueueError | None = None  # why it is down, or was last
        self.node, self.kind, self.limits = 0, "", {}  # type: ignore[var-annotated]
        self.refused_since = 0  # since when every attempt was refused; 0: the last one was not
        self.on_change: Callable[[Connection], None] = lambda connection: None
        self._sockets, self._greeting = sockets, greeting
        self._connect_timeout_ms, self._backoff_ms_max = connect_timeout_ms, backoff_ms_max
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._next_id = 1
        self._waiters: dict[int, Waiter] = {}  # sent, by id
        self._queue: deque[tuple[int, list[Buffer], list[Waiter]]] = deque()  # not sent
        self._attempts = 0
        self._due = 0  # DOWN: not opened before then; OPENING, GREETING: given up then
        self._heard = 0

    # -- asking -----------------------------------------------------------------------------------

    def request(
        self, kind: int, fields: Sequence[Any], frames: Sequence[Buffer], waiter: Waiter
    ) -> int:
        """Send a request now, or when the connection is ready; returns its id for `forget`."""
        return self.produce(kind, fields, frames, [waiter])

    def produce(
        self, kind: int, fields: Sequence[Any], frames: Sequence[Buffer], waiters: list[Waiter]
    ) -> int:
        """Send one message with several requests; their ids count up from the returned one."""
        first = self._next_id
        self._next_id += len(waiters)
        message: list[Buffer] = [words.encode(kind, first, *fields), *frames]
        if self.state != READY or self._queue or not self._sent(message):
            self._queue.append((first, message, waiters))
            if self.state == READY and self._socket is not None:
                self._sockets.want_room(self._socket, True)
        else:
            self._await(first, waiters)
        return first

    def forget(self, request: int) -> None:
        """Stop waiting for an answer. An unsent request is not sent any more.

        Then the other requests of the same message are lost too, and their waiters learn it.
        """
        if self._waiters.pop(request, None) is not None:
            return
        for item in self._queue:
            first, _, waiters = item
            if first <= request < first + len(waiters):
                self._queue.remove(item)
                others = [other for at, other in enumerate(waiters, first) if at != request]
                for waiter in others:
                    waiter.lost(Unreachable(f"{self.address}: not sent", component=self.address))
                return

    def take(self, request: int) -> Waiter | None:
        """Remove and return the waiter of a request that was sent."""
        return self._waiters.pop(request, None)

    @property
    def is_ready(self) -> bool:
        return self.state == READY

    @property
    def is_idle(self) -> bool:
        return not self._waiters and not self._queue

    def silent_since(self, moment: int) -> bool:
        """Did nothing at all arrive after that moment?"""
        return self._heard <= moment

    def _await(self, first: int, waiters: list[Waiter]) -> None:
        for at, waiter in enumerate(waiters):
            self._waiters[first + at] = waiter

    def _sent(self, message: list[Buffer]) -> bool:
        """Send a message. False: no room, nothing was sent; the first frame decides for all."""
        socket, last = self._socket, len(message) - 1
        if socket is None:
            return False
        self._sockets.note_use(socket)
        try:
            for at, frame in enumerate(message):
                flags = zmq.DONTWAIT if at == last else zmq.DONTWAIT | zmq.SNDMORE
                socket.send(frame, flags, copy=len(frame) < COPY_BYTES_MAX)
        except zmq.Again:
            return False
        return True

    # -- opening and closing ----------------------------------------------------------------------

    def turn(self) -> int | None:
        """Handle what is due. Returns when it must be called again (ms), or None."""
        if self.state == DOWN and self._queue:
            self.open()
        elif self.state in (OPENING, GREETING) and self._sockets.now >= self._due:
            self.broke(f"no answer to a greeting within {self._connect_timeout_ms} ms")
        waits = self.state in (OPENING, GREETING) or (self.state == DOWN and self._queue)
        return self._due if waits else None

    def open(self) -> None:
        """Connect, even without a request, if the pause after a failure is over."""
        if self.state != DOWN or self._sockets.now < self._due:
            return
        self.state, self._due = OPENING, self._sockets.now + self._connect_timeout_ms
        # IPv6 only for an address in brackets: with it, "localhost" would mean only ::1.
        socket = self._socket = self._sockets.dealer(ipv6="[" in self.address)
        try:
            self._monitor = socket.get_monitor_socket(_EVENTS)
            self._sockets.watch(socket, self._readable)
            self._sockets.watch(self._monitor, self._monitored)
            socket.connect(self.address)
        except (zmq.ZMQError, ValueError) as error:  # ValueError: a text that cannot be encoded
            self.broke(f"can't connect: {error}")

    def _monitored(self) -> None:
        while self._monitor is not None:
            try:
                event = int.from_bytes(self._monitor.recv_multipart(zmq.DONTWAIT)[0][:2], "little")
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.state, self.refused_since = GREETING, 0
                hello = (self._greeting.name, self._greeting.cluster_id)
                self._queue.appendleft((0, [words.encode(words.HELLO, 0, *hello)], []))
                self._flush()
            else:
                self._readable()  # answers that arrived before the end still count
                self.broke(_SAID.get(event, NO_HANDSHAKE))

    def _flush(self) -> None:
        """Send waiting messages: before the WELCOME only the HELLO, then all."""
        while self._queue and (self.state == READY or not self._queue[0][0]):
            first, message, waiters = self._queue[0]
            if not self._sent(message):
                break
            self._queue.popleft()
            self._await(first, waiters)
        if self._socket is not None:
            unsent = bool(self._queue) and (self.state == READY or not self._queue[0][0])
            self._sockets.want_room(self._socket, unsent)

    def broke(self, why: str, error: MyQueueError | None = None) -> None:
        """Replace a broken socket: fail its requests; the next request opens a new one."""
        if self.state in (DOWN, SHUT):
            return
        self._drop()
        pause = min(self._backoff_ms_max, BACKOFF_MS_MIN << min(self._attempts, 10))
        self._due = self._sockets.now + pause
        self._attempts += 1
        self.state = DOWN
        self.refused_since = (self.refused_since or self._sockets.now) if why == REFUSED else 0
        log.info("%s: %s", self.address, why)
        text = f"{self.address}: {why}"
        self._fail_all(
            error or Unreachable(text, component=self.address),
            error or OutcomeUnknown(text, component=self.address),
        )
        self.on_change(self)

    def _fail_all(self, not_done: MyQueueError, maybe_done: MyQueueError) -> None:
        """Fail all requests, each with an error of its own: sent ones may have been done."""
        unsent = [waiter for first, _, waiters in self._queue if first for waiter in waiters]
        sent = list(self._waiters.values())
        self._queue.clear()
        self._waiters.clear()
        self.error = not_done
        for waiter in sent:
            waiter.lost(copy(maybe_done))
        for waiter in unsent:
            waiter.lost(copy(not_done))

    def _drop(self) -> None:
        socket, monitor = self._socket, self._monitor
        self._socket = self._monitor = None
        if socket is not None:
            if monitor is not None:
                socket.disable_monitor()
                self._sockets.drop(monitor)
            self._sockets.drop(socket)

    def shut(self, why: str) -> None:
        """Close the connection permanently."""
        self._drop()
        self.state = SHUT
        maybe_done = Closed(why)
        maybe_done.outcome = UNKNOWN
        self._fail_all(Closed(why), maybe_done)

    # -- receiving --------------------------------------------------------------------------------

    def _readable(self) -> None:
        for _ in range(RECEIVE_AT_ONCE):
            if self._socket is None:
                return
            try:
                part = self._socket.recv(zmq.DONTWAIT, copy=False)
                head, frames = part.bytes, []
                while part.more:
                    part = self._socket.recv(zmq.DONTWAIT, copy=False)
                    small = len(part) < COPY_BYTES_MAX
                    frames.append(part.bytes if small else part.buffer)
            except zmq.Again:
                break
            try:
                envelope = words.decode(head)
            except MyQueueError as error:
                log.warning("%s sent what can't be read: %s", self.address, error)
            else:
                self._received(envelope, frames)
            # Asking first costs a third of the exception that an empty socket raises.
            if self._socket is None or not self._sockets.has_more(self._socket):
                break
        if self._queue:
            self._flush()

    def _received(self, envelope: Envelope, frames: list[Buffer]) -> None:
        self._heard = self._sockets.now
        kind = envelope[words.KIND]
        if kind == words.PRODUCED:
            for row in envelope[words.FIELDS]:
                waiter = self._waiters.pop(row[0], None)
                if waiter is not None:
                    waiter.produced(row)
        elif kind == words.TAKEN:
            for row in envelope[words.FIELDS]:
                waiter = self._waiters.pop(row[0], None)
                if waiter is not None:
                    waiter.taken(row, frames)
        elif envelope[words.REQUEST] == 0:
            self._greeted(envelope)
        else:
            waiter = self._waiters.pop(envelope[words.REQUEST], None)
            if waiter is not None:
                waiter.answered(envelope, frames)

    def _greeted(self, envelope: Envelope) -> None:
        if self.state != GREETING:
            return
        if envelope[words.KIND] == words.ERROR:
            error = failure(envelope)
            self.broke(str(error), error=error)
        elif envelope[words.KIND] == words.WELCOME:
            cluster, self.kind, self.node, _, self.limits = envelope[words.FIELDS :]
            ours = self._greeting.cluster_id
            if ours and cluster != ours:
                text = f"{self.address} belongs to cluster {cluster}, not to {ours}"
                error = ClusterMismatch(text, component=self.address)
                self.broke(text, error=error)
                return
            self._greeting.cluster_id = cluster
            self.state, self._attempts, self.error = READY, 0, None
            self._flush()
            self.on_change(self)
