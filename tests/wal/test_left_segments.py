"""A damaged segment that the log was not continued in: later readings find its damage, no other."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from sim.disk import AFTER, BEFORE, MIDDLE, Crash, SimDisk
from sim.rig import Rig, newest_segment, recovered

from myqueue.wal import format as f
from myqueue.wal.append.journal import Journal, JournalConfig
from myqueue.wal.check.segments import CORRUPT, Finding
from myqueue.wal.files import RealFiles
from myqueue.wal.log import Log
from myqueue.wal.recover.recovery import recover
from myqueue.wal.tools.verify import verify

UID, OTHER = 7, 8
PAYLOAD, HEADER = 80, 20  # from a record's position


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for uid in (UID, OTHER):
        rig.journal.create_group(uid, b"group")
        rig.append(uid, *[100] * 4)
    rig.settle()
    return rig


def position_of(rig: Rig, index: int) -> int:
    return int(next(one[3] for one in rig.log if one[:2] == (UID, index)))


def go_on(rig: Rig) -> None:
    """The damage is found, the segment is left, the log goes on through some others."""
    rig.reopen()
    for _ in range(20):
        rig.append(UID, 300)
        rig.append(OTHER, 300)
        rig.pump()
    rig.settle()
    assert len(rig.journal.segments) > 3


def corrupt(found: list[Any]) -> list[tuple[str, int]]:
    return [(one.segment, one.position) for one in found if one.verdict == CORRUPT]


def verified(disk: SimDisk) -> list[tuple[str, int]]:
    return corrupt([event for event in verify(disk) if isinstance(event, Finding)])


def test_a_damaged_payload_stays_one_finding(rig: Rig) -> None:
    """W5: without a store, too: only that entry is missing, and nothing else is in doubt."""
    name, position = newest_segment(rig), position_of(rig, 3)
    rig.disk.flip(name, position + PAYLOAD)
    go_on(rig)
    out, _ = recovered(rig.disk.worst())
    assert corrupt(out.findings) == [(name, position)] == verified(rig.disk)
    assert not out.unknown_loss
    assert [uid for uid, group in out.groups.by_uid.items() if group.lacking] == [UID]
    assert not any(group.incomplete for group in out.groups.by_uid.values())
    assert not any(group.doubtful for group in out.groups.by_uid.values())


def test_a_new_vote_ends_the_doubt(rig: Rig) -> None:
    """A record that hides behind a damaged header is older than the votes of later segments."""
    name, position = newest_segment(rig), position_of(rig, 3)
    rig.disk.flip(name, position + HEADER)
    go_on(rig)
    out, _ = recovered(rig.disk.worst())
    assert (name, position) in corrupt(out.findings)
    assert {one[1] for one in corrupt(out.findings) if one[0] == name} == {position}
    assert out.groups.by_uid[UID].doubtful
    assert not out.groups.by_uid[OTHER].doubtful, "it was created behind the hole"
    for uid in (UID, OTHER):
        rig.journal.hard_state(uid, 3, 1)
    rig.settle()
    out, _ = recovered(rig.disk.worst())
    assert not any(group.doubtful for group in out.groups.by_uid.values())
    assert verified(rig.disk) == [(name, position)], "one bit: the header is known all the same"


def test_what_is_damaged_later_is_found(rig: Rig) -> None:
    name, position = newest_segment(rig), position_of(rig, 3)
    rig.disk.flip(name, position + PAYLOAD)
    go_on(rig)
    last = position_of(rig, 4)
    rig.disk.flip(name, last + PAYLOAD)
    out, _ = recovered(rig.disk.worst())
    assert corrupt(out.findings) == [(name, position), (name, last)] == verified(rig.disk)


def test_records_that_vanish_from_its_end_are_found(rig: Rig) -> None:
    """W5: the position in the mark proves that they were there."""
    name, end = newest_segment(rig), rig.journal.end[1]
    rig.disk.flip(name, position_of(rig, 3) + PAYLOAD)
    go_on(rig)
    rig.disk.overwrite(name, end - 300, bytes(300))
    out, _ = recovered(rig.disk.worst())
    for found in (corrupt(out.findings), verified(rig.disk)):
        assert [one for one in found if one[0] == name and one[1] >= end - 600], found


def test_what_was_lost_from_its_end_before_stays_corrupt(rig: Rig) -> None:
    """W5: the evidence was the store's watermark. Without the store, the next segment has it."""
    name, end = newest_segment(rig), rig.journal.persisted_at
    begin = position_of(rig, 4)
    rig.disk.overwrite(name, begin, bytes(end[1] - begin))
    config = JournalConfig(segment_bytes=4096, soft_limit_bytes=0)
    groups = recovered(rig.disk.killed(), repair=False)[0].groups
    for watermark in (end, (0, 0), (0, 0)):
        disk = rig.disk
        out = recover(disk.killed(), groups, watermark, lambda *_: None, repair=False)
        lost = [one for one in out.findings if one.segment == name and one.verdict == CORRUPT]
        assert [one.position for one in lost] == [begin]
        assert out.unknown_loss == (watermark == (0, 0)), "what was lost is in the store"
        journal = Journal.open(
            disk,
            disk_owner(disk),
            config,
            lambda: 1,
            Random(1),
            groups=groups,
            watermark=watermark,
            threads=False,
        )
        journal.close()
        assert (name, begin) in verified(disk)


def disk_owner(disk: SimDisk) -> bytes:
    name = min(disk.list())
    return f.decode_segment_header(disk.read(name, 0, 512)).owner


@pytest.mark.parametrize("when", [BEFORE, MIDDLE, AFTER])
@pytest.mark.parametrize("seed", range(4))
def test_crashes_while_it_is_left(rig: Rig, when: str, seed: int) -> None:
    """W4, W14: as often as the start is interrupted, the damage stays the only one."""
    name, position = newest_segment(rig), position_of(rig, 3)
    rig.disk.flip(name, position + PAYLOAD)
    rng = Random(seed)
    for _ in range(12):
        rig.disk.stop_at = (len(rig.disk.trace) + rng.randint(1, 12), when)
        try:
            rig.reopen()
            rig.append(UID, 300)
            rig.settle()
        except Crash:
            pass
        rig.disk = rig.disk.crash(rng)
    go_on(rig)
    out, _ = recovered(rig.disk.worst())
    assert corrupt(out.findings) == [(name, position)] == verified(rig.disk)


def test_files_of_older_programs_are_judged_as_before(rig: Rig) -> None:
    """Their marks say nothing: a missing trailer may be a lost one."""
    name = newest_segment(rig)
    rig.disk.flip(name, position_of(rig, 3) + PAYLOAD)
    go_on(rig)
    second = sorted(one for one in rig.disk.list() if one.endswith(".seg"))[1]
    number, uid = f.parse_segment_name(second) or (0, 0)
    seed = f.segment_seed(uid)
    mark = f.record_at(rig.disk.read(second, 512, 72), 0, 512, seed)
    assert mark is not None and mark.chain > 512 and number == 2
    old = f.encode_record(
        seed,
        f.MARK,
        512,
        count=mark.count,
        index=mark.index,
        term=mark.term,
        offset=mark.offset,
        time_ms=mark.time_ms,
    )
    rig.disk.overwrite(second, 512, old)
    trailer = (name, 4096 - 72)
    assert trailer in corrupt(recovered(rig.disk.worst())[0].findings)
    assert trailer in verified(rig.disk)


def test_the_segment_that_tells_is_not_reclaimed(tmp_path: Path) -> None:
    """W12: nor is a hole behind the one that was left a missing segment."""
    config = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)

    def open_log() -> Log:
        return Log(str(tmp_path), ("cluster", "daemon", "broker"), config, lambda: 1, Random(1))

    log = open_log()
    log.journal.create_group(UID, b"")
    log.journal.append(UID, [(1, 1, 1, 1, 1, 0, 0, b"x" * 500)])
    assert log.close()
    first = min((tmp_path / "wal").iterdir())
    raw = bytearray(first.read_bytes())
    raw[raw.index(b"x" * 500) + 7] ^= 1
    first.write_bytes(raw)
    log = open_log()
    assert log.journal.recovered.corrupt
    for index in range(2, 200):
        log.journal.append(UID, [(index, 1, index, 1, 1, 0, 0, b"y" * 500)])
    log.journal.start(UID, 199, 1, 199)
    log.journal.create_group(UID + 1, b"")
    assert log.close()
    for _ in range(3):
        log = open_log()
        assert not [one for one in log.journal.recovered.findings if "missing" in one.what]
        log.reclaimer.begin()
        while log.reclaimer.step():
            log.poll()
        numbers = sorted(log.journal.segments)
        assert log.close()
    assert numbers[:2] == [1, 2] and 3 not in numbers
    assert [one[1] for one in verified_at(tmp_path / "wal")] == [raw.index(b"x" * 7) - 72]


def verified_at(folder: Path) -> list[tuple[str, int]]:
    files = RealFiles(str(folder), read_only=True)
    found = corrupt([event for event in verify(files) if isinstance(event, Finding)])
    files.close()
    return found
