"""The live records of a sealed segment, and how they are appended again at the end of the log.

Footers, records and the groups' state decide what is live. `reclaim` and `evacuate` use this.
"""

from __future__ import annotations

from collections.abc import Iterator

from myqueue.wal import format as f
from myqueue.wal.append.entry_checks import Entry
from myqueue.wal.append.groups import Group, Groups
from myqueue.wal.append.journal import Journal
from myqueue.wal.read.scan import Scan


def in_snapshot(group: Group, segment: int) -> bool:
    """Whether the segment may hold a part of the group's newest snapshot."""
    return group.snapshot_from <= segment <= group.snapshot_at


def append_records(journal: Journal, group: Group, segment: int, snapshot: list[bytes]) -> None:
    """Append again the records of a group that are in force and stand in this segment.

    `snapshot` has the parts of its snapshot. Entries and the commit hint are not included.
    """
    uid = group.uid
    if group.created_at == segment and group.created is not None:
        journal.create_group(uid, group.created, again=True)
    if group.hard_state_at == segment:
        journal.hard_state(uid, group.term, group.vote, group.incomplete, group.lacking)
    if in_snapshot(group, segment):
        journal.snapshot(uid, group.snapshot_index, group.snapshot_term, snapshot)
    if group.start_at == segment:
        journal.start(
            uid, group.first_index, group.start_term, group.start_offset, group.start_chain
        )


def append_hint(journal: Journal, group: Group, segment: int) -> None:
    """Append a group's commit hint again if it stands in this segment."""
    if group.hint_at == segment and journal.groups.by_uid.get(group.uid) is group:
        journal.commit_hint(group.uid, group.commit_index)


def snapshot_of(group: Group) -> tuple[int, int, int]:
    """Return uid, segment and position of the group's newest snapshot."""
    return group.uid, group.snapshot_from, group.snapshot_position


def has_entries(rows: list[f.FooterRow], groups: Groups) -> bool:
    """Whether a segment with this footer may hold live entries."""
    return any(
        (group := groups.by_uid.get(row.group)) and live_entry_bytes(row, group) for row in rows
    )


def live_entry_bytes(row: f.FooterRow, group: Group) -> float:
    """Estimate the bytes of entries at or after the log's start, as if all had the same size."""
    if not row.entries or row.last_index < group.first_index:
        return 0.0
    span = row.last_index - row.first_index + 1
    kept = row.last_index - max(row.first_index, group.first_index) + 1
    return max(1.0, row.entry_bytes * kept / span)


def entry_again(record: f.Record, payload: memoryview) -> Entry:
    """Return the entry of a record, to be appended again."""
    return (
        record.index,
        record.term,
        record.offset,
        record.count,
        record.time_ms,
        record.entry_type,
        record.chain,
        payload,
    )


def portion(
    scan: Scan, records: Iterator[tuple[f.Record, memoryview]], groups: Groups, size: int
) -> tuple[list[tuple[f.Record, memoryview]], bool]:
    """Return the next entries of a segment that may be live, and whether they were the last.

    The footer is included. Entries before their log's start are left out: starts only rise.
    """
    out: list[tuple[f.Record, memoryview]] = []
    until = scan.position + size
    for record, payload in records:
        if record.kind == f.FOOTER:
            out.append((record, payload))
        elif record.kind == f.ENTRY:
            group = groups.by_uid.get(record.group)
            if group is not None and record.index >= group.first_index:
                out.append((record, payload))
        if scan.position >= until:
            return out, False
    return out, True
