"""A disk in memory that forgets what was not synced.

`SimDisk` implements the `Files` of the log. Of every file it knows what the process sees (the page
cache) and, sector by sector, what older contents the platter may still hold. Of the directory it
knows the names that are durable and the operations that are not. A crash picks: each unsynced
sector is any of its versions, each unsynced operation happened or did not. Nothing more may be
assumed of a real disk, and this one promises nothing more.

    disk.killed()            the process died, the page cache lives on
    disk.crash(rng)          the power failed: one random survivor
    disk.worst()             the power failed: nothing that was not synced is left
    disk.survivor(...)       the power failed: exactly this survivor
    disk.stop_at = (n, when) raise Crash before, in the middle of or after operation n
    disk.watch               called in the middle of each operation: all done, nothing durable yet

Faults come in two forms. Those of a call: `fail` (EIO and the like), `capacity_bytes` (ENOSPC),
`lose_syncs` (reported as done, not done). Those of the medium, at rest: `flip`, `overwrite`,
`sector` and `copy_sector`.

Rules of the directory: an operation is one change of names (a rename changes two at once). If one
was lost, a later one on the same name is lost too. A new file's size is durable when its bytes are.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from math import prod
from random import Random
from threading import RLock
from typing import NamedTuple

SECTOR = 512
BEFORE, MIDDLE, AFTER = "before", "middle", "after"

Buffer = bytes | bytearray | memoryview


class Crash(BaseException):
    """The process ends here. Not an Exception: nothing that handles errors may go on."""


class Operation(NamedTuple):
    """One call, as the trace keeps it."""

    kind: str  # create, write, sync, read, move, remove
    name: str
    position: int = 0
    length: int = 0
    sync: bool = False


class _File:
    """`data` is what a read returns. `older` holds, of each unsynced sector, what else a crash may
    leave there, oldest (the durable one) first. `size` is how much of the file is durable.
    """

    __slots__ = ("data", "older", "size", "doomed")

    def __init__(self, data: bytearray, size: int) -> None:
        self.data, self.size = data, size
        self.older: dict[int, list[bytes]] = {}
        self.doomed: set[int] = set()  # a sync failed on them: a later one does not help

    def copy(self) -> _File:
        twin = _File(self.data[:], self.size)
        twin.older = {sector: versions[:] for sector, versions in self.older.items()}
        twin.doomed = set(self.doomed)
        return twin

    def sector(self, number: int) -> bytes:
        return bytes(self.data[number * SECTOR : (number + 1) * SECTOR])

    def put(self, position: int, data: bytes) -> None:
        if not data:
            return
        if position + len(data) > len(self.data):
            self.data += bytes(position + len(data) - len(self.data))
        for number in range(position // SECTOR, (position + len(data) - 1) // SECTOR + 1):
            self.older.setdefault(number, []).append(self.sector(number))
            self.doomed.discard(number)
        self.data[position : position + len(data)] = data

    def settle(self, position: int = 0, length: int | None = None) -> None:
        """These bytes are durable now (all, without arguments)."""
        end = len(self.data) if length is None else position + length
        self.size = max(self.size, end)
        if self.older and end > position:
            for number in range(position // SECTOR, (end - 1) // SECTOR + 1):
                if number not in self.doomed:
                    self.older.pop(number, None)

    def survivor(self, choices: Mapping[int, int], size: int) -> _File:
        """A file after a crash: of each unsynced sector the chosen version (default: oldest)."""
        twin = _File(self.data[:size], size)
        for number, versions in self.older.items():
            choice = choices.get(number, 0)
            if choice < len(versions):
                at = number * SECTOR
                twin.data[at : at + SECTOR] = versions[choice][: max(0, size - at)]
        return twin


class SimDisk:
    """One directory on a simulated disk."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.writes_need_space = False  # as on a file system that never writes in place
        self.trace: list[Operation] = []
        self.counts: Counter[str] = Counter()
        self.stop_at: tuple[int, str] | None = None
        self.watch: Callable[[], None] | None = None
        self.lose_syncs = False
        self._faults: dict[tuple[str, int], int] = {}
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._durable: dict[str, int] = {}
        self._changes: list[dict[str, int | None]] = []  # of names, since the directory's sync
        self._next_file = 1
        self._lock = RLock()

    # -- the protocol --------------------------------------------------------------------------

    def create(self, name: str, size: int) -> None:
        with self._lock:
            self._begin(Operation("create", name, 0, size))
            self._raise_fault("create", name)
            if name in self._names:
                raise _error(errno.EEXIST, name)
            if size > self.free_bytes():
                raise _error(errno.ENOSPC, name)
            self._files[self._next_file] = _File(bytearray(size), 0)
            self._change({name: self._next_file})
            self._next_file += 1
            self._end()

    def write(self, name: str, position: int, buffers: list[Buffer], sync: bool) -> None:
        with self._lock:
            data = b"".join(buffers)
            file = self._file(name)
            self._begin(Operation("write", name, position, len(data), sync))
            if position < 0:
                raise _error(errno.EINVAL, name)
            fault = self._fault("write")
            room = max(0, len(file.data) - position)
            needed = len(data) if self.writes_need_space else len(data) - room
            if needed > 0 and self.free_bytes() < needed:
                fault = fault or errno.ENOSPC
            if fault:  # a part of it may have been written
                file.put(position, data[: min(len(data), room) // 2])
                raise _error(fault, name)
            file.put(position, data)
            if sync:
                self._settle(name, file, position, len(data))
            self._end()

    def sync(self, name: str | None) -> None:
        with self._lock:
            file = self._file(name) if name is not None else None
            self._begin(Operation("sync", name or ""))
            if name is not None and file is not None:
                self._settle(name, file, 0, None)
            else:
                self._raise_fault("sync", "directory")
                self._middle()
                if not self.lose_syncs:
                    self._durable, self._changes = dict(self._names), []
            self._stop(AFTER)

    def read(self, name: str, position: int, length: int) -> bytes:
        with self._lock:
            file = self._file(name)
            self._begin(Operation("read", name, position, length))
            self._raise_fault("read", name)
            if position < 0 or length < 0:
                raise _error(errno.EINVAL, name)
            data = bytes(file.data[position : position + length])
            self._stop(MIDDLE)
            self._stop(AFTER)
            return data

    def move(self, name: str, to: str | None) -> None:
        with self._lock:
            number = self._names.get(name)
            if number is None:
                raise _error(errno.ENOENT, name)
            kind = "move" if to else "remove"
            self._begin(Operation(kind, name))
            self._raise_fault(kind, name)
            self._change({name: None, to: number} if to else {name: None})
            self._end()

    def list(self) -> dict[str, int]:
        with self._lock:
            return {name: len(self._files[number].data) for name, number in self._names.items()}

    def free_bytes(self) -> int:
        with self._lock:
            used = sum(len(self._files[number].data) for number in set(self._names.values()))
            return max(0, self.capacity_bytes - used)

    def close(self) -> None:
        """Nothing is held open here."""

    # -- what happens around a call ------------------------------------------------------------

    def fail(self, kind: str, number: int, error: int = errno.EIO) -> None:
        """The `number`-th call of this kind from now (1: the next) fails."""
        self._faults[kind, self.counts[kind] + number] = error

    def _begin(self, operation: Operation) -> None:
        self.trace.append(operation)
        self._stop(BEFORE)

    def _fault(self, kind: str) -> int:
        """Count the call; the error that it has to fail with, or 0."""
        self.counts[kind] += 1
        return self._faults.pop((kind, self.counts[kind]), 0) if self._faults else 0

    def _raise_fault(self, kind: str, name: str) -> None:
        fault = self._fault(kind)
        if fault:
            raise _error(fault, name)

    def _settle(self, name: str, file: _File, position: int, length: int | None) -> None:
        """The sync of a call that is otherwise done."""
        fault = self._fault("sync")
        if fault:
            file.doomed.update(file.older)
            raise _error(fault, name)
        self._middle()
        if not self.lose_syncs:
            file.settle(position, length)

    def _end(self) -> None:
        self._middle()
        self._stop(AFTER)

    def _middle(self) -> None:
        if self.watch is not None:
            self.watch()
        self._stop(MIDDLE)

    def _stop(self, when: str) -> None:
        if self.stop_at == (len(self.trace), when):
            self.stop_at = None
            raise Crash(f"{when} operation {len(self.trace)}: {self.trace[-1]}")

    def _file(self, name: str) -> _File:
        number = self._names.get(name)
        if number is None:
            raise _error(errno.ENOENT, name)
        return self._files[number]

    def _change(self, change: dict[str, int | None]) -> None:
        _apply(self._names, change)
        self._changes.append(change)

    # -- crashes -------------------------------------------------------------------------------

    def unsynced(self) -> list[tuple[int, int, int]]:
        """(file, sector, number of versions besides the newest) of all that a crash may undo."""
        return [
            (number, sector, len(versions))
            for number, file in sorted(self._files.items())
            for sector, versions in sorted(file.older.items())
        ]

    def unsynced_changes(self) -> int:
        return len(self._changes)

    def killed(self) -> SimDisk:
        """The process is gone, the system runs on: the same contents, still not durable."""
        twin = SimDisk(self.capacity_bytes)
        twin._files = {number: file.copy() for number, file in self._files.items()}
        twin._names, twin._durable = dict(self._names), dict(self._durable)
        twin._changes, twin._next_file = self._changes[:], self._next_file
        return twin

    def survivor(
        self,
        sectors: Mapping[tuple[int, int], int],
        changes: Collection[int],
        sizes: Mapping[int, int] | None = None,
    ) -> SimDisk:
        """What is left: of each (file, sector) that version (a large number: the newest), else the
        durable one; those changes of names by their number, as far as they are possible without
        the others; of files whose size is not durable, that size (else all of it).
        """
        twin = SimDisk(self.capacity_bytes)
        names, lost = dict(self._durable), set()
        for number, change in enumerate(self._changes):
            if number in changes and lost.isdisjoint(change):
                _apply(names, change)
            else:
                lost.update(change)
        choices: dict[int, dict[int, int]] = {}
        for (number, sector), version in sectors.items():
            choices.setdefault(number, {})[sector] = version
        for number in set(names.values()):
            file = self._files[number]
            size = max(file.size, (sizes or {}).get(number, len(file.data)))
            twin._files[number] = file.survivor(choices.get(number, {}), size)
        twin._names, twin._durable, twin._next_file = names, dict(names), self._next_file
        return twin

    def worst(self) -> SimDisk:
        """Nothing is left that was not synced."""
        return self.survivor({}, (), dict.fromkeys(self._files, 0))

    def crash(self, rng: Random) -> SimDisk:
        """A random survivor; the extremes (all lost, all there) come up often."""
        share = rng.choice((0.0, 1.0, rng.random(), 0.5))
        sectors = {}
        for number, sector, versions in self.unsynced():
            if rng.random() < share:
                sectors[number, sector] = rng.randint(1, versions)
        changes = [n for n in range(len(self._changes)) if rng.random() < max(share, 0.3)]
        sizes = {
            number: rng.choice((file.size, len(file.data), rng.randrange(len(file.data) + 1)))
            for number, file in self._files.items()
            if file.size < len(file.data)
        }
        return self.survivor(sectors, changes, sizes)

    def survivors(self, rng: Random, most: int) -> Iterator[SimDisk]:
        """Each survivor (of files of full size) if there are no more than that; else both extremes
        and random ones.
        """
        unsynced, changes = self.unsynced(), range(len(self._changes))
        if prod(versions + 1 for _, _, versions in unsynced) << len(changes) > most:
            yield self.worst()
            yield self.survivor({one[:2]: one[2] for one in unsynced}, changes)
            yield from (self.crash(rng) for _ in range(most - 2))
            return
        for choice in product(*(range(versions + 1) for _, _, versions in unsynced)):
            sectors = {one[:2]: version for one, version in zip(unsynced, choice, strict=True)}
            for arrived in product((False, True), repeat=len(changes)):
                yield self.survivor(sectors, [n for n in changes if arrived[n]])

    # -- the medium ----------------------------------------------------------------------------

    def contents(self, name: str) -> bytearray:
        """The file's bytes, to look at and, at rest, to damage."""
        return self._file(name).data

    def flip(self, name: str, position: int, mask: int = 1) -> None:
        self._file(name).data[position] ^= mask

    def overwrite(self, name: str, position: int, data: bytes) -> None:
        self._file(name).data[position : position + len(data)] = data

    def in_doubt(self, name: str, end: int) -> bool:
        """Whether a loss of power could take away any of the file's first `end` bytes."""
        file = self._file(name)
        named = self._durable.get(name) == self._names.get(name)
        return not named or file.size < end or any(at * SECTOR < end for at in file.older)

    def sector(self, name: str, number: int) -> bytes:
        return self._file(name).sector(number)

    def copy_sector(self, name: str, number: int, to: str, to_number: int) -> None:
        """A write that went to the wrong place, or an old sector that came back."""
        self.overwrite(to, to_number * SECTOR, self.sector(name, number))

    def cut(self, name: str, size: int) -> None:
        file = self._file(name)
        del file.data[size:]
        file.size = min(file.size, size)


def _apply(names: dict[str, int], change: dict[str, int | None]) -> None:
    for name, number in change.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _error(number: int, name: str) -> OSError:
    return OSError(number, os.strerror(number), name)
