"""A partition as a state machine: offsets, positions, takes; equal on all replicas."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.batches import make_batch
from support.partition_commands import commit_command, forget_command, take_command

from myqueue import errors
from myqueue.daemons.partition import keyed_batches, old_takes, positions
from myqueue.daemons.partition.machine import (
    PartitionMachine,
    start_command,
)
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.log import RaftLog
from myqueue.wire import protocol
from myqueue.wire.batch import KEYED_EPOCH
from myqueue.wire.protocol import NO_OFFSET

KEY = b"k" * 16
FENCED, OUT_OF_RANGE = errors.Fenced.code, errors.OffsetOutOfRange.code


class Group:
    """A log and a machine that applies what is put in."""

    def __init__(self) -> None:
        self.log, self.machine = RaftLog(), PartitionMachine()

    def data(self, count: int = 1, producer: int = 0, sequence: int = 0, time: int = 0) -> None:
        self.put(t.Proposal(count, time, t.DATA, make_batch(count, producer, sequence)))

    def command(self, payload: bytes) -> Any:
        return self.put(t.Proposal(0, 0, t.COMMAND, payload))

    def put(self, item: t.Proposal) -> Any:
        return self.machine.apply(self.log.make([item], 1))[0]

    def commit(self, offset: int, member: int = 0, assignment: int = 0, who: str = "a") -> Any:
        return self.command(commit_command([[who, offset, member, assignment]]))[0]

    def take(self, most: int, key: bytes = KEY, who: str = "a") -> Any:
        return self.command(take_command([[who, key, most]]))[0]


def test_data_moves_the_end() -> None:
    group = Group()
    group.data(3, time=5)
    group.data(2, time=4)
    machine = group.machine
    assert (machine.start, machine.end, machine.time_ms, machine.applied_index) == (0, 5, 5, 2)
    assert machine.bytes_kept == len(make_batch(3)) + len(make_batch(2))


def test_a_gap_in_offsets_stops_the_replica() -> None:
    with pytest.raises(t.InvariantBroken):
        PartitionMachine().apply([(1, 1, 4, 1, 0, t.DATA, 1, make_batch())])


def test_an_operation_of_a_newer_version_is_not_ignored() -> None:
    with pytest.raises(errors.Unsupported):
        Group().command(protocol.pack([99]))


def test_noop_and_config_have_no_result() -> None:
    group = Group()
    assert group.put(t.Proposal(0, 0, t.NOOP, b"")) is None
    assert group.put(t.Proposal(0, 0, t.CONFIG, b"?")) is None
    assert group.machine.applied_index == 2


def test_positions_never_go_back() -> None:
    group = Group()
    group.data(10)
    assert group.commit(4) == (0, 4)
    assert group.commit(2) == (0, 4)
    assert group.commit(4) == (0, 4)
    assert group.commit(11) == (OUT_OF_RANGE, 4)
    assert group.commit(10) == (0, 10)


def test_commits_are_fenced_by_assignment_then_member() -> None:
    """C7"""
    group = Group()
    group.data(10)
    assert group.commit(5, member=7, assignment=2) == (0, 5)
    assert group.commit(6, member=9, assignment=1) == (FENCED, 5)  # it lost the partition
    assert group.commit(6, member=6, assignment=2) == (FENCED, 5)
    assert group.commit(6, member=8, assignment=2) == (0, 6)
    assert group.commit(7, member=7, assignment=2) == (FENCED, 6)  # a newer session of its own
    assert group.commit(3, member=1, assignment=3) == (0, 3)  # reset, by a new assignment
    assert group.commit(2, member=1, assignment=3) == (0, 3)


def test_c7_a_fence_moves_nothing() -> None:
    group = Group()
    group.data(10)
    assert group.commit(NO_OFFSET, member=1, assignment=2) == (0, NO_OFFSET)
    assert group.machine.positions.offset("a") is None  # it still never committed
    assert group.machine.positions.consumers_past(0, 9) == {}
    assert group.commit(3, member=1, assignment=1) == (FENCED, 0)
    assert group.commit(0, member=1, assignment=2) == (0, 0)
    assert group.commit(5, member=1, assignment=2) == (0, 5)
    assert group.commit(NO_OFFSET, member=4, assignment=7) == (0, 5)
    assert group.commit(6, member=1, assignment=2) == (FENCED, 5)
    assert group.commit(4, member=4, assignment=7) == (0, 5)  # the same assignment: not back
    group.commit(NO_OFFSET, member=5, assignment=8)
    assert group.machine.positions.offset("a") == 5


def test_c7_a_fence_without_a_position_is_kept_and_takes_go_on() -> None:
    group = Group()
    group.data(5)
    group.commit(NO_OFFSET, member=1, assignment=2)
    again = PartitionMachine()
    again.restore(group.machine.snapshot())
    assert again.positions.packed() == group.machine.positions.packed()
    assert again.positions.offset("a") is None
    assert group.take(2) == (0, 0, 2)


def test_what_is_forgotten_is_as_if_it_had_never_been() -> None:
    group = Group()
    group.data(10)
    group.commit(5, member=7, assignment=20)
    group.commit(6, who="b")
    group.machine.take_changes()
    rows = [["a", 9, 19], ["a", 0, 30], ["nobody", 0, 1]]
    found = group.command(forget_command(rows))
    assert found == [(FENCED, 5), (0, NO_OFFSET), (0, NO_OFFSET)]
    assert group.machine.positions.offset("a") is None and len(group.machine.positions) == 1
    puts, gone = group.machine.take_changes()
    assert (b"ca" in gone, b"ca" in puts) == (True, False)
    assert group.commit(2, member=1, assignment=3) == (0, 2)  # a later group of this name
    group.command(forget_command([["a", 1, 3]]))
    assert group.take(1) == (0, 0, 1)
    puts, gone = group.machine.take_changes()
    assert (b"ca" in gone, b"ca" in puts) == (False, True)  # what was forgotten came again


def test_takes_of_who_is_forgotten_are_forgotten_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROTOCOL: all that is known of the consumer here; a later one of this name begins anew."""
    monkeypatch.setattr(positions, "TAKE_KEYS_PER_CONSUMER_MAX", 1)
    group = Group()
    group.data(9)
    for number in range(3):
        group.take(1, bytes([number]) * 16)
        group.take(1, bytes([number]) * 16, who="b")
    assert {name[:1] for name in group.machine.take_changes()[0]} == {b"m", b"c", b"t"}
    group.command(forget_command([["a", 0, 0]]))
    _, gone = group.machine.take_changes()
    assert [name[17:] for name in gone if name[:1] == b"t"] == [b"a", b"a"]
    again = PartitionMachine()
    again.restore(group.machine.snapshot())
    for machine in (group.machine, again):
        assert [machine.positions.taken("a", bytes([n]) * 16) for n in range(3)] == [None] * 3
        assert machine.positions.taken("b", bytes(16)) == (0, 1)
    assert group.take(2, bytes(16)) == (0, 0, 2)


def test_take_moves_and_repeats() -> None:
    group = Group()
    group.data(5)
    assert group.take(2) == (0, 0, 2)
    assert group.take(2) == (0, 0, 2)  # the same key
    assert group.take(9, b"2" * 16) == (0, 2, 5)
    assert group.take(9, b"3" * 16) == (0, 5, 5)
    group.data(1)
    assert group.take(9, b"3" * 16) == (0, 5, 6)  # nothing was taken by it before
    assert group.commit(3) == (0, 6)
    assert group.machine.positions.offset("a") == 6


def test_take_remembers_16_keys_for_each_consumer_and_some_older_ones_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(old_takes, "OLDER_TAKES_MAX", 3)
    group = Group()
    group.data(40)
    for number in range(20):
        assert group.take(1, bytes([number]) * 16) == (0, number, number + 1)
    assert group.take(1, bytes([1]) * 16) == (0, 1, 2)
    assert group.take(1, bytes([0]) * 16) == (0, 20, 21)  # forgotten


def test_take_begins_at_the_start_that_retention_left() -> None:
    group = Group()
    group.data(5)
    group.data(5)
    size = len(make_batch(5))
    assert group.command(start_command(5, 2, size)) == (0, 5)
    assert group.command(start_command(5, 2, size)) == (0, 5)  # the same again
    assert group.command(start_command(0, 1, 0)) == (0, 5)
    assert group.command(start_command(11, 3, 0)) == (OUT_OF_RANGE, 5)
    assert (group.machine.start, group.machine.start_index) == (5, 2)
    assert group.machine.bytes_kept == size
    assert group.take(1) == (0, 5, 6)


def test_only_rows_that_changed_are_saved() -> None:
    group = Group()
    group.data(2, producer=1)
    group.data(2, producer=2)
    group.commit(1, who="a")
    group.commit(1, who="b")
    puts, gone = group.machine.take_changes()
    assert len(puts) == 5 and not gone
    group.commit(2, who="b")
    puts, gone = group.machine.take_changes()
    assert set(puts) == {b"m", b"cb"}
    assert group.machine.take_changes() == ({}, [])


def test_restore_hands_over_all_and_removes_the_rest() -> None:
    old, new = Group(), Group()
    old.data(1, producer=1)
    old.commit(1, who="old")
    new.data(1, producer=2)
    new.commit(1, who="new")
    old.machine.take_changes()
    old.machine.restore(new.machine.snapshot())
    puts, gone = old.machine.take_changes()
    assert set(puts) == {b"m", b"p" + bytes(7) + b"\2", b"cnew"}
    assert set(gone) == {b"p" + bytes(7) + b"\1", b"cold"}
    assert old.machine.snapshot() == new.machine.snapshot()


def random_item(random: Random, sequences: dict[int, int], end: int) -> t.Proposal:
    kind = random.random()
    time = random.randint(0, 100)
    if kind < 0.1:
        batch = make_batch(2, random.getrandbits(64), random.getrandbits(6), KEYED_EPOCH)
        return t.Proposal(2, time, t.DATA, batch)
    if kind < 0.6:
        producer, count = random.randint(0, 4), random.randint(1, 3)
        sequence = sequences.get(producer, 0)
        sequences[producer] = sequence + count
        return t.Proposal(count, time, t.DATA, make_batch(count, producer, sequence))
    who = random.choice(("1", "2", "group/g"))
    if kind < 0.75:
        epochs = random.randint(0, 2), random.randint(0, 2)
        rows = [[who, random.randint(0, end + 2), *epochs] for _ in range(random.randint(1, 3))]
        return t.Proposal(0, time, t.COMMAND, commit_command(rows))
    if kind < 0.9:
        key = bytes([random.randint(0, 40)]) * 16
        rows = [[who, key, random.randint(1, 4), random.random() < 0.5]]
        return t.Proposal(0, time, t.COMMAND, take_command(rows))
    if kind < 0.95:
        return t.Proposal(0, time, t.COMMAND, start_command(random.randint(0, end), 1, 1))
    return t.Proposal(0, time, random.choice((t.NOOP, t.CONFIG)), b"")


@pytest.mark.parametrize("seed", range(30))
def test_replicas_stay_equal_however_they_are_saved(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One applies all; the other is saved, loaded, restored and fed in other portions (R20, R27)"""
    monkeypatch.setattr(keyed_batches, "KEYS_MAX", 7)
    monkeypatch.setattr(positions, "TAKE_KEYS_PER_CONSUMER_MAX", 2)
    monkeypatch.setattr(old_takes, "OLDER_TAKES_MAX", 9)
    random, log, plain, other = Random(seed), RaftLog(), PartitionMachine(), PartitionMachine()
    store: dict[bytes, bytes] = {}
    sequences: dict[int, int] = {}
    saved_index, applied, behind = 0, list[t.Entry](), list[t.Entry]()
    marks: dict[tuple[str, int], int] = {}
    for _ in range(300):
        made = log.make([random_item(random, sequences, log.next_offset)], 1)
        end = plain.end
        first = plain.apply(made)
        assert made[0][t.OFFSET] == end and plain.end == end + made[0][t.COUNT]
        applied += made
        behind += made
        check_positions(plain, marks)
        if random.random() < 0.3:
            assert other.apply(behind)[-1] == first[0]
            behind = []
        chance = random.random()
        if chance < 0.1:
            puts, gone = other.take_changes()
            store.update(puts)
            for key in gone:
                store.pop(key, None)
            saved_index = other.applied_index
        elif chance < 0.15:  # it died: what was not saved is applied again
            other = PartitionMachine()
            other.load(saved_index, store.items())
            behind = applied[saved_index:]
        elif chance < 0.18:
            fresh = PartitionMachine()
            fresh.restore(other.snapshot())
            other.restore(plain.snapshot())
            behind = []
    other.apply(behind)
    assert other.snapshot() == plain.snapshot()


def check_positions(machine: PartitionMachine, marks: dict[tuple[str, int], int]) -> None:
    """Within an assignment, no position is ever lower than before (C7)."""
    for who, offset, _, assignment, _ in machine.positions.packed():
        assert marks.get((who, assignment), 0) <= offset <= machine.end
        marks[who, assignment] = offset
