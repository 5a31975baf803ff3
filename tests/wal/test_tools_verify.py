"""`verify`: each kind of damage is named with its exact place; what is whole passes."""

from pathlib import Path
from random import Random
from shutil import copytree

import pytest
from support import wal_logs as t
from support.wal_logs import GROUPS, flip, make_log, nth_record, put, the_finding

from myqueue.wal import format as f
from myqueue.wal.check.bit_flip import corrected, wrong_bit
from myqueue.wal.files import RealFiles
from myqueue.wal.groups import Groups
from myqueue.wal.recover.recovery import recover


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("log") / "b1").parent


@pytest.fixture
def wal(template: Path, tmp_path: Path) -> Path:
    """A copy of a log, to be damaged."""
    return Path(copytree(template, tmp_path / "b1")) / "wal"


def test_a_whole_log(wal: Path) -> None:
    found, summary = t.check(wal)
    assert found == []
    assert summary.is_whole
    assert (summary.sealed, summary.groups) == (summary.segments - summary.unused - 1, 3)
    assert summary.entries == 600
    assert summary.records == len(list(t.records(wal)))
    assert summary.sealed >= 3


def test_nothing_is_changed(wal: Path) -> None:
    before = t.whole_content(wal.parent)
    t.check(wal)
    assert t.whole_content(wal.parent) == before


@pytest.mark.parametrize("segment", [0, 2])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_bit_of_a_payload(wal: Path, segment: int, bit: int) -> None:
    path, record = nth_record(wal, f.ENTRY, 17, segment)
    byte = record.position + 72 + 123
    flip(path, byte, bit)
    found = the_finding(wal)
    assert (found.verdict, found.segment, found.position) == ("corrupt", path.name, record.position)
    assert (found.group, found.index) == (record.group, record.index)
    assert (found.byte, found.bit) == (byte, bit)
    assert "ENTRY payload" in found.what


# Every field of a header; the first two are checksums themselves.
@pytest.mark.parametrize("at", [0, 3, 4, 7, 8, 10, 11, 12, 15, 16, 20, 24, 32, 40, 48, 56, 64, 71])
@pytest.mark.parametrize(
    "kind", [f.ENTRY, f.HARD_STATE, f.MARK, f.FOOTER, f.GROUP_CREATED], ids=f.KIND_NAMES.get
)
def test_one_bit_of_a_record_header(wal: Path, kind: int, at: int) -> None:
    path, record = nth_record(wal, kind, 0)
    flip(path, record.position + at, 3)
    found = the_finding(wal)
    assert (found.verdict, found.segment, found.position) == ("corrupt", path.name, record.position)
    assert (found.byte, found.bit) == (record.position + at, 3)
    assert found.group == record.group
    assert f.KIND_NAMES[kind] in found.what


def test_one_bit_of_a_footer(wal: Path) -> None:
    path, record = nth_record(wal, f.FOOTER)
    flip(path, record.position + 72 + 100, 5)
    found = the_finding(wal)
    assert (found.segment, found.position) == (path.name, record.position)
    assert found.byte == record.position + 172


@pytest.mark.parametrize("at", [0, 4, 10, 50])
def test_one_bit_of_a_trailer(wal: Path, at: int) -> None:
    one = t.segments(wal)[1]
    byte = one.capacity - 72 + at
    flip(wal / one.name, byte, 2)
    found = the_finding(wal)
    assert (found.verdict, found.segment) == ("corrupt", one.name)
    assert found.position == one.capacity - 72
    assert (found.byte, found.bit) == (byte, 2)


@pytest.mark.parametrize("byte", [0, 9, 13, 20, 30, 40, 50, 300])
def test_one_bit_of_a_segment_header(wal: Path, byte: int) -> None:
    one = t.segments(wal)[1]
    flip(wal / one.name, byte, 1)
    found = the_finding(wal)
    assert (found.verdict, found.segment, found.position) == ("corrupt", one.name, 0)
    assert (found.byte, found.bit) == (byte, 1)


def test_one_bit_in_the_zeros_behind_the_footer(wal: Path) -> None:
    path, footer = nth_record(wal, f.FOOTER)
    end = footer.end
    put(path, end + 8, b"\1")
    found = the_finding(wal)
    assert (found.verdict, found.segment, found.position) == ("corrupt", path.name, end)


def test_a_sector_of_zeros(wal: Path) -> None:
    """A record whose header is gone: its group is known from what is missing."""
    path, record = nth_record(wal, f.ENTRY, 5)
    _, after = nth_record(wal, f.ENTRY, 6)
    put(path, record.position, bytes(72))
    bad, missing = t.findings(wal)
    assert (bad.segment, bad.position) == (path.name, record.position)
    assert str(after.position) in bad.what
    assert (missing.group, missing.index) == (record.group, record.index)
    assert (missing.segment, missing.position) == (path.name, after.position)


def test_many_places_are_all_named(wal: Path) -> None:
    places = [
        nth_record(wal, f.ENTRY, number, segment)
        for segment in (0, 1)
        for number in range(0, 60, 7)
    ]
    for path, record in places:
        flip(path, record.position + 80)
    found = t.findings(wal)
    assert [(one.segment, one.position) for one in found] == [
        (path.name, record.position) for path, record in places
    ]


def test_a_cut_file(wal: Path) -> None:
    path, record = nth_record(wal, f.ENTRY, 40, 1)
    with open(path, "r+b") as file:
        file.truncate(record.position + 100)
    found = t.findings(wal)
    assert (found[0].segment, found[0].position) == (path.name, record.position + 100)
    inside = next(one for one in found if one.position == record.position)
    assert (inside.group, inside.index) == (record.group, record.index)
    assert "file ends" in inside.what


def test_a_missing_segment(wal: Path) -> None:
    gone = t.segments(wal)[1]
    entries = [one.record for one in t.records(wal) if one.path.name == gone.name]
    first: dict[int, int] = {}
    for record in entries:
        if record.kind == f.ENTRY:
            first.setdefault(record.group, record.index)
    (wal / gone.name).unlink()
    found = t.findings(wal)
    assert {one.group for one in found} == set(GROUPS)
    for one in found:
        assert one.index == first[one.group]
        assert one.segment == t.segments(wal)[1].name
        assert f"segment {gone.number} is not there" in one.what


def test_swapped_segments(wal: Path) -> None:
    one, two = (wal / segment.name for segment in t.segments(wal)[1:3])
    one.rename(wal / "x")
    two.rename(one)
    (wal / "x").rename(two)
    swapped = [found for found in t.findings(wal) if "this file is" in found.what]
    assert [(found.segment, found.position) for found in swapped] == [
        (one.name, 16),
        (two.name, 16),
    ]
    assert two.name in swapped[0].what


def test_a_segment_of_another_daemon(wal: Path, tmp_path: Path) -> None:
    other = make_log(tmp_path / "b2", seed=2)
    stranger, mine = t.segments(other)[1], t.segments(wal)[1]
    owner = stranger.owner.hex()
    (wal / mine.name).unlink()
    (wal / stranger.name).write_bytes((other / stranger.name).read_bytes())
    found = t.findings(wal)[0]
    assert (found.verdict, found.segment, found.position) == ("corrupt", stranger.name, 48)
    assert owner in found.what


def test_a_number_twice(wal: Path, tmp_path: Path) -> None:
    one = t.segments(wal)[1]
    twin = f.segment_name(one.number, one.uid ^ 1)
    (wal / twin).write_bytes((wal / one.name).read_bytes())
    assert any("twice" in found.what for found in t.findings(wal))


def test_a_footer_that_tells_something_else(wal: Path) -> None:
    """All checksums are right; the numbers are not."""
    one = t.segments(wal)[0]
    path, footer = nth_record(wal, f.FOOTER)
    raw = path.read_bytes()[footer.position + 72 : footer.end]
    rows = f.decode_footer(raw)
    rows[0] = rows[0]._replace(entries=rows[0].entries + 1)
    payload = f.encode_footer(rows)
    seed = f.segment_seed(one.uid)
    header = f.encode_record(seed, f.FOOTER, footer.position, payload, count=len(rows))
    put(path, footer.position, header + payload)
    found = the_finding(wal)
    assert (found.segment, found.position) == (path.name, footer.position)
    assert found.group == rows[0].group
    assert f"entries {rows[0].entries}, counted {rows[0].entries - 1}" in found.what


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": 1}, "flush number 1 follows flush number"),
        ({"count": 5}, "its mark says 5"),
        ({"offset": 8}, "the batch before ended at position"),
    ],
)
def test_a_mark_that_tells_something_else(wal: Path, change: dict, said: str) -> None:
    one = t.segments(wal)[1]
    path, mark = nth_record(wal, f.MARK, 0, 1)
    fields = {"index": mark.index, "term": mark.term, "offset": mark.offset, "count": mark.count}
    fields.update(change)
    header = f.encode_record(
        f.segment_seed(one.uid), f.MARK, mark.position, time_ms=mark.time_ms, **fields
    )
    put(path, mark.position, header)
    assert said in "".join(str(found) for found in t.findings(wal))


def open_tail(wal: Path) -> tuple[Path, int]:
    """The open segment's path, and where its records end."""
    last = [one for one in t.segments(wal) if one.trailer() is None and one.is_used()][-1]
    scan = last.scan()
    list(scan.records())
    return wal / last.name, scan.position


def test_a_torn_tail_is_no_failure(wal: Path) -> None:
    path, end = open_tail(wal)
    put(path, end, b"half a record, as a crash leaves it")
    found, summary = t.check(wal)
    assert [(one.verdict, one.segment, one.position) for one in found] == [("torn", path.name, end)]
    assert summary.is_whole
    assert summary.torn == 1


def test_a_proven_tail_is_corrupt(wal: Path) -> None:
    """The same damage before a mark that proves the place to have been synced."""
    path, _ = open_tail(wal)
    marks = [one.record for one in t.records(wal) if one.path == path and one.record.kind == f.MARK]
    entries = [
        one.record for one in t.records(wal) if one.path == path and one.record.kind == f.ENTRY
    ]
    assert marks[-1].term > entries[-1].position
    flip(path, entries[-1].position + 80)
    found = the_finding(wal)
    assert (found.verdict, found.position) == ("corrupt", entries[-1].position)


def test_damage_agrees_with_recovery(tmp_path: Path) -> None:
    """Whatever a flipped bit hits: recovery and verify say the same."""
    wal = make_log(tmp_path / "b1", rounds=8)
    names = [one.name for one in t.segments(wal)]
    rng = Random(5)
    verdicts = set()
    for _ in range(150):
        path = wal / rng.choice(names)
        byte, bit = rng.randrange(t.SEGMENT_BYTES), rng.randrange(8)
        flip(path, byte, bit)
        found, summary = t.check(wal)
        files = RealFiles(str(wal), read_only=True)
        recovered = recover(files, Groups(), (0, 0), lambda *op: None, repair=False)
        files.close()
        told = [str(one) for one in found]
        assert recovered.corrupt <= (summary.corrupt > 0), (path.name, byte, told)
        if summary.corrupt and not recovered.corrupt:  # what only a reader of all of it sees
            assert any(w in told[0] for w in ("no valid record", "FOOTER", "footer")), told
        verdicts.add((summary.corrupt > 0, summary.torn > 0))
        flip(path, byte, bit)
    assert len(verdicts) >= 2
    assert t.findings(wal) == []


@pytest.mark.parametrize("length", [1, 2, 64, 300, 5000])
def test_one_wrong_bit_is_found(length: int) -> None:
    from zlib import crc32

    rng = Random(length)
    for _ in range(50):
        right, seed = rng.randbytes(length), rng.getrandbits(32)
        stored = crc32(right, seed)
        wrong, byte, bit = bytearray(right), rng.randrange(length), rng.randrange(8)
        wrong[byte] ^= 1 << bit
        assert corrected(bytes(wrong), stored, seed) == (right, (byte, bit))
        assert wrong_bit(stored ^ 1 << 9, crc32(right, seed), length) == (length + 1, 1)
        wrong[rng.randrange(length)] ^= 0xFF
        if bytes(wrong) != right and (wrong[byte] ^ right[byte]).bit_count() != 1:
            assert corrected(bytes(wrong), stored, seed) is None


@pytest.mark.full
def test_one_bit_in_a_gibibyte(tmp_path: Path) -> None:
    payload = Random(3).randbytes(16 << 10)
    wal = make_log(
        tmp_path / "b1",
        rounds=(1 << 30) // (30 * len(payload)) + 1,
        payload=payload,
        segment_bytes=64 << 20,
    )
    assert sum(one.size for one in t.segments(wal)) >= 1 << 30
    path, record = nth_record(wal, f.ENTRY, 1234, 9)
    byte = record.position + 72 + 9999
    flip(path, byte, 6)
    found = the_finding(wal)
    assert (found.segment, found.position, found.byte, found.bit) == (
        path.name,
        record.position,
        byte,
        6,
    )
