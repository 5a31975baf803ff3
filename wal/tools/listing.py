"""List the segments of a log, one row for each file, from headers and footers.

A folder comes in, rows go out. Only a segment that is not sealed is read record by record, since it
has no footer yet. Records of sealed segments are not verified here; `verify` does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.check.check_segment import SegmentCheck
from myqueue.wal.check.segments import (
    CORRUPT,
    FRESH,
    TRASH,
    Finding,
    ReadableFiles,
    Segment,
    examine,
    foreign,
)
from myqueue.wal.read.scan import footer_of

OPEN, SEALED, SPARE, FRESH_STATE, TRASH_STATE = "open", "sealed", "spare", "new", "trash"
DAMAGED = "damaged"


class SegmentRow(NamedTuple):
    """One file. `records` is None unless all were read, `groups` None if they are unknown."""

    name: str
    number: int
    uid: int
    state: str
    size: int
    capacity: int
    used: int
    records: int | None
    created_ms: int
    groups: list[f.FooterRow] | None
    problem: str

    @property
    def entries(self) -> int | None:
        """Number of entries, None if unknown."""
        return None if self.groups is None else sum(row.entries for row in self.groups)

    def span(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Return lowest and highest index of any group, first and last time; None if unknown.

        A leader's first entry in a term has no time, and may be the first one in a footer.
        """
        rows = [row for row in self.groups or [] if row.entries]
        if not rows:
            return None, None, None, None
        return (
            min(row.first_index for row in rows),
            max(row.last_index for row in rows),
            min((row.first_time_ms for row in rows if row.first_time_ms), default=None),
            max(row.last_time_ms for row in rows) or None,
        )


def overview(look: ReadableFiles, owner: bytes | None = None) -> list[SegmentRow]:
    """Return a row for each segment by number, also for those being prepared or removed."""
    rows = []
    segments = []
    for name, size in look.list().items():
        stem, state = _stem(name)
        parsed = f.parse_segment_name(stem)
        if parsed is None:
            continue
        try:
            if state:
                rows.append(SegmentRow(name, *parsed, state, size, size, 0, None, 0, None, ""))
            else:
                segments.append(examine(look, name, *parsed, size))
        except FileNotFoundError:  # reclaimed, or renamed, since the folder was read
            continue
    rows += _states(sorted(segments, key=lambda segment: (segment.number, segment.uid)), owner)
    return sorted(rows, key=lambda row: (row.number, row.name))


def _stem(name: str) -> tuple[str, str]:
    for suffix, state in ((FRESH, FRESH_STATE), (TRASH, TRASH_STATE)):
        if name.endswith(suffix):
            return name.removesuffix(suffix) + ".seg", state
    return name, ""


def _states(segments: list[Segment], owner: bytes | None) -> Iterator[SegmentRow]:
    """Yield a row for each segment: only the last used one may be open; later ones are spares."""
    strangers = foreign(segments, owner)
    last_used = -1
    for at, segment in enumerate(segments):
        try:
            last_used = at if segment.is_used() else last_used
        except FileNotFoundError:
            continue
    for at, segment in enumerate(segments):
        try:
            yield _row(segment, strangers.get(segment.name), at > last_used, at == last_used)
        except FileNotFoundError:
            continue


def _row(segment: Segment, stranger: Finding | None, unused: bool, newest: bool) -> SegmentRow:
    problem = "" if segment.finding is None else segment.finding.what
    if stranger is not None:
        problem = stranger.what
    trailer = segment.trailer() if segment.readable else None
    used, records, rows, state = f.SEGMENT_HEADER_BYTES, None, None, SEALED
    if trailer is not None:
        rows = footer_of(segment.read, segment.uid, trailer)
        if rows is None:
            problem = problem or f"the footer at position {trailer.offset} is damaged"
        used = trailer.offset + f.RECORD_HEADER_BYTES + len(rows or []) * f.FOOTER_ROW_BYTES
    elif unused:
        state, rows, records = SPARE, [], 0
    elif segment.readable:
        state = OPEN
        used, records, rows, damage = _count(segment)
        if not newest:
            problem = problem or "not sealed, but the log went on in a later segment"
        problem = problem or damage
    if problem:
        state = DAMAGED
    return SegmentRow(
        segment.name,
        segment.number,
        segment.uid,
        state,
        segment.size,
        segment.capacity,
        used,
        records,
        segment.created_ms,
        rows,
        problem,
    )


def _count(segment: Segment) -> tuple[int, int, list[f.FooterRow], str]:
    """Read the open segment; return used bytes, records, groups, and what is corrupt in it."""
    check = SegmentCheck(segment)
    problem = ""
    try:
        for event in check.run():
            if isinstance(event, Finding) and event.verdict == CORRUPT:
                problem = problem or f"{event.what} at position {event.position}"
    except FormatUnknown as error:
        problem = str(error)
    return check.scan.position, check.records, check.rows.footer(), problem
