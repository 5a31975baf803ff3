"""The identity file: written once, checked for ever (W7)."""

import errno
import json
from random import Random

import pytest
from sim.disk import AFTER, BEFORE, MIDDLE, Crash, SimDisk

from myqueue.errors import IdentityMismatch, MisuseError
from myqueue.wal.identity import FILE_NAME, claim, load_identity

OURS = ("cluster", "daemon", "broker")


def test_it_is_drawn_once() -> None:
    disk = SimDisk()
    first = claim(disk, *OURS, Random(1))
    assert claim(disk, *OURS, Random(2)) == first == load_identity(disk)
    assert len(first.owner) == 16
    assert claim(SimDisk(), *OURS, Random(2)).disk != first.disk


@pytest.mark.parametrize(
    ("what", "theirs"),
    [
        ("cluster", ("other", "daemon", "broker")),
        ("daemon", ("cluster", "other", "broker")),
        ("kind", ("cluster", "daemon", "manager")),
    ],
)
def test_another_owner_is_refused(what: str, theirs: tuple[str, str, str]) -> None:
    """W7: and nothing is changed by the attempt."""
    disk = SimDisk()
    identity = claim(disk, *OURS, Random(1))
    with pytest.raises(IdentityMismatch, match=what):
        claim(disk, *theirs, Random(2))
    assert load_identity(disk) == identity


def test_every_damaged_byte_is_refused() -> None:
    """W7: a directory whose owner cannot be read is nobody's to work on."""
    disk = SimDisk()
    identity = claim(disk, *OURS, Random(1))
    size = disk.list()[FILE_NAME]
    for position in range(size):
        for mask in (1, 4, 128):
            disk.flip(FILE_NAME, position, mask)
            try:
                assert load_identity(disk) == identity, "it may say the same in other words"
            except IdentityMismatch:
                pass
            disk.flip(FILE_NAME, position, mask)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"crc": 1}', '"x"', "\xff"])
def test_other_contents_are_refused(text: str) -> None:
    disk, raw = SimDisk(), text.encode("latin-1")
    disk.create(FILE_NAME, len(raw))
    disk.write(FILE_NAME, 0, [raw], True)
    with pytest.raises(IdentityMismatch):
        claim(disk, *OURS, Random(1))


def test_a_crash_leaves_a_whole_identity_or_none() -> None:
    """W14: power fails before, in and after each operation of the first claim."""
    for operation in range(1, 8):
        for when in (BEFORE, MIDDLE, AFTER):
            for seed in range(5):
                disk = SimDisk()
                disk.stop_at = (operation, when)
                try:
                    claim(disk, *OURS, Random(1))
                except Crash:
                    pass
                left = disk.crash(Random(seed))
                again = claim(left, *OURS, Random(2))
                assert claim(left.worst(), *OURS, Random(3)) == again


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", ["c" * 5000, "\u00fc" * 700])
def test_a_name_that_the_file_cannot_hold_is_refused(which: int, name: str) -> None:
    """Before anything is written: it could not be read again."""
    disk = SimDisk()
    names = [name if at == which else word for at, word in enumerate(OURS)]
    with pytest.raises(MisuseError, match="4096 at most"):
        claim(disk, *names, Random(1))
    assert disk.list() == {}
    claim(disk, "c" * 3900, "daemon", "broker", Random(1))
    assert load_identity(disk)


def test_the_message_names_the_file() -> None:
    disk = SimDisk()
    claim(disk, *OURS, Random(1))
    with pytest.raises(IdentityMismatch, match=r"^/data/b1/identity: .*cluster"):
        claim(disk, "other", "daemon", "broker", Random(1), "/data/b1/identity")
    disk.flip(FILE_NAME, 1, 255)
    for call in (load_identity, lambda *args: claim(disk, *OURS, Random(1), args[1])):
        with pytest.raises(IdentityMismatch, match=r"^/data/b1/identity is damaged: "):
            call(disk, "/data/b1/identity")


def test_a_full_disk_leaves_no_half_identity() -> None:
    """W15."""
    disk = SimDisk()
    disk.fail("write", 1, errno.ENOSPC)
    with pytest.raises(OSError):
        claim(disk, *OURS, Random(1))
    assert load_identity(disk) is None
    assert claim(disk, *OURS, Random(2)) == load_identity(disk)


def test_it_can_be_read_by_people() -> None:
    disk = SimDisk()
    claim(disk, *OURS, Random(1))
    fields = json.loads(disk.read(FILE_NAME, 0, 4096))
    assert (fields["cluster"], fields["daemon"], fields["kind"]) == OURS
