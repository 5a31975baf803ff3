"""A journal's life on a small disk, kept moment by moment.

A `Recording` plays random lawful work (appends of several groups, votes, truncations, snapshots,
rotations, spares, reclaimed segments) on segments of 4 KiB. In the middle of every operation of the
disk, when all of it is done and nothing of it is durable, it keeps a copy of the disk and what the
journal had said until then. From these moments all crash states are made; `rests` are the moments
in which everything was synced and the last mark proved it.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any, NamedTuple

from sim.disk import SimDisk
from sim.history import act
from sim.rig import Rig, Watermark

from myqueue.wal.groups import Groups
from myqueue.wal.space.evacuate import append_records

SEGMENT_BYTES = 4096


class Moment(NamedTuple):
    """One state of the disk, and what recovery must and may find in it."""

    disk: SimDisk
    promised: int  # so many records of the log were reported as persisted
    possible: int  # so many were handed to the writer
    reclaimed: frozenset[int]  # segments whose removal had begun


class Rest(NamedTuple):
    """A moment with nothing unsynced, and what the store would know."""

    moment: Moment
    watermark: Watermark
    groups: Groups
    wait_until_settled: bool


class Recording:
    """All that happened under one seed."""

    def __init__(self, seed: int, steps: int = 45) -> None:
        self.seed = seed
        self.moments: list[Moment] = []
        self.rests: list[Rest] = []
        self.bytes: dict[int, bytes] = {}  # of each segment that was ever written, at the end
        self.names: dict[int, str] = {}
        self._reclaimed: frozenset[int] = frozenset()
        self._trash: list[str] = []
        rng = Random(seed)
        disk = SimDisk()
        self.rig = Rig(disk, seed, segment_bytes=SEGMENT_BYTES)
        disk.watch = self._keep
        for step in range(steps):
            act(self.rig, rng)
            if rng.random() < 0.04:
                self._reclaim(rng)
            if step % 20 == 19:
                self._rest(settled=step % 40 == 39)
        while self.rig.journal.spares.step():
            pass
        disk.sync(None)
        self._rest(settled=False)
        self._rest(settled=True)
        disk.watch = None
        self.log: list[Any] = self.rig.log
        for number, segment in self.rig.journal.segments.items():
            self._remember(number, segment.name)
        self._check_bytes()

    @property
    def last(self) -> Rest:
        return self.rests[-1]

    def _moment(self) -> Moment:
        rig = self.rig
        return Moment(rig.disk.killed(), rig.promised, len(rig.log), self._reclaimed)

    def _keep(self) -> None:
        disk = self.rig.disk
        if disk.unsynced() or disk.unsynced_changes():
            self.moments.append(self._moment())

    def _rest(self, settled: bool) -> None:
        """Everything is synced here; without `settled` the last write has no mark behind it."""
        rig = self.rig
        rig.settle() if settled else rig.pump()
        if rig.disk.unsynced() or rig.disk.unsynced_changes():
            return  # a spare is being made, or a removed name not synced yet
        moment = self._moment()
        self.rests.append(Rest(moment, rig.journal.persisted_at, deepcopy(rig.groups), settled))

    def _reclaim(self, rng: Random) -> None:
        """Move all that is still needed out of the oldest sealed segment; rename, sync, unlink."""
        rig, disk = self.rig, self.rig.disk
        for name in self._trash:
            disk.move(name, None)
        self._trash.clear()
        disk.sync(None)  # what a later segment cancels goes before it, as in a pass of reclaim
        rig.pump()
        number = min(rig.journal.segments)
        if rig.journal.persisted_at[0] - number < 2:
            return
        newest: dict[int, int] = {}
        for one in rig.log:
            if len(one) == 10 and one[2] == number:
                newest[one[0]] = max(one[1], newest.get(one[0], 0))
        for uid, index in newest.items():
            group = rig.groups.by_uid.get(uid)
            if group is not None and group.first_index <= index:
                rig.start(uid, min(index, group.last_index) + 1)
        for group in list(rig.groups.by_uid.values()):
            if group.holds(number):
                append_records(rig.journal, group, number, [rng.randbytes(50)])
        rig.settle()
        if any(group.holds(number) for group in rig.groups.by_uid.values()):
            return
        name = rig.journal.segments[number].name
        self._remember(number, name)
        self._reclaimed |= {number}
        disk.move(name, name + ".trash")
        rig.journal.forget_segment(number)
        self._trash.append(name + ".trash")
        if rng.random() < 0.7:
            disk.sync(None)

    def _remember(self, number: int, name: str) -> None:
        if name in self.rig.disk.list():
            self.bytes[number] = bytes(self.rig.disk.contents(name))
            self.names[number] = name

    def _check_bytes(self) -> None:
        """What stands on the disk is what was handed to the writer."""
        for segment, position, data in self.rig.journal.written:
            assert self.bytes[segment][position : position + len(data)] == data
