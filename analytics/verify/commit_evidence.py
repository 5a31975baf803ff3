"""The history of a few groups from all records of their logs: one `Story` for each replica.

`catalog` reads as little as it can, and that is enough as long as hints say what is committed.
Without hints, terms, votes and members have to be known as well. `stories` reads each segment that
holds records of the groups once, whatever else is in it. A record that can't be read may be a vote
or a truncation, so it marks the story of every group that it may belong to as damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from myqueue.analytics.log.catalog import CONFIG, Catalog
from myqueue.analytics.log.discovery import Log, Segment, walked
from myqueue.analytics.log.msgpack_values import BadPack
from myqueue.analytics.verify.inspect_range import OpenRun, voters_in
from myqueue.analytics.verify.inspection_rows import Event
from myqueue.analytics.verify.replica_history import Names, Story, Teller
from myqueue.wal import format as f

_NAMELESS = Names({}, {})


class _Reading(NamedTuple):
    """The evidence read so far from one log, by group."""

    tellers: dict[int, Teller]
    runs: dict[int, OpenRun]


def bytes_of(catalog: Catalog, groups: Collection[int]) -> int:
    """How many bytes `stories` would read."""
    return sum(one.capacity for log in catalog.logs for one in _segments(log, groups))


def stories(catalog: Catalog, groups: Collection[int]) -> dict[int, list[Story]]:
    """By group: one story for each disk that has records of it."""
    out: dict[int, list[Story]] = {uid: [] for uid in groups}
    for log in catalog.logs:
        reading = _Reading({}, {})
        for segment in _segments(log, groups):
            _read(catalog, log, segment, groups, reading)
        for uid, teller in reading.tellers.items():
            out[uid].append(teller.story)
    return out


def _segments(log: Log, groups: Collection[int]) -> Iterator[Segment]:
    """Segments that have, or may have, records of the groups."""
    for segment in log.segments:
        rows = segment.rows
        if segment.used and (rows is None or any(row.group in groups for row in rows)):
            yield segment


def _read(
    catalog: Catalog, log: Log, segment: Segment, groups: Collection[int], reading: _Reading
) -> None:
    """Add the records of one segment to `reading`.

    In a segment that is being written, only what is surely synced counts. Votes and relocated
    records count also after that: reclaim may have removed their first copies already.
    """
    certain = catalog.certain.get((log.disk, segment.number), segment.capacity)
    end = segment.footer_at or certain
    number = segment.number
    here = None if segment.rows is None else {row.group for row in segment.rows}

    def damaged(position: int) -> None:
        """Mark every group that has records in this segment: it may have one there."""
        for uid in groups if position < end else ():
            if here is None or uid in here:
                _teller(log, uid, reading).story.is_damaged = True

    for record, payload in walked(segment, damaged):
        uid = record.group
        if uid not in groups:
            continue
        is_right = f.payload_is_right(record, payload)
        if record.position >= certain:
            is_moved = record.kind == f.HARD_STATE or record.flags & f.RELOCATED
            if not is_right or not is_moved:
                continue
        is_entry = record.kind == f.ENTRY
        run = reading.runs.get(uid)
        if is_entry and run is not None and run.is_continued_by(record):
            run.add(record)
        else:
            _end_run(log, number, uid, reading)
            if is_entry:
                reading.runs[uid] = OpenRun(record)
        if not is_right:
            _teller(log, uid, reading).story.is_damaged = True
        elif not is_entry or record.entry_type == CONFIG:
            _event(log, number, record, payload, reading)
    for uid in list(reading.runs):
        _end_run(log, number, uid, reading)


def _event(log: Log, number: int, record: f.Record, payload: memoryview, reading: _Reading) -> None:
    teller = _teller(log, record.group, reading)
    needed = _told(record, payload)
    if needed is None:
        teller.story.is_damaged = True
        return
    event = Event(
        record.group,
        log.disk,
        number,
        record.position,
        record.kind,
        record.index,
        record.term,
        record.offset,
        record.flags,
        needed,
    )
    _list(teller.event(event))


def _told(record: f.Record, payload: memoryview) -> bytes | None:
    """The part of the payload that the story needs; None if it can't be read."""
    is_snapshot = record.kind == f.SNAPSHOT
    if is_snapshot and record.count:
        return b""
    if record.kind not in (f.GROUP_CREATED, f.ENTRY, f.SNAPSHOT):
        return b""
    try:
        return voters_in(payload) if is_snapshot else bytes(payload)
    except BadPack:
        return None


def _teller(log: Log, uid: int, reading: _Reading) -> Teller:
    teller = reading.tellers.get(uid)
    if teller is None:
        teller = reading.tellers[uid] = Teller(uid, log.disk, _NAMELESS)
    return teller


def _end_run(log: Log, number: int, uid: int, reading: _Reading) -> None:
    run = reading.runs.pop(uid, None)
    if run is not None:
        _list(_teller(log, uid, reading).run(run.row(uid, log.disk, number)))


def _list(findings: Iterator[object]) -> None:
    """Run through the findings and drop them: `verify` reports the faults of a story."""
    for _ in findings:
        continue
