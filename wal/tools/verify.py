"""Verify a whole log: is every byte as it was written?

    for event in verify(files):
        Progress   how far it came
        Finding    what is wrong, with segment, position, group and index
        Summary    the last event: what was read, and the number of findings

It prints and writes nothing, so commands, a daemon's scrubber and other programs can use it; the
consumer of the events decides about the pace. The daemon may append, rotate and reclaim at the same
time. A torn tail is reported but is no failure: it was never acknowledged.

`check_segment` checks each segment. This module checks what one segment cannot show: that numbers
follow, that no segment belongs to another disk, that each segment was sealed before the next one
was begun, that flushes are in order, and that each group's entries continue each other. A missing
entry was reclaimed, or relocated, or lost; which one is known only at the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from myqueue.wal import format as f
from myqueue.wal.check.check_segment import Progress, SegmentCheck, do_nothing
from myqueue.wal.check.segments import (
    CORRUPT,
    TORN,
    Finding,
    ReadableFiles,
    Segment,
    abandoned_at,
    foreign,
    survey,
    synced_to,
)
from myqueue.wal.check.verdict import bit_of_payload, corrected_record
from myqueue.wal.groups import Groups

__all__ = ["Finding", "Progress", "Summary", "verify"]


@dataclass(slots=True)
class Summary:
    """Counts of what was read. With `corrupt` 0, every byte that was promised is there."""

    segments: int = 0
    sealed: int = 0
    unused: int = 0
    reclaimed: int = 0  # removed by the daemon while the log was read
    records: int = 0
    entries: int = 0
    groups: int = 0
    bytes: int = 0
    torn: int = 0
    corrupt: int = 0

    @property
    def is_whole(self) -> bool:
        """True if nothing is corrupt."""
        return not self.corrupt


def verify(
    look: ReadableFiles, owner: bytes | None = None, wait: Callable[[], None] = do_nothing
) -> Iterator[Progress | Finding | Summary]:
    """Check the whole log; yield progress, findings, and at last a Summary.

    `owner` is the disk's uuid, if known. `wait` lets a running writer finish a record; it should
    take some hundredths of a second.
    """
    run = _Run(look, owner, wait)
    for event in run.all():
        if isinstance(event, Finding):
            if event.verdict == CORRUPT:
                run.summary.corrupt += 1
            else:
                run.summary.torn += 1
        yield event
    yield run.summary


class GroupReplay:
    """The groups as the records describe them, and where a group's indices jumped."""

    def __init__(self) -> None:
        self.groups = Groups()
        self._jumps: dict[tuple[int, int], tuple[Segment, int]] = {}

    def entry(self, segment: Segment, record: f.Record) -> Finding | None:
        """Apply an ENTRY; return what is wrong with its order."""
        group = self.groups.by_uid.get(record.group)
        index = record.index
        if group is not None and index == group.last_index + 1 and not record.flags & f.RELOCATED:
            group.append(index, record.term, record.offset + record.count, record.chain)
            return None
        if group is not None and index > group.last_index + 1:
            self._jumps[record.group, index - 1] = (segment, record.position)
        problem = self.groups.entry(record)
        if problem is None:
            return None
        return Finding(CORRUPT, segment.name, record.position, problem, record.group, index)

    def other(self, segment: Segment, record: f.Record, payload: bytes) -> None:
        """Apply any other record of a group."""
        self.groups.apply(record, segment.number, payload)

    def missing(self, holes: list[tuple[int, int]]) -> Iterator[Finding]:
        """Yield a finding for each range of lost entries, at the record that follows the range."""
        for uid, group in sorted(self.groups.by_uid.items()):
            for first, last in group.missing:
                jumps = [jump for jump in self._jumps if jump[0] == uid and jump[1] >= last]
                segment, position = self._jumps[min(jumps)]
                problem = f"entries {first} to {last} are missing before this record"
                for begin, end in holes:
                    if begin < segment.number:
                        which = f"segment {begin}" if begin == end else f"segments {begin} to {end}"
                        problem += (
                            f"; {which} is not there" if begin == end else f"; {which} are not"
                        )
                yield Finding(CORRUPT, segment.name, position, problem, uid, first)


class _Run:
    """One pass over a log."""

    def __init__(self, look: ReadableFiles, owner: bytes | None, wait: Callable[[], None]) -> None:
        self._look, self._owner, self._wait = look, owner, wait
        self.summary = Summary()
        self._replay = GroupReplay()
        self._last: SegmentCheck | None = None  # of the segment before, if its records were read
        self._flush_number = 0
        self._seen = 0  # number of the last segment that was taken
        self._unsealed = ""  # a segment that was not sealed although the log went on
        self._holes: list[tuple[int, int]] = []  # numbers of segments that are not there
        self._done = self._total = 0

    def all(self) -> Iterator[Progress | Finding]:
        segments = survey(self._look)
        while True:
            strangers = foreign(segments, self._owner)
            self._total += sum(segment.capacity for segment in segments)
            vanished = self.summary.reclaimed
            for segment in segments:
                yield from self._segment(segment, strangers.get(segment.name))
            if self.summary.reclaimed == vanished:
                break
            # The records that made it superfluous stand before the end read so far, or after it.
            if self._last is not None and not self._last.judge.sealed:
                yield from self._once_more(self._last)
            segments = [segment for segment in survey(self._look) if segment.number > self._seen]
        self.summary.groups = len(self._replay.groups.by_uid)
        if self._last is not None:
            self._close(self._last)
            try:
                yield from _trailer_remains(self._last.segment)
            except FileNotFoundError:  # reclaimed, so it was sealed
                pass
        yield from self._replay.missing(self._holes)

    def _segment(self, segment: Segment, stranger: Finding | None) -> Iterator[Progress | Finding]:
        base = self._done
        try:
            yield from self._judged(segment, stranger)
        except FileNotFoundError:
            self.summary.reclaimed += 1
        self._done = base + segment.capacity
        yield Progress(self._done, self._total, segment.name)

    def _judged(self, segment: Segment, stranger: Finding | None) -> Iterator[Progress | Finding]:
        previous, unused = self._last, not segment.is_used()
        if previous is not None and not unused:
            yield from self._check_seal_of(previous)
        if unused and previous is not None and not _is_sealed(previous):
            self.summary.segments += 1
            self.summary.unused += 1
            yield from _check_spare(segment)
            return
        yield from self._check_number(segment)
        self.summary.segments += 1
        finding = stranger or segment.finding
        if finding is not None:
            yield finding
        if stranger is not None or not segment.readable:
            return
        if previous is not None:
            self._close(previous)
        check = self._last = SegmentCheck(
            segment,
            self._replay,
            flush_before=self._flush_number,
            followed=lambda: synced_to(segment),
            wait=self._wait,
        )
        yield from self._go_on(check)

    def _go_on(self, check: SegmentCheck) -> Iterator[Progress | Finding]:
        """Read a segment, from its start or from the end of the last reading."""
        base = self._done
        for event in check.run():
            if isinstance(event, Progress):
                event = Progress(base + event.done, self._total, event.segment)
            yield event
        self._flush_number = check.flush_number

    def _once_more(self, check: SegmentCheck) -> Iterator[Progress | Finding]:
        try:
            check.judge.refresh()
            yield from self._go_on(check)
        except FileNotFoundError:
            self.summary.reclaimed += 1

    def _check_seal_of(self, previous: SegmentCheck) -> Iterator[Progress | Finding]:
        """Check that a segment is sealed and complete, since the log continued in a later one."""
        if previous.judge.sealed:
            return
        if _is_sealed(previous):  # it was the open one when it was read
            yield from self._once_more(previous)
            return
        segment = previous.segment
        abandoned = abandoned_at(segment)
        if abandoned:
            if previous.scan.position < abandoned:  # it may have grown since it was read
                yield from self._once_more(previous)
            if previous.scan.position < abandoned and previous.clean:
                problem = "records that were synced are not there"
                yield Finding(CORRUPT, segment.name, previous.scan.position, problem)
            return
        position = segment.capacity - f.RECORD_HEADER_BYTES
        self._unsealed = segment.name
        previous.judge.sealed = True  # so that it is reported once
        problem = "the trailer is missing or damaged, but the log went on in a later segment"
        byte, bit = _bit_of_trailer(segment, position)
        yield Finding(CORRUPT, segment.name, position, problem, byte=byte, bit=bit)

    def _check_number(self, segment: Segment) -> Iterator[Finding]:
        """Check that missing numbers may have been reclaimed, as only sealed segments are."""
        number, before = segment.number, self._seen
        self._seen = number
        if not before or number == before + 1:
            return
        if number == before:
            yield Finding(CORRUPT, segment.name, 0, f"segment number {number} is there twice")
            return
        self._holes.append((before + 1, number - 1))
        if self._unsealed:
            problem = f"segments {before + 1} to {number - 1} before it are missing"
            yield Finding(CORRUPT, segment.name, 0, problem)

    def _close(self, check: SegmentCheck) -> None:
        """Count a segment that will not be read any more."""
        summary = self.summary
        summary.sealed += check.judge.sealed
        summary.records += check.records
        summary.entries += check.entries
        summary.bytes += check.scan.position


def _is_sealed(check: SegmentCheck) -> bool:
    """Whether the segment is sealed by now; a reclaimed one was sealed before."""
    try:
        return check.judge.refresh()
    except FileNotFoundError:
        return True


def _check_spare(segment: Segment) -> Iterator[Finding]:
    """Check a segment that was prepared and not used: a right header, then zeros."""
    if segment.finding is not None:
        old = segment.finding
        yield Finding(TORN, old.segment, old.position, f"unused segment: {old.what}")
    scan = segment.scan()
    last = scan.last_nonzero()
    if last > scan.position:
        size = last - scan.position
        problem = f"{size} bytes of a write that was not synced, in an unused segment"
        yield Finding(TORN, segment.name, scan.position, problem)


def _trailer_remains(segment: Segment) -> Iterator[Finding]:
    """Report a half written trailer of the last segment. A crash explains it; recovery mends it."""
    position = segment.capacity - f.RECORD_HEADER_BYTES
    if segment.trailer() is None and any(segment.read(position, f.RECORD_HEADER_BYTES)):
        byte, bit = _bit_of_trailer(segment, position)
        problem = "the trailer is incomplete"
        yield Finding(TORN, segment.name, position, problem, byte=byte, bit=bit)


def _bit_of_trailer(segment: Segment, position: int) -> tuple[int, int]:
    seed = f.segment_seed(segment.uid)
    record = f.record_at(segment.read(position, f.RECORD_HEADER_BYTES), 0, position, seed)
    if record is not None:
        return bit_of_payload(segment, record)
    corrected = corrected_record(segment, position, seed)
    return (-1, -1) if corrected is None else corrected[1]
