"""One connection of the HTTP server: received bytes, bytes to send, and its deadline.

Only the server's own thread reads from a connection. The thread that has the answer sends it; one
thread sends at a time. Neither ever waits. TLS is handled here, so that no other module needs to
know about it.
"""

from __future__ import annotations

import math
import socket
import ssl
from enum import IntEnum
from threading import Lock
from time import monotonic
from typing import Final

from myqueue.gateway.http.pace import Pace
from myqueue.gateway.http.request_head import Head

RECEIVE_BYTES: Final = 64 << 10


class State(IntEnum):
    """What a connection does, ordered by the life of a request.

    Until the state is ANSWERING, only the reading thread changes it. Then the thread that has the
    answer hands the connection back by IDLE or WRITING.

        from                         to              by                    in
        IDLE                         HEAD            _wait_for_head        the reading thread
        HEAD                         IDLE            _wait_for_head        the reading thread
        IDLE, HEAD                   WAITS_FOR_ROOM  _wait_for_body        the reading thread
        IDLE, HEAD, WAITS_FOR_ROOM   BODY            _read_body            the reading thread
        IDLE, HEAD, BODY             ANSWERING       _begin_request        the reading thread
        any of the above             ANSWERING       _refuse               the reading thread
        ANSWERING                    IDLE, WRITING   finish_or_hand_over   the one that answers
        WRITING                      IDLE            finish_or_hand_over   the reading thread
        IDLE                         LINGERING       _continue             the reading thread
    """

    IDLE = 0  # no byte of a request was received
    HEAD = 1  # a part of the head was received
    BODY = 2  # the head was received, and the body is being read
    WAITS_FOR_ROOM = 3  # the head was received; the body is not read yet: others hold its bytes
    ANSWERING = 4  # the answer is being made, or sent for the first time
    WRITING = 5  # a part of the answer was sent; the reading thread sends the rest
    LINGERING = 6  # the answer was sent; what still arrives is discarded until the client closes


# Each request compares its state some ten times. In Python 3.11 reading `State.IDLE` takes 60 ns,
# and a name of the module 10 ns.
IDLE, HEAD, BODY, WAITS_FOR_ROOM, ANSWERING, WRITING, LINGERING = State
PARSED: Final = (IDLE, HEAD, BODY)  # received bytes are parsed at once in these states


class Connection:
    """A client's connection: its socket, the state of its request, and how fast data moves.

    Invariant: only the reading thread changes `received`, `head`, `is_read_paused` and
    `is_watched`; while the state is ANSWERING, `unsent`, `head_in_answer` and `large_body_bytes`
    belong to the thread that answers.
    """

    __slots__ = (
        "address", "close_after_answer", "deadline", "fd", "had_request", "head", "head_in_answer",
        "is_broken", "is_read_paused", "is_watched", "large_body_bytes", "pace", "received", "sock",
        "state", "tls_lock", "unsent", "unsent_at_begin", "wants_write",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock, self.address, self.fd = sock, address, sock.fileno()
        self.received = bytearray()  # and not yet taken out as a head or a body
        self.unsent: memoryview | None = None  # the rest of an answer
        self.head: Head | None = None  # head of the request that is being received
        self.head_in_answer: Head | None = None  # head of the request that is being answered
        self.state = IDLE
        self.deadline = math.inf  # on the monotonic clock: the server closes the connection then
        self.had_request = False  # at least one request was received completely
        self.large_body_bytes = 0  # size of a large body that is not answered yet
        self.unsent_at_begin = 0  # `unsent_bytes` when the phase that `pace` measures began
        self.pace = Pace(monotonic())  # how fast the request arrives, or the answer is taken
        # OpenSSL allows one thread at a time, and the thread that answers is not the one that
        # reads.
        self.tls_lock = Lock() if isinstance(sock, ssl.SSLSocket) else None
        self.close_after_answer = False
        self.is_broken = False  # the client has closed it, or it failed
        self.is_watched = True  # registered with epoll
        # Reading is paused: too much was received ahead, or the body must wait for room.
        self.is_read_paused = False
        self.wants_write = False  # TLS has to write before it can go on reading

    def describe(self) -> str:
        """Return the request that is under way and its client, for the log."""
        head = self.head or self.head_in_answer
        # The path is percent-decoded: it may contain line ends.
        request = f"{head.method} {head.path[:100]!r}" if head is not None else "a connection"
        return f"{request} from {self.address}"

    def expire_in(self, ms: float) -> None:
        """Set the deadline to so long from now."""
        self.deadline = monotonic() + ms / 1000

    def receive(self) -> None:
        """Read what is there without waiting; set `is_broken` if the client closed it."""
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
                self.is_broken = True
                return
            if not chunk:
                self.is_broken = True
                return
            self.received += chunk
            # TLS buffers bytes that cause no event, so it is read until empty; a plain socket is
            # read once.
            if not isinstance(self.sock, ssl.SSLSocket) or not self.sock.pending():
                return

    def send(self, data: bytes | memoryview) -> bool:
        """Send as much as possible without waiting and keep the rest in `unsent`. Return False if
        the connection failed.
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
            self.unsent = None
            return False
        self.unsent = memoryview(data)[sent:] if sent < len(data) else None
        return True

    def begin_phase(self) -> None:
        """Start measuring progress: of the request, its body, or the sending of its answer."""
        self.unsent_at_begin = self.unsent_bytes
        self.pace.begin(monotonic(), self.progress)

    @property
    def progress(self) -> int:
        """Bytes of the request received so far, or bytes of the answer taken so far."""
        return len(self.received) if self.is_receiving else self.unsent_at_begin - self.unsent_bytes

    @property
    def expects_continue(self) -> bool:
        """True if the client waits for a 100 Continue before it sends the body."""
        return self.head is not None and self.head.expects_continue

    @property
    def is_receiving(self) -> bool:
        """True before a request was received completely."""
        return self.state < ANSWERING

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the answer that the client has not taken yet."""
        rest = self.unsent
        return 0 if rest is None else len(rest)

    def end_output(self) -> None:
        """Tell the client that no more bytes follow."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_broken = True
