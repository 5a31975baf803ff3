"""Keys of batches age by steps in the log, which no wall clock can push: a repeat within a quarter
of an hour is stored once, whatever the clocks of its leaders say.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.batches import WALL_MS, make_batch
from support.broker_seam import GROUP, World

from myqueue import errors
from myqueue.daemons.broker import key_ageing
from myqueue.daemons.partition import keyed_batches
from myqueue.daemons.partition.keyed_batches import (
    KEY_AGE_MS,
    KEY_AGE_STEPS,
    KEY_STEP_MS,
    batch_key,
)
from myqueue.daemons.partition.machine import PartitionMachine, key_step_command
from myqueue.daemons.partition.producers import NEW
from myqueue.daemons.raft import types as t
from myqueue.wire import protocol
from myqueue.wire.batch import KEYED_EPOCH

FIRST_BIT = 1 << 63
MINUTE_MS = 60_000


def keyed(number: int, count: int = 1) -> bytes:
    return make_batch(count, FIRST_BIT | number, number, KEYED_EPOCH)


@pytest.fixture
def world() -> World:
    return World()


def offset_of(world: World, number: int) -> int:
    ((_, code, offset, *_),) = world.produce(keyed(number))
    assert code == 0
    return int(offset)


def passes(world: World, ms: int, step_ms: int = 1_000) -> None:
    """So much time, by the steady clock and by the wall's."""
    for _ in range(ms // step_ms):
        world.engine.now += step_ms
        world.engine.wall += step_ms
        world.broker.tick(world.engine.now)
        world.turn()


def steps_of(world: World) -> int:
    """In its log."""
    entries = world.replica.log.in_memory(1, world.replica.log.last_index) or []
    return sum(entry[t.PAYLOAD] == key_step_command() for entry in entries)


@pytest.mark.parametrize("minutes", [20, -20, 60 * 24 * 365])
def test_a_leaders_clock_that_jumps_forgets_no_key(world: World, minutes: int) -> None:
    assert offset_of(world, 1) == 0
    world.engine.wall += minutes * MINUTE_MS
    assert offset_of(world, 2) == 1
    passes(world, 2_000)
    assert offset_of(world, 3) == 2
    assert [offset_of(world, number) for number in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("minutes", [20, -20])
def test_nor_does_the_next_leaders(world: World, minutes: int) -> None:
    assert offset_of(world, 1) == 0
    world.engine.depose(world.replica, leader=2)
    world.engine.wall += minutes * MINUTE_MS
    world.engine.lead(world.replica)
    assert offset_of(world, 2) == 1
    assert [offset_of(world, number) for number in (1, 2)] == [0, 1]


def test_keys_that_an_older_version_stored_are_safe_from_the_first_moment(world: World) -> None:
    """The log of a version that wrote no steps; its next leader's clock is ahead."""
    machine = world.replica.machine
    world.replica.log.make([t.Proposal(1, WALL_MS, t.DATA, keyed(1))], world.replica.raft.term)
    world.engine.depose(world.replica, leader=2)
    world.replica.log.make([t.Proposal(1, WALL_MS, t.DATA, keyed(1))], world.replica.raft.term)
    machine.apply(world.replica.log.in_memory(machine.applied_index + 1, 2))
    assert len(machine.keys) == 1 and not machine.keys.steps
    world.engine.wall += 20 * MINUTE_MS
    world.engine.lead(world.replica)
    world.ask(protocol.PRODUCE, [GROUP], frames=[keyed(2)])
    world.turn()
    assert [offset_of(world, number) for number in (1, 2)] == [0, 1]


def test_a_key_is_kept_for_a_quarter_of_an_hour_and_not_for_much_longer(world: World) -> None:
    passes(world, 30_000)  # between two steps
    assert offset_of(world, 1) == 0
    passes(world, KEY_AGE_MS)
    assert offset_of(world, 1) == 0, "promised"
    passes(world, 3 * MINUTE_MS)
    assert len(world.replica.machine.keys) == 0
    assert steps_of(world) <= KEY_AGE_STEPS + 3
    before = world.replica.log.last_index
    passes(world, 10 * MINUTE_MS)
    assert world.replica.log.last_index == before, "without keys nothing is written"
    assert offset_of(world, 1) == 1, "forgotten"


def test_a_key_after_a_long_silence_has_its_whole_time(world: World) -> None:
    """The steps before it say nothing about it."""
    assert offset_of(world, 1) == 0
    passes(world, 2 * KEY_AGE_MS, 10_000)
    passes(world, 50_000)
    assert offset_of(world, 2) == 1
    passes(world, KEY_AGE_MS)
    assert offset_of(world, 2) == 1


def test_each_leader_waits_for_itself(world: World) -> None:
    """However often leaders change, no step comes early."""
    assert offset_of(world, 1) == 0
    begin = world.engine.now
    for _ in range(40):
        passes(world, KEY_STEP_MS - 10_000, 5_000)
        world.engine.depose(world.replica, leader=2)
        world.engine.lead(world.replica)
    assert world.engine.now - begin > 2 * KEY_AGE_MS
    assert offset_of(world, 1) == 0 and steps_of(world) == 1


def test_a_step_on_its_way_is_waited_for(world: World) -> None:
    assert offset_of(world, 1) == 0
    world.engine.apply_at_once = False
    passes(world, 10 * MINUTE_MS)
    assert steps_of(world) == 2
    world.engine.apply(world.replica)
    passes(world, MINUTE_MS - 2_000)
    assert steps_of(world) == 2
    passes(world, 4_000)
    assert steps_of(world) == 3


def test_a_step_that_is_refused_comes_later(world: World) -> None:
    assert offset_of(world, 1) == 0
    world.engine.refusal = errors.DiskFull("no room")
    passes(world, 2 * MINUTE_MS)
    assert steps_of(world) == 1
    world.engine.refusal = None
    passes(world, 2_000)
    assert steps_of(world) == 2


def test_many_partitions_do_not_step_all_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ageing, "STEPS_PER_CHECK_MAX", 3)
    groups = [GROUP, *range(200, 207)]
    for group in groups[1:]:
        world.engine.lead(world.add(group))
    for group in groups:
        world.produce(keyed(1), group=group)
    world.engine.proposals.clear()
    counts = []
    for _ in range(70):
        passes(world, 1_000)
        counts.append(len(world.engine.proposals))
        world.engine.proposals.clear()
    assert max(counts) == 3 and sum(counts) == len(groups)


# -- the state ------------------------------------------------------------------------------------


class Log:
    """Entries of one partition, applied as they come."""

    def __init__(self) -> None:
        self.machine, self.entries = PartitionMachine(), list[t.Entry]()

    def add(self, kind: int, payload: bytes, count: int = 0, time_ms: int = WALL_MS) -> None:
        machine = self.machine
        index = machine.applied_index + 1
        entry = (index, 1, machine.end, count, time_ms, kind, 0, payload)
        self.entries.append(entry)
        machine.apply([entry])

    def key(self, number: int, time_ms: int = WALL_MS) -> None:
        self.add(t.DATA, keyed(number), 1, time_ms)

    def step(self) -> None:
        self.add(t.COMMAND, key_step_command())

    def known(self, machine: PartitionMachine | None = None) -> list[int]:
        judge = (machine or self.machine).keys.judge
        return [n for n in range(50) if judge(batch_key(FIRST_BIT | n, n), 1) != NEW]


def test_entries_of_an_older_version_mean_what_they_meant() -> None:
    """By stamps, until the first step; then never again."""
    log = Log()
    log.key(1)
    log.key(2, WALL_MS + KEY_AGE_MS)
    log.key(3, WALL_MS + KEY_AGE_MS + 1)
    assert log.known() == [2, 3]
    log.step()
    log.key(4, WALL_MS + 10 * KEY_AGE_MS)
    assert log.known() == [2, 3, 4]


def test_steps_survive_whatever_a_state_goes_through() -> None:
    log, rows = Log(), dict[bytes, bytes]()

    def same() -> None:
        puts, gone = log.machine.take_changes()
        rows.update(puts)
        for name in gone:
            rows.pop(name, None)
        loaded, restored, again = PartitionMachine(), PartitionMachine(), PartitionMachine()
        loaded.load(log.machine.applied_index, rows.items())
        restored.restore(log.machine.snapshot())
        again.apply(log.entries)
        for one in (loaded, restored, again):
            assert one.snapshot() == log.machine.snapshot()
            assert log.known(one) == log.known()
        assert restored.take_changes()[0] == rows

    for number in range(2 * KEY_AGE_STEPS + 5):
        log.key(number)
        if number % 3:
            log.step()
        same()
    assert len(log.machine.keys.steps) == KEY_AGE_STEPS + 1
    assert 0 < len(log.known()) < 2 * KEY_AGE_STEPS


def test_a_restore_from_one_without_steps_forgets_them() -> None:
    log, rows = Log(), dict[bytes, bytes]()
    log.key(1)
    log.step()
    rows.update(log.machine.take_changes()[0])
    log.machine.restore(PartitionMachine().snapshot())
    puts, gone = log.machine.take_changes()
    rows.update(puts)
    for name in gone:
        rows.pop(name)
    assert set(rows) == {b"m"}
    loaded = PartitionMachine()
    loaded.load(0, rows.items())
    assert loaded.snapshot() == PartitionMachine().snapshot() and not loaded.keys.steps


def test_the_number_of_keys_is_bounded_though_nobody_steps(monkeypatch: Any) -> None:
    monkeypatch.setattr(keyed_batches, "KEYS_MAX", 3)
    log = Log()
    log.step()
    for number in range(9):
        log.key(number)
    assert log.known() == [6, 7, 8]
