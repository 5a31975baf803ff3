"""One connection of the HTTP server: received bytes, bytes to send, its state and its deadline.

Only the reading thread reads from a connection. The thread that has the answer sends it; one thread
sends at a time. Neither ever waits. TLS is handled here, so that no other module needs to know
about it.
"""

from __future__ import annotations

import math
import socket
import ssl
from enum import IntEnum
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

from myqueue.gateway.http.pace import Pace
from myqueue.gateway.http.request_head import Head

if TYPE_CHECKING:
    from myqueue.gateway.http.body_budget import BodyReservation

RECEIVE_BYTES: Final = 64 << 10


class State(IntEnum):
    """The states of a connection, ordered by the life of a request.

    Only these methods of `Connection` change it. The server closes a connection whose deadline has
    passed; one that waits for room is told so (429).

        method         from                              to              deadline
        (new)          -                                 IDLE            header_timeout_ms
        begin_head     IDLE                              HEAD            header_timeout_ms
        await_room     IDLE, HEAD                        WAITS_FOR_ROOM  body_timeout_ms
        begin_body     IDLE, HEAD, WAITS_FOR_ROOM        BODY            body_timeout_ms
        begin_answer   IDLE, HEAD, WAITS_FOR_ROOM, BODY  ANSWERING       deadlines.making_s_max; of
                                                                         a refusal SEND_TIMEOUT_S
        begin_writing  ANSWERING                         WRITING         deadlines.sending_s_max
        end_answer     ANSWERING, WRITING                IDLE            idle_timeout_ms
        linger         IDLE                              LINGERING       deadlines.LINGER_S

    While the state is ANSWERING, only the thread that answers changes it: it hands the connection
    back by WRITING or IDLE. In all other states only the reading thread does.
    """

    IDLE = 0  # no byte of a request was received: nothing, or empty lines
    HEAD = 1  # a part of the head was received
    WAITS_FOR_ROOM = 2  # the head was received; the body is not read yet: others hold its bytes
    BODY = 3  # the head was received, and the body is being read
    ANSWERING = 4  # the answer is being made, or sent for the first time
    WRITING = 5  # a part of the answer was sent; the reading thread sends the rest
    LINGERING = 6  # the answer was sent; what still arrives is discarded until the client closes


# Each request compares its state some ten times. In Python 3.11 reading `State.IDLE` takes 60 ns,
# and a name of the module 10 ns.
IDLE, HEAD, WAITS_FOR_ROOM, BODY, ANSWERING, WRITING, LINGERING = State


class Connection:
    """A client's connection: its socket, the state of its request, and how fast data moves.

    Which thread may change a field:

        received, received_bytes, input_ended,      the reading thread
        had_request, wants_write, watched_events
        state, deadline, head, reservation,         the thread that answers while the state is
        unsent, sent_bytes, close_after_answer      ANSWERING, else the reading thread
        pace                                        the same; it is not measured in ANSWERING
        is_failed                                   any thread; it never becomes False again
        accepted_s, address, fd, sock, tls_lock     none

    Each of the two threads reads fields that the other one changes, without a lock. That relies on
    the interpreter's lock: setting a field is atomic, and other threads see changes in the order in
    which they were made. Reading and setting a field are two steps, so `|=` on a field of several
    threads is wrong. One exception from the table: the reading thread closes a connection that is
    overdue in ANSWERING; the thread that answers then fails to send.
    """

    __slots__ = (
        "accepted_s", "address", "close_after_answer", "deadline", "fd", "had_request", "head",
        "input_ended", "is_failed", "pace", "received", "received_bytes", "reservation",
        "sent_bytes", "sock", "state", "tls_lock", "unsent", "wants_write", "watched_events",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock, self.address, self.fd = sock, address, sock.fileno()
        self.received = bytearray()  # the bytes that were not yet taken out as a head or a body
        self.unsent: memoryview | None = None  # the rest of an answer
        self.received_bytes = self.sent_bytes = 0  # since it was opened
        self.head: Head | None = None  # of the request that is received or answered
        self.state = IDLE
        self.deadline = math.inf  # on the monotonic clock: the server closes the connection then
        self.had_request = False  # True once a request was received completely
        # The room of a body that waits for it, is read, or is large and answered.
        self.reservation: BodyReservation | None = None
        self.accepted_s = monotonic()
        # How fast the request arrives, or the answer is taken.
        self.pace = Pace(self.accepted_s)
        # OpenSSL allows one thread at a time, and the thread that answers is not the one that
        # reads.
        self.tls_lock = Lock() if isinstance(sock, ssl.SSLSocket) else None
        self.close_after_answer = False
        self.input_ended = False  # the client sends no more; it may still take answers
        # True when nothing can be sent any more, when its request failed, or when we closed it.
        self.is_failed = False
        self.wants_write = False  # TLS has to write before it can go on reading
        # The events that epoll reports (`open_connections.py`); None: none, not even its end.
        self.watched_events: int | None = None

    def describe(self) -> str:
        """Return the request that is under way and its client, for the log."""
        head = self.head
        # The path is percent-decoded: it may contain line ends.
        request = f"{head.method} {head.path[:100]!r}" if head is not None else "a connection"
        return f"{request} from {self.address}"

    # -- the table of `State` ---------------------------------------------------------------------

    def begin_head(self, timeout_s: float) -> None:
        """Measure how fast the rest of a head arrives."""
        self.state = HEAD
        self._begin_phase()
        self.expire_in(timeout_s)

    def await_room(self, timeout_s: float) -> None:
        """Wait until other bodies leave room for this one."""
        self.state = WAITS_FOR_ROOM
        self.expire_in(timeout_s)

    def begin_body(self, timeout_s: float) -> None:
        """Measure how fast the rest of a body arrives."""
        self.state = BODY
        self._begin_phase()
        self.expire_in(timeout_s)

    def begin_answer(self, timeout_s: float) -> None:
        """Leave the connection to the thread that answers."""
        self.state = ANSWERING
        self.expire_in(timeout_s)

    def begin_writing(self, timeout_s: float) -> None:
        """Leave the rest of the answer to the reading thread."""
        self.pace.begin(monotonic(), self.sent_bytes)
        self.expire_in(timeout_s)
        self.state = WRITING  # last: from now on all belongs to the reading thread

    def end_answer(self, idle_timeout_s: float) -> None:
        """Leave the connection to the reading thread: the answer was sent, or can't be."""
        self.expire_in(idle_timeout_s)
        self.state = IDLE  # last: from now on all belongs to the reading thread

    def linger(self, timeout_s: float) -> bool:
        """Send the end, and leave the closing to the client: closing a socket with unread bytes
        would make the client lose the answer. Return False if the connection failed.
        """
        self.received.clear()
        self.state = LINGERING
        self.expire_in(timeout_s)
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def expire_in(self, seconds: float) -> None:
        """Set the deadline to so long from now."""
        self.deadline = monotonic() + seconds

    def _begin_phase(self) -> None:
        """Start measuring how fast a head or a body arrives."""
        self.pace.begin(monotonic(), self.received_bytes)

    def release_reservation(self) -> None:
        """Give back the room of the body, if it has any."""
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            reservation.release()

    # -- bytes ------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Read what is there without waiting. Set `input_ended` at its end, or `is_failed`."""
        if self.tls_lock is None:
            self._receive()
            return
        with self.tls_lock:
            self._receive()

    def _receive(self) -> None:
        self.wants_write = False
        while True:
            try:
                chunk = self.sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                self.wants_write = True
                return
            except OSError:
                self.is_failed = True
                return
            if not chunk:
                self.input_ended = True
                return
            self.received += chunk
            self.received_bytes += len(chunk)
            # TLS buffers bytes that cause no event, so it is read until empty; a plain socket is
            # read once.
            if not isinstance(self.sock, ssl.SSLSocket) or not self.sock.pending():
                return

    def send(self, data: bytes | memoryview) -> bool:
        """Send as much as possible without waiting and keep the rest in `unsent`. If the connection
        failed, set `is_failed` and return False.
        """
        try:
            if self.tls_lock is None:
                sent = self.sock.send(data)
            else:
                with self.tls_lock:
                    sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError:
            self.unsent, self.is_failed = None, True
            return False
        self.sent_bytes += sent
        self.unsent = memoryview(data)[sent:] if sent < len(data) else None
        return True

    # -- how fast they move -----------------------------------------------------------------------

    @property
    def is_slow(self) -> bool:
        """True if the server waits for this client, and its bytes move slowly."""
        return self.is_measured and self.pace.is_slow

    @property
    def is_measured(self) -> bool:
        """True if the server waits for bytes of this client, or for it to take some. A new
        connection counts too: many that send nothing must not hold all places.
        """
        state = self.state
        return state in (HEAD, BODY, WRITING) or (state == IDLE and not self.had_request)

    @property
    def progress(self) -> int:
        """The bytes that have moved in the direction that is measured."""
        return self.sent_bytes if self.state == WRITING else self.received_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the answer that the client has not taken yet."""
        rest = self.unsent
        return 0 if rest is None else len(rest)
