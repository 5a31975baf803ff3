"""The supervisor with real programs that behave, die, are deaf, and talk."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from myqueue.daemons.agent import supervisor as s

TINY = str(Path(__file__).with_name("tiny.py"))


class Rig:
    """A supervisor, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[tuple[str, str]] = []
        self.supervisor = s.Supervisor([], folder, self._hear)

    def _hear(self, level: str, text: str) -> None:
        self.said.append((level, text))

    def start(self, *behaviours: str, log_bytes_max: int = 1 << 20) -> list[s.Child]:
        programs = [
            s.Program(f"p-{at}", [sys.executable, "-I", TINY, f"p-{at}", how, str(self.folder)], at)
            for at, how in enumerate(behaviours)
        ]
        self.supervisor = s.Supervisor(
            programs, self.folder, self._hear, log_bytes_max=log_bytes_max
        )
        self.supervisor.start()
        return self.supervisor.children

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, (self.said, self.supervisor.children)
            self.supervisor.turn()
            time.sleep(0.01)

    def heard(self, text: str) -> int:
        return sum(text in said for _, said in self.said)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(s, "DELAY_S_MIN", 0.02)
    made = Rig(tmp_path)
    yield made
    made.supervisor.stop(0.2)


def is_gone(pid: int | None) -> bool:
    """No such process, or only its exit code waits for whoever inherited it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_stages_stop_one_after_the_other(rig: Rig) -> None:
    children = rig.start("well", "well", "well")
    rig.until(lambda: all(child.state == s.RUNNING for child in children))
    pids = [child.pid for child in children]
    rig.supervisor.stop()
    assert (rig.folder / "stopped").read_text().split() == ["p-0", "p-1", "p-2"]
    assert all(is_gone(pid) for pid in pids)
    assert {child.state for child in children} == {s.STOPPED}
    assert rig.said == []


def test_what_was_killed_is_started_again(rig: Rig) -> None:
    [child] = rig.start("well")
    rig.until(lambda: child.state == s.RUNNING)
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    rig.until(lambda: child.restarts == 1 and child.state == s.RUNNING)
    assert child.pid != first
    assert rig.said == [("warning", "p-0 was ended by SIGKILL; again in 0.02 s")]


def test_what_dies_every_time_is_tried_ever_more_rarely(rig: Rig) -> None:
    [child] = rig.start("dying")
    rig.until(lambda: child.restarts == 3)
    texts = [text for _, text in rig.said if "exit code 3" in text]
    assert [text.split()[-2] for text in texts[:3]] == ["0.02", "0.04", "0.08"]
    assert rig.heard("p-0: no_disk path=/x") >= 3
    assert not child.was_ready
    assert "no_disk path=/x" in child.last_lines


def test_delays() -> None:
    delay, delays = 0.0, []
    for _ in range(8):
        delay = s.next_delay_s(delay, lived_s=1)
        delays.append(delay)
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert s.next_delay_s(30, lived_s=60) == 0.5


def test_what_does_not_stop_is_killed(rig: Rig) -> None:
    deaf, well = rig.start("deaf", "well")
    rig.until(lambda: deaf.state == well.state == s.RUNNING)
    pids = deaf.pid, well.pid
    begin = time.monotonic()
    rig.supervisor.stop(1.0)
    assert 0.5 <= time.monotonic() - begin < 1.5
    assert all(is_gone(pid) for pid in pids)
    assert rig.said == [("warning", "p-0 did not stop in time: killed")]
    assert (rig.folder / "stopped").read_text() == "p-1\n"


def test_what_waits_for_its_restart_is_not_started_by_a_stop(rig: Rig) -> None:
    [child] = rig.start("dying")
    rig.until(lambda: child.state == s.RESTARTING)
    restarts = child.restarts
    rig.supervisor.stop()
    assert (child.state, child.pid, child.restarts) == (s.STOPPED, None, restarts)


def test_a_program_that_does_not_exist(rig: Rig) -> None:
    rig.supervisor = s.Supervisor([s.Program("x", ["/no/such"])], rig.folder, rig._hear)
    rig.supervisor.start()
    rig.until(lambda: rig.heard("x can't be started") >= 2)


def test_only_what_is_worth_it_is_passed_on_and_the_log_is_bounded(rig: Rig) -> None:
    [child] = rig.start("talking", log_bytes_max=20_000)
    rig.until(lambda: child.state == s.RUNNING)
    rig.until(lambda: (rig.folder / "p-0.log.1").exists())
    assert rig.said == [
        ("warning", "p-0: slow_disk ms=70"),
        ("warning", "p-0: ValueError: x"),
    ]
    assert (rig.folder / "p-0.log").stat().st_size <= 20_000
    # It appends after the cut, and is heard.
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    rig.until(lambda: child.restarts == 1 and child.state == s.RUNNING)
    assert rig.heard("slow_disk") == 2


def test_a_line_is_heard_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("from an earlier run\n")
    log = s.LogFile(path, 1 << 20)
    assert log.read_new_lines() == []
    with path.open("a") as file:
        for part, expected in (("one", []), (" line\ntwo", ["one line"]), ("\n", ["two"])):
            file.write(part)
            file.flush()
            assert log.read_new_lines() == expected
    path.write_text("new\n")  # cut by somebody else
    assert log.read_new_lines() == ["new"]
    path.unlink()
    assert log.read_new_lines() == []


def test_a_log_that_cannot_be_read_for_a_moment_is_heard_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the agent ends, and all daemons of the machine with it."""
    path = tmp_path / "daemon.log"
    log = s.LogFile(path, 1 << 20)
    path.write_text("ready\n")

    def no_more(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", no_more)
        assert log.read_new_lines() == []
    assert log.read_new_lines() == ["ready"]


def test_what_is_written_while_the_log_is_cut_is_heard(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x.log"
    log = s.LogFile(path, 10)
    path.write_text("a line of some length\n")

    def copy(source: Path, target: str) -> None:
        Path(target).write_bytes(source.read_bytes())
        with source.open("a") as file:
            file.write("ready\nhal")

    monkeypatch.setattr(s.shutil, "copyfile", copy)
    assert log.read_new_lines() == ["a line of some length", "ready"]
    assert path.read_text() == ""
    path.write_text("f\n")
    assert log.read_new_lines() == ["half"]


@pytest.mark.parametrize("fails", ["copy", "cut"])
def test_on_a_full_disk_a_log_is_cut_all_the_same_and_heard_once(
    tmp_path: Path, monkeypatch: Any, fails: str
) -> None:
    """W15: else the same lines are read and told again and again."""
    path = tmp_path / "x.log"
    log = s.LogFile(path, 10)

    def fail(*_: object) -> None:
        (tmp_path / "x.log.1").write_text("half of it")
        raise OSError(errno.ENOSPC, "no room")

    name = (s.shutil, "copyfile") if fails == "copy" else (s.os, "truncate")
    with monkeypatch.context() as full:
        full.setattr(*name, fail)
        path.write_text("a line of some length\n")
        assert log.read_new_lines() == ["a line of some length"]
        assert [log.read_new_lines() for _ in range(3)] == [[]] * 3
        if fails == "copy":
            assert path.read_text() == "" and not (tmp_path / "x.log.1").exists()
    with path.open("a") as file:
        file.write("one more line\n")
    assert log.read_new_lines() == ["one more line"]
    assert path.read_text() == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"level":"WARNING","event":"e","a":1,"ts":2}', ("warning", "e", "e a=1")),
        ('{"event":"ready"}', ("info", "ready", "ready")),
        ("ImportError: zmq", ("warning", "", "ImportError: zmq")),
        ("  File", ("debug", "", "  File")),
        ("Traceback (most", ("debug", "", "Traceback (most")),
        ("[1]", ("warning", "", "[1]")),
        ("", ("debug", "", "")),
    ],
)
def test_lines(line: str, expected: tuple[str, str, str]) -> None:
    assert s.parse_line(line) == expected


PARENT = """
import sys, time
from pathlib import Path
from myqueue.daemons.agent import supervisor as s
made = s.Supervisor([s.Program("x", sys.argv[2:])], Path(sys.argv[1]), lambda *words: None)
made.start()
while True:
    made.turn()
    if made.children[0].state == s.RUNNING:
        print(made.children[0].pid, flush=True)
    time.sleep(0.01)
"""


def test_no_program_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    tiny = [sys.executable, "-I", TINY, "x", "deaf", str(tmp_path)]
    command = [sys.executable, "-c", PARENT, str(tmp_path), *tiny]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    end = time.monotonic() + 5
    while not is_gone(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_exit_text() -> None:
    assert s.exit_text(0) == "ended with exit code 0"
    assert s.exit_text(-9) == "was ended by SIGKILL"
    assert s.exit_text(-99) == "was ended by signal 99"
