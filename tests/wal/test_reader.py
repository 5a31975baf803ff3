"""Reading back: what was written, or an error that says what is wrong; nothing else (W16)."""

import errno
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest
from sim.whole import Model, World
from support.proven_records import proven_records

from myqueue.errors import CorruptData, EntryMissing, FormatUnknown, NotReady, PlaceInvalid
from myqueue.wal import format as f
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.append.writer import Persisted
from myqueue.wal.log import Log

GROUP = 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One group with entries over several segments of 4 KiB, all in the store."""
    world = World(tmp_path, 5)
    world.models[GROUP] = Model()
    world.journal.create_group(GROUP, b"group 1")
    while world.journal.end[0] < 5:
        world.append(GROUP, world.models[GROUP], world.journal.groups.by_uid[GROUP])
    world.commit()
    yield world
    world.close()


def place(world: World, index: int) -> tuple[str, Any]:
    row = world.index.row(GROUP, index)
    assert row is not None
    return world.journal.segments[row.segment].name, row


def indices(entries: list[Any]) -> list[int]:
    return [entry.record.index for entry in entries]


def last_index(world: World) -> int:
    return max(world.models[GROUP].entries)


# -- what is there ---------------------------------------------------------------------------


def test_runs_go_over_segments_and_keep_their_limits(world: World) -> None:
    last, model = last_index(world), world.models[GROUP]
    entries = world.reader.entries(GROUP, 1, last)
    assert indices(entries) == list(range(1, last + 1))
    assert [bytes(e.payload) for e in entries] == [model.entries[i][2] for i in range(1, last + 1)]
    assert indices(world.reader.entries(GROUP, 3, 7)) == [3, 4, 5, 6, 7]
    assert indices(world.reader.entries(GROUP, last, last + 100)) == [last]
    assert indices(world.reader.entries(GROUP, 3, 7, max_bytes=0)) == [3]
    most = sum(len(model.entries[i][2]) for i in range(3, 9))
    assert indices(world.reader.entries(GROUP, 3, last, max_bytes=most)) == list(range(3, 9))


def test_neighbours_are_read_at_once(world: World) -> None:
    before = len([one for one in world.disk.trace if one.kind == "read"])
    world.reader.entries(GROUP, 1, last_index(world))
    reads = len([one for one in world.disk.trace if one.kind == "read"]) - before
    assert reads < last_index(world) / 2


@pytest.mark.parametrize(
    ("uid", "at"),
    [(GROUP, -1), (GROUP, 2**64), (GROUP, 1.5), (GROUP, None), (-1, 1), (2**64, 1), ("1", 1)],
)
def test_what_cannot_be_a_place_is_the_callers_mistake(world: World, uid: Any, at: Any) -> None:
    """And no damage of the store, which would be thrown away for it."""
    reader = world.reader
    for call in (reader.entry, reader.entry_at_offset, lambda *place: reader.entries(*place, 9)):
        with pytest.raises(PlaceInvalid):
            call(uid, at)


def test_outside_of_the_log(world: World) -> None:
    last = last_index(world)
    for index in (0, last + 1, 2**64 - 1):
        with pytest.raises(EntryMissing):
            world.reader.entry(GROUP, index)
        with pytest.raises(EntryMissing):
            world.reader.entries(GROUP, index, index)
    for group in (GROUP + 1, 2**64 - 1):
        with pytest.raises(EntryMissing):
            world.reader.entry(group, 1)
        with pytest.raises(EntryMissing):
            world.reader.entry_at_offset(group, 0)
    with pytest.raises(EntryMissing):
        world.reader.entry_at_offset(GROUP, world.models[GROUP].entries[last][1])


def test_a_hole_is_damage_not_absence(world: World) -> None:
    """What the log had and has no more is not answered with "I do not have it"."""
    for gone in (4, 5):
        with world.store._env.begin(write=True, db=world.store._tables["index"]) as txn:
            txn.delete(GROUP.to_bytes(8, "big") + gone.to_bytes(8, "big"))
    assert indices(world.reader.entries(GROUP, 1, 9)) == [1, 2, 3]
    for gone in (4, 5):
        with pytest.raises(CorruptData):
            world.reader.entry(GROUP, gone)
        with pytest.raises(CorruptData):
            world.reader.entries(GROUP, gone, 9)
    assert indices(world.reader.entries(GROUP, 6, 9)) == [6, 7, 8, 9]


# -- damage ----------------------------------------------------------------------------------


def test_every_flipped_byte_is_found(world: World) -> None:
    """W16: header and payload of one entry, byte by byte."""
    name, row = place(world, 5)
    for at in range(row.position, row.position + 72 + row.length):
        world.disk.flip(name, at, 1 << at % 8)
        with pytest.raises(CorruptData) as caught:
            world.reader.entry(GROUP, 5)
        assert caught.value.component == name
        assert indices(world.reader.entries(GROUP, 1, 9)) == [1, 2, 3, 4]
        world.disk.flip(name, at, 1 << at % 8)
    world.reader.entry(GROUP, 5)


def damage_zeros(world: World, name: str, row: Any) -> None:
    world.disk.overwrite(name, row.position, bytes(72 + row.length))


def damage_other_record(world: World, name: str, row: Any) -> None:
    """A valid record of the same group, at another place."""
    other, there = place(world, row.index + 1)
    data = world.disk.read(other, there.position, 72 + there.length)
    world.disk.overwrite(name, row.position, data)


def damage_same_position(world: World, name: str, row: Any) -> None:
    """A valid record for this very position, of another group."""
    seed = f.segment_seed(world.journal.segments[row.segment].uid)
    payload = bytes(row.length)
    record = f.encode_record(
        seed, f.ENTRY, row.position, payload, group=GROUP + 1, index=row.index, term=row.term
    )
    world.disk.overwrite(name, row.position, record + payload)


def damage_other_kind(world: World, name: str, row: Any) -> None:
    seed = f.segment_seed(world.journal.segments[row.segment].uid)
    payload = bytes(row.length)
    record = f.encode_record(
        seed, f.SNAPSHOT, row.position, payload, group=GROUP, index=row.index, term=row.term
    )
    world.disk.overwrite(name, row.position, record + payload)


def damage_older_term(world: World, name: str, row: Any) -> None:
    seed = f.segment_seed(world.journal.segments[row.segment].uid)
    payload = bytes(row.length)
    record = f.encode_record(
        seed, f.ENTRY, row.position, payload, group=GROUP, index=row.index, term=row.term + 1
    )
    world.disk.overwrite(name, row.position, record + payload)


def damage_gone(world: World, name: str, row: Any) -> None:
    world.disk.move(name, None)


def damage_unreadable(world: World, name: str, row: Any) -> None:
    world.disk.fail("read", 1)


def damage_forgotten(world: World, name: str, row: Any) -> None:
    world.journal.forget_segment(row.segment)


@pytest.mark.parametrize(
    "damage",
    [
        *(damage_zeros, damage_other_record, damage_same_position, damage_other_kind),
        *(damage_older_term, damage_gone, damage_unreadable, damage_forgotten),
    ],
)
def test_damage_is_never_data(world: World, damage: Any) -> None:
    """W8, W16."""
    name, row = place(world, 5)
    damage(world, name, row)
    with pytest.raises(CorruptData):
        world.reader.entry(GROUP, 5)


def test_too_many_open_files_are_no_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the end of who reads: it is told to come again."""

    def no_more(*_: Any) -> bytes:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "read", no_more)
        with pytest.raises(NotReady):
            world.reader.entries(GROUP, 1, 3)
    assert indices(world.reader.entries(GROUP, 1, 3)) == [1, 2, 3]
    assert not world.reader.recent_damage and not world.reader.damage_by_segment


def test_a_record_of_a_newer_version_is_refused(world: World) -> None:
    name, row = place(world, 5)
    seed = f.segment_seed(world.journal.segments[row.segment].uid)
    record = f.encode_record(seed, 99, row.position, bytes(row.length), group=GROUP)
    world.disk.overwrite(name, row.position, record + bytes(row.length))
    with pytest.raises(FormatUnknown):
        world.reader.entry(GROUP, 5)


# -- snapshots -------------------------------------------------------------------------------


def test_snapshots_over_segments(world: World) -> None:
    group = world.journal.groups.by_uid[GROUP]
    assert world.reader.snapshot(group) == []
    for sizes in ([0], [1000] * 9, [5, 0, 900]):
        parts = [bytes([at]) * size for at, size in enumerate(sizes)]
        world.journal.snapshot(GROUP, group.last_index, group.last_term, parts)
        world.commit()
        assert world.reader.snapshot(group) == parts


def test_a_snapshot_without_a_part_is_damage(world: World) -> None:
    """Also if the parts of a later, unfinished one of the same index stand behind it."""
    group = world.journal.groups.by_uid[GROUP]
    parts = [bytes([at]) * 1000 for at in range(9)]
    world.journal.snapshot(GROUP, group.last_index, group.last_term, parts)
    world.commit()
    number = group.snapshot_from + 1
    kept = group.snapshot_at, group.snapshot_from, group.snapshot_position
    world.journal.snapshot(GROUP, group.last_index, group.last_term, parts)
    world.commit()
    group.snapshot_from, group.snapshot_position = kept[1:]
    group.snapshot_at += 1
    world.disk.overwrite(world.journal.segments[number].name, 512, bytes(200))
    with pytest.raises(CorruptData):
        world.reader.snapshot(group)


# -- beside a writer -------------------------------------------------------------------------


def test_while_another_thread_writes_and_rotates(tmp_path: Path) -> None:
    config = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)
    log = Log(str(tmp_path / "log"), ("c", "d", "k"), config, lambda: 1, Random(1))
    log.journal.create_group(GROUP, b"")
    known, stop, wrong = [0], Event(), []

    def read() -> None:
        """Whole segments, as an outsider does: only what marks prove."""
        while not stop.is_set():
            for segment in list(log.journal.segments.values()):
                if segment.name not in log.files.list():
                    continue
                name, uid = segment.name, segment.uid
                for record, payload in proven_records(
                    lambda at, size, name=name: log.files.read(name, at, size),
                    *(uid, segment.capacity, f.SEGMENT_HEADER_BYTES, False),
                ):
                    if record.kind == f.ENTRY and payload != b"%d" % record.index * 50:
                        wrong.append(record)
            stop.wait(0.01)

    outsider = Thread(target=read)
    outsider.start()
    for first in range(1, 600, 4):
        batch = [(i, 1, i, 1, 1, 0, 0, b"%d" % i * 50) for i in range(first, first + 4)]
        log.journal.append(GROUP, batch)
        log.journal.submit()
        wait([log.journal], 0.01)
        for event in log.poll():
            if isinstance(event, Persisted) and GROUP in event.tails:
                known[0] = event.tails[GROUP][1]
        if known[0]:
            entries = log.reader.entries(GROUP, max(1, known[0] - 30), known[0])
            assert [bytes(e.payload) for e in entries] == [
                b"%d" % e.record.index * 50 for e in entries
            ]
            assert entries[-1].record.index == known[0]
    stop.set()
    outsider.join(20)
    assert known[0] > 100 and not wrong and not outsider.is_alive()
    assert log.close()


def certain(world: World, number: int, complete: bool) -> list[f.Record]:
    segment = world.journal.segments[number]
    return [
        record
        for record, _ in proven_records(
            lambda at, size: world.disk.read(segment.name, at, size),
            *(segment.uid, segment.capacity, f.SEGMENT_HEADER_BYTES, complete),
        )
    ]


def test_outsiders_see_proven_records_only(world: World) -> None:
    """W1: each record that is handed out survives the worst crash; also while a write of several
    batches is in the file and its sync has not come back.
    """
    rng, checked = Random(1), [0]

    def look(*_: Any) -> None:
        for number, segment in world.journal.segments.items():
            if number < world.journal.end[0] - 1 or segment.name not in world.disk.list():
                continue
            left = world.disk.worst()
            for record in certain(world, number, False):
                raw = left.read(segment.name, record.position, 72)
                assert f.record_at(raw, 0, record.position, f.segment_seed(segment.uid)) == record
                checked[0] += 1

    world.disk.watch = look
    for _ in range(150):
        world.append(GROUP, world.models[GROUP], world.journal.groups.by_uid[GROUP])
        if rng.random() < 0.7:
            world.journal.submit()
        if rng.random() < 0.3:
            world.journal.writer.step()
    world.write()
    world.journal.settle()
    world.write()
    world.disk.watch = None
    last = [r for r in certain(world, world.journal.end[0], False) if r.kind == f.ENTRY]
    assert checked[0] > 500
    assert not last or last[-1].index == last_index(world)


def test_a_complete_segment_that_ends_early_is_damage(world: World) -> None:
    """W16 for readers of whole segments: a statistic must not miss records in silence."""
    whole = certain(world, 1, True)
    assert whole[-1].kind == f.FOOTER
    _, row = place(world, 5)
    name = world.journal.segments[1].name
    for damage in (bytes(72), b"\xff" * 10):
        kept = world.disk.read(name, row.position, 72)
        world.disk.overwrite(name, row.position, damage)
        with pytest.raises(CorruptData):
            certain(world, 1, True)
        world.disk.overwrite(name, row.position, kept)
    assert certain(world, 1, True) == whole
