"""One connection of the HTTP server: what came, what is to go, and until when it may take.

Reading belongs to the server's own thread. Sending belongs to whoever has the answer, one at a
time. Neither ever waits, except `send_all`, which a stream uses that holds its thread anyway. TLS
is spoken here, so that nobody else has to know of it.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
from threading import Lock
from time import monotonic
from typing import Any, Final

from myqueue.gateway.http.request_head import Head
from myqueue.gateway.settings import GatewayConfig

# IDLE: waits for a request; HEAD, BODY: has a part of one; QUEUED: has a head, and its body is not
# read yet; WORKING: the answer is being made; WRITING: a part of it is sent; LINGERING: all is
# sent, and what still comes is thrown away.
IDLE, HEAD, BODY, QUEUED, WORKING, WRITING, LINGERING = range(7)
RECEIVE_BYTES: Final = 64 << 10
BACKLOG: Final = 1024


class Connection:
    """See the chapter's head."""

    __slots__ = (
        "address", "bytes_at_begin", "bytes_per_s", "closes", "data", "deadline", "had_request",
        "head", "is_broken", "is_read_paused", "is_watched", "large_body_bytes",
        "last_progress_s", "lock", "number", "pace_checked_bytes", "pace_checked_s",
        "phase_begin_s", "sock", "state", "unsent", "wants_write",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str, deadline: float) -> None:
        self.sock, self.address, self.number = sock, address, sock.fileno()
        self.data = bytearray()  # received, not yet used
        self.unsent: memoryview | None = None  # to be sent
        self.head: Head | None = None  # of the request that is being received
        self.state = IDLE
        self.deadline = deadline  # on the monotonic clock: the server ends it then
        self.had_request = False  # a request of it was whole
        self.large_body_bytes = 0  # bytes of a large body that is not answered yet
        # How fast the request comes, or the answer goes; `memory_limit.py` looks at it now and
        # then.
        self.phase_begin_s = self.pace_checked_s = self.last_progress_s = 0.0
        self.bytes_at_begin = self.pace_checked_bytes = 0
        self.bytes_per_s = math.inf  # bytes per second; not known yet
        self.begin_phase()
        # OpenSSL allows one thread at a time, and who answers is not the thread that reads.
        self.lock = Lock() if isinstance(sock, ssl.SSLSocket) else None
        self.closes = False  # after what is to be sent
        self.is_broken = False  # the other side has ended it
        self.is_watched = True  # its events are asked for
        self.is_read_paused = False  # so much came ahead that nothing more is read for now
        self.wants_write = False  # TLS has to write before it can go on reading

    def receive(self) -> None:
        """Take what is there; `gone` if that is the end."""
        if self.lock is None:
            self._receive()
            return
        with self.lock:
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
            self.data += chunk
            # TLS keeps bytes that no event would tell of; a plain socket is asked once.
            if not isinstance(self.sock, ssl.SSLSocket) or not self.sock.pending():
                return

    def send(self, data: bytes | memoryview) -> bool:
        """As much as goes without waiting; the rest is kept in `out`. False: it broke."""
        try:
            if self.lock is None:
                sent = self.sock.send(data)
            else:
                with self.lock:
                    sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError:
            self.unsent = None
            return False
        self.unsent = memoryview(data)[sent:] if sent < len(data) else None
        return True

    def send_all(self, data: bytes, timeout_s: float) -> bool:
        """Waits; False: it broke, or the other side took nothing for so long."""
        left: memoryview | None = memoryview(data)
        while left:
            if not self.send(left):
                return False
            left, self.unsent = self.unsent, None
            if left:
                room = select.poll()
                room.register(self.number, select.POLLOUT)
                if not room.poll(timeout_s * 1000):
                    return False
        return True

    def begin_phase(self) -> None:
        """The request, its body, or the sending of its answer."""
        self.phase_begin_s = self.pace_checked_s = self.last_progress_s = monotonic()
        self.bytes_at_begin = self.unsent_bytes
        self.pace_checked_bytes, self.bytes_per_s = self.progress, math.inf

    @property
    def progress(self) -> int:
        """Bytes that came of a request, or that were taken of an answer."""
        return len(self.data) if self.state < WORKING else self.bytes_at_begin - self.unsent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes of an answer that the other side has not taken yet."""
        left = self.unsent
        return 0 if left is None else len(left)

    def end_output(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_broken = True


def listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class _TlsSocket(ssl.SSLSocket):
    """One whose other side may be gone before the first byte: reading tells that, as of all others.

    Asked for the address of such a peer while it is made, a plain one fails and leaves its file
    open.
    """

    def getpeername(self) -> Any:
        try:
            return super().getpeername()
        except OSError:
            return ("", 0)


def make_tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    if not config.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _TlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    return context
