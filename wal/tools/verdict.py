"""Why a scan stopped, told without writing anything, beside a daemon that may be writing.

Recovery owns the log and may take what it reads at its word. An onlooker may not: a record that
looks broken may be half written at this moment. The way out is the order of two readings: first
the evidence (does a later mark, a trailer or a later segment prove that this place was synced?),
then the place itself once more. Evidence that was there before the second reading means that the
bytes were complete by then. So what still fails is corrupt if it was proven, and otherwise *torn*:
lost in a crash that nobody was promised to survive, or on its way to the disk right now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.read.scan import BAD_PAYLOAD, CUT_SHORT, END, Scan
from myqueue.wal.tools.bit_flip import corrected, wrong_bit
from myqueue.wal.tools.segments import CORRUPT, TORN, Finding, Segment

_HEADER = f.RECORD_HEADER_BYTES


class StopVerdict(NamedTuple):
    """What to do at a place where the scan stopped.

    `record` is the header of a record that was skipped: it is known, its payload is not to be
    used. With `again` the scan goes on, at its position or at one behind the bad place.
    """

    again: bool
    finding: Finding | None = None
    record: f.Record | None = None


class Judge:
    """Decides at each stop of one segment's scan.

    `followed` tells up to where later segments prove it to be synced, 0 if none is in use; `wait`
    is called before a place without evidence is read again, to give a running writer the time to
    finish it.
    """

    def __init__(
        self, segment: Segment, scan: Scan, followed: Callable[[], int], wait: Callable[[], None]
    ) -> None:
        self._segment, self._scan, self._followed, self._wait = segment, scan, followed, wait
        self.sealed = segment.trailer() is not None
        self._marks_prove = 0
        self._doubted = -1  # position of the stop that was read again
        self._proven = 0  # what was proven before that

    def refresh(self) -> bool:
        """Look again, after the log went on: whether the segment is sealed by now."""
        self.sealed = self._segment.trailer() is not None
        self._doubted, self._marks_prove = -1, 0
        return self.sealed

    def stopped(self, footer_seen: bool) -> StopVerdict:
        scan, position = self._scan, self._scan.position
        blank = scan.problem == END and scan.last_nonzero() == position
        if blank and (footer_seen or position + _HEADER > scan.limit):
            return StopVerdict(False)
        if position != self._doubted:
            if blank and position >= scan.batch_end and not self.sealed:
                return StopVerdict(False)  # the usual end of the segment that is open
            self._doubted, self._proven = position, self._evidence()
            if self._proven <= position:
                self._wait()
            scan.bad = None
            return StopVerdict(True)
        if position < self._proven or scan.problem == CUT_SHORT:
            return self._corrupt(blank)
        what = "the last write is incomplete"
        if not blank:
            size = scan.last_nonzero() - position
            what = f"{size} bytes of a write that was not synced ({scan.problem})"
        return StopVerdict(False, Finding(TORN, self._segment.name, position, what))

    def _evidence(self) -> int:
        """The position up to which all is known to have been synced."""
        scan = self._scan
        if self.sealed:
            return self._segment.capacity
        followed = self._followed()
        if followed >= self._segment.capacity:
            return followed
        if self._marks_prove <= scan.position:
            try:
                self._marks_prove = scan.proven_by_later_marks()
            except FormatUnknown:  # a valid record of a newer version: the log went on with it
                self._marks_prove = self._segment.capacity
        return max(followed, scan.proven, self._marks_prove)

    def _corrupt(self, blank: bool) -> StopVerdict:
        """Report the place and move the scan behind it, as little as can be."""
        scan, bad, name = self._scan, self._scan.bad, self._segment.name
        position, problem = scan.position, scan.problem
        scan.bad = None
        if blank:
            what = "records that were synced are not there"
            return StopVerdict(False, Finding(CORRUPT, name, position, what))
        if problem == CUT_SHORT:
            group, index = (bad.group, bad.index) if bad else (0, 0)
            what = "the file ends inside of this record"
            return StopVerdict(False, Finding(CORRUPT, name, position, what, group, index))
        if problem == BAD_PAYLOAD and bad is not None and bad.end <= scan.limit:
            return self._known(
                bad, "payload fails its checksum", bit_of_payload(self._segment, bad)
            )
        whole = corrected_record(self._segment, position, scan.seed)
        if whole is not None and whole[0].end <= scan.limit:
            return self._known(whole[0], "record header fails its checksum", whole[1])
        after = next(scan.find(f.RECORD_SIGN), None)
        until = after.position if after is not None else scan.last_nonzero()
        what = f"no valid record up to position {until}"
        if after is not None:
            scan.position = after.position
        return StopVerdict(after is not None, Finding(CORRUPT, name, position, what))

    def _known(self, record: f.Record, what: str, place: tuple[int, int]) -> StopVerdict:
        """Something is wrong with a record of which the header is known: skip just this one."""
        kind = f.KIND_NAMES[record.kind]
        byte, bit = place
        self._scan.position = record.end
        if record.kind == f.MARK:
            self._scan.batch_end = record.end + record.offset
        index = record.index if record.group else 0
        name = self._segment.name
        finding = Finding(
            CORRUPT, name, record.position, f"{kind} {what}", record.group, index, byte, bit
        )
        return StopVerdict(True, finding, record)


def bit_of_payload(segment: Segment, record: f.Record) -> tuple[int, int]:
    """Position and bit in the file of the one wrong bit of a payload or its checksum, (-1, -1) if
    there are more.
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
    """The record whose header is one bit away from what stands here, and where that bit is."""
    raw = segment.read(position, _HEADER)
    stored = int.from_bytes(raw[:4], "little")
    found = corrected(raw[8:], stored, seed) if len(raw) == _HEADER else None
    if found is None:
        return None
    body, (byte, bit) = found
    header = crc32(body, seed).to_bytes(4, "little") + raw[4:8] + body
    try:
        record = f.record_at(header, 0, position, seed)
    except FormatUnknown:
        return None
    at = position + (byte - len(body) if byte >= len(body) else 8 + byte)
    return None if record is None else (record, (at, bit))
