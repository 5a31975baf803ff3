"""Open the listening socket, and build the TLS settings of its connections."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from myqueue.gateway.settings import GatewayConfig

BACKLOG: Final = 1024


def listen(address: str) -> socket.socket:
    """Open a listening socket on HOST:PORT, not blocking. Raises OSError."""
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
    """A TLS socket whose client may have closed the connection before the first byte.

    The plain class asks for the peer's address while it is built; for a closed connection that
    fails and leaks the file. Here the next read reports the end, as on every other connection.
    """

    def getpeername(self) -> Any:
        try:
            return super().getpeername()
        except OSError:
            return ("", 0)


def make_tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """Build the TLS settings; None if no certificate is configured."""
    if not config.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _TlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    return context
