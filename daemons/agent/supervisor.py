"""Keeping programs alive: starts them, starts again what dies, and stops them in order.

One thread, and no decision of a program's own: `turn` is called some ten times a second, reaps who
died, starts whose waiting time is over, and reads what the programs said. A program that dies at
once every time is tried ever more rarely (0.5 s, doubled up to 30 s); one that was well for a
minute begins anew.

A program's stderr is a file that it appends to itself, and that is read here from behind. A pipe
would be simpler, but then a terminal that stands still (Ctrl-S) would stop the supervisor, and
the full pipe every daemon. So nothing that happens here can slow a daemon down.

No program outlives its supervisor, not even one that was killed: the kernel sends SIGKILL to the
children of a thread that ends (PR_SET_PDEATHSIG). What was acknowledged is safe from that.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DELAY_S_MIN, DELAY_S_MAX = 0.5, 30.0
WELL_S = 60.0
LOG_BYTES_MAX = 8 << 20
READ_BYTES_MAX = 1 << 20
TURN_S = 0.1

STARTING, RUNNING, RESTARTING = "starting", "running", "restarting"
STOPPING, STOPPED = "stopping", "stopped"
# From this level on a line is worth a person's attention.
LOUD = ("warning", "warn", "error", "critical", "fatal")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Report = Callable[[str, str], None]


@dataclass(frozen=True)
class Program:
    """What to run. Programs of a lower `stage` are stopped before those of a higher one."""

    name: str
    command: Sequence[str]
    stage: int = 0


@dataclass
class Child:
    """A program and how it fares."""

    program: Program
    log: LogFile
    state: str = STARTING
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    was_ready: bool = False
    _delay_s: float = 0.0
    _since: float = 0.0
    _due: float = 0.0
    last_lines: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def begins(self, now: float) -> None:
        self.state, self._since = STARTING, now

    def ended(self, now: float) -> float:
        """It died: it is to be started again after this many seconds."""
        self.process = None
        self.state = RESTARTING
        self._delay_s = next_delay(self._delay_s, now - self._since)
        self._due = now + self._delay_s
        return self._delay_s

    def is_due(self, now: float) -> bool:
        return self.state == RESTARTING and now >= self._due


class Supervisor:
    """Runs programs until `stop`. `report(level, text)` hears what happens to them.

    To be used by one thread: the kernel ties the children to the thread that starts them.
    """

    def __init__(
        self, programs: Sequence[Program], logs: Path, report: Report, *,
        log_bytes_max: int = LOG_BYTES_MAX, changed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`changed` is called after the state of any program changed."""
        self.children = [
            Child(program, LogFile(logs / f"{program.name}.log", log_bytes_max))
            for program in programs
        ]
        self._logs, self._log_bytes_max = logs, log_bytes_max
        self._report = report
        self._changed = changed

    def add(self, program: Program) -> None:
        """One more, started at once. The caller tells that something changed."""
        log = LogFile(self._logs / f"{program.name}.log", self._log_bytes_max)
        self.children.append(Child(program, log))
        self._spawn(self.children[-1])

    def drop(self, name: str, seconds: float) -> None:
        """Stop this one and forget it. The caller tells that something changed."""
        (child,) = [one for one in self.children if one.program.name == name]
        self._stop_stage([child], seconds)
        self.children.remove(child)

    def start(self) -> None:
        for child in self.children:
            self._spawn(child)
        self._changed()

    def turn(self) -> None:
        """Look at every program once; never waits."""
        now = time.monotonic()
        before = [(child.state, child.pid) for child in self.children]
        for child in self.children:
            self._hear(child)
            code = child.process.poll() if child.process else None
            if code is not None:
                self._hear(child)  # its last words came after the look above
                delay = child.ended(now)
                what = how_it_ended(code)
                self._report("warning", f"{child.program.name} {what}; again in {delay:g} s")
            elif child.is_due(now):
                child.restarts += 1
                self._spawn(child)
        if before != [(child.state, child.pid) for child in self.children]:
            self._changed()

    def stop(self, seconds: float = 14.0) -> None:
        """SIGTERM to one stage after the other, SIGKILL to what is left of it after its share."""
        for child in self.children:
            if child.process is None:
                child.state = STOPPED
        stages = sorted({child.program.stage for child in self.children})
        for stage in stages:
            self._stop_stage(
                [c for c in self.children if c.program.stage == stage and c.process],
                seconds / len(stages),
            )

    def _stop_stage(self, children: list[Child], seconds: float) -> None:
        for child in children:
            child.state = STOPPING
            if child.process:
                child.process.terminate()
        self._changed()
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(_is_alive(child) for child in children):
            for child in children:
                self._hear(child)
            time.sleep(0.02)
        for child in children:
            if _is_alive(child):
                self._report("warning", f"{child.program.name} did not stop in time: killed")
            if child.process:
                child.process.kill()
                child.process.wait()
            self._hear(child)
            child.process, child.state = None, STOPPED
        self._changed()

    def _spawn(self, child: Child) -> None:
        now = time.monotonic()
        child.begins(now)
        try:
            with child.log.opened() as stderr:
                child.process = subprocess.Popen(
                    list(child.program.command),
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    process_group=0,  # Ctrl-C on a terminal is for the supervisor alone
                    preexec_fn=functools.partial(die_with_parent, os.getpid()),
                )
        except OSError as error:
            delay = child.ended(now)
            self._report(
                "error", f"{child.program.name} can't be started: {error}; again in {delay:g} s"
            )

    def _hear(self, child: Child) -> None:
        for line in child.log.new_lines():
            level, event, text = parse(line)
            if event == "ready" and child.state == STARTING:
                child.state, child.was_ready = RUNNING, True
            if level in LOUD:
                child.last_lines = [*child.last_lines[-19:], text]
                self._report(level, f"{child.program.name}: {text}")


class LogFile:
    """What a program writes: bounded in size, with the last part that was cut off beside it."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path, self._bytes_max = path, bytes_max
        self._position = path.stat().st_size if path.exists() else 0
        self._rest = b""

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor for the program. It appends, so it goes on at 0 after a cut."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    def new_lines(self) -> list[str]:
        """Whole lines since the last call."""
        try:
            size = self.path.stat().st_size
        except OSError:  # somebody removed it; the program writes on, unheard until its restart
            self._position = 0
            return []
        if size < self._position:  # cut by somebody else
            self._position, self._rest = 0, b""
        if size == self._position:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                chunk = file.read(READ_BYTES_MAX)
        except OSError:  # too many files are open, say: no reason to end with all programs
            return []  # it is tried again with the next turn
        self._position += len(chunk)
        if self._position > self._bytes_max:
            chunk += self._cut()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > READ_BYTES_MAX:
            self._rest = b""  # no line of ours is as long
        return [line.decode("utf-8", "replace") for line in lines]

    def _cut(self) -> bytes:
        """Keep a copy and begin anew; returns what was written meanwhile, for it is heard too.

        Only a line written between the last read and the cut, some microseconds, is lost.
        """
        copy = f"{self.path}.1"
        try:
            shutil.copyfile(self.path, copy)
        except OSError:  # no room for it: a bounded size matters more
            with contextlib.suppress(OSError):
                os.unlink(copy)
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                rest = file.read()
                os.truncate(self.path, 0)
        except OSError:
            return b""  # it is tried again with the next lines
        self._position = 0
        return rest


def next_delay(previous_s: float, lived_s: float) -> float:
    """How long to wait before the next start of a program that lived that long."""
    if lived_s >= WELL_S or not previous_s:
        return DELAY_S_MIN
    return min(DELAY_S_MAX, previous_s * 2)


def parse(line: str) -> tuple[str, str, str]:
    """Level, event and text of a daemon's line.

    What is not of its form is a warning, except that of a trace only the last line counts.
    """
    try:
        fields = json.loads(line)
        level, event = str(fields.pop("level", "info")).lower(), str(fields.pop("event", ""))
    except (ValueError, AttributeError, TypeError):
        is_loud = line.strip() and not line.startswith((" ", "Traceback ("))
        return ("warning" if is_loud else "debug"), "", line
    for clutter in ("ts", "daemon", "trace"):
        fields.pop(clutter, None)
    words = [event, *(f"{key}={value}" for key, value in fields.items())]
    return level, event, " ".join(word for word in words if word)


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """In a child, before its program begins: end when the thread that made it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def _is_alive(child: Child) -> bool:
    return child.process is not None and child.process.poll() is None
