"""What a running writer does between two readings of an onlooker, one step at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support import wal_logs as t
from support.wal_logs import make_log

from myqueue.wal import format as f
from myqueue.wal.check.segments import Finding, Segment, list_segments
from myqueue.wal.tools.dump import Dump, DumpedRecord, RecordFilter
from myqueue.wal.tools.listing import overview
from myqueue.wal.tools.verify import Summary, verify


class Past(t.Folder):
    """Shows one segment as it was before its writer came to `position`, until `is_over`."""

    def __init__(self, path: Path, name: str, position: int) -> None:
        super().__init__(path)
        self.name, self.position = name, position
        self.is_over: Callable[[str, int], bool] = lambda name, position: False
        self.over = False

    def read(self, name: str, position: int, length: int) -> bytes:
        self.over = self.over or self.is_over(name, position)
        data = super().read(name, position, length)
        if self.over or name != self.name:
            return data
        known = max(0, min(len(data), self.position - position))
        return data[:known] + bytes(len(data) - known)


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    return make_log(tmp_path / "b1")


def events(look: t.Folder) -> tuple[list[Finding], Summary]:
    found = list(verify(look))
    assert isinstance(found[-1], Summary)
    return [event for event in found if isinstance(event, Finding)], found[-1]


def grows_when_the_next_is_read(wal: Path) -> Past:
    """A segment that is open when it is read; then it is sealed and the next one is begun."""
    one, following = t.segments(wal)[1:3]
    entry = t.nth_record(wal, f.MARK, 3, 1).record
    past = Past(wal, one.name, entry.position)
    past.is_over = lambda name, position: name == following.name and position > 0
    return past


def test_verify_goes_back_to_a_segment_that_was_open(wal: Path) -> None:
    found, summary = events(grows_when_the_next_is_read(wal))
    assert found == []
    assert summary.entries == 600
    assert summary.records == len(list(t.records(wal)))


def test_dump_goes_back_to_a_segment_that_was_open(wal: Path) -> None:
    found = list(
        Dump(grows_when_the_next_is_read(wal), RecordFilter(kinds=frozenset([f.ENTRY]))).records()
    )
    assert len(found) == 600
    assert all(isinstance(one, DumpedRecord) for one in found)


def half_written(wal: Path, waits: list[str]) -> tuple[Past, Segment, f.Record]:
    """The last segment in use, its last entry half written when it is read for the first time."""
    last = [one for one in t.segments(wal) if one.is_used()][-1]
    entries = [
        r.record for r in t.records(wal) if r.path.name == last.name and r.record.kind == f.ENTRY
    ]
    past = Past(wal, last.name, entries[-1].position + 100)
    past.is_over = lambda name, position: bool(waits)
    return past, last, entries[-1]


def test_a_record_that_is_half_written_is_read_again(wal: Path) -> None:
    waits: list[str] = []
    past, _, _ = half_written(wal, waits)
    found = [
        one for one in verify(past, None, lambda: waits.append("x")) if isinstance(one, Finding)
    ]
    assert found == []
    assert waits == ["x"]


def test_a_record_that_stays_half_written_is_torn(wal: Path) -> None:
    past, last, record = half_written(wal, [])
    found, summary = events(past)
    assert [(one.verdict, one.segment, one.position) for one in found] == [
        ("torn", last.name, record.position)
    ]
    assert summary.is_whole


def test_evidence_counts_only_if_it_was_there_before_the_second_reading(wal: Path) -> None:
    """The record comes complete together with the mark that proves it: nothing is corrupt."""
    past, last, record = half_written(wal, [])
    reads = 0

    def is_over(name: str, position: int) -> bool:
        nonlocal reads
        reads += name == last.name and position == record.position + 1  # looking for marks
        return reads > 0

    past.is_over = is_over
    assert events(past)[0] == []


class Vanishing(t.Folder):
    """A segment is in the list, and gone when it is opened."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self.name = name

    def read(self, name: str, position: int, length: int) -> bytes:
        if name == self.name:
            raise FileNotFoundError(2, "No such file or directory", name)
        return super().read(name, position, length)


def test_a_segment_that_goes_away_is_no_error(wal: Path) -> None:
    name = t.segments(wal)[0].name
    look = Vanishing(wal, name)
    assert {
        one.segment.name
        for one in Dump(look, RecordFilter()).records()
        if isinstance(one, DumpedRecord)
    } == {one.name for one in t.segments(wal)[1:] if one.is_used()}
    assert name not in [row.name for row in overview(look)]
    assert isinstance(list(verify(look))[-1], Summary)


def test_a_list_that_missed_a_name(wal: Path) -> None:
    """The directory was read while a file was renamed: one name is not in the first answer."""
    names = t.Folder(wal).list()
    answers = [{n: s for n, s in names.items() if n != sorted(names)[1]}, names]

    class Once(t.Folder):
        def list(self) -> dict[str, int]:
            return answers.pop(0)

    assert [one[2] for one in list_segments(Once(wal))] == sorted(names)
