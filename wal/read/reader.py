"""Reading entries back: by index, by offset, or in runs.

Every entry is verified before it is returned: first its header (is this the record that the index
promised?), then its payload. A record that fails raises `CorruptData` with its exact place and is
never returned as data. An entry that the log had and lost is `CorruptData` as well; `EntryMissing`
is raised only for an index or offset outside of the log. Entries that are neighbours on disk are
read in one call, since the entries of one group often are.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from myqueue.errors import CorruptData, EntryMissing, NotReady, PlaceInvalid, StoreBroken
from myqueue.wal import format as f
from myqueue.wal.files import TRANSIENT, Files
from myqueue.wal.groups import Group, Row
from myqueue.wal.read.scan import Scan

if TYPE_CHECKING:  # at run time this would import LMDB
    from myqueue.wal.store.index import Index

ALL = 2**64 - 1
LOST = (errno.EIO, errno.ENOENT, errno.EUCLEAN, errno.EBADMSG)  # what file systems call damage
JOIN_READS_BYTES = 1 << 20
DAMAGE_MAX = 1000  # remembered until the repair takes them
_HEADER = f.RECORD_HEADER_BYTES


class Entry(NamedTuple):
    """One entry of a group's log, verified."""

    record: f.Record
    payload: memoryview


class Damage(NamedTuple):
    """An entry that could not be read."""

    segment: int
    position: int
    group: int
    index: int  # type: ignore[assignment]  # tuple.index is not used
    what: str


# segment number -> its (name, uid); None if it was reclaimed or lost
Names = Callable[[int], tuple[str, int] | None]


class Reader:
    """Entries of a daemon's own log, while it is written."""

    def __init__(self, files: Files, index: Index, names: Names) -> None:
        self._files, self._index, self._names = files, index, names
        # For the repair: the newest failures, and the first one of each segment.
        self.recent_damage: deque[Damage] = deque(maxlen=DAMAGE_MAX)
        self.damage_by_segment: dict[int, Damage] = {}

    def at(self, row: Row) -> Entry:
        """Return the entry that this row of the index points to."""
        return next(self._read([row]))

    def read_rows(self, rows: list[Row]) -> list[Entry | None]:
        """Return the entries of these rows; None for each that cannot be read.

        The rows must be of one segment, in the order of their positions. The file is read in large
        pieces where that is possible.
        """
        out: list[Entry | None] = []
        for run in _pieces(rows):
            try:
                whole = list(self._read(run))
            except CorruptData:
                out += map(self._or_none, run)
            else:
                out += whole
        return out

    def _or_none(self, row: Row) -> Entry | None:
        try:
            return self.at(row)
        except CorruptData:
            return None

    def entry(self, group: int, index: int) -> Entry:
        """Return the entry of a group at a Raft index."""
        try:
            row = self._index.row(group, index)
        except (StoreBroken, TypeError):
            _require_place(group, index)
            raise
        if row is None:
            raise self._absent(group, index)
        return next(self._read([row]))

    def entry_at_offset(self, group: int, offset: int) -> Entry:
        """Return the entry that holds this message; its first message may be an earlier one."""
        try:
            row = self._index.row_at_offset(group, offset)
        except (StoreBroken, TypeError):
            _require_place(group, offset)
            raise
        if row is None:
            _require_place(group, offset)
            raise EntryMissing(f"group {group:x} has no message at offset {offset}")
        return next(self._read([row]))

    def _absent(self, group: int, index: int) -> EntryMissing | CorruptData:
        """Return the error for an index without a row: outside of the log, or lost from within."""
        _require_place(group, index)
        before = index > 0 and self._index.rows(group, 0, index - 1, -1)
        if before and self._index.rows(group, index + 1, ALL, -1):
            return CorruptData(f"group {group:x}: entry {index} was lost")
        return EntryMissing(f"group {group:x} has no entry {index}")

    def entries(
        self, group: int, first_index: int, last_index: int, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Return consecutive entries from `first_index`: at least one, then up to the limits.

        They end before a damaged entry. CorruptData if the first entry is damaged.
        """
        try:
            rows = self._index.rows(group, first_index, last_index, max_bytes)
        except (StoreBroken, TypeError):
            _require_place(group, first_index)
            raise
        if not rows or rows[0].index != first_index:
            raise self._absent(group, first_index)
        out: list[Entry] = []
        try:
            for run in _runs(rows):
                out.extend(self._read(run))
        except CorruptData:
            if not out:
                raise
        return out

    def _read(self, run: list[Row]) -> Iterator[Entry]:
        """Yield entries that stand one after another on disk, from one read."""
        first, last = run[0], run[-1]
        named = self._names(first.segment)
        if named is None:
            self._note_damage(first, "the segment is missing")
            raise CorruptData(
                f"segment {first.segment} is missing, which has entry {first.index} of group "
                f"{first.group:x}"
            )
        name, uid = named
        size = last.position + _HEADER + last.length - first.position
        row = first
        try:
            data = memoryview(self._bytes(name, first.position, size))
            seed = f.segment_seed(uid)
            for row in run:
                yield _verified(data, row.position - first.position, row, seed, name)
        except CorruptData as error:
            self._note_damage(row, str(error))
            raise

    def _note_damage(self, row: Row, problem: str) -> None:
        damage = Damage(row.segment, row.position, row.group, row.index, problem)
        self.recent_damage.append(damage)
        self.damage_by_segment.setdefault(row.segment, damage)

    def _bytes(self, name: str, position: int, length: int) -> bytes:
        """Read from a file. An unreadable sector or a missing file is CorruptData as well."""
        try:
            return self._files.read(name, position, length)
        except OSError as error:
            if error.errno in TRANSIENT:  # a limit of the process, not damage of the disk
                raise NotReady(f"{name} can't be read now: {error.strerror}") from error
            if error.errno not in LOST:
                raise
            raise CorruptData(f"{name} at position {position}: {error}", component=name) from error

    def snapshot(self, group: Group) -> list[bytes]:
        """Return the parts of the group's newest complete snapshot; none if it has none."""
        parts: list[bytes] = []
        number, position = group.snapshot_from, group.snapshot_position
        while group.snapshot_parts and number <= group.snapshot_at:
            named = self._names(number)
            if named is not None:
                parts += self._snapshot_parts(group, named, position, len(parts))
            number, position = number + 1, f.SEGMENT_HEADER_BYTES
        if len(parts) < group.snapshot_parts:
            raise CorruptData(
                f"group {group.uid:x}: {len(parts)} of {group.snapshot_parts} parts of the "
                f"snapshot at index {group.snapshot_index} are readable"
            )
        return parts

    def _snapshot_parts(
        self, group: Group, named: tuple[str, int], position: int, done: int
    ) -> list[bytes]:
        """Return the parts that one segment has, from part number `done` on, in order."""
        name, uid = named
        parts: list[bytes] = []
        scan = Scan(lambda at, size: self._bytes(name, at, size), uid, 2**32, position)
        wanted = (f.SNAPSHOT, group.uid, group.snapshot_index, group.snapshot_term)
        for record, payload in scan.records():
            if (record.kind, record.group, record.index, record.term) == wanted:
                if record.count != done + len(parts):
                    break
                parts.append(bytes(payload))
                if record.flags & f.LAST:
                    break
        return parts


def _require_place(group: int, number: int) -> None:
    """Raise PlaceInvalid for arguments that cannot be looked up: no damage of the store.

    Called only after a look-up failed, because look-ups are many and the check costs time.
    """
    for name, value in (("uid", group), ("index or offset", number)):
        if not isinstance(value, int) or not 0 <= value <= ALL:
            raise PlaceInvalid(f"{name} {value!r} is not a number from 0 to 2^64 - 1")


def _runs(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows in portions that one read can fetch, up to the first hole."""
    run: list[Row] = []
    for at, row in enumerate(rows):
        if row.index != rows[0].index + at:
            break  # entries after a hole do not continue the run
        if run and not _joins(run, row):
            yield run
            run = []
        run.append(row)
    yield run


def _pieces(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield rows of one segment in portions that one read can fetch."""
    piece: list[Row] = []
    for row in rows:
        if piece and row.position + row.length - piece[0].position > JOIN_READS_BYTES:
            yield piece
            piece = []
        piece.append(row)
    if piece:
        yield piece


def _joins(run: list[Row], row: Row) -> bool:
    """Whether the row's record follows the run's last one on disk, and the read stays small."""
    first, last = run[0], run[-1]
    end = last.position + _HEADER + last.length
    return (
        row.segment == last.segment
        and row.position == end
        and end + _HEADER + row.length - first.position <= JOIN_READS_BYTES
    )


def _verified(data: memoryview, at: int, row: Row, seed: int, name: str) -> Entry:
    record = f.record_at(data, at, row.position, seed)
    payload = data[at + _HEADER : at + _HEADER + row.length]
    if (
        record is None
        or record.kind != f.ENTRY
        or record.group != row.group
        or record.index != row.index
        or record.term != row.term
        or not f.payload_is_right(record, payload)
    ):
        raise CorruptData(
            f"{name} at position {row.position}: not the entry that the index promises "
            f"(group {row.group:x}, index {row.index})",
            component=name,
        )
    return Entry(record, payload)
