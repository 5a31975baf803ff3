"""Recovery on a page cache that is not the disk, and a recovery that is itself interrupted.

After `kill -9` the next process reads what the last one wrote, synced or not. It may build on that
only once it is durable; and it may be killed, or lose power, at each step of making it so.
"""

import copy
from random import Random
from typing import Any

import pytest
from sim.disk import AFTER, BEFORE, MIDDLE, Crash, SimDisk
from sim.history import play
from sim.rig import UID, Rig, contents, recovered, states_of

from myqueue.wal.groups import Groups
from myqueue.wal.recover.recovery import recover

MOMENTS = (BEFORE, MIDDLE, AFTER)


def changing(disk: SimDisk) -> list[int]:
    """Numbers of the operations that change something; a crash at a read leaves what was there."""
    return [n for n, operation in enumerate(disk.trace, 1) if operation.kind != "read"]


def fill(rig: Rig, segment: int) -> None:
    """Append until the log reaches this segment, all of it persisted."""
    while rig.journal.end[0] < segment:
        rig.append(UID, 300)
    rig.pump()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_found_is_durable_when_the_journal_speaks(seed: int) -> None:
    """W4: the process is killed at any moment, another one starts; then the power fails.

    What the second process found in the page cache and built upon must be there afterwards.
    """
    length = _history(SimDisk(), seed)
    for number in range(1 + seed, length + 1, 4):
        for when in (MIDDLE, AFTER):
            disk = SimDisk()
            disk.stop_at = (number, when)
            with pytest.raises(Crash):
                _history(disk, seed)
            rig = Rig(disk.killed(), seed + 1)
            assert not rig.journal.recovered.corrupt
            out, found = recovered(rig.disk.worst())
            assert found == rig.before and not out.findings, (number, when)
            rig.journal.create_group(7, b"")
            for _ in range(4):  # in between, each new segment syncs the directory by itself
                rig.append(7, 900, 900)
                rig.pump()
                out, found = recovered(rig.disk.worst())
                assert found == rig.log and not out.findings, (number, when)


def _history(disk: SimDisk, seed: int) -> int:
    """A short one, with rotations and spares; returns how many operations it took."""
    rig = Rig(disk, seed)
    for _ in range(4):
        play(rig, Random(seed), 15)
        rig.settle()
        rig.journal.spares.step()
    rig.journal.close()
    return len(disk.trace)


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_after_a_failed_sync_the_page_cache_lies(rig: Rig, failing: str) -> None:
    """W3, W4: the bytes can be read, another sync succeeds, and they are not on the disk."""
    fill(rig, 2)
    for number in range(1, 8):
        one = Rig(rig.disk.killed(), seed=number)
        one.disk.fail(failing, number)
        for _ in range(25):
            one.append(UID, 300)
            one.pump()
            if one.journal.writer.stopped:
                break
        assert one.journal.writer.stopped
        next_one = Rig(one.disk.killed(), seed=99)
        fill(next_one, next_one.journal.end[0] + 2)
        out, found = recovered(next_one.disk.worst())
        assert found == next_one.log and not out.findings


def test_the_sink_is_given_durable_records_only(rig: Rig) -> None:
    """W4: the store may make durable at once what it is given, and the log must not be behind."""
    rig.append(UID, 300, 900, 900)
    rig.journal.submit()
    rig.disk.stop_at = (len(rig.disk.trace) + 1, MIDDLE)
    with pytest.raises(Crash):
        rig.journal.writer.step()
    disk = rig.disk.killed()
    seen: list[int] = []

    def sink(ops: list[Any], segment: int, position: int) -> None:
        out, found = recovered(disk.worst())
        assert (out.number, out.position) == (segment, position)
        seen.append(len(found))

    recover(disk, Groups(), (0, 0), sink)
    assert seen == [4]


@pytest.mark.parametrize("seed", range(8))
def test_recovery_is_idempotent(seed: int) -> None:
    rig = Rig(seed=seed)
    play(rig, Random(seed), 80)
    disk = rig.disk.crash(Random(seed))
    first, found = recovered(disk)
    after = contents(disk)
    for again in (disk, disk.killed(), disk.worst()):
        second, found_again = recovered(again)
        assert found_again == found and not second.findings
        assert states_of(second.groups) == states_of(first.groups)
        assert (second.number, second.position) == (first.number, first.position)
        assert contents(again) == after


@pytest.mark.parametrize("seed", range(6))
def test_recovery_survives_a_crash_at_each_of_its_operations(seed: int) -> None:
    """Killed or without power, before, in the middle of and after each one, and then again."""
    rng = Random(seed)
    rig = Rig(seed=seed)
    play(rig, rng, 60)
    rig.pump()
    play(rig, rng, 10)
    rig.journal.submit()
    rig.disk.stop_at = (len(rig.disk.trace) + rng.randint(1, 8), MIDDLE)
    try:
        while rig.journal.writer.step():
            rig.poll()
    except Crash:
        pass
    crashed = rig.disk.crash(rng)
    crashed.create("000000000099-0000000000000001.seg.new", 4096)
    reference = crashed.killed()
    _, found = recovered(reference)
    assert len(found) >= rig.promised
    for number in changing(reference):
        for when in MOMENTS:
            disk = crashed.killed()
            disk.stop_at = (number, when)
            with pytest.raises(Crash):
                recovered(disk)
            for state in (disk.killed(), disk.worst(), disk.crash(rng)):
                out, found_again = recovered(state)
                assert not out.corrupt
                assert rig.promised <= len(found_again) <= len(found)
                assert found_again == found[: len(found_again)]


@pytest.mark.parametrize("seed", range(3))
def test_opening_a_journal_survives_a_crash_at_each_operation(seed: int) -> None:
    """As above, and with what the journal itself does before it takes the first record."""
    rng = Random(seed)
    rig = Rig(seed=seed)
    play(rig, rng, 100)
    rig.pump()
    crashed = rig.disk.crash(rng)
    reference = Rig(crashed.killed(), seed=5)
    reference.pump()
    for number in changing(reference.disk):
        for when in MOMENTS:
            disk = crashed.killed()
            disk.stop_at = (number, when)
            with pytest.raises(Crash):
                Rig(disk, seed=5).pump()
            after = Rig(disk.crash(rng), seed=6)
            assert after.before == rig.log and not after.journal.recovered.corrupt
            after.settle()
            out, found = recovered(after.disk.worst())
            assert found == rig.log and not out.findings


def test_a_recovery_that_was_interrupted_begins_with_nothing(rig: Rig) -> None:
    """From the beginning of the log, whatever the store kept of the last try is forgotten."""
    rig.append(UID, *[100] * 5)
    rig.settle()
    out, found = recovered(rig.disk, (0, 0), copy.deepcopy(rig.groups))
    assert found == rig.log and not out.findings
