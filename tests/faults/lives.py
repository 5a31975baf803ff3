"""Several lives of one daemon on one disk: work, a crash, recovery, work, a crash, and so on.

Every life continues on what the crash before it left. In each, the writer is stopped at a random
operation of the disk, in the middle of it or beside it, killed or without power.
"""

from __future__ import annotations

from random import Random

from faults.oracle import RIGHT, TORN, Oracle, Violation
from sim.disk import AFTER, BEFORE, MIDDLE, Crash, SimDisk
from sim.history import act
from sim.rig import Rig, recovered

LIVES = 4


def lives(oracle: Oracle, number: int) -> str:
    """Judge each life by what its own journal said."""
    rng = Random(f"{oracle.recording.seed} lives {number}")
    disk, outcome = SimDisk(), RIGHT
    rig: Rig | None = None
    for life in range(LIVES):
        disk.stop_at = (rng.randint(1, 60), rng.choice((BEFORE, MIDDLE, AFTER)))
        log, promised = (rig.log, rig.promised) if rig is not None else ([], 0)
        try:
            rig = Rig(disk, rng.getrandbits(32))
            _compare(rig.before, log, promised, f"opening of life {life}")
            log, promised = rig.log, rig.promised
            for _ in range(rng.randrange(40)):
                act(rig, rng)
            rig.pump()
        except Crash:
            pass
        if rig is not None and rig.disk is disk:
            log, promised = rig.log, rig.promised
        disk.stop_at = None
        disk = rng.choice((disk.killed, disk.worst, lambda disk=disk: disk.crash(rng)))()
        out, found = recovered(disk.killed())
        if out.corrupt:
            raise Violation(f"life {life}: a crash alone was called corruption: {out.findings}")
        _compare(found, log, promised, f"end of life {life}")
        if rig is not None and rig.disk.trace and found:
            _compare_bytes(rig, disk, found)
        if out.findings:
            outcome = TORN
    return outcome


def _compare(found: list, log: list, promised: int, when: str) -> None:
    if found != log[: len(found)]:
        raise Violation(f"{when}: a wrong record")
    if len(found) < promised:
        raise Violation(f"{when}: {len(found)} records of {promised} promised ones")


def _compare_bytes(rig: Rig, disk: SimDisk, found: list) -> None:
    """The bytes of this life's batches, up to the last record that was found."""
    last = found[-1]
    end = (last[2], last[3] + 72 + last[4]) if len(last) == 10 else (last[1], last[0].end)
    for segment, position, data in rig.journal.written:
        size = len(data) if segment < end[0] else end[1] - position
        if segment <= end[0] and size > 0:
            name = rig.journal.segments[segment].name
            size = min(size, len(data))
            if disk.read(name, position, size) != data[:size]:
                raise Violation(f"segment {segment}: other bytes from {position} on")
