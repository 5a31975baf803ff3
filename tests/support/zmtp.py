"""A stranger that speaks ZMTP 3.1 over a plain TCP socket, and can send what no library sends."""

from __future__ import annotations

import socket
import struct


def _greeting(mechanism: bytes = b"NULL") -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def greet(port: int, mechanism: bytes) -> socket.socket:
    """A connection whose handshake begins, with keys (CURVE) or without (NULL)."""
    one = socket.create_connection(("127.0.0.1", port), timeout=10)
    one.sendall(_greeting(mechanism))
    return one


def message(data: bytes) -> bytes:
    """Return one frame as ZMTP sends it."""
    return b"\0" + bytes([len(data)]) + data


def ping(ttl_ms: int) -> bytes:
    data = b"\x04PING" + struct.pack(">H", ttl_ms // 100)
    return b"\x04" + bytes([len(data)]) + data


def connect(port: int, name: bytes = b"") -> socket.socket:
    """A connection after its handshake, as a DEALER of that name."""
    one = socket.create_connection(("127.0.0.1", port), timeout=10)
    properties = ((b"Socket-Type", b"DEALER"), (b"Identity", name))
    ready = b"\x05READY" + b"".join(
        bytes([len(key)]) + key + struct.pack(">I", len(value)) + value for key, value in properties
    )
    one.sendall(_greeting() + b"\x04" + bytes([len(ready)]) + ready)
    _receive(one, len(_greeting()))
    _receive(one, _receive(one, 2)[1])
    return one


def _receive(one: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = one.recv(size - len(got))
        assert part, "the other side hung up in the handshake"
        got += part
    return got


def send(one: socket.socket, data: bytes) -> bool:
    """Send bytes; return False if the other side has closed or does not read."""
    try:
        one.sendall(data)
    except OSError:
        return False
    return True


def hang_up(one: socket.socket) -> None:
    """Close with a reset, as the kernel does for a process that is killed."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
