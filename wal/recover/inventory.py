"""Which segments are in the directory, before a record of them is read.

Names, sizes, headers, trailers: enough to say which are sealed, which are whole, and whether a
number between two others is missing. Leftovers of an interrupted preparation or removal go here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from myqueue.errors import FormatUnknown, IdentityMismatch
from myqueue.wal import format as f
from myqueue.wal.files import Files
from myqueue.wal.read.scan import previous_abandoned_at, trailer_of

TORN, CORRUPT = "torn", "corrupt"


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """Something that is not as it should be, with its exact place."""

    verdict: str
    segment: str
    position: int
    what: str
    group: int = 0
    index: int = 0

    def __str__(self) -> str:
        whose = f" (group {self.group:x}, index {self.index})" if self.group else ""
        return f"{self.verdict}: {self.segment} at position {self.position}: {self.what}{whose}"


@dataclass(slots=True)
class SegmentFile:
    """A segment in the directory."""

    name: str
    number: int
    uid: int
    size: int
    capacity: int
    sealed: bool = False
    damaged: bool = False
    abandoned_at: int = 0  # not sealed because it was damaged; all before this position was synced


def take_inventory(
    files: Files, owner: bytes | None, repair: bool
) -> tuple[dict[int, SegmentFile], list[RecoveryFinding]]:
    """Headers, holes between numbers, leftovers. Nothing is read of the records yet."""
    found = []
    segments: dict[int, SegmentFile] = {}
    findings: list[RecoveryFinding] = []
    for name, size in sorted(files.list().items()):
        parsed = f.parse_segment_name(name)
        if parsed is not None:
            found.append(SegmentFile(name, *parsed, size, size))
        elif repair and name.endswith((".seg.new", ".seg.trash")):
            files.move(name, None)
    for segment in found:
        problem = _check_header(files, segment, owner)
        previous = segments.get(segment.number - 1)
        if segment.number in segments:
            problem = f"number {segment.number} is there twice"
        elif segments and previous is None and not _may_be_reclaimed(segments):
            problem = problem or f"segment {segment.number - 1} before it is missing"
        if previous is not None and not previous.sealed:
            previous.abandoned_at = previous_abandoned_at(reader_of(files, segment), segment.uid)
        if problem:
            segment.damaged = True
            findings.append(RecoveryFinding(CORRUPT, segment.name, 0, problem))
        segments.setdefault(segment.number, segment)
    return segments, findings


def _may_be_reclaimed(segments: dict[int, SegmentFile]) -> bool:
    """Segments are reclaimed in any order, but only sealed ones: what follows a gap is not new."""
    return all(older.sealed or older.abandoned_at for older in segments.values())


def _check_header(files: Files, segment: SegmentFile, owner: bytes | None) -> str:
    """Fill in capacity and sealed; a text if the header or the size is wrong."""
    try:
        header = f.decode_segment_header(files.read(segment.name, 0, f.SEGMENT_HEADER_BYTES))
        segment.capacity = header.capacity
        if (header.number, header.uid) != (segment.number, segment.uid):
            return f"header is of segment {header.number} with uid {header.uid:016x}"
        if owner is not None and header.owner != owner:
            raise IdentityMismatch(f"{segment.name} was written by the daemon of another disk")
    except FormatUnknown as error:
        return str(error)
    finally:
        trailer = trailer_of(reader_of(files, segment), segment.uid, segment.capacity)
        segment.sealed = trailer is not None
    if segment.size < header.capacity:
        return f"file has {segment.size} of {header.capacity} bytes"
    return ""


def reader_of(files: Files, segment: SegmentFile) -> Callable[[int, int], bytes]:
    name = segment.name
    return lambda position, length: files.read(name, position, length)
