"""Kinds of faults of a daemon's disk, injected into the running process by strace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from faults.kinds import start
from faults.nemesis import GENTLE, Fault, Kind, Nemesis
from support.processes import Name, wait_for

WRITES = "pwritev2"  # the log's only way to the disk; LMDB has others
ATTACH_S = 20.0


class Tracer:
    """A strace on a running daemon, until it is asked to let go. It notes what it did in a file."""

    def __init__(self, pid: int, *inject: str, notes: Path = Path(os.devnull)) -> None:
        self._pid = pid
        calls = ",".join(dict.fromkeys(one.partition(":")[0] for one in inject))
        words = [word for one in inject for word in ("-e", f"inject={one}")]
        self.process = subprocess.Popen(
            ["strace", "-f", "-o", str(notes), "-p", str(pid), "-e", f"trace={calls}", *words],
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        wait_for("strace to hold the daemon", lambda: self._holds(pid), ATTACH_S)

    def _holds(self, pid: int) -> bool:
        """All its threads; or one of them is gone, by either."""
        if self.process.poll() is not None:
            return True
        try:
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                return f"TracerPid:\t{self.process.pid}\n" in file.read()
        except OSError:
            return True

    def end(self) -> None:
        """While the daemon stands still: a call that it is let go of in the middle would not have
        failed as it was told to, but as one that this kernel does not know.
        """
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGSTOP)
        wait_for("the daemon to stand still", self._stands, ATTACH_S)
        self.process.terminate()
        self.process.wait(ATTACH_S)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)

    def _stands(self) -> bool:
        """All its threads, and strace has nothing left to do; or it has ended."""
        if self.process.poll() is not None:
            return True
        threads = {state_of(one) for one in Path(f"/proc/{self._pid}/task").glob("*")}
        own = state_of(Path(f"/proc/{self.process.pid}"))
        return threads <= set("tTZX") and own == "S"


def state_of(task: Path) -> str:
    """The letter of a thread or process; X: it is gone."""
    try:
        return (task / "stat").read_text("ascii").rpartition(") ")[2][0]
    except OSError:
        return "X"


def what_is_missing() -> str:
    """Why disks can't be hurt; "" if they can."""
    if not shutil.which("strace"):
        return "strace is not installed: faults of disks are not tested"
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        tracer = Tracer(sleeper.pid, f"{WRITES}:error=EIO")
        attached = tracer.process.poll() is None
        tracer.end()
    finally:
        sleeper.kill()
        sleeper.communicate()
    return "" if attached else "strace may not attach to processes here: no faults of disks"


def inject(nemesis: Nemesis, name: Name, seconds: tuple[float, float], *what: str) -> Fault:
    """As long as the fault lasts."""
    tracers: list[Tracer] = []

    def begin() -> None:
        tracers.append(Tracer(nemesis.cluster.processes[name].pid, *what))

    def end() -> None:
        tracers[0].end()

    return Fault((name,), begin, end, seconds)


def slow_sync(nemesis: Nemesis) -> Fault | None:
    """Every write takes a tenth of a second to two; beyond 1.5 s it may not lead (W17)."""
    name = nemesis.anyone()
    if name is None:
        return None
    delay_us = round(nemesis.random.choice((0.1, 0.3, 2.0)) * 1e6)
    return inject(nemesis, name, (1.5, 5.0), f"{WRITES}:delay_exit={delay_us}")


def no_room(nemesis: Nemesis) -> Fault | None:
    """ENOSPC for whatever the log writes, and for new segments; it goes on by itself (W15)."""
    name = nemesis.anyone()
    if name is None:
        return None
    calls = f"{WRITES}:error=ENOSPC", "fallocate:error=ENOSPC"
    return inject(nemesis, name, (1.0, 4.0), *calls)


def broken(nemesis: Nemesis) -> Fault | None:
    """EIO: the daemon has to end at once, by itself, and does not try again (W3). Who has nothing
    to write, because it was drained or everybody else is gone, does not meet it, and lives on.
    """
    name = nemesis.anyone()
    if name is None:
        return None
    notes = nemesis.cluster.folder / f"{name[0]}-{name[1]}.strace"
    tracers: list[Tracer] = []

    def begin() -> None:
        nemesis.doomed.add(name)
        notes.unlink(missing_ok=True)
        pid = nemesis.cluster.processes[name].pid
        tracers.append(Tracer(pid, f"{WRITES}:error=EIO", notes=notes))

    def end() -> None:
        tracers[0].end()
        if "(INJECTED)" in notes.read_text("utf-8", "replace"):
            wait_for(f"{name} to end", lambda: ended(nemesis, name), 30.0)
            start(nemesis, name)
        nemesis.doomed.discard(name)

    return Fault((name,), begin, end, (0.5, 2.0))


def ended(nemesis: Nemesis, name: Name) -> bool:
    """`check` takes note of it, and of its exit code."""
    nemesis.check()
    time.sleep(0.05)
    return name not in nemesis.cluster.processes


DISKS = [
    Kind("slow sync", GENTLE, 2, slow_sync),
    Kind("no room", GENTLE, 2, no_room),
    Kind("EIO", GENTLE, 2, broken),
]
