"""The journal, stepped by hand: what it takes, what it refuses, and when it says "persisted"."""

import errno
from random import Random
from typing import Any

import pytest
from sim.disk import SimDisk
from wal.history import play
from wal.rig import Rig, flat, newest_segment, recovered, state_of, states_of

from myqueue.errors import (
    AppendGap,
    DiskFull,
    GroupExists,
    GroupUnknown,
    JournalBusy,
    JournalStopped,
    RecordTooLarge,
)
from myqueue.wal import format as f
from myqueue.wal.scan import Scan, footer_of, trailer_of
from myqueue.wal.writer import Persisted, SpaceLow, Stopped

UID = 0xABCDEF


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.journal.create_group(UID, b"topic/0")
    return rig


def state(rig: Rig) -> Any:
    """Everything that a refused call must leave as it was."""
    layout = rig.journal._layout
    batch = layout.batch
    return (
        states_of(rig.groups), rig.journal.queued_bytes, layout.number, layout.tail, layout.limit,
        {group: row[:] for group, row in layout.rows.by_group.items()},
        None if batch is None else (batch.records, len(batch.buffers), len(flat(batch.ops))),
    )  # fmt: skip


def refused(rig: Rig, error: type[Exception], call: Any) -> None:
    before = state(rig)
    with pytest.raises(error):
        call()
    assert state(rig) == before, "a refused call changes nothing"


def payload_of(rig: Rig, row: Any) -> bytes:
    name = rig.journal.segments[row[2]].name
    return rig.disk.read(name, row[3] + f.RECORD_HEADER_BYTES, row[4])


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 2, 3, 5, 6, 2**63])
def test_a_gap_is_refused(rig: Rig, index: int) -> None:
    """W10."""
    rig.append(UID, 10, 10, 10)
    entry = (index, 1, 0, 1, 0, 0, 0, b"x")
    refused(rig, AppendGap, lambda: rig.journal.append(UID, [entry]))


def test_a_gap_inside_of_one_append_is_refused(rig: Rig) -> None:
    """W10: nothing of it is taken."""
    one, two, three = rig.make(UID, [1, 2, 3])
    refused(rig, AppendGap, lambda: rig.journal.append(UID, [one, three]))
    refused(rig, AppendGap, lambda: rig.journal.append(UID, [one, two, two]))
    refused(rig, AppendGap, lambda: rig.journal.append(UID, []))
    rig.append(UID, 1)


def test_too_large_is_refused(rig: Rig) -> None:
    largest = rig.config.segment_bytes // 4
    rig.append(UID, largest)
    call = rig.journal
    refused(rig, RecordTooLarge, lambda: rig.append(UID, 5, largest + 1))
    refused(rig, RecordTooLarge, lambda: call.snapshot(UID, 1, 1, [b"", bytes(largest + 1)]))
    refused(rig, RecordTooLarge, lambda: call.snapshot(UID, 1, 1, []))
    refused(rig, RecordTooLarge, lambda: call.create_group(9, bytes(largest + 1)))


def test_unknown_and_known_groups(rig: Rig) -> None:
    call = rig.journal
    refused(rig, GroupExists, lambda: call.create_group(UID, b""))
    for uid in (0, -1, 2**64):
        refused(rig, GroupUnknown, lambda uid=uid: call.create_group(uid, b""))
    entry = (1, 1, 0, 1, 0, 0, 0, b"x")
    for refusal in (
        lambda: call.append(7, [entry]),
        lambda: call.hard_state(7, 1, 1),
        lambda: call.commit_hint(7, 1),
        lambda: call.truncate(7, 1, 0, 0),
        lambda: call.start(7, 1, 0, 0),
        lambda: call.snapshot(7, 1, 1, [b""]),
        lambda: call.remove_group(7),
    ):
        refused(rig, GroupUnknown, refusal)


def test_truncate_and_start_outside_of_the_log_are_refused(rig: Rig) -> None:
    rig.append(UID, 1, 1, 1)
    for index in (0, 4):
        refused(rig, AppendGap, lambda index=index: rig.journal.truncate(UID, index, 0, 0))
    for index in (0, 5):
        refused(rig, AppendGap, lambda index=index: rig.journal.start(UID, index, 0, 0))


def test_busy() -> None:
    """A disk that is slower than its users is told to them, not hidden in memory."""
    rig = Rig(queue_bytes_max=3000)
    rig.journal.create_group(UID, b"")
    rig.pump()
    while rig.journal.queued_bytes <= 3000:
        rig.append(UID, 900)
        rig.journal.submit()
    refused(rig, JournalBusy, lambda: rig.append(UID, 1))
    rig.append(UID, 1, urgent=True)
    rig.journal.hard_state(UID, 1, 1)
    rig.pump()
    assert rig.journal.queued_bytes == 0
    rig.append(UID, 1)


# -- what is promised ------------------------------------------------------------------------


def test_nothing_is_persisted_before_its_sync_returned(rig: Rig) -> None:
    """W1: an append, a submit, even the write are no promise; the sync is."""
    rig.append(UID, 100)
    rig.journal.submit()
    assert rig.poll() == []
    reported_during_the_call = []
    rig.disk.watch = lambda: reported_during_the_call.extend(rig.journal.poll())
    assert rig.journal.writer.step()
    rig.disk.watch = None
    assert reported_during_the_call == []
    assert [type(event) for event in rig.poll()] == [Persisted]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_reported_survives_a_crash_in_that_moment(seed: int) -> None:
    """W1: at every single report, the power fails; all that was reported is found, in order."""
    rng = Random(seed)
    rig = Rig(seed=seed, segment_bytes=rng.choice((4096, 8192)))
    for _ in range(6):
        play(rig, rng, 12)
        rig.journal.submit()
        while rig.journal.writer.step():
            rig.poll()
            for crash in range(3):
                out, found = recovered(rig.disk.crash(Random(crash)))
                assert not out.corrupt, out.findings
                assert len(found) >= rig.promised
                assert found == rig.log[: len(found)]


def test_tails_name_term_and_index(rig: Rig) -> None:
    """W11: whoever waits compares both; of several batches in one flush the last one counts."""
    rig.append(UID, 1, 1, 1, term=1)
    rig.journal.submit()
    rig.truncate(UID, 2)
    rig.journal.submit()
    rig.append(UID, 1, term=5)
    rig.journal.submit()
    assert rig.journal.writer.step()
    (event,) = rig.poll()
    assert isinstance(event, Persisted)
    assert event.tails == {UID: (5, 2)}
    rig.truncate(UID, 2)
    (event,) = rig.pump()
    assert event.tails == {UID: (1, 1)}


def test_appending_never_waits_for_the_disk(rig: Rig) -> None:
    """W17: segments are filled and left behind while the writer stands still."""
    operations = len(rig.disk.trace)
    for _ in range(100):
        rig.append(UID, 200)
        rig.journal.submit()
    assert len(rig.disk.trace) == operations
    assert rig.journal.end[0] > 4
    rig.pump()
    out, found = recovered(rig.disk.crash(Random(1)))
    assert found == rig.log and not out.findings


def test_batch_numbers_rise_and_are_reported(rig: Rig) -> None:
    numbers = []
    for _ in range(20):
        entries = rig.make(UID, [150])
        numbers.append(rig.journal.append(UID, entries))
        rig.journal.submit()
    rig.pump()
    reported = [event.batch for event in rig.events if isinstance(event, Persisted)]
    assert numbers == sorted(set(numbers))
    assert reported[-1] >= numbers[-1]


# -- what is read back -----------------------------------------------------------------------


def test_every_field_and_payload_comes_back(rig: Rig) -> None:
    for sizes in ((0,), (1, 1000), (300, 20, 700, 5), (1024,)):
        rig.append(UID, *sizes, term=7)
    rig.settle()
    _, found = recovered(rig.disk)
    rows = [one for one in found if len(one) == 10]
    assert len(rows) == 8
    for row in rows:
        _, term, offset, count, time_ms, entry_type, chain, payload = rig.entries[UID, row[1]]
        assert row[0] == UID
        assert row[5:] == (count, offset, term, time_ms, chain)
        assert payload_of(rig, row) == payload
        name, uid = rig.journal.segment_name(row[2])
        raw = rig.disk.read(name, row[3], f.RECORD_HEADER_BYTES)
        record = f.record_at(raw, 0, row[3], f.segment_seed(uid))
        assert record is not None and record.entry_type == entry_type


def test_truncate_and_append_again(rig: Rig) -> None:
    """W9: the tail is cut by a record, never by writing over it."""
    rig.append(UID, *[50] * 5, term=1)
    rig.pump()
    name, old = newest_segment(rig), bytes(rig.disk.contents(newest_segment(rig)))
    rig.truncate(UID, 3)
    assert (rig.group(UID).last_index, rig.group(UID).last_term) == (2, 1)
    rig.append(UID, 60, 70, term=2)
    rig.settle()
    end = len(old.rstrip(b"\0"))
    assert rig.disk.contents(name)[:end] == old[:end]
    out, _ = recovered(rig.disk)
    assert state_of(out.groups.by_uid[UID]) == state_of(rig.group(UID))
    assert out.groups.by_uid[UID].last_index == 4


def test_start_and_reset(rig: Rig) -> None:
    rig.append(UID, *[50] * 5, term=1)
    rig.start(UID, 4)
    assert (rig.group(UID).first_index, rig.group(UID).last_index) == (4, 5)
    rig.start(UID, 6)
    assert (rig.group(UID).first_index, rig.group(UID).last_index) == (6, 5)
    rig.journal.start(UID, 100, 9, 77, 5, reset=True)
    group = rig.group(UID)
    assert (group.first_index, group.last_index, group.last_term) == (100, 99, 9)
    assert (group.next_offset, group.chain) == (77, 5)
    rig.append(UID, 10)
    rig.settle()
    out, _ = recovered(rig.disk)
    assert states_of(out.groups) == states_of(rig.groups) and not out.findings


def test_a_snapshot_in_parts_is_in_force_with_its_last_one(rig: Rig) -> None:
    rig.append(UID, 10, 10)
    rig.journal.snapshot(UID, 1, 1, [b"old"])
    rig.settle()
    disk = rig.disk.killed()
    rig.journal.snapshot(UID, 2, 1, [bytes(1000)] * 6)
    assert rig.group(UID).snapshot_index == 2
    assert rig.group(UID).snapshot_from < rig.group(UID).snapshot_at
    rig.journal.submit()
    rig.journal.writer.step()
    out, _ = recovered(rig.disk.killed())
    assert out.groups.by_uid[UID].snapshot_index == 1, "of the new one only a part is there"
    rig.settle()
    out, found = recovered(rig.disk)
    parts = [one for one in found if one[0].__class__ is f.Record and one[0].kind == f.SNAPSHOT]
    assert b"".join(payload for _, _, payload in parts[1:]) == bytes(6000)
    assert [part.count for part, _, _ in parts] == [0, 0, 1, 2, 3, 4, 5]
    assert states_of(out.groups) == states_of(rig.groups)
    assert recovered(disk)[0].groups.by_uid[UID].snapshot_index == 1


def test_a_removed_group_is_gone(rig: Rig) -> None:
    rig.append(UID, 10, 10)
    rig.journal.remove_group(UID)
    with pytest.raises(GroupUnknown):
        rig.journal.hard_state(UID, 1, 1)
    rig.journal.create_group(UID + 1, b"next")
    rig.settle()
    out, _ = recovered(rig.disk)
    assert set(out.groups.by_uid) == {UID + 1} and not out.findings


def test_relocated_entries_are_no_new_end(rig: Rig) -> None:
    rig.append(UID, *[50] * 6)
    rig.journal.append(UID, [rig.entries[UID, at] for at in (2, 3)], relocated=True)
    assert rig.group(UID).last_index == 6
    rig.append(UID, 10)
    rig.settle()
    out, found = recovered(rig.disk)
    assert found == rig.log and not out.findings
    assert states_of(out.groups) == states_of(rig.groups)
    assert out.groups.by_uid[UID].last_index == 7


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
        kinds = sum(1 << kind for kind in {record.kind for record in records})
        entries = [record for record in records if record.kind == f.ENTRY]
        if not entries:
            rows.append(f.FooterRow(group, *[0] * 9, kinds))
            continue
        first = next(r for r in entries if r.index == min(e.index for e in entries))
        last = [r for r in entries if r.index == max(e.index for e in entries)][-1]
        times = [r.time_ms for r in entries]
        rows.append(
            f.FooterRow(
                group, first.index, last.index, first.offset, last.offset + last.count, last.term,
                min(times), max(times), len(entries), sum(72 + r.length for r in entries), kinds,
            )
        )  # fmt: skip
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
    from myqueue.errors import IdentityMismatch
    from myqueue.wal.groups import Groups
    from myqueue.wal.recovery import recover

    rig.settle()
    before = {name: bytes(rig.disk.contents(name)) for name in rig.disk.list()}
    with pytest.raises(IdentityMismatch):
        recover(rig.disk, Groups(), (0, 0), lambda *_: None, owner=bytes(16))
    assert {name: bytes(rig.disk.contents(name)) for name in rig.disk.list()} == before


def test_a_fresh_disk() -> None:
    rig = Rig(SimDisk())
    out, found = recovered(rig.disk.survivor({}, ()))
    assert found == [] and not out.findings
