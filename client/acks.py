"""`AckLedger`: a file of all messages whose storage the cluster has acknowledged to a producer.

    with AckLedger("acks.jsonl") as ledger, Producer(cluster) as producer:
        value = b"17 apples"
        ledger.follow(producer.send("orders", value), value)

`myq spark verify --acks FILE` checks later that none of them was lost. Comes in: deliveries and
their values. Goes out: a line for each run of messages of one partition, with the CRC-32 of each
value:

    {"schema": "myq.acks/1"}
    {"topic": "orders", "partition": 0, "offset": 17, "crcs": [907060870]}

A line is one write, made before later callbacks of the delivery run, so a process that is killed
loses none that it wrote. Failures are not noted: nothing was promised.
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
    """A file of acknowledged messages, for `myq spark verify --acks`. Safe from several threads.

    >>> with AckLedger("acks.jsonl") as ledger:  # doctest: +SKIP
    ...     with Producer("127.0.0.1:9092") as producer:
    ...         ledger.follow(producer.send("orders", b"17 apples"), b"17 apples")

    path: the file. It is created, or continued if it is a ledger; any other file is InvalidRequest.
    `count` is the number of messages noted by this object.

    Close producers before the ledger: an acknowledgement that comes later can't be noted.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.count = os.fspath(path), 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd, self._lock = os.open(self.path, flags, 0o644), Lock()
        head = os.pread(self._fd, 4096, 0)
        if not head:
            self._write({"schema": SCHEMA})
        elif not head.startswith(json.dumps({"schema": SCHEMA}).encode()):
            os.close(self._fd)
            raise InvalidRequest(f"{self.path} exists, and is not a ledger of acknowledgements")
        elif not self._ends_with_line():
            os.write(self._fd, b"\n\n")  # end a line that a crash cut; readers ignore it

    def _ends_with_line(self) -> bool:
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, 1, size - 1) == b"\n"

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            os.write(self._fd, json.dumps(line).encode() + b"\n")

    def note(self, topic: str, partition: int, offset: int, crcs: Sequence[int]) -> None:
        """Note an acknowledged run of messages from `offset` on, by the CRC-32 of their values."""
        line = {"topic": topic, "partition": partition, "offset": offset, "crcs": list(crcs)}
        self._write(line)
        self.count += len(crcs)

    def follow(self, delivery: Future[RecordMetadata], value: bytes) -> None:
        """Note the message `value` when it is acknowledged; `delivery` is what `send` returned."""
        crc = crc32(value)

        def done(settled: Future[RecordMetadata]) -> None:
            if settled.exception() is None:
                stored = settled.result()
                self.note(stored.topic, stored.partition, stored.offset, [crc])

        delivery.add_done_callback(done)

    def follow_many(self, delivery: Future[list[Stored]], values: Sequence[bytes]) -> None:
        """Note a list that `send_many` sent without keys, so that its runs are in its order."""
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
        """Close the file. Close producers first: later acknowledgements can't be noted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> AckLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
