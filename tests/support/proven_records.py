"""Records of a segment that a reader may believe while its daemon is still writing.

A test reads segments as an outside reader does: by their marks alone, without the store.
"""

from __future__ import annotations

from collections.abc import Iterator

from myqueue.errors import CorruptData
from myqueue.wal import format as f
from myqueue.wal.read.scan import Read, Scan


def proven_records(
    read: Read, uid: int, capacity: int, position: int, complete: bool
) -> Iterator[tuple[f.Record, memoryview]]:
    """Yield the records of one segment that are certainly synced, while a daemon may be writing.

    `complete` says that the segment is sealed or that a later one is in use; then a place that
    cannot be read is CorruptData, as all of it was synced. Otherwise records wait until a later
    mark proves them; those that no mark proves yet are not handed out.
    """
    kind = 0
    scan = Scan(read, uid, capacity, position)
    waiting: list[tuple[f.Record, memoryview]] = []
    for record, payload in scan.records():
        waiting.append((record, payload))
        kind = record.kind
        if record.kind == f.MARK or complete:
            proven = capacity if complete else scan.proven
            done = sum(1 for one, _ in waiting if one.position < proven)
            yield from waiting[:done]
            del waiting[:done]
    if complete and kind != f.FOOTER:
        raise CorruptData(
            f"position {scan.position}: {scan.problem}, but the log goes on behind it"
        )
