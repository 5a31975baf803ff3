"""Segments as an onlooker sees them: files of a log that somebody else may be writing right now.

Nothing here takes a lock or writes. What is read may change in the next moment: a segment may be
sealed, renamed to `.trash`, or be gone between its listing and its opening. So a question is
asked when its answer is needed, and `FileNotFoundError` means "reclaimed", never "damaged".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f
from myqueue.wal.read.scan import Scan, previous_abandoned_at, trailer_of
from myqueue.wal.tools.bit_flip import corrected

TORN, CORRUPT = "torn", "corrupt"
FRESH, TRASH = ".seg.new", ".seg.trash"
_OWNER_AT = 48


class ReadableFiles(Protocol):
    """The reading part of `Files`; real and simulated ones fit."""

    def read(self, name: str, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""

    def list(self) -> dict[str, int]:
        """Names and sizes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, with its exact place.

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
    """One file, with what its header says; `finding` if the header or the size is wrong.

    `readable` is False if what follows the header cannot be read as this segment's records.
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

    def read(self, position: int, length: int) -> bytes:
        return self.look.read(self.name, position, length)

    def scan(self) -> Scan:
        return Scan(self.read, self.uid, self.capacity)

    def trailer(self) -> f.Record | None:
        """What seals it, asked anew each time."""
        return trailer_of(self.read, self.uid, self.capacity)

    def is_used(self) -> bool:
        """Whether anything valid stands in it."""
        if not self.readable or self.trailer() is not None:
            return True
        scan = self.scan()
        if next(scan.records(), None) is not None:
            return True
        return next(scan.find(f.RECORD_SIGN), None) is not None


def list_segments(look: ReadableFiles) -> list[tuple[int, int, str, int]]:
    """(number, uid, name, size) of the segments, in order.

    A file that is renamed while a directory is being read may be missed, under both names. So if
    a number is not there, the directory is read once more. Segments get their names in order: the
    second reading sees all up to the last of the first one, though it may miss later ones.
    """
    names = look.list()
    out = _segments_of(names)
    if out and out[-1][0] - out[0][0] >= len(out):
        last = out[-1][0]
        out = [one for one in _segments_of({**names, **look.list()}) if one[0] <= last]
    return out


def _segments_of(names: dict[str, int]) -> list[tuple[int, int, str, int]]:
    out = []
    for name, size in names.items():
        parsed = f.parse_segment_name(name)
        if parsed is not None:
            out.append((*parsed, name, size))
    return sorted(out)


def survey(look: ReadableFiles) -> list[Segment]:
    """All segments with their headers judged; those that vanish meanwhile are left out."""
    out: list[Segment] = []
    for number, uid, name, size in list_segments(look):
        try:
            out.append(examine(look, name, number, uid, size))
        except FileNotFoundError:
            continue
    return out


def examine(look: ReadableFiles, name: str, number: int, uid: int, size: int) -> Segment:
    """Read the header. Where it is damaged, the file's name and size stand in for it."""
    segment = Segment(look, name, number, uid, size, size)
    raw = look.read(name, 0, f.SEGMENT_HEADER_BYTES)
    try:
        header = f.decode_segment_header(raw)
    except FormatUnknown as error:
        known = _mended_header(raw)
        if known is None:
            segment.finding = Finding(CORRUPT, name, 0, str(error))
            # Records of a version that is not known are not to be judged; damage does not matter.
            segment.readable = "version" not in str(error)
            return segment
        header, (byte, bit) = known
        segment.finding = Finding(CORRUPT, name, 0, str(error), byte=byte, bit=bit)
    segment.capacity, segment.created_ms = header.capacity, header.created_ms
    segment.owner = header.owner
    if (header.number, header.uid) != (number, uid):
        right = f.segment_name(header.number, header.uid)
        segment.finding = Finding(CORRUPT, name, 16, f"this file is segment {right}")
        segment.readable = False
    elif size != header.capacity:
        what = f"the file has {size} bytes, its header says {header.capacity}"
        segment.finding = Finding(CORRUPT, name, min(size, header.capacity), what)
    return segment


def _mended_header(raw: bytes) -> tuple[f.SegmentHeader, tuple[int, int]] | None:
    """The header as it was before one bit of it turned, and where that bit is in the file."""
    stored = int.from_bytes(raw[12:16], "little")
    found = corrected(raw[:12] + raw[16:], stored) if len(raw) == f.SEGMENT_HEADER_BYTES else None
    if found is None:
        return None
    message, (byte, bit) = found
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
    """Segments that another disk's daemon wrote: not `owner`'s, or not of most others' owner."""
    owners = Counter(one.owner for one in segments if one.owner)
    if not owners:
        return {}
    expected = owner or owners.most_common(1)[0][0]
    out = {}
    for one in segments:
        if one.owner and one.owner != expected:
            what = f"written by the daemon of another disk, {one.owner.hex()}"
            out[one.name] = Finding(CORRUPT, one.name, _OWNER_AT, what)
    return out


def abandoned_at(segment: Segment) -> int:
    """Where the log left this segment without a footer, by the first mark of the next; else 0."""
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
    """Up to which position later segments prove this one to be synced; 0 if none is in use."""
    if not is_followed(segment.look, segment.number):
        return 0
    return abandoned_at(segment) or segment.capacity


def is_followed(look: ReadableFiles, number: int) -> bool:
    """Whether a later segment is in use; then the one with this number was synced to its end."""
    for later, uid, name, size in list_segments(look):
        if later > number:
            try:
                if examine(look, name, later, uid, size).is_used():
                    return True
            except FileNotFoundError:  # only what is sealed is reclaimed, so it was used
                return True
    return False
