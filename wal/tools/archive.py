"""Copy sealed segments to another folder, perhaps on storage that several machines share.

    DIR/<uuid of the disk>/manifest.json
                           000000000001-….seg, …

A sealed segment never changes, so a copy is made once. It is written under a temporary name, read
back and checked record by record, synced, renamed, and only then named in the manifest: readers of
the folder never see half a file. An interrupted run is repeated; existing copies are compared with
the manifest (size and SHA-256) and skipped. Damaged segments are refused; the others are copied.

The manifest is JSON of the shape "myq.wal.manifest/1", sealed with a CRC of all its other fields.
Each disk has a folder of its own, since numbers of segments mean nothing across disks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple
from zlib import crc32

from myqueue.errors import CorruptData
from myqueue.wal import format as f
from myqueue.wal.check.check_segment import Progress, SegmentCheck
from myqueue.wal.check.segments import (
    CORRUPT,
    Finding,
    ReadableFiles,
    Segment,
    examine,
    foreign,
    is_followed,
    survey,
)
from myqueue.wal.files import Files, replace_file
from myqueue.wal.identity import Identity
from myqueue.wal.tools.locate import MANIFEST

SCHEMA = "myq.wal.manifest/1"
PART = ".part"
COPY_BYTES = 4 << 20


class Archived(NamedTuple):
    """A segment that is in the archive now; `copied` is False if it was there already."""

    name: str
    bytes: int
    copied: bool


def archive(
    source: ReadableFiles, target: Files, owner: bytes, identity: Identity | None = None
) -> Iterator[Progress | Finding | Archived]:
    """Copy every sealed segment of the disk `owner` into `target`, that disk's folder.

    CorruptData if the manifest there is damaged or of another disk.
    """
    manifest = load_manifest(target) or _new_manifest(owner, identity)
    if manifest["disk"] != owner.hex():
        raise CorruptData(f"{MANIFEST} is of disk {manifest['disk']}, not of {owner.hex()}")
    for name in target.list():
        if name.endswith(PART):  # left by a run that was interrupted
            target.move(name, None)
    segments = survey(source)
    strangers = foreign(segments, owner)
    done, total = 0, sum(segment.capacity for segment in segments)
    for segment in segments:
        finding = strangers.get(segment.name) or segment.finding
        if finding is not None:
            yield finding
        else:
            for event in _archive_one(segment, target, manifest):
                if isinstance(event, Progress):
                    event = Progress(done + event.done, total, event.segment)
                yield event
        done += segment.capacity
        yield Progress(done, total, segment.name)


def _archive_one(
    segment: Segment, target: Files, manifest: dict[str, Any]
) -> Iterator[Progress | Finding | Archived]:
    name = segment.name
    try:
        if segment.trailer() is None:  # still open, or not used yet
            if is_followed(segment.look, segment.number) and segment.trailer() is None:
                problem = "not sealed, but the log went on in a later segment"
                yield Finding(CORRUPT, name, segment.capacity - f.RECORD_HEADER_BYTES, problem)
            return
        row = _row_of(manifest, name)
        if row is not None and _is_there(target, row):
            yield Archived(name, segment.capacity, False)
            return
        digest = _copy(segment, target)
    except FileNotFoundError as error:
        if error.filename is not None and not str(error.filename).endswith(name):
            raise
        return  # reclaimed
    copy = examine(target, name + PART, segment.number, segment.uid, segment.capacity)
    check = SegmentCheck(copy)
    for event in check.run():
        if isinstance(event, Finding):
            event = replace(event, segment=name)  # not the copy
        yield event
    if not check.clean or check.footer_rows is None:
        target.move(name + PART, None)
        return
    target.sync(name + PART)
    target.move(name + PART, name)
    target.sync(None)
    _remember(target, manifest, segment, check.footer_rows, digest)
    yield Archived(name, segment.capacity, True)


def _copy(segment: Segment, target: Files) -> str:
    """Write a copy under a temporary name; return its SHA-256."""
    part, position, digest = segment.name + PART, 0, hashlib.sha256()
    if part in target.list():
        target.move(part, None)
    target.create(part, segment.capacity)
    while position < segment.capacity:
        data = segment.read(position, min(COPY_BYTES, segment.capacity - position))
        if not data:
            break
        digest.update(data)
        target.write(part, position, [data], False)
        position += len(data)
    return digest.hexdigest()


def _is_there(target: Files, row: dict[str, Any]) -> bool:
    """Whether the archived copy is what the manifest's row says."""
    name, size = row["name"], row["bytes"]
    if target.list().get(name) != size:
        return False
    digest, position = hashlib.sha256(), 0
    while position < size:
        data = target.read(name, position, COPY_BYTES)
        if not data:
            return False
        digest.update(data)
        position += len(data)
    return bool(digest.hexdigest() == row["sha256"])


def _new_manifest(owner: bytes, identity: Identity | None) -> dict[str, Any]:
    source = asdict(identity) if identity is not None else None
    return {"schema": SCHEMA, "disk": owner.hex(), "source": source, "segments": []}


def _row_of(manifest: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((row for row in manifest["segments"] if row["name"] == name), None)


def _remember(
    target: Files, manifest: dict[str, Any], segment: Segment, rows: list[f.FooterRow], digest: str
) -> None:
    """Add a segment to the manifest, and replace the file as a whole."""
    kept = [row for row in manifest["segments"] if row["name"] != segment.name]
    groups = [
        {
            "group": f"{row.group:016x}",
            "first_index": row.first_index,
            "last_index": row.last_index,
            "first_offset": row.first_offset,
            "next_offset": row.next_offset,
            "entries": row.entries,
        }
        for row in rows
    ]
    with_entries = [row for row in rows if row.entries]
    new = {
        "name": segment.name,
        "number": segment.number,
        "uid": f"{segment.uid:016x}",
        "bytes": segment.capacity,
        "sha256": digest,
        "created_ms": segment.created_ms,
        "first_time_ms": min(
            (ms for row in with_entries if (ms := row.first_time_ms)), default=None
        ),
        "last_time_ms": max((row.last_time_ms for row in with_entries), default=0) or None,
        "groups": groups,
    }
    manifest["segments"] = sorted([*kept, new], key=lambda row: row["number"])
    manifest["crc"] = _crc(manifest)
    replace_file(target, MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode(), PART)


def load_manifest(files: ReadableFiles) -> dict[str, Any] | None:
    """Return the manifest, None if there is none; CorruptData if it is damaged."""
    size = files.list().get(MANIFEST)
    if size is None:
        return None
    try:
        manifest = json.loads(files.read(MANIFEST, 0, size))
        right = manifest["schema"] == SCHEMA and manifest["crc"] == _crc(manifest)
    except (ValueError, TypeError, KeyError):
        right = False
    if not right:
        raise CorruptData(
            f"{MANIFEST} is damaged, or of another version", hint="Move it away and archive again."
        )
    return dict(manifest)


def _crc(manifest: dict[str, Any]) -> int:
    fields = {name: value for name, value in manifest.items() if name != "crc"}
    return crc32(json.dumps(fields, sort_keys=True).encode())


def missing_from(files: ReadableFiles, manifest: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each segment of the manifest that is missing or of another size."""
    there = files.list()
    for row in manifest["segments"]:
        size = there.get(row["name"])
        if size is None:
            yield Finding(CORRUPT, row["name"], 0, "named in the manifest, but not there")
        elif size != row["bytes"]:
            problem = f"the file has {size} bytes, the manifest says {row['bytes']}"
            yield Finding(CORRUPT, row["name"], min(size, row["bytes"]), problem)
