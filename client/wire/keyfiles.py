"""Key files: which clients and daemons a listener admits, and how their keys are stored.

A cluster that listens on more than loopback has a folder of keys, the same on all its hosts:

    peers.key        the key pair of the peer listeners; a daemon of this cluster has it
    clients.key      the key pair of the client listeners, by which clients recognise daemons
    admitted/*.pub   the public key of each admitted client; the file has the client's name

Each client has one file: its own pair, and the public key of the client listeners. A key of one
listener is not valid at the other. To admit a client, add its file; to revoke it, remove the file.
Daemons read the folder at each handshake; an open connection stays open until it ends.

Keys are Curve25519, written in Z85 (40 characters). Secret files have mode 600; a file that other
users can read is refused, because they may have read it already.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from myqueue.errors import InvalidSetting

PEERS_FILE, CLIENTS_FILE, ADMITTED = "peers.key", "clients.key", "admitted"
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_Z85: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class Keypair(NamedTuple):
    public: bytes
    secret: bytes


class ClientKey(NamedTuple):
    """A client's own key pair, and the public key of the client listeners."""

    public: bytes
    secret: bytes
    door: bytes


class DoorKeys:
    """A daemon's keys: the pairs of its two listeners, and the admitted clients."""

    def __init__(self, folder: str | Path) -> None:
        self._admitted = Path(folder) / ADMITTED
        self.peers = Keypair(*_read_secrets(Path(folder) / PEERS_FILE, "public", "secret"))
        self.clients = Keypair(*_read_secrets(Path(folder) / CLIENTS_FILE, "public", "secret"))

    def admits(self, public: bytes) -> str | None:
        """Find the client's name; None: not admitted. Reads the files each time."""
        for path in sorted(self._admitted.glob("*.pub")):
            try:
                if path.read_text("ascii").strip() == public.decode("ascii", "replace"):
                    return path.stem
            except (OSError, ValueError):
                continue  # not a key, or removed just now
        return None


def read_client_key(path: str | Path) -> ClientKey:
    """Read a client's key file; raises InvalidSetting."""
    return ClientKey(*_read_secrets(Path(path), "public", "secret", "door"))


# -- making them --------------------------------------------------------------------------------


def make_cluster(folder: Path, new_pair: Callable[[], Keypair]) -> list[Path]:
    """Make the missing key pairs of both listeners; returns the new files."""
    (folder / ADMITTED).mkdir(mode=0o700, parents=True, exist_ok=True)
    new_files = []
    for name in (PEERS_FILE, CLIENTS_FILE):
        if not (folder / name).exists():
            pair = new_pair()
            _write(folder / name, public=pair.public, secret=pair.secret)
            new_files.append(folder / name)
    return new_files


def make_client(folder: Path, name: str, out: Path, new_pair: Callable[[], Keypair]) -> None:
    """Admit a new client called `name` and write its key to `out`."""
    if not NAME.fullmatch(name) or name.startswith("."):
        raise InvalidSetting(f"{name!r} is no name for a client: letters, digits, . _ - (64)")
    door = DoorKeys(folder).clients.public
    admitted = folder / ADMITTED / f"{name}.pub"
    for path in (admitted, out):
        if path.exists():
            raise InvalidSetting(f"{path} exists already: revoke it first, or choose another name")
    pair = new_pair()
    _write(out, public=pair.public, secret=pair.secret, door=door)
    try:
        _create(admitted, pair.public.decode() + "\n")
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def clients(folder: Path) -> list[str]:
    """List the names of the admitted clients."""
    if not (folder / ADMITTED).is_dir():
        raise InvalidSetting(
            f"{folder} is no folder of keys: 'myq key generate {folder}' makes one"
        )
    return sorted(path.stem for path in (folder / ADMITTED).glob("*.pub"))


def revoke(folder: Path, name: str) -> None:
    """Remove an admitted client."""
    if name not in clients(folder):
        raise InvalidSetting(f"no client called {name!r} is admitted by {folder}")
    (folder / ADMITTED / f"{name}.pub").unlink()


def _write(path: Path, **values: bytes) -> None:
    lines = [f'{name} = "{value.decode()}"\n' for name, value in values.items()]
    _create(
        path,
        "".join(
            [
                "# A key of myqueue. A process with this file acts as its owner: keep it secret.\n",
                *lines,
            ]
        ),
    )


def _create(path: Path, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidSetting(f"{path}: {error.strerror}") from error
    with os.fdopen(fd, "w") as file:
        file.write(text)


def _read_secrets(path: Path, *names: str) -> list[bytes]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise InvalidSetting(
            f"key {path}: {error.strerror}", hint="'myq key generate DIR' makes keys."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"key {path}: not a key of myqueue ({error})") from error
    if mode & 0o077:
        raise InvalidSetting(f"key {path} can be read by others", hint=f"chmod 600 {path}")
    values = [content.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str) or not _Z85.fullmatch(value):
            raise InvalidSetting(f"key {path}: {name} is missing, or not 40 characters of Z85")
    return [str(value).encode() for value in values]
