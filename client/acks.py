"""A ledger of acknowledgements: what a producer was told is stored, written down at once.

    with AckLedger("acks.jsonl") as ledger, Producer(cluster) as producer:
        value = b"17 apples"
        ledger.follow(producer.send("orders", value), value)

Whoever has the file can ask later whether the promise was kept (`myq spark verify --acks FILE`):
each line names a run of messages of one partition, with the CRC-32 of each value. A line is one
write, made before anybody else hears of the acknowledgement from this delivery's callbacks; a
process that is killed loses none that it wrote. Failures are not noted: nothing was promised.

    {"schema": "myq.acks/1"}
    {"topic": "orders", "partition": 0, "offset": 17, "crcs": [907060870]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any
from zlib import crc32

from myqueue.errors import InvalidRequest
from myqueue.producer.delivery import RecordMetadata, Stored

SCHEMA = "myq.acks/1"


class AckLedger:
    """A file that is appended to; an existing ledger is continued. Safe from several threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.count = os.fspath(path), 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd, self._lock = os.open(self.path, flags, 0o644), Lock()
        head = os.pread(self._fd, 4096, 0)
        if not head:
            self._write({"schema": SCHEMA})
        elif not head.startswith(json.dumps({"schema": SCHEMA}).encode()):
            os.close(self._fd)
            raise InvalidRequest(f"{self.path} is there, and is not a ledger of acknowledgements")
        elif not self._ends_with_line():
            os.write(self._fd, b"\n\n")  # a line that a crash cut: readers leave it out

    def _ends_with_line(self) -> bool:
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, 1, size - 1) == b"\n"

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            os.write(self._fd, json.dumps(line).encode() + b"\n")

    def note(self, topic: str, partition: int, offset: int, crcs: Sequence[int]) -> None:
        """An acknowledged run of messages, from `offset` on."""
        line = {"topic": topic, "partition": partition, "offset": offset, "crcs": list(crcs)}
        self._write(line)
        self.count += len(crcs)

    def follow(self, delivery: Future[RecordMetadata], value: bytes) -> None:
        """Note this message as soon as it is acknowledged."""
        crc = crc32(value)

        def done(settled: Future[RecordMetadata]) -> None:
            if settled.exception() is None:
                found = settled.result()
                self.note(found.topic, found.partition, found.offset, [crc])

        delivery.add_done_callback(done)

    def follow_many(self, delivery: Future[list[Stored]], values: Sequence[bytes]) -> None:
        """The same for a list that was sent without keys: its runs are in the list's order."""
        crcs = [crc32(value) for value in values]

        def done(settled: Future[list[Stored]]) -> None:
            if settled.exception() is not None:
                return
            at = 0
            for run in settled.result():
                part = crcs[at : at + run.messages]
                self.note(run.topic, run.partition, run.offset, part)
                at += run.messages

        delivery.add_done_callback(done)

    def close(self) -> None:
        """Close producers before: what is acknowledged later can't be noted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> AckLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
