"""After a crash: what is found, what is written again, and that all of it can be interrupted.

`tests/faults/test_wal_states.py` looks at very many states with an oracle; here each rule has a
short story of its own.
"""

import copy
import errno
from random import Random
from typing import Any

import pytest
from sim.disk import AFTER, BEFORE, MIDDLE, SECTOR, Crash, SimDisk
from sim.history import play
from sim.rig import UID, Rig, contents, recovered, states_of

from myqueue.wal import format as f
from myqueue.wal.check.segments import CORRUPT, TORN
from myqueue.wal.read.scan import Scan
from myqueue.wal.recover.recovery import UNSURE

MOMENTS = (BEFORE, MIDDLE, AFTER)


def segments(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.list() if name.endswith(".seg"))


def verdicts(out: Any) -> list[str]:
    return [finding.verdict for finding in out.findings]


def fill(rig: Rig, segment: int) -> None:
    """Append until the log reaches this segment, all of it persisted."""
    while rig.journal.end[0] < segment:
        rig.append(UID, 300)
    rig.pump()


# -- torn is not corrupt ---------------------------------------------------------------------


def test_an_unsynced_write_is_torn(rig: Rig) -> None:
    """W5: nothing proves it, so it is cut, its bytes become zeros, and the log goes on there."""
    rig.append(UID, 100)
    rig.settle()
    synced = len(rig.log)
    rig.append(UID, 900, 900)
    rig.journal.submit()
    rig.disk.stop_at = (len(rig.disk.trace) + 1, MIDDLE)
    with pytest.raises(Crash):
        rig.journal.writer.step()
    (name,) = segments(rig.disk)[:1]
    last = max(sector for _, sector, _ in rig.disk.unsynced())
    torn = rig.disk.survivor({(1, last): 9, (1, last - 1): 9}, ())
    out, found = recovered(torn)
    assert found == rig.log[:synced] and verdicts(out) == [TORN]
    assert len(bytes(torn.contents(name)).rstrip(b"\0")) <= out.position
    assert recovered(torn.worst())[0].findings == []


@pytest.mark.parametrize("settled", [True, False])
def test_damage_before_a_mark_is_corrupt(rig: Rig, settled: bool) -> None:
    """W5: the mark behind it proves that it was synced. Reported, not cut, the rest is read."""
    rig.append(UID, 100, 200)
    rig.pump()
    rig.append(UID, 300)
    rig.settle() if settled else rig.pump()
    name = segments(rig.disk)[0]
    row = next(one for one in rig.log if one[1] == 2)
    rig.disk.flip(name, row[3] + 100)
    before = contents(rig.disk)
    out, found = recovered(rig.disk)
    (finding,) = out.findings
    assert (finding.verdict, finding.segment, finding.position) == (CORRUPT, name, row[3])
    assert (finding.group, finding.index) == (UID, 2)
    assert found == rig.log, "its header is right, so its place is known"
    assert out.groups.by_uid[UID].damaged and not out.unknown_loss
    assert contents(rig.disk) == before


def test_the_watermark_of_the_store_is_evidence_too(rig: Rig) -> None:
    """W5: with the last flush and its marks gone, the store still knows that there was more."""
    rig.settle()
    groups, log = copy.deepcopy(rig.groups), len(rig.log)
    rig.append(UID, 100)
    rig.pump()
    name, end = segments(rig.disk)[0], rig.journal.persisted_at
    begin = rig.log[log][3]
    rig.disk.overwrite(name, begin - 72, bytes(end[1] - begin + 72))
    assert recovered(rig.disk.killed())[0].findings == [], "nothing tells that it ever was there"
    out, found = recovered(rig.disk, end, groups)
    assert verdicts(out) == [CORRUPT] and found == []
    assert not out.unknown_loss, "what was lost in the log, votes too, is in the store"
    assert out.segments[1].damaged


def test_a_later_segment_is_evidence(rig: Rig) -> None:
    """W5: without its trailer, and with no mark of a later write, the next segment proves it."""
    fill(rig, 3)
    rows = [one for one in rig.log if _segment_of(one) == 2]
    rig.disk.flip(segments(rig.disk)[1], rows[1][3] + 20)
    rig.disk.overwrite(segments(rig.disk)[1], 4096 - 72, bytes(72))
    out, found = recovered(rig.disk)
    assert found == [one for one in rig.log if one is not rows[1]]
    assert CORRUPT in [one.verdict for one in out.findings if one.position == rows[1][3]]


def test_a_damaged_header_hides_one_record_only(rig: Rig) -> None:
    """W5, W8: reading goes on at the next record that proves itself."""
    rig.append(UID, *[100] * 8)
    rig.settle()
    row = next(one for one in rig.log if one[1] == 4)
    rig.disk.flip(segments(rig.disk)[0], row[3] + 20)
    out, found = recovered(rig.disk)
    assert found == [one for one in rig.log if one is not row]
    assert set(verdicts(out)) == {CORRUPT} and out.unknown_loss
    assert [(one.group, one.index) for one in out.findings if one.group] == [(UID, 4)]
    assert out.groups.by_uid[UID].last_index == 8


def test_a_lost_vote_is_missed_though_its_group_is_met_behind_it(rig: Rig) -> None:
    """R1, R2: the segment that it began in was reclaimed, its creation was appended again, and the
    vote before that can't be read. Without a store nothing else tells of it.
    """
    other = UID + 1
    rig.journal.create_group(other, b"about")
    while rig.journal.end[0] < 2:
        rig.append(other, 300)
    rig.journal.hard_state(UID, 7, 3)
    rig.pump()
    rig.journal.create_group(UID, b"about", again=True)
    rig.settle()
    first, name = segments(rig.disk)[:2]
    _, uid = f.parse_segment_name(name) or (0, 0)
    scan = Scan(lambda at, size: rig.disk.read(name, at, size), uid, rig.config.segment_bytes)
    (vote,) = [one.position for one, _ in scan.records() if one.kind == f.HARD_STATE]
    rig.disk.move(first, None)
    rig.disk.flip(name, vote + 3)
    out, _ = recovered(rig.disk)
    group = out.groups.by_uid[UID]
    assert (group.term, group.doubtful) == (0, True)


def test_nothing_is_appended_to_a_damaged_segment(rig: Rig) -> None:
    """W5, W6: it stays as it was found."""
    rig.append(UID, *[100] * 8)
    rig.settle()
    name = segments(rig.disk)[0]
    rig.disk.flip(name, next(one for one in rig.log if one[1] == 4)[3] + 80)
    before = rig.disk.contents(name)[:]
    rig.reopen()
    for _ in range(30):
        rig.append(UID, 300)
    rig.settle()
    assert rig.disk.contents(name) == before
    out, found = recovered(rig.disk.crash(Random(1)))
    assert found == rig.log and CORRUPT in verdicts(out)
    assert {finding.segment for finding in out.findings} == {name}


def test_a_bad_payload_before_the_watermark_does_not_move_its_group(rig: Rig) -> None:
    rig.append(UID, *[100] * 4)
    rig.settle()
    groups, watermark, log = copy.deepcopy(rig.groups), rig.journal.persisted_at, len(rig.log)
    rig.append(UID, 50)
    rig.settle()
    rig.disk.flip(segments(rig.disk)[0], rig.log[2][3] + 100)
    out, found = recovered(rig.disk, watermark, groups)
    assert found == rig.log[log:]
    assert [(one.group, one.index) for one in out.findings] == [(UID, rig.log[2][1])]
    assert out.groups.by_uid[UID].last_index == 5


@pytest.mark.parametrize("seed", range(20))
def test_from_any_watermark_the_same_state_is_reached(seed: int) -> None:
    rig, rng, marks = Rig(seed=seed), Random(seed), []
    for _ in range(8):
        play(rig, rng, 15)
        rig.pump()
        marks.append((rig.journal.persisted_at, len(rig.log), copy.deepcopy(rig.groups)))
    for watermark, log, groups in marks:
        out, found = recovered(rig.disk.killed(), watermark, groups)
        assert found == rig.log[log:] and not out.findings
        assert states_of(out.groups) == states_of(rig.groups)
        assert out.rows.by_group == recovered(rig.disk.killed())[0].rows.by_group


# -- files that are not whole ----------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 71, 72, 511, 512, 583, 584, 4023, 4024, 4095])
def test_a_short_file_of_any_size(rig: Rig, size: int) -> None:
    """W19: an unused newest one is residue; any other is corruption, and nothing is deleted."""
    fill(rig, 3)
    while rig.journal.spares.step():
        pass
    rig.settle()
    names = segments(rig.disk)
    assert len(names) == 4
    for number, name in enumerate(names):
        disk = rig.disk.killed()
        disk.cut(name, size)
        before = contents(disk)
        out, found = recovered(disk)
        if number == 3:
            assert found == rig.log and verdicts(out) == [TORN]
            assert name + ".trash" in disk.list()
        else:
            now = contents(disk)
            assert now.pop(UNSURE, b"") == bytes(out.unknown_loss)
            assert CORRUPT in verdicts(out) and now == before
            intact = [one for one in rig.log if _segment_of(one) != number + 1]
            assert [one for one in found if _segment_of(one) != number + 1] == intact


def _segment_of(one: Any) -> int:
    return one[2] if len(one) == 10 else one[1]


def test_a_damaged_header_of_a_used_segment_is_corrupt(rig: Rig) -> None:
    """W19: its records are right all the same."""
    fill(rig, 3)
    rig.settle()
    for name in segments(rig.disk)[:3]:
        disk = rig.disk.killed()
        disk.overwrite(name, 0, bytes(SECTOR))
        before = contents(disk)
        out, found = recovered(disk)
        assert found == rig.log and contents(disk) == before
        assert [(one.verdict, one.segment) for one in out.findings] == [(CORRUPT, name)]


@pytest.mark.parametrize("bad", [2, 3])
def test_a_spare_with_a_damaged_header_is_set_aside(bad: int) -> None:
    """W6: with the one after it, so that no number is missing; nothing is written into either."""
    rig = Rig()
    rig.journal.create_group(UID, b"")
    while rig.journal.spares.step():
        pass
    while rig.journal.end[0] < 2:
        rig.append(UID, 100)
    while rig.journal.spares.step():
        pass
    disk = rig.disk.crash(Random(1))
    spare = segments(disk)[bad - 1]
    disk.flip(spare, 20)
    out = rig.reopen(disk)
    assert verdicts(out) == [TORN] and spare + ".trash" in disk.list()
    rig.journal.create_group(UID, b"")
    fill(rig, 5)
    rig.settle()
    assert spare not in disk.list()
    out, found = recovered(disk.crash(Random(2)))
    assert found == rig.log and not out.findings
    assert sorted(out.segments) == list(range(1, max(out.segments) + 1))


def test_a_used_segment_is_not_set_aside_with_both_its_proofs_gone(rig: Rig) -> None:
    """W6: header and the trailer before it may lie side by side on the disk, and go together."""
    fill(rig, 3)
    rig.settle()
    names = segments(rig.disk)
    rig.disk.overwrite(names[1], 4096 - SECTOR, bytes(SECTOR))
    rig.disk.overwrite(names[2], 0, bytes(SECTOR))
    out, found = recovered(rig.disk)
    assert {one.segment for one in out.findings if one.verdict == CORRUPT} >= set(names[1:3])
    assert segments(rig.disk) == names
    assert [one for one in found if _segment_of(one) == 3] == [
        one for one in rig.log if _segment_of(one) == 3
    ]


def test_a_lost_trailer_of_the_newest_segment_is_written_again(rig: Rig) -> None:
    """Format, step 6: the footer is there, so only the seal is missing."""
    fill(rig, 2)
    rig.settle()
    disk = SimDisk()
    name = segments(rig.disk)[0]
    disk.create(name, 4096)
    disk.write(name, 0, [rig.disk.contents(name)], True)
    disk.sync(None)
    trailer = disk.read(name, 4096 - 72, 72)
    disk.overwrite(name, 4096 - 72, bytes(72))
    out, found = recovered(disk)
    assert not out.findings and out.segments[1].sealed
    assert disk.read(name, 4096 - 72, 72) == trailer
    assert found == [one for one in rig.log if _segment_of(one) == 1]


def test_a_batch_that_ends_early_is_torn(rig: Rig) -> None:
    """W5: its mark says how far it reaches, and nothing that it was synced."""
    rig.settle()
    rig.append(UID, 100, 200)
    rig.pump()
    row = next(one for one in rig.log if one[1] == 2)
    rig.disk.overwrite(segments(rig.disk)[0], row[3], bytes(72 + 200))
    out, found = recovered(rig.disk)
    assert [(one.verdict, one.position) for one in out.findings] == [(TORN, row[3])]
    assert found == rig.log[:-1]


def test_a_trailer_proves_its_footer(rig: Rig) -> None:
    """W5: no mark stands behind the footer, and no segment behind this one."""
    fill(rig, 2)
    rig.settle()
    disk, name = SimDisk(), segments(rig.disk)[0]
    disk.create(name, 4096)
    disk.write(name, 0, [rig.disk.contents(name)], True)
    disk.sync(None)
    trailer = f.record_at(
        disk.read(name, 4096 - 72, 72), 0, 4096 - 72, f.segment_seed(int(name[13:29], 16))
    )
    assert trailer is not None
    disk.flip(name, trailer.offset + 80)
    out, found = recovered(disk)
    assert [(one.verdict, one.position) for one in out.findings] == [(CORRUPT, trailer.offset)]
    assert found == [one for one in rig.log if _segment_of(one) == 1]


def test_a_missing_segment_behind_an_open_one_is_corrupt(rig: Rig) -> None:
    """W19."""
    fill(rig, 4)
    rig.settle()
    names = segments(rig.disk)
    rig.disk.overwrite(names[0], 4096 - 72, bytes(72))
    rig.disk.move(names[1], None)
    out, _ = recovered(rig.disk)
    assert any(one.segment == names[2] and "missing" in one.what for one in out.findings)


def test_lost_entries_are_missed(rig: Rig) -> None:
    """W10: a whole sealed segment is gone, so its entries are, and the group says so."""
    fill(rig, 4)
    rig.settle()
    rig.disk.move(segments(rig.disk)[1], None)
    out, _ = recovered(rig.disk)
    (finding,) = out.findings
    assert (finding.verdict, finding.group) == (CORRUPT, UID)
    lost = [one[1] for one in rig.log if len(one) == 10 and one[2] == 2]
    assert finding.what == f"entries {lost[0]} to {lost[-1]} are missing"
    assert out.groups.by_uid[UID].damaged


def test_an_unreadable_disk_is_no_empty_one(rig: Rig) -> None:
    """W6: EIO while recovering reaches the caller, and nothing is written."""
    fill(rig, 3)
    before = contents(rig.disk)
    whole = rig.disk.killed()
    recovered(whole)
    for number in range(1, whole.counts["read"] + 1):
        disk = rig.disk.killed()
        disk.fail("read", number)
        with pytest.raises(OSError) as caught:
            recovered(disk)
        assert caught.value.errno == errno.EIO
        assert contents(disk) == before


def test_without_repair_nothing_is_written(rig: Rig) -> None:
    fill(rig, 3)
    rig.append(UID, 900)
    rig.journal.submit()
    rig.disk.stop_at = (len(rig.disk.trace) + 1, MIDDLE)
    with pytest.raises(Crash):
        rig.journal.writer.step()
    rig.disk.create("000000000009-0000000000000001.seg.new", 4096)
    disk = rig.disk.killed()
    recovered(disk, repair=False)
    assert {one.kind for one in disk.trace} == {"read"}


def test_leftovers_are_removed(rig: Rig) -> None:
    rig.settle()
    names = ["000000000009-0000000000000001.seg.new", "000000000001-0000000000000007.seg.trash"]
    for name in names:
        rig.disk.create(name, 4096)
    rig.disk.create("notes.txt", 10)
    recovered(rig.disk)
    assert set(names).isdisjoint(rig.disk.list()) and "notes.txt" in rig.disk.list()


def test_names_that_are_no_segments() -> None:
    for name in ("", ".seg", "1-2.seg", "000000000001-0000000000000002.seg.new", "-.seg", "a-b"):
        assert f.parse_segment_name(name) is None
    assert f.parse_segment_name(f.segment_name(7, 255)) == (7, 255)
