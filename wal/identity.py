"""Whose data this is: one small file, written once, checked at every start and in every handshake.

A daemon with an empty or foreign disk must never vote under an old identity (W7): the votes it
gave are on the other disk. So the file names the cluster, the daemon, and the disk (a uuid drawn
when the directory was first used); segments carry the disk's uuid as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from random import Random
from zlib import crc32

from myqueue.errors import IdentityMismatch, MisuseError
from myqueue.wal.files import Files

FILE_NAME = "identity"
FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """`disk` is 16 bytes in hex."""

    cluster: str
    daemon: str
    kind: str
    disk: str

    @property
    def owner(self) -> bytes:
        return bytes.fromhex(self.disk)


def load_identity(files: Files, path: str = FILE_NAME) -> Identity | None:
    """What the file says; None if the directory was never used. `path` is for messages."""
    if FILE_NAME not in files.list():
        return None
    raw = files.read(FILE_NAME, 0, FILE_BYTES_MAX)
    try:
        fields = json.loads(raw)
        crc = fields.pop("crc")
        identity = Identity(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise IdentityMismatch(f"{path} is damaged: {error}") from error
    if crc != _crc(identity):
        raise IdentityMismatch(f"{path} is damaged: its checksum is wrong")
    return identity


def claim(
    files: Files, cluster: str, daemon: str, kind: str, random: Random, path: str = FILE_NAME
) -> Identity:
    """The directory's identity; written now if it is new, refused if it is somebody else's."""
    identity = load_identity(files, path)
    if identity is None:
        disk = random.getrandbits(128).to_bytes(16, "big").hex()
        identity = Identity(cluster, daemon, kind, disk)
        _write(files, identity)
    for what, wanted in (("cluster", cluster), ("daemon", daemon), ("kind", kind)):
        found = getattr(identity, what)
        if found != wanted:
            raise IdentityMismatch(
                f"{path}: this directory belongs to {what} {found!r}, this daemon is of {wanted!r}"
            )
    return identity


def _write(files: Files, identity: Identity) -> None:
    text = json.dumps({**asdict(identity), "crc": _crc(identity)}, indent=1) + "\n"
    raw = text.encode()
    if len(raw) > FILE_BYTES_MAX:
        raise MisuseError(
            f"an identity of {len(raw)} bytes; {FILE_BYTES_MAX} at most",
            hint="Give the cluster and the daemon shorter names.",
        )
    temporary = FILE_NAME + ".new"
    if temporary in files.list():
        files.move(temporary, None)
    files.create(temporary, len(raw))
    files.write(temporary, 0, [raw], False)
    files.sync(temporary)
    files.move(temporary, FILE_NAME)
    files.sync(None)


def _crc(identity: Identity) -> int:
    return crc32(json.dumps(asdict(identity), sort_keys=True).encode())
