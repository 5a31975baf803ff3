"""Judge why a scan stopped: the end of a log, an unsynced write, or damage.

The judge needs evidence that a place was synced: a later mark, a trailer, a later segment, or what
the caller knows. A bad place with evidence is *corrupt*. Without it the place is *torn*: an
unacknowledged write that a crash cut off, or that the writer is writing right now.

Recovery owns the log and may rely on what it reads. A reader from outside may not: a record that
looks broken may be half written at this moment. So it reads twice: first the evidence, then the
place once more. If the evidence existed before the second reading, the bytes were complete by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.check.bit_flip import corrected, wrong_bit
from myqueue.wal.check.segments import CORRUPT, TORN, Finding, Segment
from myqueue.wal.read.scan import BAD_PAYLOAD, CUT_SHORT, END, Scan

_HEADER = f.RECORD_HEADER_BYTES


class StopVerdict(NamedTuple):
    """What to do at a place where the scan stopped.

    `record` is a record that was skipped: its header is known, its payload must not be used. With
    `again` the scan continues, at its position or at one after the bad place, which ends at `end`.
    """

    again: bool
    finding: Finding | None = None
    record: f.Record | None = None
    end: int = 0


class Judge:
    """Decides at each stop of one segment's scan.

    `followed` returns the position up to which the caller knows this segment to be synced, by later
    segments above all; 0 if it does not know. `wait` is called before a place without evidence is
    read again; it gives a running writer the time to finish a record. None: the caller owns the
    log. Then nothing is read twice, and single wrong bits are not searched for.
    """

    def __init__(
        self,
        segment: Segment,
        scan: Scan,
        followed: Callable[[], int],
        wait: Callable[[], None] | None,
    ) -> None:
        self._segment, self._scan, self._followed, self._wait = segment, scan, followed, wait
        self.sealed = segment.trailer() is not None
        self._marks_prove = 0
        self._doubted = -1  # position of the stop that was read again
        self.proven = 0  # position up to which all was known to be synced, at the last stop

    def refresh(self) -> bool:
        """Read the trailer again, because the log grew; return whether the segment is sealed."""
        self.sealed = self._segment.trailer() is not None
        self._doubted, self._marks_prove = -1, 0
        return self.sealed

    def stopped(self) -> StopVerdict:
        """Judge the scan's stop. Called again at the same place after a second reading."""
        scan, position = self._scan, self._scan.position
        blank = scan.problem == END and scan.last_nonzero() == position
        if blank and scan.footer is not None:
            return StopVerdict(False)
        ends_batch = blank and position >= scan.batch_end
        if self._wait is None:
            self.proven = self._evidence(blank)
            if ends_batch and position >= self.proven:
                return StopVerdict(False)  # the usual end of the segment that is open
        elif position != self._doubted:
            if ends_batch and not self.sealed:
                return StopVerdict(False)
            self._doubted, self.proven = position, self._evidence(False)
            if self.proven <= position:
                self._wait()
            scan.bad = None
            return StopVerdict(True)
        if position < self.proven or scan.problem == CUT_SHORT:
            return self._corrupt(blank)
        description = "the last write is incomplete"
        if not blank:
            size = scan.last_nonzero() - position
            description = f"{size} bytes of a write that was not synced ({scan.problem})"
        return StopVerdict(False, Finding(TORN, self._segment.name, position, description))

    def _evidence(self, blank: bool) -> int:
        """Return the position up to which all is known to have been synced."""
        scan, followed = self._scan, self._followed()
        if self.sealed or followed >= self._segment.capacity:
            return self._segment.capacity
        if self._marks_prove <= scan.position and not blank:
            try:
                self._marks_prove = scan.proven_by_later_marks()
            except FormatUnknown:  # a valid record of a newer version, so the log continued here
                self._marks_prove = self._segment.capacity
        return max(followed, scan.proven, self._marks_prove)

    def _corrupt(self, blank: bool) -> StopVerdict:
        """Report the place and move the scan after it, skipping as little as possible."""
        scan, bad, name = self._scan, self._scan.bad, self._segment.name
        position, problem, explains = scan.position, scan.problem, self._wait is not None
        scan.bad = None
        if blank:
            description = "records that were synced are not there"
            finding = Finding(CORRUPT, name, position, description)
            return StopVerdict(False, finding, end=self.proven)
        if problem == CUT_SHORT:
            group, index = (bad.group, bad.index) if bad else (0, 0)
            description = "the file ends inside of this record"
            finding = Finding(CORRUPT, name, position, description, group, index)
            return StopVerdict(False, finding, end=self._segment.capacity)
        if problem == BAD_PAYLOAD and bad is not None and bad.end <= scan.limit:
            bit = bit_of_payload(self._segment, bad) if explains else (-1, -1)
            return self._skip(bad, "payload fails its checksum", bit)
        whole = corrected_record(self._segment, position, scan.seed) if explains else None
        if whole is not None and whole[0].end <= scan.limit:
            return self._skip(whole[0], "record header fails its checksum", whole[1])
        after = next(scan.find(f.RECORD_SIGN), None)
        until = after.position if after is not None else scan.last_nonzero()
        description = f"no valid record up to position {until}"
        if after is not None:
            scan.position = after.position
        finding = Finding(CORRUPT, name, position, description)
        return StopVerdict(after is not None, finding, end=until)

    def _skip(self, record: f.Record, description: str, place: tuple[int, int]) -> StopVerdict:
        """Report and skip one bad record whose header is known."""
        kind = f.KIND_NAMES[record.kind]
        byte, bit = place
        self._scan.position = record.end
        if record.kind == f.MARK:
            self._scan.batch_end = record.end + record.offset
        elif record.kind == f.FOOTER:
            self._scan.footer = record
        index = record.index if record.group else 0
        name = self._segment.name
        finding = Finding(
            CORRUPT, name, record.position, f"{kind} {description}", record.group, index, byte, bit
        )
        return StopVerdict(True, finding, record, record.end)


def bit_of_payload(segment: Segment, record: f.Record) -> tuple[int, int]:
    """Return the position and number of the one wrong bit of a payload or its checksum.

    (-1, -1) if several bits are wrong.
    """
    begin = record.position + _HEADER
    payload = segment.read(begin, record.length)
    place = wrong_bit(record.payload_crc, crc32(payload, record.header_crc), record.length)
    if place is None:
        return -1, -1
    byte, bit = place
    in_checksum = byte - record.length
    return (record.position + 4 + in_checksum if in_checksum >= 0 else begin + byte), bit


def corrected_record(
    segment: Segment, position: int, seed: int
) -> tuple[f.Record, tuple[int, int]] | None:
    """Return the record whose header differs in one bit from the bytes here, and that bit."""
    raw = segment.read(position, _HEADER)
    stored = int.from_bytes(raw[:4], "little")
    repaired = corrected(raw[8:], stored, seed) if len(raw) == _HEADER else None
    if repaired is None:
        return None
    body, (byte, bit) = repaired
    header = crc32(body, seed).to_bytes(4, "little") + raw[4:8] + body
    try:
        record = f.record_at(header, 0, position, seed)
    except FormatUnknown:
        return None
    at = position + (byte - len(body) if byte >= len(body) else 8 + byte)
    return None if record is None else (record, (at, bit))
