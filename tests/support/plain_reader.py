"""An independent reader: plain Python, the daemons' own codec, one pass over a log's records."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from myqueue.daemons.raft import types as t
from myqueue.wal import format as f
from myqueue.wal.check.segments import survey
from myqueue.wal.files import RealFiles
from myqueue.wire import batch


class Row(NamedTuple):
    group: int
    offset: int
    value: bytes
    key: bytes | None


def records(daemon: Path) -> list[f.Record]:
    files = RealFiles(str(daemon / "wal"), read_only=True)
    found = [record for one in survey(files) for record, _ in one.scan().records()]
    files.close()
    return found


def messages(daemon: Path) -> list[Row]:
    """Read the messages of a log that has no truncations and is committed as a whole."""
    files = RealFiles(str(daemon / "wal"), read_only=True)
    out = []
    for segment in survey(files):
        for record, payload in segment.scan().records():
            if record.kind == f.ENTRY and record.entry_type == t.DATA:
                _, columns = batch.open_batch(bytes(payload))
                for at, value in enumerate(columns.values):
                    key = columns.keys[at] if columns.keys else None
                    out.append(Row(record.group, record.offset + at, value, key))
    files.close()
    return sorted(out)
