"""Planting faults in logs: bits that turn, and records that are right but out of place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from myqueue.wal import format as f
from myqueue.wal.check.segments import Segment, survey
from myqueue.wal.files import RealFiles


def segments(daemon: Path) -> list[Segment]:
    files = RealFiles(str(daemon / "wal"), read_only=True)
    found = [one for one in survey(files) if one.is_used()]
    files.close()
    return found


class ForgedRecord:
    """A record, and the file it stands in."""

    def __init__(self, path: Path, uid: int, record: f.Record, payload: bytes) -> None:
        self.path, self.uid, self.record, self.payload = path, uid, record, payload

    @property
    def position(self) -> int:
        return self.record.position

    def put(self, position: int, data: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(position)
            file.write(data)

    def raw(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.position)
            return file.read(f.RECORD_HEADER_BYTES + self.record.length)

    def flip(self, offset: int, bit: int = 0) -> None:
        """Flip a bit of the record, counted from the beginning of its header."""
        value = self.raw()[offset]
        self.put(self.position + offset, bytes([value ^ 1 << bit]))

    def blank(self) -> None:
        self.put(self.position, bytes(f.RECORD_HEADER_BYTES + self.record.length))

    def forge(self, payload: bytes | None = None, **changes: Any) -> None:
        """The same record with other content, and with checksums that fit."""
        payload = self.payload if payload is None else payload
        assert len(payload) == self.record.length, "it has to fit in its place"
        record, seed = self.record, f.segment_seed(self.uid)
        fields = {
            name: getattr(record, name)
            for name in ("group", "index", "term", "offset", "count", "time_ms", "chain", "flags")
        }
        kind = changes.pop("kind", record.kind)
        header = f.encode_record(seed, kind, self.position, payload, **{**fields, **changes})
        self.put(self.position, header + payload)


def records_to_forge(
    daemon: Path, kind: int = f.ENTRY, group: int | None = None
) -> list[ForgedRecord]:
    out = []
    for segment in segments(daemon):
        files = RealFiles(str(daemon / "wal"), read_only=True)
        for record, payload in (
            Segment(
                files, segment.name, segment.number, segment.uid, segment.size, segment.capacity
            )
            .scan()
            .records()
        ):
            if record.kind == kind and group in (None, record.group):
                path = daemon / "wal" / segment.name
                out.append(ForgedRecord(path, segment.uid, record, bytes(payload)))
        files.close()
    return out
