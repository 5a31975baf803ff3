"""The journal and its disk: marks, footers, segments made ahead, and what happens when it fails.

Everything here is stepped by hand on the simulated disk, which fails on request.
"""

import errno
from random import Random

import pytest
from sim.disk import SimDisk
from sim.history import play
from sim.rig import UID, Rig, newest_segment, recovered, refused, states_of

from myqueue.errors import DiskFull, IdentityMismatch, JournalStopped
from myqueue.wal import format as f
from myqueue.wal.append.writer import Persisted, SpaceLow, Stopped
from myqueue.wal.groups import Groups
from myqueue.wal.read.scan import Scan, footer_of, trailer_of
from myqueue.wal.recover.recovery import recover


@pytest.mark.parametrize("seed", range(10))
def test_footers_equal_a_recount(seed: int) -> None:
    rig = Rig(seed=seed)
    play(rig, Random(seed), 150)
    rig.settle()
    sealed = 0
    for name in rig.disk.list():
        number, uid = f.parse_segment_name(name) or (0, 0)

        def read(position: int, length: int, name: str = name) -> bytes:
            return rig.disk.read(name, position, length)

        trailer = trailer_of(read, uid, rig.config.segment_bytes) if number else None
        if trailer is not None:
            sealed += 1
            rows = footer_of(read, uid, trailer)
            assert rows == recount(Scan(read, uid, rig.config.segment_bytes))
    assert sealed > 2


def recount(scan: Scan) -> list[f.FooterRow]:
    """The footer as FORMAT.md describes it, made from the records themselves."""
    groups: dict[int, list[f.Record]] = {}
    for record, _ in scan.records():
        if record.group:
            groups.setdefault(record.group, []).append(record)
    rows = []
    for group, records in sorted(groups.items()):
        present = {record.kind for record in records}
        if any(record.kind == f.START and record.flags & f.RESET for record in records):
            present.add(f.TRUNCATE)
        kinds = sum(1 << kind for kind in present)
        entries = [record for record in records if record.kind == f.ENTRY]
        if not entries:
            rows.append(f.FooterRow(group, *[0] * 9, kinds))
            continue
        first = next(r for r in entries if r.index == min(e.index for e in entries))
        last = [r for r in entries if r.index == max(e.index for e in entries)][-1]
        times = [r.time_ms for r in entries]
        rows.append(
            f.FooterRow(
                group,
                first.index,
                last.index,
                first.offset,
                last.offset + last.count,
                last.term,
                min(times),
                max(times),
                len(entries),
                sum(72 + r.length for r in entries),
                kinds,
            )
        )
    return rows


# -- marks -----------------------------------------------------------------------------------


def marks(rig: Rig, name: str) -> list[f.Record]:
    number_uid = f.parse_segment_name(name)
    assert number_uid is not None
    scan = Scan(lambda at, length: rig.disk.read(name, at, length), number_uid[1], 4096)
    return [record for record, _ in scan.records() if record.kind == f.MARK]


def test_settle_proves_the_last_record_once(rig: Rig) -> None:
    """W5: the mark that settles stands behind everything and names its own place."""
    rig.append(UID, 50)
    rig.pump()
    assert marks(rig, newest_segment(rig))[-1].term < rig.journal.end[1]
    rig.journal.settle()
    end = rig.journal.end
    rig.journal.settle()
    assert rig.journal.end == end, "nothing new was written, so nothing is to be proved"
    rig.pump()
    last = marks(rig, newest_segment(rig))[-1]
    assert (last.term, last.count, last.offset) == (last.position, 0, 0)
    rig.journal.settle()
    assert rig.journal.end == end


def test_settle_waits_until_all_is_persisted(rig: Rig) -> None:
    rig.append(UID, 50)
    end = rig.journal.end
    rig.journal.settle()
    rig.journal.submit()
    rig.journal.settle()
    assert rig.journal.end == end


def test_all_batches_of_one_flush_name_where_it_began(rig: Rig) -> None:
    """W5: a mark must not vouch for bytes of its own flush."""
    rig.settle()
    began = rig.journal.end[1]
    for _ in range(3):
        rig.append(UID, 20)
        rig.journal.submit()
    writes = len([one for one in rig.disk.trace if one.kind == "write"])
    rig.pump()
    assert len([one for one in rig.disk.trace if one.kind == "write"]) == writes + 1
    last = marks(rig, newest_segment(rig))[-3:]
    assert {mark.term for mark in last} == {began}
    assert len({mark.index for mark in last}) == 1


def test_close_writes_what_waits_and_a_clean_mark(rig: Rig) -> None:
    rig.append(UID, 50, 60)
    assert rig.journal.close()
    rig.poll()
    assert rig.journal.queued_bytes == 0
    last = marks(rig, newest_segment(rig))[-1]
    assert last.flags & f.CLEAN and last.term == last.position
    out, found = recovered(rig.disk.survivor({}, ()))
    assert found == rig.log and len(found) == 3 and not out.findings


# -- errors of the disk ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_error_of_the_disk_stops_for_good(rig: Rig, kind: str, number: int) -> None:
    """W3: no second try, no report after it, and what was reported before is there."""
    rig.pump()
    rig.disk.fail(kind, number)
    for _ in range(40):
        rig.journal.submit()
        rig.journal.writer.step()
        if any(isinstance(event, Stopped) for event in rig.poll()):
            break
        rig.append(UID, 300)
    assert isinstance(rig.events[-1], Stopped)
    operations = len(rig.disk.trace)
    for _ in range(3):
        assert not rig.journal.writer.step()
        assert rig.poll() == []
    assert len(rig.disk.trace) == operations
    refused(rig, JournalStopped, lambda: rig.append(UID, 1))
    refused(rig, JournalStopped, lambda: rig.journal.hard_state(UID, 1, 1))
    rig.journal.settle()
    rig.journal.close()
    assert len(rig.disk.trace) == operations
    out, found = recovered(rig.disk.crash(Random(number)))
    assert not out.corrupt
    assert found == rig.log[: len(found)] and len(found) >= rig.promised


def test_too_many_open_files_are_no_failure_of_the_disk(rig: Rig) -> None:
    """W3: the next segment can't be made for a moment, or not opened, though it is there. Nothing
    was written, and all of it waits.
    """
    rig.pump()
    for kind in ("create", "write", "create", "write"):
        while rig.journal.spares.step():
            pass
        if kind == "create":
            while rig.journal.spares.has_next:
                rig.append(UID, 300)
                rig.pump()
        rig.disk.fail(kind, 1, errno.EMFILE)
        number = rig.journal.end[0]
        while rig.journal.end[0] == number:
            rig.append(UID, 300)
        rig.journal.submit()
        while rig.journal.writer.step():
            pass
        rig.poll()
        assert rig.journal.queued_bytes and rig.journal.writer.flush_began_s is None
        rig.pump()
        assert not rig.journal.queued_bytes
    assert not [event for event in rig.events if isinstance(event, Stopped | SpaceLow)]
    out, found = recovered(rig.disk.crash(Random(1)))
    assert found == rig.log and not out.findings


def test_the_soft_limit_refuses_records_but_not_votes(rig: Rig) -> None:
    """W15 b: typed and retriable; votes, truncations and the like go on, and it ends by itself."""
    rig.pump()
    rig.journal.spares._soft_limit = 1 << 20
    rig.disk.capacity_bytes = sum(rig.disk.list().values()) + 5000
    rig.journal.spares.step()
    assert rig.poll() == [SpaceLow(True)] and rig.journal.space_low
    refused(rig, DiskFull, lambda: rig.append(UID, 1))
    assert DiskFull("").retriable
    rig.journal.hard_state(UID, 3, 1)
    rig.append(UID, 1, urgent=True)
    rig.truncate(UID, 1)
    assert [type(event) for event in rig.pump()] == [Persisted]
    rig.disk.capacity_bytes = 1 << 40
    rig.journal.spares.step()
    assert rig.poll() == [SpaceLow(False)]
    rig.append(UID, 1)


def test_no_room_for_a_segment_and_room_again(rig: Rig) -> None:
    """W15 d: what was taken waits, in order, and is persisted when there is room."""
    while rig.journal.spares.step():
        pass
    rig.pump()
    rig.disk.capacity_bytes = sum(rig.disk.list().values()) + 100
    for _ in range(60):
        rig.append(UID, 300, urgent=True)
        rig.journal.submit()
    rig.pump()
    promised = rig.promised
    assert rig.journal.queued_bytes > 0
    assert rig.events[-1] == SpaceLow(True)
    assert not rig.journal.writer.step() and rig.poll() == []
    out, found = recovered(rig.disk.crash(Random(1)))
    assert not out.corrupt and len(found) >= promised
    rig.disk.capacity_bytes = 1 << 40
    rig.journal.spares.step()
    rig.pump()
    assert SpaceLow(False) in rig.events
    assert rig.journal.queued_bytes == 0
    out, found = recovered(rig.disk.crash(Random(2)))
    assert found == rig.log and not out.findings
    rig.append(UID, 1)


@pytest.mark.parametrize("number", range(1, 12))
def test_no_room_in_the_middle_of_anything(number: int) -> None:
    """W15 d: whichever write finds no room, nothing is lost and nothing is there twice."""
    rig = Rig()
    rig.journal.create_group(UID, b"")
    rig.disk.fail("write", number, errno.ENOSPC)
    for _ in range(30):
        rig.append(UID, 300, urgent=True)
        rig.journal.submit()
        rig.journal.writer.step()
        rig.poll()
        rig.journal.spares.step()
    rig.pump()
    assert not rig.journal.writer.stopped
    assert rig.journal.queued_bytes == 0
    out, found = recovered(rig.disk.crash(Random(number)))
    assert found == rig.log and not out.findings
    assert not [name for name in rig.disk.list() if name.endswith(".trash")]


@pytest.mark.parametrize("number", range(1, 7))
def test_no_room_for_a_sync_while_a_segment_is_published(rig: Rig, number: int) -> None:
    """W15, W14: it is waited for as well, and what is tried again is all on the disk then."""
    while rig.journal.end[0] < 2:
        rig.append(UID, 300)
    rig.journal.submit()
    rig.disk.fail("sync", number, errno.ENOSPC)
    for _ in range(30):
        rig.journal.writer.step()
    assert not rig.journal.writer.stopped and not rig.journal.writer.waiting
    out, found = recovered(rig.disk.worst())
    assert found == rig.log and not out.findings


def test_no_room_where_blocks_are_never_overwritten(rig: Rig) -> None:
    """W15 d: on such a file system even a prepared segment can run out of space."""
    rig.pump()
    rig.disk.writes_need_space = True
    rig.disk.capacity_bytes = sum(rig.disk.list().values())
    rig.append(UID, 500)
    rig.append(UID, 600)
    assert rig.pump() == [SpaceLow(True)]
    found = recovered(rig.disk.crash(Random(3)))[1]
    assert rig.promised <= len(found) and found == rig.log[: len(found)]
    rig.disk.capacity_bytes = 1 << 40
    rig.pump()
    assert recovered(rig.disk.crash(Random(4)))[1] == rig.log


# -- segments --------------------------------------------------------------------------------


def test_a_segment_is_durable_before_its_first_record(rig: Rig) -> None:
    """W14: file, then name, then directory, before the first write that anybody waits for."""
    for _ in range(40):
        rig.append(UID, 300)
    rig.pump()
    kinds = [(one.kind, one.name.partition(".")[2], one.sync) for one in rig.disk.trace]
    number = next(at for at, one in enumerate(kinds) if one[0] == "create" and at > 5)
    assert kinds[number : number + 5] == [
        ("create", "seg.new", False),
        ("write", "seg.new", False),
        ("sync", "seg.new", False),
        ("move", "seg.new", False),
        ("sync", "", False),
    ]
    assert kinds[number + 5] == ("write", "seg", True)


def test_uids_are_never_used_twice(rig: Rig) -> None:
    """W9."""
    for _ in range(3):
        for _ in range(40):
            rig.append(UID, 300)
        rig.settle()
        rig.reopen()
    parsed = [f.parse_segment_name(name) for name in rig.disk.list()]
    uids = [one[1] for one in parsed if one is not None]
    assert len(uids) > 9 and len(set(uids)) == len(uids)


def spare_numbers(rig: Rig) -> list[int]:
    return [segment.number for segment in rig.journal.recovered.spares]


def test_spares_are_used_after_a_restart(rig: Rig) -> None:
    """Two were prepared when the process died; both are used, and none is made in their place."""
    while rig.journal.spares.step():
        pass
    while rig.journal.end[0] < 2:
        rig.append(UID, 100)
    while rig.journal.spares.step():
        pass
    names = set(rig.disk.list())
    assert len(names) == 3, "the open one and two spares: nothing was written yet"
    rig.reopen(rig.disk.crash(Random(1)))
    assert spare_numbers(rig) == [2, 3]
    rig.journal.create_group(UID, b"")
    while rig.journal.end[0] < 4:
        rig.append(UID, 300)
    rig.pump()
    assert names < set(rig.disk.list()) and len(rig.disk.list()) == 4
    out, found = recovered(rig.disk.crash(Random(2)))
    assert found == rig.log and not out.findings


@pytest.mark.parametrize("sizes", [(4096, 16384), (16384, 4096)])
def test_another_segment_size_after_a_restart(sizes: tuple[int, int]) -> None:
    rig = Rig(segment_bytes=sizes[0])
    rig.journal.create_group(UID, b"")
    while rig.journal.spares.step():
        pass
    rig.append(UID, 300)
    rig.settle()
    other = Rig(rig.disk, seed=2, segment_bytes=sizes[1])
    for _ in range(30):
        other.append(UID, sizes[1] // 4, 100)
    other.settle()
    assert set(other.disk.list().values()) == set(sizes)
    out, found = recovered(other.disk.crash(Random(1)))
    assert found == other.log and not out.findings
    assert states_of(out.groups) == states_of(other.groups)


def test_more_groups_than_footer_rows_fit() -> None:
    rig = Rig()
    for uid in range(1, 120):
        rig.journal.create_group(uid, b"")
        rig.append(uid, 5)
    for uid in range(1, 120):
        rig.append(uid, 5)
    rig.settle()
    out, found = recovered(rig.disk)
    assert found == rig.log and not out.findings
    assert states_of(out.groups) == states_of(rig.groups)


def test_foreign_segments_are_refused(rig: Rig) -> None:
    """W7."""
    rig.settle()
    before = {name: bytes(rig.disk.contents(name)) for name in rig.disk.list()}
    with pytest.raises(IdentityMismatch):
        recover(rig.disk, Groups(), (0, 0), lambda *_: None, owner=bytes(16))
    assert {name: bytes(rig.disk.contents(name)) for name in rig.disk.list()} == before


def test_a_fresh_disk() -> None:
    rig = Rig(SimDisk())
    out, found = recovered(rig.disk.survivor({}, ()))
    assert found == [] and not out.findings


# -- batches that the loop writes itself -----------------------------------------------------


def held_rig() -> Rig:
    rig = Rig()
    rig.journal.create_group(UID, b"")
    rig.settle()
    rig.journal.may_hold = True
    return rig


def test_a_lone_small_batch_is_held_and_written_by_its_maker() -> None:
    rig = held_rig()
    rig.append(UID, 10)
    rig.journal.submit()
    assert rig.journal.has_held and rig.journal.queued_bytes
    assert not rig.journal.poll()
    rig.journal.write_held()
    [event] = rig.journal.poll()
    assert isinstance(event, Persisted) and event.tails[UID][1] == 1
    assert not rig.journal.queued_bytes and not rig.journal.has_held
    assert not rig.journal.writer.step()


def test_a_batch_after_a_held_one_goes_behind_it() -> None:
    rig = held_rig()
    for _ in range(2):
        rig.append(UID, 10)
        rig.journal.submit()
    assert not rig.journal.has_held
    rig.settle()
    rig.reopen()
    assert rig.group(UID).last_index == 2


@pytest.mark.parametrize("bytes_each", [10, 40_000])
def test_a_large_batch_is_not_held(bytes_each: int) -> None:
    rig = Rig(segment_bytes=1 << 20)
    rig.journal.create_group(UID, b"")
    rig.settle()
    rig.journal.may_hold = True
    rig.append(UID, bytes_each)
    rig.journal.submit()
    assert rig.journal.has_held == (bytes_each == 10)


def test_batches_are_held_on_a_fast_disk_only() -> None:
    rig = held_rig()
    rig.journal.writer._small_flushes_s.extend([0.01] * 8)
    rig.append(UID, 10)
    rig.journal.submit()
    assert not rig.journal.has_held
    rig.journal.writer._small_flushes_s.extend([0.0001] * 3)  # the others waited for a core
    rig.settle()
    rig.append(UID, 10)
    rig.journal.submit()
    assert rig.journal.has_held


def test_w15_a_held_batch_without_room_is_written_by_the_writer_when_there_is_room() -> None:
    rig = held_rig()
    rig.append(UID, 10)
    rig.journal.submit()
    rig.disk.fail("write", 1, errno.ENOSPC)
    rig.journal.write_held()
    assert [type(event) for event in rig.journal.poll()] == [SpaceLow]
    assert rig.journal.writer.out_of_room and rig.journal.writer.waiting
    rig.journal.spares.set_low(False)
    rig.append(UID, 10)
    rig.journal.submit()
    assert not rig.journal.has_held
    assert rig.journal.writer.step()
    tails = [event.tails for event in rig.journal.poll() if isinstance(event, Persisted)]
    assert tails[-1][UID][1] == 2


def test_w3_a_failed_sync_of_a_held_batch_stops_the_log() -> None:
    rig = held_rig()
    rig.append(UID, 10)
    rig.journal.submit()
    rig.disk.fail("write", 1, errno.EIO)
    rig.journal.write_held()
    assert [type(event) for event in rig.journal.poll()] == [Stopped]
    with pytest.raises(JournalStopped):
        rig.append(UID, 10)
    assert not rig.journal.writer.step()
