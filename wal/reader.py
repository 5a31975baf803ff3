"""Reading entries back: by index, by offset, in runs; and whole segments by others, without locks.

Whatever is read is verified before it is handed out: the header (is this the record that the
index promised?), then the payload. A record that fails is `CorruptData` with its exact place,
never data (W16). Neighbours on disk are read in one call, since a run of one group's entries
often stands in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from myqueue.errors import CorruptData, EntryMissing
from myqueue.wal import format as f
from myqueue.wal.files import Files
from myqueue.wal.groups import Group, Row
from myqueue.wal.index import Index
from myqueue.wal.scan import Read, Scan

JOIN_READS_BYTES = 1 << 20
_HEADER = f.RECORD_HEADER_BYTES


class Entry(NamedTuple):
    """One entry of a group's log, verified."""

    record: f.Record
    payload: memoryview


# (name, uid) of a segment by its number; None if it is gone
Names = Callable[[int], tuple[str, int] | None]


class Reader:
    """Entries of a daemon's own log, while it is written."""

    def __init__(self, files: Files, index: Index, names: Names) -> None:
        self._files, self._index, self._names = files, index, names

    def entry(self, group: int, index: int) -> Entry:
        return self._one(self._index.row(group, index), f"group {group:x} has no entry {index}")

    def entry_at_offset(self, group: int, offset: int) -> Entry:
        """The entry that holds this message; its first message may be an earlier one."""
        row = self._index.row_at_offset(group, offset)
        return self._one(row, f"group {group:x} has no message at offset {offset}")

    def _one(self, row: Row | None, missing: str) -> Entry:
        if row is None:
            raise EntryMissing(missing)
        return self._read([row])[0]

    def entries(
        self, group: int, first_index: int, last_index: int, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Consecutive entries from `first_index`: at least one, then up to the limits."""
        rows = self._index.rows(group, first_index, last_index, max_bytes)
        if not rows or rows[0].index != first_index:
            raise EntryMissing(f"group {group:x} has no entry {first_index}")
        out: list[Entry] = []
        run: list[Row] = []
        for row in rows:
            if row.index != first_index + len(out) + len(run):
                break  # a hole: what is behind it is not the continuation
            if run and not _joins(run, row):
                out += self._read(run)
                run = []
            run.append(row)
        return out + self._read(run)

    def _read(self, run: list[Row]) -> list[Entry]:
        """Entries that stand one after another on disk, in one read."""
        first, last = run[0], run[-1]
        named = self._names(first.segment)
        if named is None:
            raise EntryMissing(f"segment {first.segment} was reclaimed")
        name, uid = named
        size = last.position + _HEADER + last.length - first.position
        data = memoryview(self._files.read(name, first.position, size))
        seed = f.segment_seed(uid)
        return [_verified(data, row.position - first.position, row, seed, name) for row in run]

    def snapshot(self, group: Group) -> list[bytes]:
        """The parts of the group's newest complete snapshot; none if it has none."""
        parts: list[bytes] = []
        number, position = group.snapshot_from, group.snapshot_position
        while group.snapshot_parts and number <= group.snapshot_at:
            named = self._names(number)
            if named is not None:
                parts += self._snapshot_parts(group, named, position)
            number, position = number + 1, f.SEGMENT_HEADER_BYTES
        if len(parts) < group.snapshot_parts:
            raise CorruptData(
                f"group {group.uid:x}: {len(parts)} of {group.snapshot_parts} parts of the "
                f"snapshot at index {group.snapshot_index} are readable"
            )
        return parts[: group.snapshot_parts]

    def _snapshot_parts(self, group: Group, named: tuple[str, int], position: int) -> list[bytes]:
        name, uid = named
        scan = Scan(lambda at, size: self._files.read(name, at, size), uid, 2**32, position)
        return [
            bytes(payload)
            for record, payload in scan.records()
            if record.kind == f.SNAPSHOT
            and (record.group, record.index) == (group.uid, group.snapshot_index)
        ]


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


def certain_records(
    read: Read, uid: int, capacity: int, position: int, complete: bool
) -> Iterator[tuple[f.Record, memoryview]]:
    """Records of one segment that are certainly synced, for readers beside a running daemon.

    `complete` says that the segment is sealed or that a later one is in use. Otherwise records wait
    until a later mark proves them; those that no mark proves yet are not handed out.
    """
    scan = Scan(read, uid, capacity, position)
    waiting: list[tuple[f.Record, memoryview]] = []
    for record, payload in scan.records():
        waiting.append((record, payload))
        if record.kind == f.MARK or complete:
            proven = capacity if complete else scan.proven
            done = sum(1 for one, _ in waiting if one.position < proven)
            yield from waiting[:done]
            del waiting[:done]
