"""Brokers that a test starts outside of its cluster, and their log lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import Cluster, free_ports, wait_for


@contextmanager
def run_foreign_broker(folder: Path, number: int, *words: str) -> Iterator[Path]:
    """Run a broker with these settings; yield the path of its log."""
    folder.mkdir()
    client, peer = free_ports(2)
    command = [
        *(sys.executable, "-P", "-m", "myqueue.daemons.main", "broker", "--id", str(number)),
        *("--cluster", "test", "--data", str(folder / "data"), "--listen", f"127.0.0.1:{client}"),
        *("--peer-listen", f"127.0.0.1:{peer}", *words),
    ]
    path = folder / "log"
    with path.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield path
        finally:
            process.kill()


def managers_options(cluster: Cluster, *numbers: int) -> list[str]:
    """Return the options --managers for these managers."""
    ports = {number: cluster.ports["manager", number][1] for number in numbers}
    return [word for n, port in ports.items() for word in ("--managers", f"{n}@127.0.0.1:{port}")]


def wait_for_event_line(path: Path, event: str) -> str:
    """Wait for the first log line of this event, and return it."""

    def find() -> str:
        lines = path.read_text().splitlines()
        return next((line for line in lines if f" {event} " in f"{line} "), "")

    return str(wait_for(event, find, 15))
