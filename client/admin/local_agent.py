"""`Agent`: ask the agent of `myq up` on this machine to start or stop a broker.

The agent has no listener. A process that may write into its folder may ask it: the request is
`errand-ID.json`, the answer `done-ID.json`. Each is put in place by a rename, so a reader never
sees half a file. The agent looks for requests in every turn. If it ends before it answers, the
client removes its request at the deadline, so that a later agent does not run it.

A running agent holds a lock, so a client never waits for an agent that does not run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from myqueue.errors import TimedOut, TroubleError, Unreachable

ADD, DROP = "add-broker", "drop-broker"
ASK_S: Final = 30.0
LOOK_S: Final = 0.05
BYTES_MAX: Final = 16_384  # a thousand numbers of brokers
_FLOCK: Final = "hhqqi"  # struct flock of Linux: type, whence, start, length, pid


def holder(folder: Path) -> int | None:
    """Find the process that holds the lock in an agent's folder; None: no agent runs there."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, question)
        kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
        return None if kind == fcntl.F_UNLCK else int(pid)
    finally:
        os.close(fd)


class Agent:
    """The agent of the cluster that `myq up` runs on the folder `data`. Threads may share it.

    Calls raise Unreachable if no agent runs there or its folder is not writable, TimedOut after
    `within_s` seconds (default 30), and TroubleError with the agent's own error.

    >>> Agent("myq-data").add_broker()  # doctest: +SKIP
    4
    """

    def __init__(self, data: str | os.PathLike[str]) -> None:
        self.data = Path(data).absolute()
        self._folder = self.data / "node"

    @property
    def is_running(self) -> bool:
        """Does an agent run on this folder now?"""
        return holder(self._folder) is not None

    def add_broker(
        self, *, key: bytes = b"", taken: Iterable[int] = (), within_s: float = ASK_S
    ) -> int:
        """Start one more broker and return its number; it registers by itself in a moment.

        `key`: a repeat with the same key returns the same broker, as long as it exists. `taken`:
        the numbers of all brokers that the managers know (`Admin.brokers`); this agent may not
        have started each of them.
        """
        errand = {"errand": ADD, "key": key.hex(), "taken": sorted(taken)}
        return self._ask(errand, within_s)

    def drop_broker(self, broker: int, address: str = "", *, within_s: float = ASK_S) -> bool:
        """Stop the daemon of a removed broker.

        Returns False, and does nothing, if this agent runs no broker of this number and address.
        """
        return bool(self._ask({"errand": DROP, "broker": broker, "address": address}, within_s))

    def _ask(self, errand: dict[str, Any], within_s: float) -> int:
        """Send a request and wait; returns the number of the broker, 0 if there is none."""
        folder = self._folder
        if not self.is_running:
            raise Unreachable(
                f"no cluster is running on {self.data}",
                hint="Start it with 'myq up', or name it.",
            )
        name = secrets.token_hex(8)
        asked, done = folder / f"errand-{name}.json", folder / f"done-{name}.json"
        try:
            put(asked, errand)
        except OSError as error:
            text = f"the agent in {folder} can't be asked: {error.strerror}"
            raise Unreachable(text, hint="Run this as a user who may write there.") from None
        end = time.monotonic() + within_s
        try:
            while time.monotonic() < end and self.is_running:
                if done.exists():
                    answer = read(done)
                    if answer.get("error"):
                        raise TroubleError(str(answer["error"]), hint=str(answer.get("hint", "")))
                    return int(answer["broker"])
                time.sleep(LOOK_S)
        finally:
            for path in (asked, done):
                with contextlib.suppress(OSError):
                    path.unlink()
        raise TimedOut(f"the agent did not answer within {within_s:g} s: see {folder}/node.log")


def put(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file and put it in place by a rename."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a map."""
    with path.open("rb") as file:
        value = json.loads(file.read(BYTES_MAX))
    if not isinstance(value, dict):
        raise ValueError("not a map")
    return value
