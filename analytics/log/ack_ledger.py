"""Read a ledger of acknowledgements: messages that a producer was told are stored.

A ledger has lines of JSON. The first line names the schema. Each further line is an
acknowledgement: a run of messages of one partition, with the CRC-32 of each value.
`myqueue.acks.AckLedger` writes it.

    {"schema": "myq.acks/1"}
    {"topic": "orders", "partition": 0, "offset": 17, "crcs": [907060870, 3421780262]}

A last line that a crash cut is left out: the write of that acknowledgement did not end. So is a cut
line in the middle that an empty line follows: there a ledger was continued after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from myqueue.analytics.log import storage
from myqueue.errors import FormatUnknown

SCHEMA_NAME = "myq.acks/1"
CHUNK_BYTES = 1 << 20


class AckTask(NamedTuple):
    """Lines that begin at bytes begin … end - 1."""

    location: str
    begin: int
    end: int


class Ack(NamedTuple):
    """One acknowledgement: messages from `offset` on, a CRC for each."""

    topic: str
    partition: int
    offset: int
    crcs: list[int]
    line_at: int  # byte where its line begins


def tasks(locations: list[str], split_bytes: int) -> list[AckTask]:
    """Cut ledgers into tasks; FormatUnknown for a file that is not a ledger."""
    out = []
    for location in locations:
        file = storage.open_file(location)
        try:
            size, first = file.size, file.read(0, CHUNK_BYTES).partition(b"\n")[0]
        finally:
            file.close()
        try:
            right = json.loads(first)["schema"] == SCHEMA_NAME
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            raise FormatUnknown(
                f"{location} is not a ledger of acknowledgements: its first line has to be "
                f'{{"schema": "{SCHEMA_NAME}"}}',
                hint="`myq bench produce --acks FILE` and `myq demo --acks FILE` write one.",
            )
        begin = len(first) + 1
        out += [
            AckTask(location, at, min(at + split_bytes, size))
            for at in range(begin, size, split_bytes)
        ]
    return out


def lines(task: AckTask) -> Iterator[tuple[int, bytes]]:
    """(position, line) of each whole line that begins in the range, and of the line after it."""
    file = storage.open_file(task.location)
    try:
        at = task.begin - 1  # the byte before tells whether a line begins here
        rest, skipping = b"", True
        while True:
            data = file.read(at + len(rest), CHUNK_BYTES)
            if not data:
                return
            rest += data
            if skipping:
                head, newline, tail = rest.partition(b"\n")
                if not newline:
                    continue
                at, rest, skipping = at + len(head) + 1, tail, False
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield at, line
                if at >= task.end:
                    return
                at += len(line) + 1
    finally:
        file.close()


def parsed(task: AckTask) -> Iterator[Ack]:
    """The acknowledgements of one task; FormatUnknown for a line that is none and was not cut."""
    bad = -1
    for at, line in lines(task):
        if not line:
            bad = -1  # if the line before was cut, the ledger was continued after it
        if bad >= 0 or at >= task.end:
            break
        if not line:
            continue
        ack = _parsed(line, at)
        if ack is None:
            bad = at
        else:
            yield ack
    if bad >= 0:
        raise FormatUnknown(f"{task.location}, byte {bad}: not an acknowledgement")


def _parsed(line: bytes, at: int) -> Ack | None:
    try:
        fields = json.loads(line)
        topic, partition, offset = fields["topic"], fields["partition"], fields["offset"]
        crcs = fields["crcs"]
        right = type(topic) is str and all(
            type(one) is int and one >= 0 for one in (partition, offset, *crcs)
        )
    except (ValueError, KeyError, TypeError):
        return None
    return Ack(topic, partition, offset, crcs, at) if right else None
