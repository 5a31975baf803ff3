"""One Spark command as a program of its own, measured: `spark_work.py WORK ROUNDS SMALL LOG...`.

A session of its own for each work, so the memory of one is not what another one left behind, and
each has the Java settings that its command has. The session's start and a first run on the small
log (which starts Python workers and loads what they need) are timed apart: that is the start-up.
Then the logs are taken in turns, `ROUNDS` times. What is printed last is JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOK_S = 0.2
QUICK = ("verify", "stats")  # as client/cli/spark_*.py have it
# A segment is an array, a row and a copy in the JVM there: two at a time need more than 1 GiB.
BINARY_FILE = {"spark.driver.memory": "3g"}


def processes(root: int) -> Iterator[tuple[int, list[str]]]:
    """A process and all below it, with the fields of their stat behind the name."""
    children: dict[int, list[int]] = {}
    fields: dict[int, list[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            fields[int(name)] = text.rpartition(")")[2].split()
            children.setdefault(int(fields[int(name)][1]), []).append(int(name))
    left = [root]
    while left:
        one = left.pop()
        if one in fields:
            yield one, fields[one]
            left += children.get(one, [])


def cpu_seconds() -> float:
    """Of all processes, with those that have ended."""
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in processes(os.getpid()))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident() -> int:
    """Without what is shared with the disk's cache."""
    total = 0
    for one, _ in processes(os.getpid()):
        try:
            lines = Path("/proc", str(one), "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
    return total


@contextmanager
def memory() -> Iterator[list[int]]:
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            most[0] = max(most[0], resident())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def work_of(name: str, session: Any, scratch: Path) -> Callable[[Path], int]:
    """What is measured; it returns how many messages it met."""
    from myqueue.analytics.export import export
    from myqueue.analytics.spark.job import SparkSpreader
    from myqueue.analytics.stats.stats import stats
    from myqueue.analytics.verify.verify import Asked, verify

    def verified(log: Path) -> int:
        found = verify(Asked([str(log)], with_stores=False), SparkSpreader(session), scratch)
        if not found.ok:
            raise AssertionError(found.findings[0])
        return found.messages

    def counted(log: Path) -> int:
        return int(stats([str(log)], SparkSpreader(session))["messages"])

    def exported(log: Path) -> int:
        target = scratch / "exported"
        shutil.rmtree(target, ignore_errors=True)
        return export(session, [str(log)], str(target), (), restart=False)

    def scanned(log: Path) -> int:
        frame = session.read.format("binaryFile").load(f"{log}/broker-1/wal/*.seg")
        frame.selectExpr("sum(crc32(content))").collect()
        return 0

    works = {"verify": verified, "stats": counted, "export": exported, "binaryFile": scanned}
    return works[name]


def main(name: str, rounds: int, small: Path, logs: list[Path], scratch: Path) -> dict[str, Any]:
    from myqueue.analytics.spark.session import make_session

    begin = time.monotonic()
    conf = BINARY_FILE if name == "binaryFile" else {}
    session = make_session("local[2]", name="bench", conf=conf, quick=name in QUICK)
    work = work_of(name, session, scratch)
    work(small)
    started_s = time.monotonic() - begin
    runs = []
    for _ in range(rounds):
        for log in logs:
            cpu, begin = cpu_seconds(), time.monotonic()
            with memory() as most:
                messages = work(log)
            took = time.monotonic() - begin
            runs.append(
                {
                    "log": str(log),
                    "seconds": took,
                    "cpu_seconds": cpu_seconds() - cpu,
                    "memory": most[0],
                    "messages": messages,
                }
            )
    session.stop()
    return {"started_s": started_s, "runs": runs}


if __name__ == "__main__":
    program, work_name, times, *paths = sys.argv
    folders = [Path(one) for one in paths]
    found = main(work_name, int(times), folders[0], folders[1:], folders[0].parent)
    sys.stdout.write(json.dumps(found))
