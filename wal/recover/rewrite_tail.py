"""Write the unproven end of a log again, so that it is durable before the daemon answers anyone.

Recovery may have read it from the page cache, after a process that was killed before its sync. So
the same bytes are written once more and synced.
"""

from __future__ import annotations

from collections.abc import Mapping

from myqueue.wal import format as f
from myqueue.wal.check.segments import Segment
from myqueue.wal.files import Files
from myqueue.wal.read.scan import Scan


def rewrite_tail(
    files: Files,
    segments: Mapping[int, Segment],
    number: int,
    scan: Scan,
) -> None:
    """Write again what is not proven to be on the disk of segment `number`, the last one read.

    The torn part becomes zeros, except in a segment with corruption: that keeps its bytes. The
    trailers of this segment and of the one before are written again. A missing one is added if the
    footer is there.
    """
    segment, previous = segments[number], segments.get(number - 1)
    for candidate in (previous, segment):
        if candidate is not None and candidate.sealed:
            _write_trailer_again(files, candidate)
    if segment.sealed:
        return
    begin = max(scan.proven, f.SEGMENT_HEADER_BYTES)
    tail = files.read(segment.name, begin, scan.position - begin)
    torn = 0 if segment.damaged else scan.last_nonzero() - scan.position
    if tail or torn:
        files.write(segment.name, begin, [tail, bytes(torn)], True)
    files.sync(segment.name)
    if scan.footer is not None and not segment.damaged:
        position = segment.capacity - f.RECORD_HEADER_BYTES
        trailer = f.encode_record(scan.seed, f.TRAILER, position, offset=scan.footer.position)
        files.write(segment.name, position, [trailer], True)
        segment.sealed = True


def _write_trailer_again(files: Files, segment: Segment) -> None:
    position = segment.capacity - f.RECORD_HEADER_BYTES
    trailer = files.read(segment.name, position, f.RECORD_HEADER_BYTES)
    files.write(segment.name, position, [trailer], True)
