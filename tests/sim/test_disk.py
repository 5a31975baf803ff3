"""The simulated disk itself: what a crash may undo, and what it may not."""

import errno
from itertools import pairwise
from random import Random

import pytest
from sim.disk import AFTER, BEFORE, MIDDLE, SECTOR, Crash, SimDisk


def disk_with(name: str = "a", size: int = 4 * SECTOR) -> SimDisk:
    """One durable file of zeros."""
    disk = SimDisk()
    disk.create(name, size)
    disk.sync(name)
    disk.sync(None)
    return disk


def crashes(disk: SimDisk, number: int = 200) -> list[SimDisk]:
    return [disk.crash(Random(seed)) for seed in range(number)]


def test_synced_bytes_survive() -> None:
    disk = disk_with()
    disk.write("a", 100, [b"x" * 1000], True)
    assert {bytes(one.contents("a")) for one in crashes(disk)} == {bytes(disk.contents("a"))}


def test_any_subset_of_unsynced_sectors_survives() -> None:
    disk = disk_with()
    disk.write("a", 0, [b"x" * 4 * SECTOR], False)
    seen = {tuple(one.sector("a", at)[0] for at in range(4)) for one in crashes(disk, 2000)}
    assert len(seen) == 16


def test_all_survivors_are_listed_where_they_are_few() -> None:
    disk = disk_with()
    disk.write("a", 0, [b"x" * 3 * SECTOR], False)
    disk.write("a", 0, [b"y"], False)
    disk.move("a", "b")
    every = [
        (*one.list(), bytes(one.contents(*one.list()))) for one in disk.survivors(Random(1), 24)
    ]
    assert len(every) == len(set(every)) == 3 * 2 * 2 * 2
    sampled = list(disk.survivors(Random(1), 23))
    assert len(sampled) == 23
    assert bytes(sampled[0].contents("a")) == bytes(4 * SECTOR)
    assert sampled[1].contents("b") == disk.contents("b")


def test_a_sector_written_twice_has_three_versions() -> None:
    disk = disk_with()
    disk.write("a", 0, [b"1"], False)
    disk.write("a", 0, [b"2"], False)
    assert {one.read("a", 0, 1) for one in crashes(disk)} == {b"\0", b"1", b"2"}


def test_a_synced_write_syncs_its_own_sectors_only() -> None:
    disk = disk_with()
    disk.write("a", 0, [b"1"], False)
    disk.write("a", SECTOR, [b"2"], True)
    seen = {(one.read("a", 0, 1), one.read("a", SECTOR, 1)) for one in crashes(disk)}
    assert seen == {(b"\0", b"2"), (b"1", b"2")}


def test_names_are_durable_with_the_directory_only() -> None:
    disk = disk_with()
    disk.create("b", SECTOR)
    disk.sync("b")
    disk.move("a", "c")
    names = {tuple(sorted(one.list())) for one in crashes(disk)}
    assert names == {("a",), ("a", "b"), ("c",), ("b", "c")}
    disk.sync(None)
    assert {tuple(sorted(one.list())) for one in crashes(disk)} == {("b", "c")}


def test_a_change_of_a_lost_name_is_lost() -> None:
    disk = disk_with()
    disk.move("a", "b")
    disk.move("b", "c")
    assert {tuple(one.list()) for one in crashes(disk)} == {("a",), ("b",), ("c",)}


def test_the_size_of_a_new_file_is_durable_with_its_bytes() -> None:
    disk = SimDisk()
    disk.create("a", 1024)
    disk.sync(None)
    assert len({one.list()["a"] for one in crashes(disk)}) > 3
    disk.sync("a")
    assert {one.list()["a"] for one in crashes(disk)} == {1024}


def test_a_killed_process_leaves_the_page_cache() -> None:
    disk = disk_with()
    disk.write("a", 0, [b"x"], False)
    after = disk.killed()
    assert after.read("a", 0, 1) == b"x"
    assert after.survivor({}, ()).read("a", 0, 1) == b"\0"
    after.sync("a")
    assert after.survivor({}, ()).read("a", 0, 1) == b"x"
    assert disk.survivor({}, ()).read("a", 0, 1) == b"\0", "the copy shares nothing"


def test_a_failed_sync_is_not_mended_by_the_next() -> None:
    """W3: the page is clean in memory, and not on the disk."""
    disk = disk_with()
    disk.fail("sync", 1)
    with pytest.raises(OSError) as caught:
        disk.write("a", 0, [b"x"], True)
    assert caught.value.errno == errno.EIO
    disk.sync("a")
    assert disk.survivor({}, ()).read("a", 0, 1) == b"\0"
    disk.write("a", 0, [b"x"], True)
    assert disk.survivor({}, ()).read("a", 0, 1) == b"x"


def test_a_sync_that_lies() -> None:
    disk = disk_with()
    disk.lose_syncs = True
    disk.write("a", 0, [b"x"], True)
    disk.move("a", "b")
    disk.sync(None)
    assert disk.survivor({}, ()).read("a", 0, 1) == b"\0"


def test_space_runs_out() -> None:
    disk = SimDisk(capacity_bytes=3 * SECTOR)
    disk.create("a", 2 * SECTOR)
    with pytest.raises(OSError) as caught:
        disk.create("b", 2 * SECTOR)
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes() == SECTOR
    disk.write("a", 0, [b"x" * 2 * SECTOR], True)
    disk.writes_need_space = True
    with pytest.raises(OSError):
        disk.write("a", 0, [b"y" * 2 * SECTOR], True)
    disk.move("a", None)
    disk.create("b", 2 * SECTOR)


@pytest.mark.parametrize("when", [BEFORE, MIDDLE, AFTER])
def test_stops_at_any_operation(when: str) -> None:
    disk = disk_with()
    number = len(disk.trace) + 2
    disk.stop_at = (number, when)
    disk.write("a", 0, [b"1"], True)
    with pytest.raises(Crash):
        disk.write("a", 0, [b"2"], True)
    expected = {BEFORE: {b"1"}, MIDDLE: {b"1", b"2"}, AFTER: {b"2"}}
    assert {one.read("a", 0, 1) for one in crashes(disk)} == expected[when]
    disk.write("a", 0, [b"3"], True)


def test_the_same_seed_gives_the_same_survivor() -> None:
    disk = disk_with()
    disk.write("a", 0, [Random(1).randbytes(4 * SECTOR)], False)
    one, two, other = (disk.crash(Random(seed)).contents("a") for seed in (3, 3, 4))
    assert one == two != other


def test_damage() -> None:
    disk = disk_with()
    disk.overwrite("a", 0, bytes(range(256)) * 2)
    disk.copy_sector("a", 0, "a", 2)
    assert disk.sector("a", 2) == disk.sector("a", 0)
    disk.flip("a", 2 * SECTOR, 0x80)
    assert disk.read("a", 2 * SECTOR, 2) == b"\x80\x01"
    disk.cut("a", 100)
    assert disk.list() == {"a": 100}
    assert all(one.list() == {"a": 100} for one in crashes(disk, 5))


def test_the_trace_tells_every_operation() -> None:
    disk = disk_with()
    disk.write("a", 7, [b"abc"], False)
    disk.move("a", "b")
    disk.read("b", 0, 1)
    disk.move("b", None)
    kinds = [operation.kind for operation in disk.trace]
    assert kinds == ["create", "sync", "sync", "write", "move", "read", "remove"]
    assert disk.trace[3][1:] == ("a", 7, 3, False)
    assert all(one is not two for one, two in pairwise(disk.trace))
