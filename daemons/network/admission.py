"""Answers handshakes: which keys may connect (ZeroMQ's ZAP, RFC 27).

With keys every connection is encrypted. Before its first message ZeroMQ asks this file, naming the
listener (the domain) and the public key of the other side. Without the answer any client that knows
a daemon's public key could connect. The peer listener admits the peers' own key only, the client
listener the keys in the folder. Pure except for reading that folder.
"""

from __future__ import annotations

from typing import Protocol

PEER_DOMAIN, CLIENT_DOMAIN = b"peers", b"clients"
Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class AdmittedKeys(Protocol):
    @property
    def peers(self) -> tuple[bytes, bytes]: ...

    def admits(self, public: bytes) -> str | None: ...


def answer_handshake(request: list[bytes], keys: AdmittedKeys) -> tuple[list[bytes], bool]:
    """Return the reply to a request of ZeroMQ, and whether it admits the connection."""
    number = request[1] if len(request) > 1 else b""
    name = _name(request, keys)
    if name is None:
        return [b"1.0", number, b"400", b"this key is not admitted", b"", b""], False
    return [b"1.0", number, b"200", b"", name.encode(), b""], True


def _name(request: list[bytes], keys: AdmittedKeys) -> str | None:
    if len(request) != 7 or request[0] != b"1.0" or request[5] != b"CURVE" or len(request[6]) != 32:
        return None
    domain, public = request[2], z85(request[6])
    if domain == PEER_DOMAIN:
        return "peer" if public == keys.peers[0] else None
    return keys.admits(public) if domain == CLIENT_DOMAIN else None


def z85(data: bytes) -> bytes:
    """Encode a key as files have it. Its length is a multiple of four.

    >>> z85(bytes.fromhex("864fd26fb559f75b"))
    b'HelloWorld'
    """
    out = bytearray()
    for at in range(0, len(data), 4):
        number = int.from_bytes(data[at : at + 4], "big")
        out += bytes(Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return bytes(out)
