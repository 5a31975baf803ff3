"""Replicas that their daemon closed: a note for each, and the segments of replaced ones.

A daemon closes its replica of a group when other replicas contradict it
(`daemons/replication/close_group.py`). The closed replica may be the right one, and have the only
copy of acknowledged messages. So the daemon writes a note next to the log, and later starts leave
the replica closed. When another replica takes its place, the segments that hold its entries are
linked into `kept/NAME/` before its removal: `myq wal dump` reads them there, and operators remove
the folder.

The note is a small JSON file, `closed-GROUP-REPLICA` (both in hexadecimal). A note that can't be
read still means that the replica is closed. Everything here waits for the disk, so the daemon calls
it outside of its loop, except for reading at a start.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from myqueue.wal.files import RealFiles, replace_file
from myqueue.wal.store.store import Store
from myqueue.wal.store.view import LAST

FOLDER: Final = "kept"
NOTE: Final = "why.json"
NOTE_BYTES_MAX: Final = 64 << 10
ROWS_BYTES: Final = 1 << 20  # entries' bytes in one look-up of rows
TRIES: Final = 20  # segments may be reclaimed while they are linked
_CLOSED: Final = "closed-"


def folder_name(group: int, replica: int) -> str:
    """Return the name of a replica in its note's file name and below `kept/`."""
    return f"{group:x}-{replica:x}"


class ClosedGroups:
    """The notes and kept segments in one daemon's directory; `base` is the files of it."""

    def __init__(self, directory: str, base: RealFiles, store: Callable[[], Store]) -> None:
        self._directory, self._base, self._store = directory, base, store

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return name -> fields of each note of a closed replica."""
        out = {}
        for name in self._base.list():
            if name.startswith(_CLOSED) and not name.endswith(".new"):
                out[name.removeprefix(_CLOSED)] = _read(os.path.join(self._directory, name))
        return out

    def note(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write a note; it is durable when this returns."""
        _write(self._base, _CLOSED + name, fields)

    def forget(self, name: str) -> None:
        """Remove a note, durably."""
        if _CLOSED + name in self._base.list():
            self._base.move(_CLOSED + name, None)
            self._base.sync(None)

    def folder(self, name: str) -> str:
        """Return the path of the folder that keeps a replica's segments."""
        return os.path.join(self._directory, FOLDER, name)

    def all(self) -> dict[str, dict[str, Any]]:
        """Return name -> note of each replica whose segments are kept here."""
        folder, out = os.path.join(self._directory, FOLDER), {}
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                if os.path.exists(os.path.join(folder, name, NOTE)):
                    out[name] = _read(os.path.join(folder, name, NOTE))
        return out

    def keep(
        self,
        name: str,
        group: int,
        first: int,
        segments: Mapping[int, str],
        fields: Mapping[str, Any],
    ) -> int:
        """Link the segments that hold entries of the group from `first` on; return their number.

        `segments` has the names of all segments of a moment ago. The store must have all entries.
        OSError (EAGAIN) if entries were moved to a newer segment since: call again with new names.
        """
        folder = self.folder(name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        wal = os.path.join(self._directory, "wal")
        for _ in range(TRIES):
            numbers = self._segments_of(group, first)
            if max(numbers, default=0) > max(segments, default=0):
                raise OSError(errno.EAGAIN, "entries are in a newer segment by now", folder)
            # A number without a name is of a file that was lost: it cannot be kept.
            names = [segments[number] for number in sorted(numbers) if number in segments]
            linked = [_link(wal, folder, segment) for segment in names]
            if all(linked):
                break  # none was reclaimed since the store was asked where the entries are
        else:
            raise OSError(errno.EAGAIN, "segments are reclaimed while they are linked", folder)
        files = RealFiles(folder)
        try:
            if NOTE not in files.list():
                _write(files, NOTE, fields)
            files.sync(None)
        finally:
            files.close()
        for parent in (os.path.join(self._directory, FOLDER), self._directory):
            files = RealFiles(parent)
            try:
                files.sync(None)
            finally:
                files.close()
        return len(names)

    def _segments_of(self, group: int, first: int) -> set[int]:
        numbers: set[int] = set()
        while True:
            with self._store().view() as view:
                rows = view.rows(group, first, LAST, ROWS_BYTES)
            if not rows:
                return numbers
            numbers.update(row.segment for row in rows)
            first = rows[-1].index + 1


def _link(wal: str, folder: str, name: str) -> bool:
    """Link a segment into the folder; False if it was reclaimed."""
    try:
        os.link(os.path.join(wal, name), os.path.join(folder, name))
    except FileExistsError:
        pass
    except FileNotFoundError:
        return os.path.exists(os.path.join(folder, name))
    return True


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            fields = json.loads(file.read(NOTE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return fields if type(fields) is dict else {}


def _write(files: RealFiles, name: str, fields: Mapping[str, Any]) -> None:
    replace_file(files, name, (json.dumps(dict(fields), indent=1) + "\n").encode())
