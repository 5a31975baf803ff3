"""The reserve: made when there is room, gone when a start has none (W15)."""

import errno

import pytest
from sim.disk import SimDisk

from myqueue.wal.append.reserve import FILE_NAME, Reserve

SIZE = 1000


def test_it_is_made_once_there_is_twice_its_room() -> None:
    disk = SimDisk()
    reserve = Reserve(disk, SIZE)
    reserve.keep(2 * SIZE - 1)
    assert FILE_NAME not in disk.list()
    reserve.keep(2 * SIZE)
    assert disk.list()[FILE_NAME] == SIZE
    reserve.keep(10 * SIZE)
    assert Reserve(disk, SIZE).there


def test_it_goes_only_if_the_disk_is_full() -> None:
    disk = SimDisk(capacity_bytes=3 * SIZE)
    Reserve(disk, SIZE).keep(disk.free_bytes())
    reserve = Reserve(disk, SIZE)
    reserve.release()
    assert reserve.there and disk.list()[FILE_NAME] == SIZE
    disk.create("others", SIZE + 1)
    reserve.release()
    assert not reserve.there and FILE_NAME not in disk.list()
    assert not disk.unsynced_changes(), "the room is there to be used"
    reserve.keep(disk.free_bytes())
    assert not reserve.there
    disk.move("others", None)
    reserve.keep(disk.free_bytes())
    assert reserve.there and disk.list()[FILE_NAME] == SIZE


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1])
def test_what_is_of_another_size_is_no_reserve(size: int) -> None:
    """Half made by a process that was killed, or of another configuration."""
    disk = SimDisk()
    disk.create(FILE_NAME, size)
    reserve = Reserve(disk, SIZE)
    assert not reserve.there and FILE_NAME not in disk.list()


def test_none_is_kept_if_none_is_wanted() -> None:
    disk = SimDisk()
    disk.create(FILE_NAME, SIZE)
    reserve = Reserve(disk, 0)
    reserve.keep(1 << 40)
    assert FILE_NAME not in disk.list()


def test_others_may_take_the_room_first() -> None:
    disk = SimDisk()
    reserve = Reserve(disk, SIZE)
    disk.fail("create", 1, errno.ENOSPC)
    reserve.keep(2 * SIZE)
    assert not reserve.there
    reserve.keep(2 * SIZE)
    assert reserve.there


def test_a_disk_that_fails_is_no_full_disk() -> None:
    disk = SimDisk()
    disk.fail("create", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        Reserve(disk, SIZE).keep(2 * SIZE)
