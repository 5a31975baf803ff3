"""Which bytes have to be read, and by which task. Pure: a catalog comes in, tasks go out.

The invariant: every committed entry is read once, though several replicas have it. So each index of
a group gets one piece of one log (`replica_choice`). Offsets and times in footers decide which
pieces are read at all.

A `Task` is a range of positions of one segment, with the spans of indices wanted from it. Spark
calls it an input partition: it is small and picklable, and nothing in it is open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from myqueue.analytics.log.catalog import ALL, Catalog, Group, Piece
from myqueue.analytics.log.discovery import Log, Segment
from myqueue.analytics.log.replica_choice import Damage, by_term, choose, logs_by_bytes
from myqueue.wal import format as f

SPLIT_BYTES = 64 << 20


class Span(NamedTuple):
    """Wanted entries of one group: indices first … last, at positions begin … end."""

    first: int
    last: int
    begin: int
    end: int


class Wanted(NamedTuple):
    """The part of the logs that a query asks for. A range ends before its second number."""

    topics: tuple[str, ...] | None = None
    partitions: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    offsets: tuple[int, int] = (0, ALL)
    times_ms: tuple[int, int] = (0, ALL)
    daemons: tuple[str, ...] | None = None
    segments: tuple[int, ...] | None = None
    kinds: tuple[int, ...] | None = None

    def has_group(self, group: Group) -> bool:
        return (
            (self.topics is None or group.topic in self.topics)
            and (self.partitions is None or group.partition in self.partitions)
            and (self.groups is None or group.uid in self.groups)
        )

    def may_be_in(self, piece: Piece) -> bool:
        """Whether the piece may have wanted entries. The time of an entry without one is 0."""
        return (
            piece.first_offset < self.offsets[1]
            and self.offsets[0] < max(piece.next_offset, piece.first_offset + 1)
            and piece.first_time_ms < self.times_ms[1]
            and self.times_ms[0] <= piece.last_time_ms
        )


class Task(NamedTuple):
    """Records of one segment that begin at positions begin … end - 1."""

    location: str
    disk: str
    daemon: str
    number: int
    uid: int
    capacity: int
    begin: int
    end: int
    complete: bool  # bytes that can't be read in it are damage, not the end of what is written
    spans: dict[int, list[Span]] | None = None  # by group; None: all records
    names: dict[int, tuple[str, int]] = {}  # group → topic and partition  # noqa: RUF012
    is_whole: bool = True  # no other task reads entries of these spans from this segment

    @property
    def name(self) -> str:
        """The segment's file name."""
        return self.location.rpartition("/")[2]


Ranges = dict[int, tuple[int, int]]  # group → first index, and the one after the last


def committed_ranges(catalog: Catalog, wanted: Wanted) -> Ranges:
    """The ranges of all wanted groups, from the log start to the last entry that is known to be
    committed. `verify/commit_point` judges groups of which nothing is known.
    """
    return {
        group.uid: (group.first_index, group.commit_index + 1)
        for group in catalog.groups.values()
        if group.topic and not group.removed and wanted.has_group(group)
    }


def entry_tasks(
    catalog: Catalog,
    ranges: Ranges,
    wanted: Wanted,
    split_bytes: int,
    *,
    may_miss: bool,
    newest_first: bool = False,
    damages: Collection[Damage] = (),
) -> list[Task]:
    """Make tasks that together read each entry of the ranges once.

    `newest_first` is for ranges that go beyond what is known to be committed. `may_miss`: entries
    that no log has are left out instead of raising CorruptData.
    """
    spans: defaultdict[tuple[str, int], dict[int, list[Span]]] = defaultdict(dict)
    order = logs_by_bytes(catalog)
    for uid, (first, end) in sorted(ranges.items()):
        group = catalog.groups[uid]
        disks = by_term(group, order) if newest_first else order
        pieces = choose(
            group, disks, first, end, may_miss, damages, with_doubtful_ends=newest_first
        )
        for disk, piece in pieces:
            if wanted.may_be_in(piece):
                span = Span(piece.first, piece.last, piece.begin, piece.end)
                spans[disk, piece.segment].setdefault(uid, []).append(span)
    return tasks_of(catalog, spans, split_bytes)


def tasks_of(
    catalog: Catalog, spans: Mapping[tuple[str, int], dict[int, list[Span]]], split_bytes: int
) -> list[Task]:
    """Make the tasks that read these spans, given by (disk, number of the segment) and group."""
    tasks: list[Task] = []
    for (disk, number), groups in sorted(spans.items()):
        log = catalog.log(disk)
        segment = next(one for one in log.segments if one.number == number)
        names = {uid: (catalog.groups[uid].topic, catalog.groups[uid].partition) for uid in groups}
        tasks += _split(catalog, log, segment, split_bytes, groups, names)
    return tasks


def record_tasks(catalog: Catalog, wanted: Wanted, split_bytes: int) -> list[Task]:
    """Make tasks that read all certain records of every log, as far as they are wanted."""
    groups = None
    if wanted.topics is not None or wanted.partitions is not None or wanted.groups is not None:
        groups = {one.uid for one in catalog.groups.values() if wanted.has_group(one)}
        groups.update(wanted.groups or () if wanted.topics is None else ())
    names = {one.uid: (one.topic, one.partition) for one in catalog.groups.values() if one.topic}
    tasks: list[Task] = []
    for log in catalog.logs:
        if wanted.daemons is not None and log.name not in wanted.daemons:
            continue
        for segment in log.segments:
            if not segment.used or segment.number not in (wanted.segments or (segment.number,)):
                continue
            if segment.rows is not None and not _any_row(segment.rows, wanted, groups):
                continue
            tasks += _split(catalog, log, segment, split_bytes, None, names)
    return tasks


def _any_row(rows: Iterable[f.FooterRow], wanted: Wanted, groups: set[int] | None) -> bool:
    """Whether the segment may have a wanted record. Marks have no group and are in each one."""
    if groups is None and wanted.kinds is None:
        return True
    mask = ALL if wanted.kinds is None else sum(1 << kind for kind in wanted.kinds)
    if groups is None and mask & (1 << f.MARK | 1 << f.FOOTER | 1 << f.TRAILER):
        return True
    return any(row.kinds & mask and (groups is None or row.group in groups) for row in rows)


def _split(
    catalog: Catalog,
    log: Log,
    segment: Segment,
    split_bytes: int,
    spans: dict[int, list[Span]] | None,
    names: dict[int, tuple[str, int]],
) -> Iterator[Task]:
    """Make tasks for one segment, several if it is big; only where wanted records may begin."""
    synced = log.synced_to(segment)
    end = catalog.readable(log.disk, segment)
    if segment.footer_at:
        end = min(end, segment.footer_at)
    low, high = f.SEGMENT_HEADER_BYTES, end
    if spans is not None:
        every = [span for group in spans.values() for span in group]
        low = max(low, min(span.begin for span in every))
        high = min(high, max(span.end for span in every) + 1)
    count = max(1, -(-(high - low) // split_bytes))
    step = -(-(high - low) // count)
    for at in range(low, high, max(step, 1)):
        yield Task(
            segment.location,
            log.disk,
            log.name,
            segment.number,
            segment.uid,
            segment.capacity,
            at,
            min(at + step, high),
            bool(synced) or segment.sealed,
            spans,
            names,
            count == 1,
        )
