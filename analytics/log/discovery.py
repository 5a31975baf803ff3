"""Find logs and segments at the locations that a user gives.

A location is a daemon's folder, a log's folder, an archive (one folder for each disk), or a
cluster's data folder with those of several daemons. A log is named by its *disk*, the uuid that
every segment carries: the same segments in a daemon's folder and in an archive are read once.
Headers, trailers and footers are read here, records are not. Comes in: locations. Goes out: `Log`s
with their `Segment`s; no file stays open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from myqueue.analytics.log import segment_reader, storage
from myqueue.errors import FormatUnknown, NotReady
from myqueue.wal import format as f

MANIFEST, IDENTITY = "manifest.json", "identity"
JSON_BYTES_MAX = 64 << 20
READERS = 16  # requests at a time to remote storage
LOOKS = 5  # attempts to read logs that change meanwhile
_HINT = "Give a daemon's folder, its wal/ folder, an archive, or the folder above these."


T = TypeVar("T")


class SegmentGone(NotReady):
    """A segment was reclaimed while the log was read; what was needed stands in a later one."""

    hint = "Run it again: the log moved on while it was read."


def open_segment(location: str) -> storage.File:
    """Open a segment; SegmentGone if it was removed."""
    try:
        return storage.open_file(location)
    except FileNotFoundError:
        raise SegmentGone(f"{location} was removed while the log was read") from None


def looked(look: Callable[[], T]) -> T:
    """Return what `look()` returns; call it again, LOOKS times in all, if a segment was removed."""
    for _ in range(LOOKS - 1):
        with suppress(SegmentGone):
            return look()
    return look()


class Segment(NamedTuple):
    """One segment file, as its header, trailer and footer describe it; picklable, not open."""

    location: str
    number: int
    uid: int
    capacity: int
    size: int
    disk: str  # the owner's uuid in hex; "" if the header is damaged
    created_ms: int
    sealed: bool
    footer_at: int
    rows: tuple[f.FooterRow, ...] | None  # None: open, or the footer is damaged
    used: bool  # whether anything stands in it
    left_before: int  # where writing left the segment before, by the first mark; 0: it was sealed
    problem: str = ""

    @property
    def name(self) -> str:
        return storage.base_name(self.location)


@dataclass
class Log:
    """One disk's log. `daemon` and `kind` are known if an identity or a manifest names them."""

    disk: str
    daemon: str = ""
    kind: str = ""
    cluster: str = ""
    folder: str = ""  # of the daemon, where there is one
    segments: list[Segment] = field(default_factory=list)

    @property
    def name(self) -> str:
        """A name for people: the daemon if it is known, else the disk."""
        return self.daemon or self.disk[:8]

    @property
    def last_used(self) -> int:
        """Number of the newest segment that is in use."""
        return max((one.number for one in self.segments if one.used), default=0)

    def synced_to(self, segment: Segment) -> int:
        """The position up to which later segments prove this one to be synced; 0 without any."""
        if segment.sealed:
            return segment.capacity
        if segment.number >= self.last_used:
            return 0
        after = [one for one in self.segments if one.number == segment.number + 1]
        return (after[0].left_before if after else 0) or segment.capacity


def find_logs(locations: Iterable[str]) -> list[Log]:
    """All logs at or below the locations, sorted by name; segments of one disk are one log."""
    logs: dict[str, Log] = {}
    for location in locations:
        location = storage.canonical(location)
        for folder, names, owner in _folders(location):
            _add(logs, _segments(folder, names), owner)
    return sorted(logs.values(), key=lambda log: (log.kind, log.daemon, log.disk))


def _folders(location: str) -> list[tuple[str, dict[str, int | None], Log]]:
    """(folder of segments, its names, its owner)."""
    names = storage.entries(location)
    folder = _log_at(location, names)
    if folder is not None:
        return [folder]
    out = []
    for name, size in sorted(names.items()):
        if size is None:
            below = storage.join(location, name)
            folder = _log_at(below, storage.entries(below))
            out += [] if folder is None else [folder]
    if not out:
        what = "holds no log" if names else "is empty"
        raise FormatUnknown(f"{location} {what}", hint=_HINT)
    return out


def _log_at(
    location: str, names: dict[str, int | None]
) -> tuple[str, dict[str, int | None], Log] | None:
    if "wal" in names and names["wal"] is None:
        wal = storage.join(location, "wal")
        inside = storage.entries(wal)
        return (wal, inside, _identity(location, names)) if _has_segment(inside) else None
    if not _has_segment(names):
        return None
    if MANIFEST in names:
        source = _json(storage.join(location, MANIFEST)).get("source") or {}
        return location, names, _owner(source, "")
    if storage.base_name(location) == "wal":
        above = storage.parent(location)
        return location, names, _identity(above, storage.entries(above))
    return location, names, Log("")


def _has_segment(names: dict[str, int | None]) -> bool:
    return any(f.parse_segment_name(name) is not None for name in names)


def _identity(folder: str, names: dict[str, int | None]) -> Log:
    fields = _json(storage.join(folder, IDENTITY)) if IDENTITY in names else {}
    return _owner(fields, folder)


def _owner(fields: dict[str, Any], folder: str) -> Log:
    disk, daemon, kind = (str(fields.get(name, "")) for name in ("disk", "daemon", "kind"))
    return Log(disk, daemon, kind, str(fields.get("cluster", "")), folder)


def _json(location: str) -> dict[str, Any]:
    """A small file of the daemon; {} if it can't be read, since its damage is not judged here."""
    try:
        file = storage.open_file(location)
        try:
            fields = json.loads(file.read(0, JSON_BYTES_MAX))
        finally:
            file.close()
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def segments_in(folder: str) -> list[Segment]:
    """The segments that are in the folder now."""
    return _segments(folder, storage.entries(folder))


def _segments(folder: str, names: dict[str, int | None]) -> list[Segment]:
    """Examine the named segments. If one is reclaimed meanwhile, the folder is listed again: its
    records may stand in a segment that `names` lacks.
    """
    for _ in range(LOOKS):
        segments = _all_examined(folder, names)
        if None not in segments:
            break
        names = storage.entries(folder)
    return [one for one in segments if one is not None]


def _all_examined(folder: str, names: dict[str, int | None]) -> list[Segment | None]:
    files = []
    for name, size in sorted(names.items()):
        parsed = f.parse_segment_name(name)
        if parsed is not None and size is not None:
            files.append((storage.join(folder, name), *parsed, size))
    if not storage.is_remote(folder):
        return list(map(_examined, files))
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_examined, files))


def _examined(listed: tuple[str, int, int, int]) -> Segment | None:
    """Examine one listed file; None if it was reclaimed since the folder was listed."""
    location, number, uid, size = listed
    try:
        file = storage.open_file(location)
    except FileNotFoundError:
        return None
    try:
        return examine(file, location, number, uid, size)
    finally:
        file.close()


def examine(file: storage.File, location: str, number: int, uid: int, size: int) -> Segment:
    """Read header, trailer and footer. A damaged header is replaced by the file's name and size."""
    capacity, created, disk, problem = size, 0, "", ""
    try:
        header = f.decode_segment_header(file.read(0, f.SEGMENT_HEADER_BYTES))
        if (header.number, header.uid) != (number, uid):
            problem = f"this file is segment {f.segment_name(header.number, header.uid)}"
        capacity, created, disk = header.capacity, header.created_ms, header.owner.hex()
        if not problem and size != capacity:
            problem = f"the file has {size} bytes, its header says {capacity}"
    except FormatUnknown as error:
        problem = str(error)
    seal = segment_reader.seal_of(file.read, uid, capacity)
    return Segment(
        location,
        number,
        uid,
        capacity,
        size,
        disk,
        created,
        seal is not None,
        seal.footer_at if seal else 0,
        tuple(seal.rows) if seal and seal.rows is not None else None,
        seal is not None or segment_reader.is_used(file.read, uid),
        segment_reader.left_by(file.read, uid),
        problem,
    )


def _add(logs: dict[str, Log], segments: list[Segment], owner: Log) -> None:
    """Add segments to the log of their folder's disk, else of the disk that they name."""
    disk = owner.disk or next((one.disk for one in segments if one.disk), "")
    log = logs.setdefault(disk, Log(disk))
    for name in ("daemon", "kind", "cluster", "folder"):
        setattr(log, name, getattr(log, name) or getattr(owner, name))
    known = {(one.number, one.uid) for one in log.segments if not one.problem}
    log.segments += [one for one in segments if (one.number, one.uid) not in known]
    log.segments.sort(key=lambda one: (one.number, one.uid))


def walked(
    segment: Segment, damaged: Callable[[int], None] = lambda position: None
) -> Iterator[tuple[f.Record, memoryview]]:
    """Yield all records that can be found in a segment, payloads unchecked.

    Damage is skipped; `damaged(position)` is called where it begins.
    """
    file = open_segment(segment.location)
    try:
        pass_ = segment_reader.Walk(file.read, segment.uid, segment.capacity)
        while True:
            yield from pass_.records(segment.capacity, payloads=False)
            if pass_.position + segment_reader.HEADER > pass_.limit:
                return
            damaged(pass_.position)
            if pass_.problem == segment_reader.END and pass_.last_nonzero() == pass_.position:
                return
            pass_.seek(pass_.position + 1)
    finally:
        file.close()


def valid_to(segment: Segment, position: int) -> int:
    """The position up to which records with right checksums follow each other from here on.

    A daemon that recovers this end of its log keeps the same records, synced or not.
    """
    file = open_segment(segment.location)
    try:
        pass_ = segment_reader.Walk(file.read, segment.uid, segment.capacity, position)
        for _ in pass_.records(segment.capacity):
            pass
        return pass_.position
    finally:
        file.close()
