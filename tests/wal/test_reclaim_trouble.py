"""Reclaim where something is wrong: disks that are full or fail, votes in doubt, lost files."""

import errno
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from sim.whole import World, drop, fill, quiet_world

from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.replication.reclaim_pace import PASS_MS, ReclaimPace
from myqueue.wal.space import reclaim
from myqueue.wal.space.segment_repair import SegmentRepair


def test_the_first_pass_of_a_process_waits_for_a_sync_as_well(worlds: Any) -> None:
    """W12, L2: the commits that it finds, its recovery's too, may be in the page cache alone."""
    world = quiet_world(worlds, 1)
    fill(world, 1, 4)
    drop(world, 1)
    shutil.copytree(world.path / "store-1", world.path / "copy")
    twin = world.twin(world.disk.killed(), world.path / "copy")
    sealed = len(twin.journal.segments)
    twin.reclaimer.begin()
    for _ in range(50):
        assert twin.reclaimer.step()
    assert len(twin.journal.segments) == sealed
    twin.reclaim_quietly()
    assert len(twin.journal.segments) < sealed
    twin.close()


def test_a_segment_that_is_missing_behind_the_watermark_was_not_reclaimed(worlds: Any) -> None:
    """R2, W5: it may have held the newest vote, and the last entries, of a group that is idle
    since: nothing that follows tells of them.
    """
    world = quiet_world(worlds, 2)
    fill(world, 1, 1)
    shutil.copytree(world.path / "store-1", world.path / "copy")
    lost = world.store.watermark[0] + 1
    while world.journal.end[0] < lost:
        world.append(1, world.models[1], world.journal.groups.by_uid[1])
    world.vote(2, world.models[2], world.journal.groups.by_uid[2])
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    while world.journal.end[0] < lost + 2:
        world.append(1, world.models[1], world.journal.groups.by_uid[1])
    world.write()
    disk = world.disk.killed()
    disk.move(world.journal.segments[lost].name, None)
    twin = world.twin(disk, world.path / "copy")
    group = twin.journal.groups.by_uid[2]
    assert (group.term, group.last_index) == (0, 0)
    assert twin.journal.recovered.unknown_loss and group.doubtful and group.incomplete
    twin.close()


def test_the_newest_segment_is_missing_and_the_one_prepared_behind_it_is_there(
    worlds: Any,
) -> None:
    """R2: nothing was ever written behind it, but it was there: they are made in order."""
    world = quiet_world(worlds, 2)
    fill(world, 1, 1)
    number = world.journal.end[0]
    while world.journal.end[0] == number:
        shutil.rmtree(world.path / "copy", ignore_errors=True)
        shutil.copytree(world.path / "store-1", world.path / "copy")
        world.append(1, world.models[1], world.journal.groups.by_uid[1])
        world.commit()
    world.vote(2, world.models[2], world.journal.groups.by_uid[2])
    world.commit()
    while world.journal.spares.step():
        continue
    disk = world.disk.killed()
    disk.move(world.journal.segments[number + 1].name, None)
    assert any(name.startswith(f"{number + 2:012}") for name in disk.list())
    twin = world.twin(disk, world.path / "copy")
    assert twin.journal.recovered.unknown_loss and twin.journal.groups.by_uid[2].doubtful
    twin.close()


@pytest.mark.parametrize("kind, number", [("move", 1), ("move", 3), ("sync", 1), ("remove", 2)])
def test_what_a_full_disk_kept_in_place_goes_with_a_later_pass(
    worlds: Any, kind: str, number: int
) -> None:
    """W15: some file systems need room to remove something; none of it is forgotten."""
    world = quiet_world(worlds, 1)
    fill(world, 1, 4)
    drop(world, 1)
    world.disk.fail(kind, number, errno.ENOSPC)
    world.reclaimer.begin()
    with pytest.raises(OSError, match="No space"):
        while world.reclaimer.step():
            world.commit()
    assert not world.journal.writer.stopped
    for _ in range(2):
        world.reclaim_quietly()
    there = {one for one in world.disk.list() if ".seg" in one and not one.endswith(".new")}
    assert there == {one.name for one in world.journal.segments.values()} and len(there) == 1
    world.check()
    world.check_rebuild()


def test_a_daemon_without_work_tries_again_what_a_full_disk_kept_in_place(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W15: nothing is written to a full disk, so nothing else would begin another pass."""
    world = quiet_world(worlds, 1)
    monkeypatch.setattr(reclaim, "COMPACT_BELOW_SHARE", 0.0)  # nor is there anything to wait for
    fill(world, 1, 4)
    drop(world, 1)
    world.disk.fail("move", 1, errno.ENOSPC)
    log: Any = SimpleNamespace(reclaimer=world.reclaimer, journal=world.journal, store=world.store)
    starts: Any = SimpleNamespace(moved=0)
    reclaiming = ReclaimPace(log, starts, DaemonMetrics())
    for turn in range(100):
        reclaiming.tick(turn * PASS_MS)
        world.commit()
    assert len(world.journal.segments) == 2


@pytest.mark.parametrize("kind", ["move", "sync", "remove"])
def test_a_disk_that_fails_while_segments_go_ends_it_all(worlds: Any, kind: str) -> None:
    """W3: nobody knows which names are on the disk; a second try that succeeds does not tell."""
    world = quiet_world(worlds, 1)
    fill(world, 1, 4)
    drop(world, 1)
    world.disk.fail(kind, 1)
    world.reclaimer.begin()
    with pytest.raises(OSError, match="Input"):
        while world.reclaimer.step():
            world.commit()
    world.journal.poll()
    assert isinstance(world.journal.error, OSError)
    assert not world.reclaimer.step()


def test_what_a_doubtful_group_held_goes_after_its_removal(worlds: Any) -> None:
    """The managers replace such a replica; what it held is emptied then, not after a restart."""
    world = quiet_world(worlds, 3)
    for uid in (2, 3):
        world.vote(uid, world.models[uid], world.journal.groups.by_uid[uid])
    fill(world, 1, 2)
    drop(world, 1)
    world.journal.groups.by_uid[2].doubtful = True
    for _ in range(3):
        world.reclaim_quietly()
    assert 1 in world.journal.segments
    world.remove(2, world.models[2], world.journal.groups.by_uid[2])
    fill(world, 1, 1)
    drop(world, 1)
    for _ in range(4):
        world.reclaim_quietly()
    assert 1 not in world.journal.segments
    world.check()
    world.check_rebuild()


def test_an_open_segment_that_is_salvaged_goes_when_the_store_is_behind_it(worlds: Any) -> None:
    """W12: a start that looks for the segment of its watermark would doubt all votes."""
    world = quiet_world(worlds, 1)
    fill(world, 1, 2)
    world.journal.commit_hint(1, world.journal.groups.by_uid[1].last_index)
    world.journal.leave_segment()
    number = world.journal.end[0]
    world.journal.commit_hint(1, 1)  # less than is known, so nothing of it is in force
    world.commit()
    salvaged(world, number)
    assert number not in world.journal.segments
    assert world.index.durable[0] > number
    shutil.copytree(world.path / "store-1", world.path / "copy")
    twin = world.twin(world.disk.killed(), world.path / "copy")
    assert not twin.journal.recovered.corrupt, twin.journal.recovered.findings
    twin.close()


def test_a_hint_is_salvaged_with_the_segment_it_stands_in(worlds: Any) -> None:
    """Of a group whose vote may be an old one as well: of its hint that does no harm."""
    world = quiet_world(worlds, 2)
    for uid in (1, 2):
        world.append(uid, world.models[uid], world.journal.groups.by_uid[uid])
    world.journal.leave_segment()
    number = world.journal.end[0]
    for uid in (1, 2):
        world.hint(uid, world.models[uid], world.journal.groups.by_uid[uid])
    world.journal.groups.by_uid[2].doubtful = True
    world.journal.leave_segment()
    world.commit()
    salvaged(world, number)
    assert number not in world.journal.segments
    world.journal.groups.by_uid[2].doubtful = False
    world.check_rebuild()


def salvaged(world: World, number: int) -> None:
    repair = SegmentRepair(world.reclaimer, number, lambda uid: False)
    for count, _ in enumerate(repair.run()):
        if repair.is_waiting and world.index.added[0] > number:
            world.reclaim_quietly()
        else:  # by itself it gets so far
            world.commit()
        assert count < 1000


def test_what_an_evacuation_cannot_move_is_its_result(worlds: Any) -> None:
    """W16, R2: an entry that can't be read, and a vote that may be an old one, stay where they are;
    all else is appended again.
    """
    world = quiet_world(worlds, 3)
    for uid in (2, 3):
        world.append(uid, world.models[uid], world.journal.groups.by_uid[uid])
        world.vote(uid, world.models[uid], world.journal.groups.by_uid[uid])
    fill(world, 1, 1)
    with world.store.view() as view:
        rows, _ = view.rows_in_segment(1)
    rows.sort(key=lambda row: row.position)
    bad = next(row for row in rows if row.group == 2)
    world.disk.flip(world.journal.segments[1].name, bad.position + 20, 1)
    doubtful = world.journal.groups.by_uid[3]
    doubtful.doubtful = True
    evacuator = world.reclaimer.evacuator
    steps = evacuator.evacuate(1, evacuator.looked_up(rows))
    try:
        while True:
            next(steps)
            world.commit()
    except StopIteration as end:
        unmoved = end.value
    world.commit()
    assert unmoved.entries == [bad] and unmoved.groups == [doubtful]
    assert [row for row in rows if evacuator.is_live(1, row)] == [bad]
    assert doubtful.holds(1) and not world.journal.groups.by_uid[2].holds(1)


def test_a_repaired_segment_that_a_full_disk_kept_is_removed_later(worlds: Any) -> None:
    """W16: the repair goes on until its file is gone; a later pass removes it."""
    world = quiet_world(worlds, 1)
    world.journal.leave_segment()
    number = world.journal.end[0]
    world.journal.commit_hint(1, 1)
    world.journal.leave_segment()
    world.commit()
    segment = world.journal.segments[number]
    segment.damaged = True
    repair = SegmentRepair(world.reclaimer, number, lambda uid: False)
    steps = repair.run()
    while not repair.is_waiting:
        next(steps)
        world.commit()
    fill(world, 1, 1)
    world.disk.fail("move", 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        for _ in range(20):
            world.reclaimer.begin()
            while world.reclaimer.step():
                world.commit()
    assert number in world.journal.segments and not repair.is_removed
    for count, _ in enumerate(steps):
        world.reclaim_quietly()
        assert count < 100
    assert number not in world.journal.segments and repair.is_removed
    world.check_rebuild()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_repaired_segment_stays_as_long_as_records_that_it_takes_back(
    worlds: Any, is_known: bool
) -> None:
    """W12: a replay of the older segment alone would bring back what was truncated. A record that
    nobody can read may be a truncation of any group.
    """
    world = quiet_world(worlds, 2)
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    fill(world, 1, 1)
    world.journal.leave_segment()
    number = world.journal.end[0]
    world.journal.commit_hint(1, 1)
    world.journal.commit_hint(1, 2)  # so the first one is not in force
    if is_known:
        world.truncate(2, world.models[2], world.journal.groups.by_uid[2])
    world.journal.leave_segment()
    world.commit()
    segment = world.journal.segments[number]
    segment.damaged = True
    if not is_known:
        for position in (4096 - 50, 512 + 72 + 20, 512 + 72 + 30):  # its trailer, the first hint
            world.disk.flip(segment.name, position, 1)
    repair = SegmentRepair(world.reclaimer, number, lambda uid: False)
    steps = repair.run()
    for _ in range(200):
        next(steps)
        world.reclaim_quietly()
    assert repair.is_waiting and number in world.journal.segments
    assert not world.reclaimer.has_more, "another pass has nothing to do"
    fill(world, 1, 1)
    drop(world, 1)
    fill(world, 1, 1)
    for _ in steps:
        world.reclaim_quietly()
    assert number not in world.journal.segments and min(world.journal.segments) > number
    world.check()
    world.check_rebuild()
