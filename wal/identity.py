"""The identity of a data directory: one small file, written once, checked at every start.

A daemon with an empty or foreign disk must never vote under an old identity, because its earlier
votes are on another disk. So the file names the cluster, the daemon, and the disk (a uuid drawn
when the directory was first used). Segments carry the disk's uuid as well, and daemons compare
identities in their handshakes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from random import Random
from zlib import crc32

from myqueue.errors import IdentityMismatch, MisuseError
from myqueue.wal.files import Files, RealFiles, replace_file

FILE_NAME = "identity"
FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """The daemon that a directory belongs to; `disk` is 16 bytes in hex."""

    cluster: str
    daemon: str
    kind: str
    disk: str

    @property
    def owner(self) -> bytes:
        """The disk's uuid as it stands in segment headers."""
        return bytes.fromhex(self.disk)


def load_identity(files: Files, path: str = FILE_NAME) -> Identity | None:
    """Return the identity in the file; None if the directory was never used.

    IdentityMismatch if the file is damaged; `path` is its name in that error.
    """
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


def identity_of(directory: str) -> Identity | None:
    """Return the identity in a daemon's folder, which is only read; None if there is none."""
    files = RealFiles(directory, read_only=True)
    try:
        return load_identity(files, os.path.join(directory, FILE_NAME))
    finally:
        files.close()


def claim(
    files: Files, cluster: str, daemon: str, kind: str, random: Random, path: str = FILE_NAME
) -> Identity:
    """Return the directory's identity, writing it first if the directory is new.

    IdentityMismatch if the directory belongs to another cluster, daemon or kind of daemon.
    """
    identity = load_identity(files, path)
    if identity is None:
        disk = random.getrandbits(128).to_bytes(16, "big").hex()
        identity = Identity(cluster, daemon, kind, disk)
        _write(files, identity)
    for name, wanted in (("cluster", cluster), ("daemon", daemon), ("kind", kind)):
        actual = getattr(identity, name)
        if actual != wanted:
            raise IdentityMismatch(
                f"{path}: this directory belongs to {name} {actual!r}, this daemon is of {wanted!r}"
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
    replace_file(files, FILE_NAME, raw)


def _crc(identity: Identity) -> int:
    return crc32(json.dumps(asdict(identity), sort_keys=True).encode())
