"""Real logs for the tests of `myq wal`, and the damage that is planted in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import sleep
from typing import NamedTuple

from myqueue.errors import JournalBusy
from myqueue.wal import format as f
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.check.segments import Finding, Segment, survey
from myqueue.wal.files import RealFiles
from myqueue.wal.log import Log
from myqueue.wal.tools.verify import Summary, verify

GROUPS = (0xA1, 0xB2, 2**64 - 5)
SEGMENT_BYTES = 1 << 16
TIME_MS = 1_700_000_000_000


class PlacedRecord(NamedTuple):
    """A record and its place: segment and position."""

    path: Path
    record: f.Record


def open_log(daemon: Path, seed: int = 1, segment_bytes: int = SEGMENT_BYTES) -> Log:
    config = JournalConfig(segment_bytes=segment_bytes, soft_limit_bytes=0, reserve_bytes=0)
    return Log(str(daemon), ("test", "b1", "broker"), config, lambda: TIME_MS, Random(seed))


def append(log: Log, group: int, count: int, payload: bytes) -> None:
    first = log.journal.groups.by_uid[group].last_index + 1
    entries = [(i, 3, 2 * i, 2, TIME_MS + i, 0, i, payload) for i in range(first, first + count)]
    while True:
        try:
            log.journal.append(group, entries)
            break
        except JournalBusy:
            sleep(0.001)
            log.poll()
    log.journal.submit()
    log.poll()


def make_log(
    daemon: Path,
    rounds: int = 20,
    *,
    seed: int = 1,
    payload: bytes = b"hello " * 50,
    segment_bytes: int = SEGMENT_BYTES,
) -> Path:
    """A daemon's folder with a log of some segments, closed; returns the folder of the log."""
    log = open_log(daemon, seed, segment_bytes)
    for group in GROUPS:
        log.journal.create_group(group, b"group %x" % group)
        log.journal.hard_state(group, 3, 1)
    for _ in range(rounds):
        for group in GROUPS:
            append(log, group, 10, payload)
    assert log.close()
    return daemon / "wal"


class Folder:
    """A look at a folder that keeps no file open, so that tests may forget it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, position: int, length: int) -> bytes:
        with open(self.path / name, "rb") as file:
            file.seek(position)
            return file.read(length)

    def list(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.path.iterdir()}


def segments(wal: Path) -> list[Segment]:
    return survey(Folder(wal))


def records(wal: Path) -> Iterator[PlacedRecord]:
    for segment in segments(wal):
        for record, _ in segment.scan().records():
            yield PlacedRecord(wal / segment.name, record)


def nth_record(wal: Path, kind: int, number: int = 0, segment: int = 0) -> PlacedRecord:
    """Return a record of this kind, in this segment (from 0) of the log."""
    name = segments(wal)[segment].name
    found = [one for one in records(wal) if one.record.kind == kind and one.path.name == name]
    return found[number]


def flip(path: Path, byte: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))


def put(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def check(wal: Path, owner: bytes | None = None) -> tuple[list[Finding], Summary]:
    files = RealFiles(str(wal), read_only=True)
    events = list(verify(files, owner))
    files.close()
    summary = events[-1]
    assert isinstance(summary, Summary)
    return [event for event in events if isinstance(event, Finding)], summary


def findings(wal: Path) -> list[Finding]:
    return check(wal)[0]


def the_finding(wal: Path) -> Finding:
    found = findings(wal)
    assert len(found) == 1, [str(one) for one in found]
    return found[0]


def whole_content(folder: Path) -> dict[str, bytes]:
    """Every byte below a folder: to show that a command changed nothing."""
    return {
        os.path.relpath(os.path.join(top, name), folder): Path(top, name).read_bytes()
        for top, _, names in os.walk(folder)
        for name in names
    }
