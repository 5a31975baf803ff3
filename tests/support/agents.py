"""A cluster that `myq up` runs, with its agent, as a person has it: everything by commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def myq(folder: Path, *words: str, code: int = 0) -> str:
    """Run a command in that folder, without the caller's settings; return its result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MYQ_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "myqueue.cli", *words],
        cwd=folder,
        env={**kept, "XDG_CONFIG_HOME": str(folder / "config")},
        text=True,
        capture_output=True,
        timeout=150,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stdout + done.stderr


@contextmanager
def one_of_each(folder: Path) -> Iterator[Path]:
    """Write settings for one manager, one broker and a gateway on free ports."""
    words = ("--managers", "1", "--brokers", "1", "--port-base", "0", "--wait", "120")
    myq(folder, "up", *words, "--detach")
    try:
        yield folder
    finally:
        myq(folder, "down")
