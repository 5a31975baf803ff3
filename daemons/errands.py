"""Errands: what commands of this machine ask of a running agent: one more broker, one fewer.

The agent has no door of its own. Who may write into its folder may ask, and it looks there with
every turn: `errand-ID.json` comes in, `done-ID.json` goes out, each put in place by a rename, so
that nobody reads half of one. What is asked for and not done because the agent ended is not done
later: the asker gives up after a while and takes its errand back.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from myqueue.daemons.local import Folder
from myqueue.errors import TimedOut, TroubleError, Unreachable

ADD, DROP = "add-broker", "drop-broker"
ASK_S: Final = 30.0
LOOK_S: Final = 0.05
BYTES_MAX: Final = 4096


def ask(folder: Folder, errand: str, broker: int = 0, *, within_s: float = ASK_S) -> int:
    """Have the agent do it; the broker's number. Raises what went wrong there."""
    if not folder.holder():
        raise Unreachable(
            f"no cluster is running on {folder.data}", hint="Start it with 'myq up', or name it."
        )
    name = secrets.token_hex(8)
    asked, done = folder.node / f"errand-{name}.json", folder.node / f"done-{name}.json"
    _put(asked, {"errand": errand, "broker": broker})
    end = time.monotonic() + within_s
    try:
        while time.monotonic() < end and folder.holder():
            if done.exists():
                answer = _read(done)
                if answer.get("error"):
                    raise TroubleError(str(answer["error"]), hint=str(answer.get("hint", "")))
                return int(answer["broker"])
            time.sleep(LOOK_S)
    finally:
        for path in (asked, done):
            with contextlib.suppress(OSError):
                path.unlink()
    raise TimedOut(f"the agent did not answer within {within_s:g} s: see {folder.node}/node.log")


def waiting(folder: Folder) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Errands that were asked for; each is taken away, and answered at the path beside it."""
    for path in sorted(folder.node.glob("errand-*.json")):
        try:
            found = _read(path)
        except (OSError, ValueError):
            found = {}
        with contextlib.suppress(OSError):
            path.unlink()
        if found:
            yield path.with_name(path.name.replace("errand-", "done-", 1)), found


def answer(path: Path, broker: int, error: str = "", hint: str = "") -> None:
    _put(path, {"broker": broker, "error": error, "hint": hint})


def _put(path: Path, value: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value) + "\n", encoding="utf-8")
    new.replace(path)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        found = json.loads(file.read(BYTES_MAX))
    if not isinstance(found, dict):
        raise ValueError("not a map")
    return found
