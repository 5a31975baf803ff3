"""What daemons' stores hold, dumped by a process in each daemon's folder, compared with the log.

Reading a store takes LMDB and the daemon's lock, so a process of its own does it
(`myqueue.wal.store.dump`): started here for folders of this machine, or elsewhere by hand and given
as a file. The dump's lines stay in the file; memory holds one row for each group.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from myqueue.analytics.log import storage
from myqueue.analytics.log.discovery import Log
from myqueue.analytics.verify.inspection_rows import CORRUPT, WRONG, Finding
from myqueue.analytics.verify.partition_state import Rebuilt
from myqueue.errors import FormatUnknown

SCHEMA = "myq.store.state/1"
BROKEN = 4  # the exit code of the dump for a store that can't be read
CONFIG_KEY = b"\xffconfig"  # members at the applied index: a row of the daemon, not of the state


class Stored(NamedTuple):
    """One group in one store; `at` is where its rows begin in the file."""

    applied: int
    first_index: int
    last_index: int
    term: int
    vote: int
    at: int


@dataclass
class StoreState:
    """A dumped store: its groups in memory, their rows in the file `path`."""

    disk: str
    daemon: str
    path: Path
    groups: dict[int, Stored] = field(default_factory=dict)

    def rows(self, group: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a group, in the order of their keys."""
        with open(self.path, "rb") as file:
            file.seek(self.groups[group].at)
            for line in file:
                fields = json.loads(line)
                if "key" not in fields:
                    return
                yield bytes.fromhex(fields["key"]), bytes.fromhex(fields["value"])


def dump(
    log: Log, target: Path, *, rows: bool = True
) -> tuple[StoreState | None, Finding | None, str]:
    """Dump the store of a stopped daemon into `target`.

    Returns (state, finding, reason): the finding if the store can't be read, the reason if there
    is nothing to read. Without `rows` only the list of groups is dumped.
    """
    if not log.folder or storage.is_remote(log.folder):
        return None, None, "it has no daemon's folder here"
    command = [sys.executable, "-P", "-m", "myqueue.wal.store.dump", log.folder]
    command += [] if rows else ["--groups"]
    with open(target, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if done.returncode == 0:
        return load(target), None, ""
    if done.returncode == BROKEN or done.returncode < 0:
        what = last_line or f"reading it was ended by signal {-done.returncode}"
        return None, Finding(CORRUPT, "store", what, log.name, "store", 0, 0, 0), ""
    return None, None, last_line


def load(path: Path) -> StoreState:
    """Read the list of groups in a dump; FormatUnknown if the file is no dump, or was cut."""
    state: StoreState | None = None
    ended = False
    at = 0
    with open(path, "rb") as file:
        for line in file:
            at += len(line)
            try:
                fields = json.loads(line)
            except ValueError:
                break
            if state is None:
                if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
                    break
                state = StoreState(fields["disk"], fields["daemon"], path)
            elif "group" in fields:
                state.groups[int(fields["group"], 16)] = Stored(
                    fields["applied"],
                    fields["first_index"],
                    fields["last_index"],
                    fields["term"],
                    fields["vote"],
                    at,
                )
            elif "groups" in fields:
                ended = fields["groups"] == len(state.groups)
    if state is None or not ended:
        raise FormatUnknown(
            f"{path} is not the whole state of a store",
            hint="Make it with python -m myqueue.wal.store.dump FOLDER.",
        )
    return state


def judge_place(
    state: StoreState, group: int, last: int, term: int, first_index: int
) -> Iterator[Finding]:
    """Check that the store knows no more of a group than the log, and that its state reaches to
    where the log begins.
    """
    stored = state.groups[group]

    def finding(rule: str, what: str, index: int = 0) -> Finding:
        return Finding(WRONG, rule, what, state.daemon, "store", 0, group, index)

    if stored.applied > last:
        what = f"the state is of index {stored.applied}, the log ends at {last}"
        yield finding("ahead", what, stored.applied)
    elif stored.last_index > last:
        what = f"the index has entries up to {stored.last_index}, the log ends at {last}"
        yield finding("ahead", what, stored.last_index)
    if stored.term > term:
        yield finding("ahead", f"term {stored.term}, the log knows of term {term}")
    if stored.applied and stored.applied < first_index - 1:
        what = f"the state is of index {stored.applied}, but the log begins at {first_index}"
        yield finding("behind", what, stored.applied)


NO_ROW = (b"", b"")


def judge_rows(
    state: StoreState, group: int, rebuilt: Iterable[tuple[bytes, bytes]], name: str
) -> Iterator[Finding | int]:
    """Compare rebuilt rows with the store's, both in the order of their keys.

    Yields findings, and at the end the number of rows compared.
    """
    applied = state.groups[group].applied
    stored = ((key, value) for key, value in state.rows(group) if key != CONFIG_KEY)
    ours, theirs = iter(rebuilt), stored
    one, other = next(ours, None), next(theirs, None)
    compared = 0
    while one is not None or other is not None:
        compared += 1
        (key, value), (other_key, other_value) = one or NO_ROW, other or NO_ROW
        if other is None or (one is not None and key < other_key):
            what = f"{_called(key)} is in the log, but not in the store"
            one = next(ours, None)
        elif one is None or other_key < key:
            what = f"{_called(other_key)} is in the store, but not in the log"
            other = next(theirs, None)
        else:
            same = value == other_value
            what = "" if same else f"{_called(key)} is another one in the store than by the log"
            one, other = next(ours, None), next(theirs, None)
        if what:
            what = f"{name}: {what} (state of index {applied})"
            yield Finding(WRONG, "state", what, state.daemon, "store", 0, group, applied)
    yield compared


def _called(key: bytes) -> str:
    kind, rest = key[:1], key[1:]
    if kind == b"p" and len(rest) == 8:
        return f"the sequences of producer {int.from_bytes(rest, 'big')}"
    if kind == b"c":
        return f"the position of consumer {rest.decode(errors='replace')}"
    return "how far the log is" if key == b"m" else f"row {key.hex()}"


def by_group(rows: Iterable[Any]) -> Iterator[tuple[str, int, list[Rebuilt]]]:
    """Gather rebuilt rows, which come group by group, into lists of one group each."""
    gathered: list[Rebuilt] = []
    for row in rows:
        if gathered and (row.disk, row.group) != (gathered[0].disk, gathered[0].group):
            yield gathered[0].disk, gathered[0].group, gathered
            gathered = []
        gathered.append(row)
    if gathered:
        yield gathered[0].disk, gathered[0].group, gathered


def stranger(state: StoreState, group: int) -> Finding:
    """The finding for a group that the store has and its log has not."""
    what = "this group is in the store, but not in the log"
    return Finding(WRONG, "ahead", what, state.daemon, "store", 0, group, 0)
