"""The segments in a log's directory, before any of their records is read.

Names, sizes, headers and trailers show which segments are sealed, which are damaged, and whether a
number between two others is missing. Files of an interrupted preparation or removal are deleted.
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
    """Something wrong with the log, and its exact place."""

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
    # Not 0: the log left this segment unsealed because it was damaged; all before here was synced.
    abandoned_at: int = 0


def take_inventory(
    files: Files, owner: bytes | None, repair: bool
) -> tuple[dict[int, SegmentFile], list[RecoveryFinding]]:
    """Read headers and trailers; return the segments by number, and what is wrong with them.

    With `repair`, leftover files are deleted. IdentityMismatch: a segment has another owner.
    """
    candidates = []
    segments: dict[int, SegmentFile] = {}
    findings: list[RecoveryFinding] = []
    for name, size in sorted(files.list().items()):
        parsed = f.parse_segment_name(name)
        if parsed is not None:
            candidates.append(SegmentFile(name, *parsed, size, size))
        elif repair and name.endswith((".seg.new", ".seg.trash")):
            files.move(name, None)
    for segment in candidates:
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
    """Whether a gap in the numbers may be due to reclaim, which removes sealed segments only."""
    return all(older.sealed or older.abandoned_at for older in segments.values())


def _check_header(files: Files, segment: SegmentFile, owner: bytes | None) -> str:
    """Fill in `capacity` and `sealed`; return a text if the header or the size is wrong."""
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
    """Return a function (position, length) -> bytes of this segment."""
    name = segment.name
    return lambda position, length: files.read(name, position, length)
