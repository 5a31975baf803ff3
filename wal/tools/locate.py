"""Find the logs at or below a path that a user gives.

A path may be a daemon's folder (its log is in `wal/`), a log's folder itself, an archive (one
folder for each disk), or a data directory with the folders of several daemons. All logs are
returned, or one error says what was expected.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.files import RealFiles
from myqueue.wal.identity import FILE_NAME, Identity, identity_of

MANIFEST = "manifest.json"
ONLOOKER_FILES_MAX = 4
_HINT = "Give a daemon's folder, its wal/ folder, an archive, or the data directory above these."


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Where one log is: its own folder, and the daemon's folder if it has one."""

    directory: str
    daemon: str | None  # None for an archive, and for a log without a daemon's folder
    archive: bool = False

    def open(self) -> RealFiles:
        """Open the log's files for reading only."""
        return RealFiles(self.directory, read_only=True, open_max=ONLOOKER_FILES_MAX)

    def identity(self) -> Identity | None:
        """Return the identity in the daemon's folder, if there is one."""
        return None if self.daemon is None else identity_of(self.daemon)

    def owner(self) -> bytes | None:
        """Return the disk's uuid that all segments must carry, if it is known."""
        if self.archive:
            return bytes.fromhex(os.path.basename(self.directory))
        identity = self.identity()
        return None if identity is None else identity.owner


def find_logs(path: str) -> list[LogLocation]:
    """Return all logs at or below the path, in order; FormatUnknown if there is none."""
    path = os.path.abspath(path)
    names = sorted(os.listdir(path))
    place = _log_at(path, names)
    if place is not None:
        return [place]
    if "wal" in names:
        raise FormatUnknown(f"{path}/wal holds no segment", hint="Was this daemon ever started?")
    logs = []
    for name in names:
        below = os.path.join(path, name)
        if os.path.isdir(below):
            place = _log_at(below, os.listdir(below))
            logs += [] if place is None else [place]
    if not logs:
        problem = "holds no log" if names else "is empty"
        raise FormatUnknown(f"{path} {problem}", hint=_HINT)
    return logs


def _log_at(path: str, names: list[str]) -> LogLocation | None:
    """Return the log of this folder itself, if it is a daemon's, a log's or an archive's folder."""
    if "wal" in names:
        wal = os.path.join(path, "wal")
        return (
            LogLocation(wal, path) if os.path.isdir(wal) and _has_segment(os.listdir(wal)) else None
        )
    if MANIFEST in names and is_disk(os.path.basename(path)):
        return LogLocation(path, None, archive=True)
    if not _has_segment(names):
        return None
    above = os.path.dirname(path)
    is_daemons = os.path.basename(path) == "wal" and os.path.exists(os.path.join(above, FILE_NAME))
    return LogLocation(path, above if is_daemons else None)


def _has_segment(names: list[str]) -> bool:
    return any(f.parse_segment_name(name.removesuffix(".trash")) for name in names)


def is_disk(name: str) -> bool:
    """Whether a folder's name is a disk's uuid."""
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)
