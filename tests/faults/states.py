"""The states that the log is put into, by kind; each is made and judged by its number alone.

A kind is a function of an oracle and a number. The same seed, kind and number give the same state,
so that a failure is repeated by one command, without all the states before it:


    PYTHONPATH=tests .venv/bin/python -P -m faults.states SEED KIND NUMBER

| kind | states |
|---|---|
| truncate | every file cut short at every byte |
| crash | at every sync, one by one: which unsynced sectors and names arrive (W4, W5, W14) |
| crash-damage | the same, and one of these sectors is zeros or garbage instead |
| flip | every byte of every segment, at rest, with changing bit patterns (W5, W8) |
| flip-early | the same between a sync and the mark that settles it |
| sector | at rest: swapped, moved, zeroed, garbage, an old one come back, a write that was lost |
| watermark | damage in the newest segment, with a store that knows what was there (W5) |
| recovery | a crash in the middle of the recovery of a crash (W4) |
| lives | a crash, new work, a crash, new work, ... (W1, W4, W9) |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import NamedTuple

from faults.lives import lives
from faults.oracle import RIGHT, Oracle, State, Violation
from faults.recording import SEGMENT_BYTES, Moment, Recording
from sim.disk import AFTER, BEFORE, MIDDLE, SECTOR, Crash, SimDisk
from sim.rig import recovered

ALL = 1 << 30  # as a version of a sector: the newest
SUBSETS = 8  # random subsets of the unsynced sectors of one moment
SECTORS = SEGMENT_BYTES // SECTOR
MASKS = (0x01, 0xFF, 0x80, 0x10, 0x55, 0x08, 0xFE, 0x02, 0x40, 0x7F, 0x04, 0x20)

Sectors = dict[tuple[int, int], int]


def _rng(oracle: Oracle, kind: str, number: int) -> Random:
    return Random(f"{oracle.recording.seed} {kind} {number}")


def _at_rest(oracle: Oracle) -> State:
    """All synced, settled, with a copy of the disk to be damaged."""
    moment = oracle.recording.last.moment
    return _damaged(moment)


def _damaged(moment: Moment) -> State:
    return State(moment.disk.killed(), moment.promised, moment.possible, moment.reclaimed, True)


def _segments(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.list() if name.endswith(".seg"))


# -- crashes ---------------------------------------------------------------------------------


def _subset(moment: Moment, variant: int, rng: Random) -> Sectors:
    """The `variant`-th way in which the unsynced sectors of a moment arrive."""
    unsynced = [(file, sector) for file, sector, _ in moment.disk.unsynced()]
    count = len(unsynced)
    if variant < count + 1:  # a prefix: none, one, ..., all
        return dict.fromkeys(unsynced[:variant], ALL)
    variant -= count + 1
    if variant < count:  # a suffix
        return dict.fromkeys(unsynced[variant + 1 :], ALL)
    variant -= count
    if variant < count:  # all but one
        return dict.fromkeys(unsynced[:variant] + unsynced[variant + 1 :], ALL)
    variant -= count
    if variant < count:  # one alone
        return {unsynced[variant]: ALL}
    return {one: rng.randrange(4) for one in unsynced if rng.random() < 0.5}


def _crashed(oracle: Oracle, number: int, rng: Random) -> tuple[Moment, Sectors, list[int]]:
    """Moments one after another, of each all variants and its lost or arrived changes of names."""
    moment, variant = _variant(oracle, number)
    sectors = _subset(moment, variant // 3, rng)
    changes = moment.disk.unsynced_changes()
    arrived = (range(changes), (), [n for n in range(changes) if rng.random() < 0.5])[variant % 3]
    return moment, sectors, list(arrived)


def _variant(oracle: Oracle, number: int) -> tuple[Moment, int]:
    for moment in oracle.recording.moments:
        count = _variants(moment)
        if number < count:
            return moment, number if moment.disk.unsynced_changes() else 3 * number
        number -= count
    raise IndexError(number)


def _variants(moment: Moment) -> int:
    ways = 4 * len(moment.disk.unsynced()) + 1 + SUBSETS
    return 3 * ways if moment.disk.unsynced_changes() else ways


def _crashes(oracle: Oracle) -> int:
    return sum(map(_variants, oracle.recording.moments))


def crash(oracle: Oracle, number: int) -> str:
    rng = _rng(oracle, "crash", number)
    moment, sectors, changes = _crashed(oracle, number, rng)
    disk = moment.disk.survivor(sectors, changes, None if number % 2 else _short(moment, rng))
    return oracle.judge(State(disk, moment.promised, moment.possible, moment.reclaimed))


def _short(moment: Moment, rng: Random) -> dict[int, int]:
    """Some size for every file whose size is not durable."""
    return {file: rng.choice((0, SECTOR, 3000, ALL)) for file in range(100)}


def crash_damage(oracle: Oracle, number: int) -> str:
    """A sector that was being written holds neither the old bytes nor the new ones."""
    rng = _rng(oracle, "crash-damage", number)
    moments = [moment for moment in oracle.recording.moments if moment.disk.unsynced()]
    moment = moments[number % len(moments)]
    victim, sector, _ = rng.choice(moment.disk.unsynced())
    disk = moment.disk.survivor(_subset(moment, rng.randrange(50), rng), range(99))
    name = next((n for n, file in disk._names.items() if file == victim), "")
    if name:
        noise = bytes(SECTOR) if number % 2 else rng.randbytes(SECTOR)
        disk.overwrite(name, sector * SECTOR, noise)
    return oracle.judge(State(disk, moment.promised, moment.possible, moment.reclaimed, True))


# -- damage at rest --------------------------------------------------------------------------


def truncate(oracle: Oracle, number: int) -> str:
    """The newest used segment first, then the others, newest first."""
    state = _at_rest(oracle)
    names = _segments(state.disk)
    newest = oracle.recording.names[oracle.recording.last.watermark[0]]
    order = [newest, *(name for name in reversed(names) if name != newest)]
    state.disk.cut(order[number // SEGMENT_BYTES], number % SEGMENT_BYTES)
    return oracle.judge(state)


def _files_bytes(oracle: Oracle) -> int:
    return len(_segments(oracle.recording.last.moment.disk)) * SEGMENT_BYTES


def _flip(disk: SimDisk, number: int) -> None:
    names = _segments(disk)
    turn, place = divmod(number, len(names) * SEGMENT_BYTES)
    position = place % SEGMENT_BYTES
    mask = MASKS[(turn + position) % len(MASKS)]
    disk.flip(names[place // SEGMENT_BYTES], position, mask)


def flip(oracle: Oracle, number: int) -> str:
    state = _at_rest(oracle)
    _flip(state.disk, number)
    return oracle.judge(state)


def flip_early(oracle: Oracle, number: int) -> str:
    """Where the last write has no mark behind it yet, mostly near its end."""
    rng = _rng(oracle, "flip-early", number)
    rests = [rest for rest in oracle.recording.rests if not rest.wait_until_settled]
    if not rests:
        return flip(oracle, number)
    rest = rng.choice(rests)
    state = _damaged(rest.moment)
    name = oracle.recording.names[rest.watermark[0]]
    if number % 4 and name in state.disk.list():
        position = rng.randrange(max(0, rest.watermark[1] - 700), rest.watermark[1])
        state.disk.flip(name, position, rng.choice(MASKS))
    else:
        _flip(state.disk, rng.getrandbits(30))
    return oracle.judge(state)


def sector(oracle: Oracle, number: int) -> str:
    rng = _rng(oracle, "sector", number)
    state = _at_rest(oracle)
    _damage_sector(state.disk, oracle, number, rng)
    return oracle.judge(state)


def _damage_sector(disk: SimDisk, oracle: Oracle, number: int, rng: Random) -> None:
    """Every sector is the victim in turn; what happens to it changes with each turn."""
    names = _segments(disk)
    turn, place = divmod(number, len(names) * SECTORS)
    name, at = names[place // SECTORS], place % SECTORS
    other, other_at = rng.choice(names), rng.randrange(SECTORS)
    what = turn % 6
    if what == 0:
        disk.overwrite(name, at * SECTOR, bytes(SECTOR))
    elif what == 1:
        disk.overwrite(name, at * SECTOR, rng.randbytes(SECTOR))
    elif what == 2:  # swapped
        kept = disk.sector(name, at)
        disk.copy_sector(other, other_at, name, at)
        disk.overwrite(other, other_at * SECTOR, kept)
    elif what == 3:  # another one was written here
        disk.copy_sector(other, other_at, name, at)
    elif what == 4:  # as it was at some earlier moment: a lost write, or an old sector came back
        earlier = rng.choice(oracle.recording.moments).disk.survivor({}, ())
        if name in earlier.list():
            disk.overwrite(name, at * SECTOR, earlier.sector(name, at))
    else:  # a run of sectors is gone
        size = min(SECTOR * rng.randint(2, SECTORS), SEGMENT_BYTES - at * SECTOR)
        disk.overwrite(name, at * SECTOR, bytes(size))


def watermark(oracle: Oracle, number: int) -> str:
    rng = _rng(oracle, "watermark", number)
    rest = rng.choice(oracle.recording.rests)
    name = oracle.recording.names[rest.watermark[0]]
    state = _damaged(rest.moment)
    if name not in state.disk.list():
        return RIGHT
    if number % 3 == 0:
        at = rng.randrange(SECTORS)
        noise = bytes(SECTOR) if number % 2 else rng.randbytes(SECTOR)
        state.disk.overwrite(name, at * SECTOR, noise)
    else:
        position = rng.randrange(SEGMENT_BYTES)
        state.disk.flip(name, position, rng.choice(MASKS))
    return oracle.judge_watermark(state, rest.watermark, deepcopy(rest.groups))


# -- recovery, and life after it -------------------------------------------------------------


def recovery(oracle: Oracle, number: int) -> str:
    """Thirty crashes in the recovery of each crash; afterwards killed, without power, or both."""
    rng = _rng(oracle, "recovery", number // 30)
    start = rng.randrange(_crashes(oracle))
    moment, sectors, changes = _crashed(oracle, start, rng)
    crashed = moment.disk.survivor(sectors, changes)
    if number % 2:
        crashed = moment.disk.killed()
    rng = _rng(oracle, "recovery", number)
    whole = crashed.killed()
    recovered(whole)
    disk = crashed.killed()
    disk.stop_at = (rng.randint(1, len(whole.trace)), rng.choice((BEFORE, MIDDLE, AFTER)))
    try:
        recovered(disk)
    except Crash:
        pass
    after = rng.choice((disk.killed, disk.worst, lambda: disk.crash(rng)))()
    return oracle.judge(State(after, moment.promised, moment.possible, moment.reclaimed))


class Kind(NamedTuple):
    """How many states there are of a kind (0: as many as you like), and its share of a run."""

    judge: Callable[[Oracle, int], str]
    size: Callable[[Oracle], int]
    share: float


def _endless(oracle: Oracle) -> int:
    return 0


KINDS: dict[str, Kind] = {
    "crash": Kind(crash, _crashes, 0.30),
    "crash-damage": Kind(crash_damage, _endless, 0.05),
    "truncate": Kind(truncate, _files_bytes, 0.10),
    "flip": Kind(flip, lambda oracle: len(MASKS) * _files_bytes(oracle), 0.30),
    "flip-early": Kind(flip_early, _endless, 0.05),
    "sector": Kind(sector, _endless, 0.10),
    "watermark": Kind(watermark, _endless, 0.05),
    "recovery": Kind(recovery, _endless, 0.04),
    "lives": Kind(lives, _endless, 0.01),
}


def judge(oracle: Oracle, kind: str, number: int) -> str:
    """The outcome of one state; a Violation or any other error says how to see it again."""
    try:
        return KINDS[kind].judge(oracle, number)
    except Exception as error:
        seed = oracle.recording.seed
        raise Violation(
            f"{type(error).__name__}: {error}\n  state: seed {seed}, {kind} {number}; again: "
            f"PYTHONPATH=tests .venv/bin/python -P -m faults.states {seed} {kind} {number}"
        ) from error


if __name__ == "__main__":
    print(judge(Oracle(Recording(int(sys.argv[1]))), sys.argv[2], int(sys.argv[3])))
