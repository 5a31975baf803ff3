"""Kinds of faults: processes that are killed, frozen and restarted; orders from people; damage to
data of a broker that is down. Those of networks and disks have files of their own.

A maker looks at the cluster and returns what would be done now, or None.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from faults.nemesis import DAMAGE, GENTLE, ROUGH, Fault, Kind, Nemesis, nothing
from support.processes import Name, wait_for

from myqueue.errors import MyQueueError

ROUNDS_S, ROUNDS = 300.0, 2  # of the scrubber, on a busy machine; the first one may be past it
LOOK_S = 2.0
BEATS_S = 1.2  # a broker's come twice a second, a manager's once
READY_S = 60.0  # a start, on a machine that has much else to do
HEADER_BYTES = 512  # of a segment; see wal/FORMAT.md


# -- processes -------------------------------------------------------------------------------------


def kill(nemesis: Nemesis) -> Fault | None:
    """SIGKILL; it is started again after a while."""
    name = nemesis.anyone()
    if name is None:
        return None
    return Fault((name,), partial(kill_now, nemesis, name), partial(start, nemesis, name))


def kill_now(nemesis: Nemesis, *names: Name) -> None:
    nemesis.cluster.kill(*(name for name in names if name in nemesis.cluster.processes))


def start(nemesis: Nemesis, *names: Name) -> None:
    down = [name for name in names if name not in nemesis.cluster.processes]
    if down:
        nemesis.cluster.start(*down)


def freeze(nemesis: Nemesis) -> Fault | None:
    """SIGSTOP: connections stay, and it wakes up in another world."""
    name, cluster = nemesis.anyone(), nemesis.cluster
    if name is None:
        return None
    return Fault((name,), partial(cluster.pause, name), partial(cluster.resume, name), (0.3, 8.0))


def restart(nemesis: Nemesis) -> Fault | None:
    """SIGTERM: it hands over its leaders, ends, and comes back; they are given back later."""
    name = nemesis.anyone()
    if name is None:
        return None
    return Fault((name,), partial(stop_now, nemesis, name), partial(start, nemesis, name), (0, 1.0))


def stop_now(nemesis: Nemesis, name: Name) -> None:
    """One that has just been started does not know yet how to end in order."""
    if is_ready(nemesis, name):
        nemesis.cluster.stop(name, within_s=READY_S)
    else:
        nemesis.cluster.kill(name)


def is_ready(nemesis: Nemesis, name: Name) -> bool:
    return f" pid={nemesis.cluster.processes[name].pid}" in nemesis.cluster.log(name)


def kill_several(nemesis: Nemesis) -> Fault | None:
    """A power cut that hits a room: some of them, all brokers, all managers, or all there is."""
    random = nemesis.random
    able = nemesis.daemons("broker") + nemesis.daemons("manager")
    if random.random() < 0.4:
        able = nemesis.daemons(random.choice(("broker", "manager")))
    elif random.random() < 0.6:
        able = random.sample(able, min(len(able), random.randint(2, 4)))
    if not able:
        return None
    again = partial(start, nemesis, *able)
    return Fault(tuple(able), partial(kill_now, nemesis, *able), again, (0.2, 3.0), False)


def flap(nemesis: Nemesis) -> Fault | None:
    """Killed again as soon as it is there, some times."""
    name = nemesis.anyone()
    if name is None:
        return None

    def begin() -> None:
        for _ in range(nemesis.random.randint(2, 3)):
            kill_now(nemesis, name)
            start(nemesis, name)
            time.sleep(nemesis.random.uniform(0.1, 1.5))

    return Fault((name,), begin, partial(start, nemesis, name), (0.0, 0.5))


# -- people ----------------------------------------------------------------------------------------


def quietly(call: Callable[[], object]) -> None:
    """Orders may fail while managers are hurt; the run does not depend on them."""
    try:
        call()
    except MyQueueError as error:
        if not error.retriable and error.outcome != "none":
            raise


def drain(nemesis: Nemesis) -> Fault | None:
    """A broker gives its replicas away, and may keep them after all."""
    name = nemesis.anyone("broker")
    if name is None:
        return None
    admin = nemesis.cluster.admin
    return Fault(
        (),
        lambda: quietly(lambda: admin.drain_broker(name[1])),
        lambda: quietly(lambda: admin.undrain_broker(name[1])),
        (1.0, 6.0),
    )


def come_or_go(nemesis: Nemesis) -> Fault | None:
    """One more broker; or that one is drained and, once it holds nothing, removed with its disk."""
    if nemesis.added is None:
        return Fault((), partial(add, nemesis), nothing, (1.0, 3.0))
    name = nemesis.added
    if name in nemesis.hurt() or name not in nemesis.cluster.processes:
        return None
    return Fault((), lambda: quietly(lambda: retire(nemesis, name)), nothing, (1.0, 3.0))


def add(nemesis: Nemesis) -> None:
    nemesis.added = nemesis.cluster.add_broker()


def retire(nemesis: Nemesis, name: Name) -> None:
    admin = nemesis.cluster.admin
    state = {row["node"]: row["state"] for row in admin.brokers()}.get(name[1])
    if state == "active":
        admin.drain_broker(name[1])
    elif state == "drained":
        nemesis.leaving = name
        admin.remove_broker(name[1])
        nemesis.gone(name)


# -- damage to data --------------------------------------------------------------------------------


def wipe(nemesis: Nemesis) -> Fault | None:
    """A broker's disk is replaced by an empty one (W7)."""
    name = nemesis.anyone("broker")
    if name is None:
        return None

    def begin() -> None:
        kill_now(nemesis, name)
        nemesis.cluster.wipe(name)
        nemesis.damaged.pop(name, None)

    return Fault((name,), begin, partial(started_with_new_disk, nemesis, name), (0.5, 3.0))


def started_with_new_disk(nemesis: Nemesis, name: Name) -> None:
    """Until the managers know of it: before, they take it for the old one."""
    known = disk_of(nemesis, name)
    start(nemesis, name)
    wait_for(f"{name} with its new disk", lambda: disk_of(nemesis, name) != known, READY_S)


def disk_of(nemesis: Nemesis, name: Name) -> str:
    def ask() -> str:
        try:
            rows = nemesis.cluster.session.read("brokers", linearizable=True, timeout_ms=1000)
            return str({row["node"]: row["disk"] for row in rows.result()["brokers"]}[name[1]])
        except MyQueueError:
            return ""

    return str(wait_for("the managers", ask, READY_S))


def store_is_gone(nemesis: Nemesis) -> Fault | None:
    """What LMDB holds can be made anew from the log."""
    name = nemesis.anyone()
    if name is None:
        return None

    def begin() -> None:
        kill_now(nemesis, name)
        shutil.rmtree(nemesis.cluster.data(name) / "store")

    return Fault((name,), begin, partial(start_and_tell, nemesis, name), (0.0, 2.0))


def start_and_tell(nemesis: Nemesis, name: Name) -> None:
    """Until the managers know what it lacks. If it was away for a moment only, all seems well to
    them until then, and what comes next could hit a second copy.
    """
    start(nemesis, name)
    wait_for(f"{name} to be ready", lambda: is_ready(nemesis, name), READY_S)
    time.sleep(BEATS_S)


def flip(nemesis: Nemesis) -> Fault | None:
    """A bit turns in what was synced, while the daemon is down (W5, W16, R2).

    It was stopped in order, so a mark proves that its last write was synced: a bit that turns in a
    last write without one is the one case that nobody can tell.
    """
    return spoil(nemesis, turn_a_bit)


def flip_at_rest(nemesis: Nemesis) -> Fault | None:
    """A bit turns under a daemon that runs; its scrubber, or a read, finds it, and what cannot be
    read comes back from the peers (W16, W21). The damaged segment goes, if not at once then with
    older ones that it still speaks of.
    """
    name = nemesis.anyone()
    if name is None or not has_log(nemesis, name):
        return None
    spoilt: list[Path] = []

    def begin() -> None:
        path, used = some_segment(nemesis, name)
        nemesis.damaged[name].add(path)
        with suppress(FileNotFoundError):  # reclaimed this moment
            turn_a_bit(nemesis, path, used)
        spoilt.append(path)

    def is_noticed() -> bool:
        found = f"damage-found segment={spoilt[0].name}"
        return not spoilt[0].exists() or found in nemesis.cluster.log(name)

    def end() -> None:
        begun = rounds_of(nemesis, name)
        what = f"{name} to notice what is wrong in {spoilt[0].name}"
        deadline = time.monotonic() + ROUNDS_S
        while not is_noticed():
            assert time.monotonic() < deadline, f"not within {ROUNDS_S} s: {what}"
            time.sleep(LOOK_S)
            rounds = rounds_of(nemesis, name) - begun
            assert rounds <= ROUNDS or is_noticed(), f"not within {rounds} rounds: {what}"
        time.sleep(BEATS_S)  # then the managers know, and all is not well until it is mended

    return Fault((name,), begin, end, (0.0, 1.0))


def rounds_of(nemesis: Nemesis, name: Name) -> int:
    """Of its scrubber, as it tells; it is not hurt, so it answers in the end."""

    def ask() -> list[int]:
        try:
            told = nemesis.cluster.admin.repairs()["scrubbers"]
        except MyQueueError:
            return []
        return [row["rounds"] for row in told if row["daemon"] == f"{name[0]} {name[1]}"]

    return int(wait_for(f"an answer of {name}", ask, READY_S)[0])


def cut_tail(nemesis: Nemesis) -> Fault | None:
    """The end of its log is zeros again, as after a disk that lied about its syncs."""
    return spoil(nemesis, lose_the_end)


def spoil(nemesis: Nemesis, how: Callable[[Nemesis, Path, int], None]) -> Fault | None:
    name = nemesis.anyone()
    if name is None or not has_log(nemesis, name):
        return None

    def begin() -> None:
        nemesis.cluster.stop(name, within_s=READY_S)
        path, used = some_segment(nemesis, name)
        nemesis.damaged[name].add(path)
        how(nemesis, path, used)

    return Fault((name,), begin, partial(start_and_tell, nemesis, name), (0.0, 1.0))


def has_log(nemesis: Nemesis, name: Name) -> bool:
    """It runs, and has written something: a broker that came this moment may have nothing yet."""
    return is_ready(nemesis, name) and bool(newest_segments(nemesis, name))


def some_segment(nemesis: Nemesis, name: Name) -> tuple[Path, int]:
    """One of the newest, and how much of it is used."""
    return nemesis.random.choice(newest_segments(nemesis, name))


def newest_segments(nemesis: Nemesis, name: Name) -> list[tuple[Path, int]]:
    segments = sorted((nemesis.cluster.data(name) / "wal").glob("*.seg"))
    used = [(path, used_bytes(path)) for path in segments]
    return [one for one in used if one[1] > HEADER_BYTES][-3:]


def used_bytes(path: Path) -> int:
    """0 if a running daemon has just reclaimed it."""
    with suppress(FileNotFoundError):
        return len(path.read_bytes().rstrip(b"\0"))
    return 0


def turn_a_bit(nemesis: Nemesis, path: Path, used: int) -> None:
    position = nemesis.random.randrange(HEADER_BYTES, used)
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << nemesis.random.randrange(8)]))


def lose_the_end(nemesis: Nemesis, path: Path, used: int) -> None:
    lost = min(used - HEADER_BYTES, nemesis.random.randint(1, 50_000))
    with path.open("r+b") as file:
        file.seek(used - lost)
        file.write(bytes(lost))


PROCESSES = [
    Kind("kill", GENTLE, 5, kill), Kind("freeze", GENTLE, 3, freeze),
    Kind("restart", GENTLE, 3, restart), Kind("flap", GENTLE, 1, flap),
    Kind("kill several", ROUGH, 4, kill_several),
]  # fmt: skip
PEOPLE = [Kind("drain", GENTLE, 1, drain), Kind("come or go", GENTLE, 1, come_or_go)]
DATA = [
    Kind("wipe", DAMAGE, 2, wipe), Kind("store gone", DAMAGE, 2, store_is_gone),
    Kind("bit flip while down", DAMAGE, 2, flip), Kind("bit flip at rest", DAMAGE, 3, flip_at_rest),
    Kind("tail lost", DAMAGE, 2, cut_tail),
]  # fmt: skip
