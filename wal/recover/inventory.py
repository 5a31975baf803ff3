"""The segments in a log's directory, before any of their records is read.

Names, sizes, headers and trailers show which segments are sealed, which are damaged, and whether a
number between two others is missing. Files of an interrupted preparation or removal are deleted.
"""

from __future__ import annotations

from myqueue.errors import IdentityMismatch
from myqueue.wal import format as f
from myqueue.wal.check.segments import CORRUPT, Finding, Segment, examine
from myqueue.wal.files import Files
from myqueue.wal.read.scan import previous_abandoned_at


def take_inventory(
    files: Files, owner: bytes | None, repair: bool
) -> tuple[dict[int, Segment], list[Finding]]:
    """Read headers and trailers; return the segments by number, and what is wrong with them.

    With `repair`, leftover files are deleted. IdentityMismatch: a segment has another owner.
    """
    candidates = []
    segments: dict[int, Segment] = {}
    findings: list[Finding] = []
    for name, size in sorted(files.list().items()):
        parsed = f.parse_segment_name(name)
        if parsed is not None:
            candidates.append(examine(files, name, *parsed, size))
        elif repair and name.endswith((".seg.new", ".seg.trash")):
            files.move(name, None)
    for segment in candidates:
        number, finding = segment.number, segment.finding
        # A header that fails its checksum, or that is of another segment, says nothing of owners.
        is_known = segment.readable and (finding is None or finding.position > 0)
        if is_known and owner is not None and segment.owner != owner:
            raise IdentityMismatch(f"{segment.name} was written by the daemon of another disk")
        segment.sealed = segment.trailer() is not None
        previous = segments.get(number - 1)
        if number in segments:
            finding = Finding(CORRUPT, segment.name, 0, f"number {number} is there twice")
        elif finding is None and segments and previous is None and not _may_be_reclaimed(segments):
            problem = f"segment {number - 1} before it is missing"
            finding = Finding(CORRUPT, segment.name, 0, problem)
        if previous is not None and not previous.sealed:
            previous.abandoned_at = previous_abandoned_at(segment.read, segment.uid)
        if finding is not None:
            segment.damaged = True
            findings.append(finding)
        segments.setdefault(number, segment)
    return segments, findings


def _may_be_reclaimed(segments: dict[int, Segment]) -> bool:
    """Whether a gap in the numbers may be due to reclaim, which removes sealed segments only."""
    return all(older.sealed or older.abandoned_at for older in segments.values())
