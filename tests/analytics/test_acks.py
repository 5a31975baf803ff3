"""The ledger: what the SDK writes is what analytics reads, whatever a crash left of it."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from zlib import crc32

import pytest

from myqueue.acks import AckLedger
from myqueue.analytics.log import ack_ledger
from myqueue.errors import FormatUnknown, InvalidRequest, TimedOut
from myqueue.producer.delivery import RecordMetadata, Stored


def read(path: Path, split: int = 1 << 20) -> list[tuple[str, int, int, list[int]]]:
    found = [
        one for task in ack_ledger.tasks([str(path)], split) for one in ack_ledger.parsed(task)
    ]
    return [one[:4] for one in found]


def test_deliveries_are_noted_when_they_are_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "acks"
    with AckLedger(path) as ledger:
        one: Future[RecordMetadata] = Future()
        failed: Future[RecordMetadata] = Future()
        many: Future[list[Stored]] = Future()
        ledger.follow(one, b"apple")
        ledger.follow(failed, b"pear")
        ledger.follow_many(many, [b"a", b"b", b"c"])
        assert read(path) == []
        many.set_result([Stored("t", 0, 7, 2, 1), Stored("t", 1, 9, 1, 1)])
        one.set_result(RecordMetadata("u", 3, 17, 1))
        failed.set_exception(TimedOut("no"))
        assert ledger.count == 4
    assert read(path) == [
        ("t", 0, 7, [crc32(b"a"), crc32(b"b")]),
        ("t", 1, 9, [crc32(b"c")]),
        ("u", 3, 17, [crc32(b"apple")]),
    ]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_that_a_crash_cut_was_not_noted(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "acks"
    with AckLedger(path) as ledger:
        ledger.note("t", 0, 1, [1])
        ledger.note("t", 0, 2, [2])
    path.write_bytes(path.read_bytes()[:-cut])
    assert read(path) == [("t", 0, 1, [1])]
    with AckLedger(path) as ledger:
        ledger.note("t", 0, 3, [3])
    left = read(path)
    assert left[0] == ("t", 0, 1, [1]) and left[-1] == ("t", 0, 3, [3])
    assert len(left) == 2 + (cut == 1)  # a whole line that only lacked its end counts


@pytest.mark.parametrize("split", [1, 17, 64, 1000])
def test_each_line_once_however_it_is_split(tmp_path: Path, split: int) -> None:
    path = tmp_path / "acks"
    with AckLedger(path) as ledger:
        for offset in range(50):
            ledger.note("t", 0, offset, [offset] * (offset % 4 + 1))
    assert [one[2] for one in read(path, split)] == list(range(50))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a ledger\n")
    with pytest.raises(FormatUnknown, match="is not a ledger"):
        read(path)
    with pytest.raises(InvalidRequest, match="is not a ledger"):
        AckLedger(path)
    path.write_text(json.dumps({"schema": "myq.acks/1"}) + '\n{"topic": 3}\n{"topic": 4}\n')
    with pytest.raises(FormatUnknown, match="byte 25"):
        read(path)
