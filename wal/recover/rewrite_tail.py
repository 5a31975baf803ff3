"""The end of the log, made certain before the daemon speaks.

What recovery read there may have come from the page cache of a process that did not live to sync
it. So it is written once more, as it is, and synced.
"""

from __future__ import annotations

from collections.abc import Mapping

from myqueue.wal import format as f
from myqueue.wal.files import Files
from myqueue.wal.read.scan import Scan
from myqueue.wal.recover.inventory import SegmentFile


def rewrite_tail(
    files: Files, segments: Mapping[int, SegmentFile], number: int, scan: Scan,
    footer: f.Record | None,
) -> None:  # fmt: skip
    """Of segment `number`, the last one that was read, what is not proven to be on the disk.

    The torn part becomes zeros, except in a segment with corruption, which is left as it is found.
    """
    segment, previous = segments[number], segments.get(number - 1)
    for one in (previous, segment):
        if one is not None and one.sealed:
            _write_trailer_again(files, one)
    if segment.sealed:
        return
    begin = max(scan.proven, f.SEGMENT_HEADER_BYTES)
    tail = files.read(segment.name, begin, scan.position - begin)
    torn = 0 if segment.damaged else scan.last_nonzero() - scan.position
    if tail or torn:
        files.write(segment.name, begin, [tail, bytes(torn)], True)
    files.sync(segment.name)
    if footer is not None and not segment.damaged:
        position = segment.capacity - f.RECORD_HEADER_BYTES
        trailer = f.encode_record(scan.seed, f.TRAILER, position, offset=footer.position)
        files.write(segment.name, position, [trailer], True)
        segment.sealed = True


def _write_trailer_again(files: Files, segment: SegmentFile) -> None:
    position = segment.capacity - f.RECORD_HEADER_BYTES
    trailer = files.read(segment.name, position, f.RECORD_HEADER_BYTES)
    files.write(segment.name, position, [trailer], True)
