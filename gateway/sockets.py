"""One connection of the HTTP server: bytes in, bytes out, and until when it may take.

Belongs to one thread at a time: the server arms it for one event, and whoever gets the event owns
it until it is armed again. Reading and writing never wait, except in `send_all`, which a stream
uses that holds its thread anyway. TLS is spoken here, so that nobody else has to know of it.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Final

from myqueue.gateway.http1 import Head

IDLE, HEAD, BODY, WORKING, WRITING, LINGERING = range(6)
RECEIVE_BYTES: Final = 64 << 10


class Connection:
    """See the chapter's head."""

    __slots__ = (
        "address", "closes", "data", "deadline", "head", "out", "sock", "state", "wants_write",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str, deadline: float) -> None:
        self.sock, self.address = sock, address
        self.data = bytearray()  # received, not yet used
        self.out: memoryview | None = None  # to be sent
        self.head: Head | None = None  # of the request that is being received
        self.state = IDLE
        self.deadline = deadline  # on the monotonic clock: the server ends it then
        self.closes = False  # after what is to be sent
        self.wants_write = False  # TLS has to write before it can go on reading

    def receive(self) -> bool:
        """Take what is there. False: it was closed by the other side, or broke."""
        self.wants_write = False
        while True:
            try:
                chunk = self.sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return True
            except ssl.SSLWantWriteError:
                self.wants_write = True
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self.data += chunk
            # TLS keeps bytes that no event would tell of; a plain socket is asked once.
            if not isinstance(self.sock, ssl.SSLSocket) or len(self.data) > 4 * RECEIVE_BYTES:
                return True

    def send(self, data: bytes | memoryview) -> bool:
        """As much as goes without waiting; the rest is kept in `out`. False: it broke."""
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError:
            return False
        self.out = memoryview(data)[sent:] if sent < len(data) else None
        return True

    def send_all(self, data: bytes, timeout_s: float) -> bool:
        """Waits; False: it broke, or the other side took nothing for so long."""
        waits = select.poll()
        waits.register(self.sock.fileno(), select.POLLOUT)
        left: memoryview | None = memoryview(data)
        while left:
            if not self.send(left):
                return False
            left, self.out = self.out, None
            if left and not waits.poll(timeout_s * 1000):
                return False
        return True

    def end(self) -> None:
        """Tell whoever owns it that it is over; from any thread."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def end_output(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
