"""`Agent`: asks the agent of `myq up` on this machine for one more broker, or for one fewer.

The agent has no door of its own. Who may write into its folder may ask: `errand-ID.json` comes in,
`done-ID.json` goes out, each put in place by a rename, so that nobody reads half of one. The agent
looks there with every turn. What was asked for and not done because the agent ended is not done
later: the asker gives up after a while and takes its errand back.

Whether an agent runs is told by the lock that it holds, so nobody waits for one that is gone.
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
    """The process that holds the lock in an agent's folder; None: no agent runs there."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        told = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
        kind, _, _, _, pid = struct.unpack(_FLOCK, told)
        return None if kind == fcntl.F_UNLCK else int(pid)
    finally:
        os.close(fd)


class Agent:
    """The agent of the cluster that `myq up` runs on this folder. Any number of threads may ask.

    >>> Agent("myq-data").add_broker()  # doctest: +SKIP
    4
    """

    def __init__(self, data: str | os.PathLike[str]) -> None:
        self.data = Path(data).absolute()
        self._folder = self.data / "node"

    @property
    def is_running(self) -> bool:
        return holder(self._folder) is not None

    def add_broker(
        self, *, key: bytes = b"", taken: Iterable[int] = (), within_s: float = ASK_S
    ) -> int:
        """Starts one more; its number. It registers by itself in a moment. The same key again, as
        long as that broker is there: the same broker. `taken`: numbers of all brokers that the
        managers know (`Admin.brokers`), of which this agent may not have started every one.
        """
        errand = {"errand": ADD, "key": key.hex(), "taken": sorted(taken)}
        return self._ask(errand, within_s)

    def drop_broker(self, broker: int, address: str = "", *, within_s: float = ASK_S) -> bool:
        """Stops the daemon of a broker that was removed. False: none of this number runs here, or
        not at this address; nothing was done then.
        """
        return bool(self._ask({"errand": DROP, "broker": broker, "address": address}, within_s))

    def _ask(self, errand: dict[str, Any], within_s: float) -> int:
        """Has it done; the number of the broker, 0 if there is none. Raises what went wrong."""
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
            raise Unreachable(text, hint="Who asks it needs the right to write there.") from None
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
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        found = json.loads(file.read(BYTES_MAX))
    if not isinstance(found, dict):
        raise ValueError("not a map")
    return found
