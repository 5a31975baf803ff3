"""What the records say about a group must be the same for whoever reads them.

Three ask: the journal while it appends, recovery while it reads, the store while it saves. The
first two are compared field by field after random histories; the third by what it loads again.
"""

from random import Random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.disk import SimDisk
from sim.history import play
from sim.rig import Rig, recovered, state_of, states_of

from myqueue.errors import StoreBroken
from myqueue.wal import format as f
from myqueue.wal.groups import Group, Groups

TAIL = ("last_index", "last_term", "next_offset", "chain")
NOT_SAVED = (*TAIL, "missing", "damaged")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_recovery_and_journal_agree_in_every_field(seed: int, steps: int) -> None:
    rig = Rig(seed=seed)
    play(rig, Random(seed), steps)
    rig.pump()
    out, found = recovered(rig.disk.survivor({}, ()))
    assert found == rig.log and not out.findings
    assert states_of(out.groups) == states_of(rig.groups)
    for group in out.groups.by_uid.values():
        check_invariants(group)


def check_invariants(group: Group) -> None:
    """As the module's docstring says them."""
    assert group.first_index <= group.last_index + 1
    if group.first_index == group.last_index + 1 and group.start_at:
        assert group.next_offset >= 0
    assert not group.damaged and group.missing == []


@pytest.mark.parametrize("seed", range(10))
def test_over_several_lives(seed: int) -> None:
    """Each with another crash; what the next one finds is what the last one was told."""
    rng = Random(seed)
    rig = Rig(seed=seed)
    for _ in range(5):
        play(rig, rng, 40)
        rig.pump()
        log, states = rig.log, states_of(rig.groups)
        entries = dict(rig.entries)
        rig.reopen(rig.disk.crash(rng))
        assert rig.before == log and states_of(rig.groups) == states
        rig.entries = entries


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_saved_and_loaded_groups_are_equal_but_for_their_tail(seed: int) -> None:
    rig = Rig(seed=seed)
    play(rig, Random(seed), 60)
    for group in rig.groups.by_uid.values():
        raw = group.save()
        loaded, live = state_of(Group.load(raw)), state_of(group)
        assert {k: v for k, v in loaded.items() if k not in NOT_SAVED} == {
            k: v for k, v in live.items() if k not in NOT_SAVED
        }
        assert loaded["last_index"] == live["first_index"] - 1
        at = Random(seed).randrange(len(raw))
        for damaged in (raw[:at], raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]):
            with pytest.raises(StoreBroken):
                Group.load(damaged)


def entry(index: int, *, term: int = 1, flags: int = 0, group: int = 7) -> f.Record:
    return f.Record(0, 0, f.ENTRY, flags, 0, 0, 1, group, index, term, index * 10, 0, index)


def other(kind: int, **fields: int) -> f.Record:
    record = f.Record(0, 0, kind, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0)
    return record._replace(**fields)


def test_a_gap_is_noticed_at_the_end_of_the_log_only() -> None:
    """W10: until then the missing ones may turn up, relocated, or be before the log's start."""
    groups = Groups()
    assert [groups.entry(entry(index)) for index in (1, 2, 7, 8)] == [None] * 4
    group = groups.by_uid[7]
    assert group.missing == [(3, 6)]
    groups.entry(entry(4, flags=f.RELOCATED))
    assert group.missing == [(3, 3), (5, 6)]
    assert (group.last_index, group.chain) == (8, 8)
    groups.apply(other(f.START, index=6), 1, b"")
    assert group.missing == [(6, 6)]
    groups.entry(entry(6, flags=f.RELOCATED))
    assert group.missing == [] and not group.damaged


def test_a_step_back_is_a_fault() -> None:
    """W10."""
    groups = Groups()
    for index in (1, 2, 3):
        groups.entry(entry(index))
    assert "index 2 follows index 3" in (groups.entry(entry(2)) or "")
    assert groups.by_uid[7].damaged


def test_truncating_forgets_what_was_missing_behind_it() -> None:
    groups = Groups()
    for index in (1, 5, 9):
        groups.entry(entry(index))
    groups.apply(other(f.TRUNCATE, index=7), 1, b"")
    assert groups.by_uid[7].missing == [(2, 4), (6, 6)]
    groups.apply(other(f.START, index=100, flags=f.RESET), 1, b"")
    group = groups.by_uid[7]
    assert group.missing == [] and (group.first_index, group.last_index) == (100, 99)


def test_the_first_record_seen_of_a_group_may_be_any() -> None:
    """Older segments were reclaimed."""
    groups = Groups()
    assert groups.entry(entry(50)) is None
    group = groups.by_uid[7]
    assert (group.first_index, group.last_index, group.missing) == (50, 50, [])
    groups.apply(other(f.GROUP_REMOVED), 1, b"")
    assert groups.by_uid == {}
    groups.apply(other(f.GROUP_REMOVED), 1, b"")


def test_a_commit_hint_does_not_go_back() -> None:
    groups = Groups()
    for index in (5, 3):
        groups.apply(other(f.COMMIT, index=index), 1, b"")
    assert groups.by_uid[7].commit_index == 5


def test_where_the_newest_hint_stands() -> None:
    """Nowhere, if a snapshot says as much: that one is kept anyhow."""
    groups = Groups()
    places = []
    for kind, index, segment in (
        (f.COMMIT, 0, 1),
        (f.COMMIT, 5, 2),
        (f.COMMIT, 3, 3),
        (f.COMMIT, 5, 4),
        (f.SNAPSHOT, 4, 5),
        (f.SNAPSHOT, 5, 6),
        (f.COMMIT, 6, 7),
        (f.SNAPSHOT, 2, 8),
    ):
        flags = f.LAST if kind == f.SNAPSHOT else 0
        groups.apply(other(kind, index=index, flags=flags), segment, b"")
        group = groups.by_uid[7]
        places.append((group.commit_index, group.hint_at))
        assert group.is_hinted
    assert places == [(0, 0), (5, 2), (5, 2), (5, 4), (5, 4), (5, 0), (6, 7), (6, 7)]


def test_a_row_of_a_program_that_did_not_note_where_hints_stand() -> None:
    groups = Groups()
    groups.apply(other(f.GROUP_CREATED), 2, b"what")
    groups.apply(other(f.COMMIT, index=5), 4, b"")
    raw = groups.by_uid[7].save()
    again = Group.load(raw)
    assert (again.commit_index, again.hint_at, again.created) == (5, 4, b"what")
    fixed = len(raw) - 4 - len(b"what") - 8 - 1
    body = raw[:fixed] + bytes((1,)) + b"what"
    older = Group.load(body + crc32(body).to_bytes(4, "little"))
    assert (older.commit_index, older.hint_at, older.created) == (5, 0, b"what")
    assert not older.is_hinted


def test_what_holds_a_segment() -> None:
    """W12: the newest of each kind, all parts of a snapshot, and one that is being written."""
    groups = Groups()
    groups.apply(other(f.GROUP_CREATED), 2, b"x")
    groups.apply(other(f.HARD_STATE, term=1), 3, b"")
    groups.apply(other(f.HARD_STATE, term=2), 4, b"")
    group = groups.by_uid[7]
    assert [at for at in range(1, 10) if group.holds(at)] == [2, 4]
    groups.apply(other(f.SNAPSHOT, index=9, count=0), 5, b"")
    groups.apply(other(f.SNAPSHOT, index=9, count=1), 6, b"")
    assert [at for at in range(1, 10) if group.holds(at)] == [2, 4, 5, 6, 7, 8, 9]
    groups.apply(other(f.SNAPSHOT, index=9, count=2, flags=f.LAST), 7, b"")
    assert [at for at in range(1, 10) if group.holds(at)] == [2, 4, 5, 6, 7]
    groups.apply(other(f.START, index=3), 8, b"")
    assert [at for at in range(1, 10) if group.holds(at)] == [2, 4, 5, 6, 7, 8]


def test_an_empty_disk_has_no_groups() -> None:
    out, found = recovered(SimDisk())
    assert (out.groups.by_uid, found, out.findings) == ({}, [], [])
    assert (out.number, out.next_number) == (0, 1)


def test_what_each_kind_says() -> None:
    """R1: term and vote in one record. Live and in recovery the same code reads these, so a test
    that compares the two would not notice a field that both forget.
    """
    groups = Groups()
    groups.apply(other(f.GROUP_CREATED), 2, b"what")
    groups.apply(other(f.HARD_STATE, term=8, index=3), 4, b"")
    groups.entry(entry(1, term=6))
    groups.entry(entry(2, term=7))
    group = groups.by_uid[7]
    assert (group.created, group.created_at) == (b"what", 2)
    assert (group.term, group.vote, group.hard_state_at) == (8, 3, 4)
    assert (group.last_index, group.last_term, group.next_offset, group.chain) == (2, 7, 21, 2)
    groups.apply(other(f.TRUNCATE, index=2, term=6, offset=11, chain=1), 5, b"")
    assert (group.last_index, group.last_term, group.next_offset, group.chain) == (1, 6, 11, 1)
    groups.apply(other(f.START, index=2, term=6, offset=11, chain=1), 6, b"")
    assert (group.first_index, group.start_term, group.start_at) == (2, 6, 6)
    assert (group.start_offset, group.start_chain, group.last_index) == (11, 1, 1)
    groups.apply(other(f.SNAPSHOT, index=1, term=6, count=0, position=99), 7, b"")
    groups.apply(other(f.SNAPSHOT, index=1, term=6, count=1, flags=f.LAST), 8, b"")
    assert (group.snapshot_index, group.snapshot_term, group.snapshot_parts) == (1, 6, 2)
    assert (group.snapshot_from, group.snapshot_position, group.snapshot_at) == (7, 99, 8)
    assert group.commit_index == 1
