"""How the nemesis hurts a disk: calls of a running process fail or take long, and then do not."""

from __future__ import annotations

import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from faults.kinds_of_disks import WRITES, Tracer, what_is_missing

WRITER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    begin = time.monotonic()
    try:
        os.pwritev(fd, [b"x"], 0, os.RWF_DSYNC)
        said = "ok"
    except OSError as error:
        said = error.strerror
    os.write(1, f"{said} {time.monotonic() - begin > 0.25}\\n".encode())
    time.sleep(0.02)
"""


class Writer:
    """A process that tells of each write how it went."""

    def __init__(self, file: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE
        )

    def wait_for(self, line: str, seconds: float = 20.0) -> None:
        assert self.process.stdout is not None
        end, said = time.monotonic() + seconds, ""
        while said != line:
            assert time.monotonic() < end, f"never: {line!r}, last {said!r}"
            if wait([self.process.stdout], 1.0):
                said = self.process.stdout.readline().decode().strip()


def test_writes_of_a_running_process_fail_and_take_long(tmp_path: Path) -> None:
    if lack := what_is_missing():
        pytest.skip(lack)
    writer = Writer(tmp_path / "file")
    try:
        writer.wait_for("ok False")
        for inject, line in (
            (f"{WRITES}:error=EIO", "Input/output error False"),
            (f"{WRITES}:error=ENOSPC", "No space left on device False"),
            (f"{WRITES}:delay_exit=300000", "ok True"),
        ):
            tracer = Tracer(writer.process.pid, inject)
            writer.wait_for(line)
            tracer.end()
            writer.wait_for("ok False")
    finally:
        writer.process.kill()
        writer.process.communicate()
