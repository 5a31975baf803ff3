"""Reclaim: random histories with passes in between, and nothing that is needed ever goes.

After each pass the reader is asked for all that the model knows, and the store is built again from
the segments that are left: it must equal the live one byte by byte.
"""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sim.disk import AFTER, BEFORE, MIDDLE, Crash
from sim.whole import World, drop, fill, quiet_world

from myqueue.wal import format as f
from myqueue.wal.read.scan import Scan
from myqueue.wal.space import reclaim


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_nothing_needed_goes(worlds: Any, seeds: int | None, block: int) -> None:
    """W12, W6: 200 histories (or --seeds), five passes in each."""
    count = (seeds or 200) // 10
    removed = relocated = 0
    for seed in range(block * count, (block + 1) * count):
        world = worlds(seed)
        for _ in range(5):
            for _ in range(60):
                world.turn()
            world.reclaim()
            world.commit()
            world.check()
            world.check_rebuild()
        removed += world.reclaimer.removed_segments
        relocated += world.reclaimer.relocated_bytes
        world.close()
        shutil.rmtree(world.path)
    assert removed > 10 * count and (relocated or count < 20)


@pytest.mark.slow
def test_a_crash_at_any_operation_of_a_pass_loses_nothing(
    worlds: Any, seeds: int | None, tmp_path: Path
) -> None:
    """W12: power fails before, in and after operations of a pass, renames above all. Once the store
    of before the pass goes on from its watermark, once a new one is built.
    """
    crashes = 0
    for seed in range(seeds or 60):
        world = worlds(10_000 + seed)
        for _ in range(3):
            for _ in range(80):
                world.turn()
            world.reclaim()
        world.commit()
        old_store = tmp_path / "old-store"
        shutil.rmtree(old_store, ignore_errors=True)
        shutil.copytree(world.path / "store-1", old_store)
        rng, moves = Random(seed), []
        when = rng.choice((BEFORE, MIDDLE, AFTER))
        world.disk.stop_at = (len(world.disk.trace) + rng.randrange(30), when)
        try:
            for _ in range(3):
                world.reclaimer.begin()
                while world.reclaimer.step():
                    world.commit()
                world.commit()
        except Crash:
            crashes += 1
        moves.append(world.disk.crash(rng))
        for disk, store in ((moves[0], None), (moves[0].killed(), old_store)):
            twin = world.twin(disk, store)
            assert not twin.journal.recovered.corrupt, twin.journal.recovered.findings
            twin.commit()
            twin.check()
            twin.reclaim_quietly()
            twin.check()
            twin.close()
        world.close()
        shutil.rmtree(world.path)
    assert crashes > (seeds or 60) // 3


def test_idle_groups_do_not_hold_segments_and_space_returns(worlds: Any) -> None:
    """W12: four groups of a few records each stand in the first segments and never move."""
    world = quiet_world(worlds, 5)
    for uid in range(2, 6):
        group, model = world.journal.groups.by_uid[uid], world.models[uid]
        world.append(uid, model, group)
        world.vote(uid, model, group)
        model.snapshot = [b"part"] * 3
        world.journal.snapshot(uid, group.last_index, group.last_term, model.snapshot)
        fill(world, 1, 3)
    drop(world, 1)
    before = sum(world.disk.list().values())
    for _ in range(20):
        world.reclaim_quietly()
    world.check()
    world.check_rebuild()
    assert world.reclaimer.relocated_bytes > 0
    assert sum(world.disk.list().values()) < before / 2
    assert min(world.journal.segments) > 5


def test_how_far_a_quiet_group_is_committed_outlives_its_segment(worlds: Any) -> None:
    """Readers of the segments know nothing else of it, and no leader writes to it again."""
    world = quiet_world(worlds, 5)
    for uid in range(2, 6):
        group, model = world.journal.groups.by_uid[uid], world.models[uid]
        world.append(uid, model, group)
        world.hint(uid, model, group)
    fill(world, 1, 3)
    drop(world, 1)
    for _ in range(4):
        world.reclaim_quietly()
    assert 1 not in world.journal.segments
    world.check_rebuild()
    for _ in range(2):
        world.reclaim_quietly()
    end = world.journal.end
    for _ in range(3):
        world.reclaim_quietly()
    assert world.journal.end == end, "who is quiet costs nothing more"


def test_a_group_without_a_hint_gets_one(worlds: Any) -> None:
    """As in the folder of an older program: its segment is gone, the store knows of it."""
    world = quiet_world(worlds, 2)
    group, model = world.journal.groups.by_uid[2], world.models[2]
    world.append(2, model, group)
    world.hint(2, model, group)
    world.commit()
    group.hint_at = 0
    fill(world, 1, 1)
    world.reclaim_quietly()
    assert group.hint_at > 1
    end = world.journal.end
    world.reclaim_quietly()
    assert world.journal.end == end
    world.check_rebuild()


def test_a_large_snapshot_is_not_moved_for_ever(worlds: Any) -> None:
    world = quiet_world(worlds, 2)
    model, group = world.models[2], world.journal.groups.by_uid[2]
    model.snapshot = [bytes([part]) * 1000 for part in range(5)]
    world.journal.snapshot(2, group.last_index, group.last_term, model.snapshot)
    fill(world, 1, 4)
    drop(world, 1)
    for _ in range(5):
        world.reclaim_quietly()
    end = world.journal.end
    for _ in range(5):
        world.reclaim_quietly()
        world.check()
    assert world.journal.end == end
    world.journal.snapshot(2, group.last_index, group.last_term, [b"small"])
    model.snapshot = [b"small"]
    fill(world, 1, 1)
    for _ in range(5):
        world.reclaim_quietly()
    world.check()
    assert 1 not in world.journal.segments, "what held the segment is not in force any more"


@pytest.mark.parametrize("share", [0.6, 0.3])
def test_what_cancels_records_stays_as_long_as_these(
    worlds: Any, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W12: TRUNCATE, reset and GROUP_REMOVED stand in segments that hold nothing else, behind one
    that is full of another group's live entries, which must stay; for good, if it is not emptied.
    """
    monkeypatch.setattr(reclaim, "COMPACT_BELOW_SHARE", share)
    world = quiet_world(worlds, 4)
    for uid in (2, 3, 4):
        world.append(uid, world.models[uid], world.journal.groups.by_uid[uid])
    for uid in (1, 2, 3, 4):
        world.append(uid, world.models[uid], world.journal.groups.by_uid[uid])
    fill(world, 1, 1)
    world.truncate(2, world.models[2], world.journal.groups.by_uid[2])
    world.reset(3, world.models[3], world.journal.groups.by_uid[3])
    world.remove(4, world.models[4], world.journal.groups.by_uid[4])
    fill(world, 2, 3)
    for uid in (2, 3):
        drop(world, uid)
    fill(world, 2, 1)
    for _ in range(6):
        world.reclaim_quietly()
        world.check()
        world.check_rebuild()
    assert bool(world.reclaimer._emptied) == (share < 0.6), "nothing in force, and they stay"
    assert not world.reclaimer.has_more, "another pass has nothing to do"


def test_a_damaged_segment_holds_what_its_footer_names_and_nothing_else(worlds: Any) -> None:
    """Its repair may take as long as the oldest messages are kept; topics come and go meanwhile."""
    world = quiet_world(worlds, 3)
    fill(world, 1, 2)
    world.journal.segments[2].damaged = True
    world.remove(3, world.models[3], world.journal.groups.by_uid[3])
    fill(world, 1, 2)
    drop(world, 1)
    for _ in range(6):
        world.reclaim_quietly()
        world.check()
    left = sorted(world.journal.segments)
    assert left[0] == 2 and left[1] > 4, "what the others have stands at the end by now"
    assert not world.reclaimer.has_more


@pytest.mark.parametrize("where", ["entry", "footer", "header"])
def test_damaged_segments_stay_and_so_does_what_they_need(worlds: Any, where: str) -> None:
    """W6: a segment that cannot be read to its end is never removed, nor are the TRUNCATE and
    GROUP_REMOVED of groups that may be in it.
    """
    world = quiet_world(worlds, 3)
    world.append(3, world.models[3], world.journal.groups.by_uid[3])
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    fill(world, 1, 1)
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    world.remove(3, world.models[3], world.journal.groups.by_uid[3])
    fill(world, 1, 2)
    drop(world, 1)
    first = world.journal.segments[1]
    trailer = world.disk.read(first.name, 4096 - 72, 72)
    footer = f.record_at(trailer, 0, 4096 - 72, f.segment_seed(first.uid))
    assert footer is not None
    row = world.index.row(2, 1)
    assert row is not None and row.segment == 1
    position = {"entry": row.position + 20, "footer": footer.offset + 80, "header": 600}[where]
    world.disk.flip(first.name, position, 1)
    for _ in range(8):
        world.reclaim_quietly()
    assert first.name in world.disk.list()
    removed_in = [n for n, one in world.journal.segments.items() if holds_removal(world, one)]
    assert removed_in, "the GROUP_REMOVED is still there"
    twin = world.twin(world.disk.killed())
    assert 3 not in twin.journal.groups.by_uid
    twin.close()
    assert not world.reclaimer.has_more, "nothing can be done, and nothing is tried"


def holds_removal(world: World, segment: Any) -> bool:
    scan = Scan(lambda at, n: world.disk.read(segment.name, at, n), segment.uid, segment.capacity)
    return any(record.kind == f.GROUP_REMOVED for record, _ in scan.records())


def test_the_vote_of_a_doubtful_group_is_not_written_again(worlds: Any) -> None:
    """R2: it would count as the newest one, and the replica as one that forgot nothing."""
    world = quiet_world(worlds, 2)
    world.vote(2, world.models[2], world.journal.groups.by_uid[2])
    fill(world, 1, 2)
    drop(world, 1)
    world.journal.groups.by_uid[2].doubtful = True
    for _ in range(6):
        world.reclaim_quietly()
    assert 1 in world.journal.segments and world.journal.groups.by_uid[2].doubtful
    world.vote(2, world.models[2], world.journal.groups.by_uid[2])  # the owner knows better
    fill(world, 1, 1)
    drop(world, 1)
    for _ in range(6):
        world.reclaim_quietly()
    world.check()


def test_entries_taken_back_while_a_segment_is_emptied(worlds: Any) -> None:
    """What was truncated and written anew, but is not persisted yet, is not appended again."""
    world = quiet_world(worlds, 2)
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    fill(world, 1, 2)
    drop(world, 1)
    world.reclaimer.begin()
    for _ in range(30):
        world.reclaimer.step()
        world.truncate(2, world.models[2], world.journal.groups.by_uid[2])
        while world.index.step():
            pass
        world.index.poll()
    assert not world.reclaimer.relocated_bytes, "nothing is known for certain yet"
    while world.reclaimer.step():
        world.commit()
    for _ in range(5):
        world.reclaim_quietly()
    world.check()
    world.check_rebuild()


def test_entries_taken_back_between_a_reading_and_its_copy(worlds: Any) -> None:
    """The index still shows them, until it has the truncation; a copy would undo it."""
    world = quiet_world(worlds, 2)
    world.append(2, world.models[2], world.journal.groups.by_uid[2])
    fill(world, 1, 2)
    drop(world, 1)
    evacuator = world.reclaimer.evacuator
    steps = evacuator.evacuate(1, evacuator.scanned(world.journal.segments[1]))
    world.truncate(2, world.models[2], world.journal.groups.by_uid[2])
    for _ in range(30):
        next(steps)
    assert not evacuator.relocated_bytes, "nothing is known for certain yet"
    for _ in steps:
        world.commit()
    world.commit()
    world.check()
    world.check_rebuild()


def test_a_pass_before_the_first_poll_does_not_set_the_watermark_back(worlds: Any) -> None:
    world = quiet_world(worlds, 1)
    fill(world, 1, 2)
    watermark = world.store.watermark
    shutil.copytree(world.path / "store-1", world.path / "copy")
    twin = world.twin(world.disk.killed(), world.path / "copy")
    assert twin.store.watermark >= watermark
    twin.reclaimer.begin()
    twin.reclaimer.step()
    twin.commit()
    assert twin.store.watermark >= watermark
    twin.close()


def test_a_pass_ends_with_the_journal(worlds: Any) -> None:
    """W3: after the disk failed there is nothing more to be moved."""
    world = quiet_world(worlds, 2)
    fill(world, 1, 3)
    world.reclaimer.begin()
    world.journal.error = OSError("disk")
    assert not world.reclaimer.step()


def test_nothing_is_removed_before_the_store_is_synced(worlds: Any) -> None:
    """W12, L2: judged by durable values only; a commit alone is not durable."""
    world = quiet_world(worlds, 1)
    fill(world, 1, 4)
    drop(world, 1)
    sealed = len(world.journal.segments)
    syncs: list[int] = []
    world.store.sync = lambda: syncs.append(1)  # type: ignore[method-assign]
    world.reclaimer.begin()
    for _ in range(50):
        assert world.reclaimer.step()
    assert len(world.journal.segments) == sealed and not syncs
    world.commit()
    assert syncs
    while world.reclaimer.step():
        world.commit()
    assert len(world.journal.segments) < sealed


def test_a_segment_that_recovery_called_damaged_stays(worlds: Any) -> None:
    """W6: even if all that can be read of it is needed by nobody."""
    world = quiet_world(worlds, 1)
    fill(world, 1, 3)
    drop(world, 1)
    world.journal.segments[2].damaged = True
    for _ in range(4):
        world.reclaim_quietly()
    assert 2 in world.journal.segments and 1 not in world.journal.segments
