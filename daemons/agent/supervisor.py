"""Keeps programs alive: starts them, restarts those that die, and stops them in order.

It runs in one thread. `turn` is called about ten times a second: it reads what the programs wrote,
notices those that died, and starts those whose waiting time is over. A program that dies at once
every time is restarted ever more rarely (0.5 s, doubled up to 30 s). After a minute of life the
next wait is short again.

A program appends to its log file itself, as stderr, and the supervisor reads the file's new end. A
pipe would be simpler, but then a terminal that stands still (Ctrl-S) would stop the supervisor, and
the full pipe would stop every daemon. So nothing that happens here slows a daemon down.

No program outlives its supervisor, not even one that was killed: the kernel sends SIGKILL to the
children of a thread that ends (PR_SET_PDEATHSIG). Acknowledged messages are safe from that.
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
STABLE_AFTER_S = 60.0
LOG_BYTES_MAX = 8 << 20
READ_BYTES_MAX = 1 << 20
TURN_S = 0.1

STARTING, RUNNING, RESTARTING = "starting", "running", "restarting"
STOPPING, STOPPED = "stopping", "stopped"
# Lines of these levels deserve a person's attention.
ATTENTION_LEVELS = ("warning", "warn", "error", "critical", "fatal")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

LogLine = Callable[[str, str], None]


@dataclass(frozen=True)
class Program:
    """A program to run. Those of a lower `stage` are stopped before those of a higher one."""

    name: str
    command: Sequence[str]
    stage: int = 0


@dataclass
class Child:
    """A program and its process, state and restarts."""

    program: Program
    log: LogFile
    state: str = STARTING
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    was_ready: bool = False
    _delay_s: float = 0.0
    _started_at_s: float = 0.0
    _restart_at_s: float = 0.0
    last_lines: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def mark_started(self, now: float) -> None:
        self.state, self._started_at_s = STARTING, now

    def mark_ended(self, now: float) -> float:
        """Note that it died; returns after how many seconds it is to be restarted."""
        self.process = None
        self.state = RESTARTING
        self._delay_s = next_delay_s(self._delay_s, now - self._started_at_s)
        self._restart_at_s = now + self._delay_s
        return self._delay_s

    def is_due(self, now: float) -> bool:
        return self.state == RESTARTING and now >= self._restart_at_s


class Supervisor:
    """Runs programs until `stop`. `report(level, text)` is called for what happens to them.

    To be used by one thread: the kernel ties the children to the thread that starts them.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        logs: Path,
        report: LogLine,
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after the state of any program changed."""
        self.children = [
            Child(program, LogFile(logs / f"{program.name}.log", log_bytes_max))
            for program in programs
        ]
        self._logs, self._log_bytes_max = logs, log_bytes_max
        self._log_line = report
        self._changed = changed

    def add(self, program: Program) -> None:
        """Start one more program. `changed` is not called."""
        log = LogFile(self._logs / f"{program.name}.log", self._log_bytes_max)
        self.children.append(Child(program, log))
        self._spawn(self.children[-1])

    def stop_and_remove(self, name: str, timeout_s: float) -> None:
        """Stop this program and forget it."""
        (child,) = [one for one in self.children if one.program.name == name]
        self._stop_stage([child], timeout_s)
        self.children.remove(child)

    def start(self) -> None:
        for child in self.children:
            self._spawn(child)
        self._changed()

    def turn(self) -> None:
        """Check every program once; never waits."""
        now = time.monotonic()
        before = [(child.state, child.pid) for child in self.children]
        for child in self.children:
            self._read_output(child)
            code = child.process.poll() if child.process else None
            if code is not None:
                self._read_output(child)  # lines that it wrote after the read above
                delay = child.mark_ended(now)
                ending = exit_text(code)
                self._log_line("warning", f"{child.program.name} {ending}; again in {delay:g} s")
            elif child.is_due(now):
                child.restarts += 1
                self._spawn(child)
        if before != [(child.state, child.pid) for child in self.children]:
            self._changed()

    def stop(self, timeout_s: float = 14.0) -> None:
        """Stop one stage after another: SIGTERM, and SIGKILL after its share of the time."""
        for child in self.children:
            if child.process is None:
                child.state = STOPPED
        stages = sorted({child.program.stage for child in self.children})
        for stage in stages:
            self._stop_stage(
                [c for c in self.children if c.program.stage == stage and c.process],
                timeout_s / len(stages),
            )

    def _stop_stage(self, children: list[Child], timeout_s: float) -> None:
        for child in children:
            child.state = STOPPING
            if child.process:
                child.process.terminate()
        self._changed()
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and any(_is_alive(child) for child in children):
            for child in children:
                self._read_output(child)
            time.sleep(0.02)
        for child in children:
            if _is_alive(child):
                self._log_line("warning", f"{child.program.name} did not stop in time: killed")
            if child.process:
                child.process.kill()
                child.process.wait()
            self._read_output(child)
            child.process, child.state = None, STOPPED
        self._changed()

    def _spawn(self, child: Child) -> None:
        now = time.monotonic()
        child.mark_started(now)
        try:
            with child.log.open_for_append() as stderr:
                child.process = subprocess.Popen(
                    list(child.program.command),
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    process_group=0,  # Ctrl-C on a terminal is for the supervisor alone
                    preexec_fn=functools.partial(die_with_parent, os.getpid()),
                )
        except OSError as error:
            delay = child.mark_ended(now)
            self._log_line(
                "error", f"{child.program.name} can't be started: {error}; again in {delay:g} s"
            )

    def _read_output(self, child: Child) -> None:
        for line in child.log.read_new_lines():
            level, event, text = parse_line(line)
            if event == "ready" and child.state == STARTING:
                child.state, child.was_ready = RUNNING, True
            if level in ATTENTION_LEVELS:
                child.last_lines = [*child.last_lines[-19:], text]
                self._log_line(level, f"{child.program.name}: {text}")


class LogFile:
    """The log of one program: bounded in size; the part before the last cut is in PATH.1."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path, self._bytes_max = path, bytes_max
        self._position = path.stat().st_size if path.exists() else 0
        self._partial_line = b""

    @contextlib.contextmanager
    def open_for_append(self) -> Iterator[int]:
        """A descriptor for the program. It appends, so it continues at 0 after a cut."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    def read_new_lines(self) -> list[str]:
        """Return the whole lines written since the last call."""
        try:
            size = self.path.stat().st_size
        except OSError:  # it was removed; what the program writes is lost until its restart
            self._position = 0
            return []
        if size < self._position:  # another process cut it
            self._position, self._partial_line = 0, b""
        if size == self._position:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                chunk = file.read(READ_BYTES_MAX)
        except OSError:  # too many open files, for example: no reason to stop all programs
            return []  # the next turn tries again
        self._position += len(chunk)
        if self._position > self._bytes_max:
            chunk += self._rotate()
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        if len(self._partial_line) > READ_BYTES_MAX:
            self._partial_line = b""  # no daemon writes such a line
        return [line.decode("utf-8", "replace") for line in lines]

    def _rotate(self) -> bytes:
        """Copy the log and empty it; returns what was written during the copy.

        Only a line written between the last read and the cut, some microseconds, is lost.
        """
        copy = f"{self.path}.1"
        try:
            shutil.copyfile(self.path, copy)
        except OSError:  # no room for the copy: a bounded size matters more
            with contextlib.suppress(OSError):
                os.unlink(copy)
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                rest = file.read()
                os.truncate(self.path, 0)
        except OSError:
            return b""  # the next lines try again
        self._position = 0
        return rest


def next_delay_s(previous_s: float, lived_s: float) -> float:
    """How long to wait before the next start of a program that lived that long."""
    if lived_s >= STABLE_AFTER_S or not previous_s:
        return DELAY_S_MIN
    return min(DELAY_S_MAX, previous_s * 2)


def parse_line(line: str) -> tuple[str, str, str]:
    """Level, event and text of a daemon's line.

    Other text is a warning, except that of a trace only the last line counts.
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


def exit_text(code: int) -> str:
    """Say how a process ended, by its exit code as subprocess gives it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """In a child, before its program begins: make it end with the thread that made it."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def _is_alive(child: Child) -> bool:
    return child.process is not None and child.process.poll() is None
