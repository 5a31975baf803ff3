"""The journal, stepped by hand: what it takes, what it refuses, and when it says "persisted"."""

from random import Random
from typing import Any

import pytest
from sim.history import play
from sim.rig import UID, Rig, newest_segment, recovered, refused, state_of, states_of

from myqueue.errors import (
    AppendGap,
    GroupExists,
    GroupUnknown,
    JournalBusy,
    RecordTooLarge,
)
from myqueue.wal import format as f
from myqueue.wal.append.writer import Persisted


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
