"""The log in real processes: killed at any moment, on disks that fail, fill up or are slow.

`log_program.py` is the process, `ledger.py` knows what it promised. Every process started here is
ended here, by its own id, and none is waited for without a limit.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faults.ledger import Ledger
from faults.log_program import EXIT_CLEAN, EXIT_STOPPED, EXIT_STORE

from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.log import Log

PROGRAM = Path(__file__).with_name("log_program.py")
LIFE_S_MAX = 60.0
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


class Life:
    """One process on one directory, until it ends or is killed."""

    def __init__(self, directory: Path, seed: int, *options: str, under: list[str] | None = None):
        self.errors = directory.with_name(directory.name + ".stderr")
        command = [*(under or []), sys.executable, "-P", str(PROGRAM), str(directory)]
        known = [str(PROGRAM.parent.parent), os.environ.get("PYTHONPATH", "")]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, known)), "MYQ_TUNING": "off"}
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [*command, "--seed", str(seed), *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | paths,
            )
        self.text = b""

    def run(self, seconds: float, until: bytes = b"\0") -> None:
        """Take what it says, for some time, or until it says something, or to its end."""
        assert self.process.stdout is not None
        end, fd = time.monotonic() + seconds, self.process.stdout.fileno()
        readable = select.poll()
        readable.register(fd, select.POLLIN | select.POLLHUP)
        while until not in self.text and (left := end - time.monotonic()) > 0:
            if readable.poll(left * 1000):
                more = os.read(fd, 1 << 20)
                if not more:
                    return
                self.text += more

    def kill(self) -> list[str]:
        self.process.send_signal(signal.SIGKILL)
        return self.end(-signal.SIGKILL)

    def end(self, *codes: int) -> list[str]:
        """Its lines, after it ended with one of these codes."""
        try:
            self.run(LIFE_S_MAX)
            code = self.process.wait(LIFE_S_MAX)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
        assert code in codes, (code, self.text[-300:], self.errors.read_text()[-3000:])
        return self.text.decode().split("\n")[:-1]


def whole_life(directory: Path, seed: int, *options: str) -> list[str]:
    return Life(directory, seed, *options).end(EXIT_CLEAN)


def dump_of(directory: Path) -> list[Any]:
    """All that the log says: its tables about the log, whoever made them."""
    log = open_log(directory)
    with log.store.view() as view:
        rows = list(view.dump(("index", "offsets", "groups")))
    assert log.store.check() > 0
    assert log.close()
    return rows


def open_log(directory: Path, **config: Any) -> Log:
    sizes = {"segment_bytes": 64 << 10, "soft_limit_bytes": 0} | config
    identity = ("cluster", "daemon", "broker")
    return Log(str(directory), identity, JournalConfig(**sizes), lambda: 1, Random(1))


# -- kill ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kills(
    tmp_path: Path, states: int | None, full: bool
) -> None:
    """W1, W4, W12, W13, L1: SIGKILL at random moments, recovery included; what the log promised is
    there in the next life, in order, once, with the right bytes, and the store equals a rebuild.
    """
    kills, rng, ledger = states or (300 if full else 40), Random(4711), Ledger()
    directory = tmp_path / "log"
    for seed in range(kills):
        life = Life(directory, seed)
        if rng.random() < 0.8:  # otherwise also while it starts and recovers
            life.run(LIFE_S_MAX, b"\nready\n")
        life.run(rng.uniform(0.0, 0.6))
        ledger.read(life.kill())
    ledger.read(whole_life(directory, kills, "--turns", "50"))
    ledger.read(whole_life(directory, kills + 1, "--turns", "1"))
    assert ledger.acknowledged > 20 * kills
    assert not ledger.stores_rebuilt, "a kill does not damage the store"
    segments = [int(name.name[:12]) for name in (directory / "wal").glob("*.seg")]
    assert max(segments) > len(segments), "segments were reclaimed on the way"
    live = dump_of(directory)
    shutil.rmtree(directory / "store")
    assert dump_of(directory) == live
    report = f"{kills} kills, {ledger.acknowledged} acknowledged, {ledger.entries_checked} read"
    print(report, "segments up to", max(segments))  # shown with -s


# -- a disk that fails -----------------------------------------------------------------------


def injected(call: str, what: str, trace: Path) -> list[str]:
    return [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(trace),
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{what}",
    ]


def calls_behind_the_failure(trace: Path) -> list[str]:
    """What each thread called after a call of it had failed; strace's lines begin with its id."""
    failed, later = set(), []
    for line in trace.read_text().splitlines():
        thread, _, call = line.partition(" ")
        if thread in failed and "exited" not in call and "killed" not in call:
            later.append(line)
        elif "INJECTED" in call:
            failed.add(thread)
    return later


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "when", "options"),
    [
        *[("pwritev2", when, ()) for when in (1, 2, 5, 17, 60)],
        *[("fdatasync", when, ("--no-dsync",)) for when in (1, 3, 20)],
        *[("fsync", when, ()) for when in (3, 5)],
    ],
)
def test_an_io_error_stops_the_journal_for_good(
    tmp_path: Path, call: str, when: int, options: tuple[str, ...]
) -> None:
    """W3: after EIO of a write or sync nothing is acknowledged, nothing is tried again, the exit is
    clean, and the next life has everything that was acknowledged before.

    The number of the call counts for each thread: of main, writer, spares or store.
    """
    directory, ledger = tmp_path / "log", Ledger()
    ledger.read(whole_life(directory, 1, "--turns", "20"))
    trace = tmp_path / "trace"
    under = injected(call, f"error=EIO:when={when}", trace)
    life = Life(directory, 2, "--turns", "3000", *options, under=under)
    lines = life.end(EXIT_STOPPED, EXIT_STORE, 1)
    ledger.read(lines)
    if life.process.returncode == 1:  # the main thread, while it recovered
        reason = life.errors.read_text()
        assert "JournalStopped" in reason or "StoreBroken" in reason
        assert "ready" not in lines
    elif life.process.returncode == EXIT_STOPPED:
        assert "Input/output error" in ledger.stopped
        assert lines[-1] == "closed True"
        if call == "pwritev2":  # the log's own call; LMDB's syncs are the store's
            assert not calls_behind_the_failure(trace), "a failed write was tried again"
    ledger.read(whole_life(directory, 3, "--turns", "20"))
    ledger.read(whole_life(directory, 4, "--turns", "1"))


@needs_strace
@pytest.mark.slow
def test_a_slow_sync_never_blocks_the_caller(tmp_path: Path) -> None:
    """W17: with syncs of 0.4 s no call takes long, and the queue's limit refuses (JournalBusy)."""
    directory, ledger = tmp_path / "log", Ledger()
    under = injected("pwritev2", "delay_exit=400000", tmp_path / "trace")
    life = Life(directory, 1, "--flood", "4", under=under)
    lines = life.end(EXIT_CLEAN)
    ledger.read(lines)
    _, taken, refused, slowest, queued = next(one for one in lines if "flood" in one).split()
    assert int(refused) > 100 and int(taken) > 60
    assert float(slowest) < 0.2, "a call waited for the disk"
    assert int(queued) < (256 << 10) + 10_000
    ledger.read(whole_life(directory, 2, "--turns", "1"))
