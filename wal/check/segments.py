"""Segments as files: names, headers, trailers. A daemon may be writing them right now.

Nothing here takes a lock or writes. For a reader from outside, files may change at any time: a
segment may be sealed, renamed to `.trash`, or removed between its listing and its opening. So files
are read when the answer is needed, and `FileNotFoundError` means "reclaimed", never "damaged".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.check.bit_flip import corrected
from myqueue.wal.read.scan import Scan, previous_abandoned_at, trailer_of

TORN, CORRUPT = "torn", "corrupt"
FRESH, TRASH = ".seg.new", ".seg.trash"
_OWNER_AT = 48


class ReadableFiles(Protocol):
    """The reading part of `Files`."""

    def read(self, name: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer at the end of the file."""

    def list(self) -> dict[str, int]:
        """Return names and sizes of the files."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a log, and its exact place.

    `position` is where the record (or field) begins. If one wrong bit explains all, `byte` is the
    position of its byte and `bit` its number from the lowest; otherwise both are -1.
    """

    verdict: str
    segment: str
    position: int
    what: str
    group: int = 0
    index: int = 0
    byte: int = -1
    bit: int = -1

    def __str__(self) -> str:
        whose = f" (group {self.group:016x}, index {self.index})" if self.group else ""
        flip = f": one wrong bit, bit {self.bit} of byte {self.byte}" if self.byte >= 0 else ""
        place = f"{self.segment} at position {self.position}"
        return f"{self.verdict}: {place}: {self.what}{flip}{whose}"


@dataclass(slots=True)
class Segment:
    """One file and the fields of its header; `finding` if the header or the size is wrong.

    `readable` is False if the bytes after the header cannot be read as this segment's records. The
    last three fields are its daemon's, which knows more than the file says.
    """

    look: ReadableFiles
    name: str
    number: int
    uid: int
    size: int
    capacity: int
    created_ms: int = 0
    owner: bytes = b""
    finding: Finding | None = None
    readable: bool = True
    sealed: bool = False  # as of the daemon's start
    damaged: bool = False
    # Not 0: the log left this segment unsealed because it was damaged; all before here was synced.
    abandoned_at: int = 0

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes of the file."""
        return self.look.read(self.name, position, length)

    def scan(self) -> Scan:
        """Return a new scan from the start."""
        return Scan(self.read, self.uid, self.capacity)

    def trailer(self) -> f.Record | None:
        """Read the TRAILER that seals it; None if there is none now."""
        return trailer_of(self.read, self.uid, self.capacity)

    def is_used(self) -> bool:
        """Whether it holds any valid record, or cannot be read."""
        return not self.readable or self.trailer() is not None or self.has_record()

    def has_record(self) -> bool:
        """Whether any valid record stands in it."""
        scan = self.scan()
        if next(scan.records(), None) is not None:
            return True
        return next(scan.find(f.RECORD_SIGN), None) is not None


def list_segments(look: ReadableFiles) -> list[tuple[int, int, str, int]]:
    """Return (number, uid, name, size) of each segment, in order.

    A file that is renamed while the directory is read may be missed under both names. So if a
    number is missing, the directory is read once more. Segments get their names in order: the
    second reading sees all segments up to the last one of the first reading.
    """
    names = look.list()
    out = _segments_of(names)
    if out and out[-1][0] - out[0][0] >= len(out):
        last = out[-1][0]
        out = [row for row in _segments_of({**names, **look.list()}) if row[0] <= last]
    return out


def _segments_of(names: dict[str, int]) -> list[tuple[int, int, str, int]]:
    out = []
    for name, size in names.items():
        parsed = f.parse_segment_name(name)
        if parsed is not None:
            out.append((*parsed, name, size))
    return sorted(out)


def survey(look: ReadableFiles) -> list[Segment]:
    """Return all segments with their headers examined; those reclaimed meanwhile are left out."""
    out: list[Segment] = []
    for number, uid, name, size in list_segments(look):
        try:
            out.append(examine(look, name, number, uid, size))
        except FileNotFoundError:
            continue
    return out


def examine(look: ReadableFiles, name: str, number: int, uid: int, size: int) -> Segment:
    """Read a segment's header. If it is damaged, the file's name and size stand in for it."""
    segment = Segment(look, name, number, uid, size, size)
    raw = look.read(name, 0, f.SEGMENT_HEADER_BYTES)
    try:
        header = f.decode_segment_header(raw)
    except FormatUnknown as error:
        repaired = _corrected_header(raw)
        if repaired is None:
            segment.finding = Finding(CORRUPT, name, 0, str(error))
            # Records of an unknown version cannot be judged; those after a damaged header can.
            segment.readable = "version" not in str(error)
            return segment
        header, (byte, bit) = repaired
        segment.finding = Finding(CORRUPT, name, 0, str(error), byte=byte, bit=bit)
    segment.capacity, segment.created_ms = header.capacity, header.created_ms
    segment.owner = header.owner
    if (header.number, header.uid) != (number, uid):
        right = f.segment_name(header.number, header.uid)
        segment.finding = Finding(CORRUPT, name, 16, f"this file is segment {right}")
        segment.readable = False
    elif size != header.capacity:
        problem = f"the file has {size} bytes, its header says {header.capacity}"
        segment.finding = Finding(CORRUPT, name, min(size, header.capacity), problem)
    return segment


def _corrected_header(raw: bytes) -> tuple[f.SegmentHeader, tuple[int, int]] | None:
    """Return the header with its one flipped bit corrected, and that bit's place in the file."""
    stored = int.from_bytes(raw[12:16], "little")
    repaired = (
        corrected(raw[:12] + raw[16:], stored) if len(raw) == f.SEGMENT_HEADER_BYTES else None
    )
    if repaired is None:
        return None
    message, (byte, bit) = repaired
    header = message[:12] + crc32(message).to_bytes(4, "little") + message[12:]
    if byte >= len(message):
        byte = 12 + byte - len(message)
    elif byte >= 12:
        byte += 4
    try:
        return f.decode_segment_header(header), (byte, bit)
    except FormatUnknown:
        return None


def foreign(segments: list[Segment], owner: bytes | None) -> dict[str, Finding]:
    """Find segments that another disk's daemon wrote; return name -> finding.

    They do not have `owner`, or without it, not the owner of most segments.
    """
    owners = Counter(segment.owner for segment in segments if segment.owner)
    if not owners:
        return {}
    expected = owner or owners.most_common(1)[0][0]
    out = {}
    for segment in segments:
        if segment.owner and segment.owner != expected:
            problem = f"written by the daemon of another disk, {segment.owner.hex()}"
            out[segment.name] = Finding(CORRUPT, segment.name, _OWNER_AT, problem)
    return out


def abandoned_at(segment: Segment) -> int:
    """Return where the log abandoned this segment, by the first mark of the next one; else 0."""
    for number, uid, name, size in list_segments(segment.look):
        if number == segment.number + 1:
            try:
                return previous_abandoned_at(
                    Segment(segment.look, name, number, uid, size, size).read, uid
                )
            except FileNotFoundError:
                return 0
    return 0


def synced_to(segment: Segment) -> int:
    """Return the position up to which later segments prove this one synced; 0: none is in use."""
    if not is_followed(segment.look, segment.number):
        return 0
    return abandoned_at(segment) or segment.capacity


def is_followed(look: ReadableFiles, number: int) -> bool:
    """Whether a later segment is in use; then the segment with this number was synced."""
    for later, uid, name, size in list_segments(look):
        if later > number:
            try:
                if examine(look, name, later, uid, size).is_used():
                    return True
            except FileNotFoundError:  # only sealed segments are reclaimed, so it was used
                return True
    return False
