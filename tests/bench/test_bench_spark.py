"""Spark over the log on local[2]: verify, stats, messages to Parquet; beside Spark's own scan.

`MYQ_BENCH_SPARK_MIB` is the size of the log (1,024 unless set), of batches of 16 KiB with messages
of 100 B; half as much is measured too, for what twice the data takes. Logs are in the disk's cache,
as they were just written. Each command runs in a process of its own (see `spark_work.py`), whose
start-up is told apart; the quickest of `ROUNDS` runs counts. Memory is the most that JVM, Python
workers and driver held at once, looked at some times a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pytest
from bench.figures import Row
from support.queue_logs import Broker, Topic

MIB = int(os.environ.get("MYQ_BENCH_SPARK_MIB", "1024"))
BATCH_MESSAGES = 160
MESSAGE_BYTES = 100
ROUNDS = 2
MEMORY_MAX = 2 << 30
TIMES_MAX = 2.1  # what twice the data may take
WORK = Path(__file__).with_name("spark_work.py")


class Logs(NamedTuple):
    small: Path
    once: Path
    twice: Path
    messages: dict[Path, int]


def write_log(folder: Path, mib: int) -> int:
    """One broker's log of four partitions; how many messages it has."""
    broker = Broker(folder / "broker-1", 1, 64 << 20)
    topics = [Topic("bench", 100 + number, number) for number in range(4)]
    for topic in topics:
        broker.create(topic, [1])
    messages = 0
    while messages * (MESSAGE_BYTES + 2) < mib << 20:
        for topic in topics:
            before = len(topic.entries)
            for _ in range(64):
                topic.data(BATCH_MESSAGES, size=MESSAGE_BYTES)
                messages += BATCH_MESSAGES
            broker.append(topic, topic.entries[before:])
            topic.entries[before : len(topic.entries) - 1] = []  # only the last one is continued
    for topic in topics:
        broker.commit_hint(topic, topic.entries[-1][0])
    broker.close()
    return messages


def bytes_in(folder: Path) -> int:
    return sum(one.stat().st_size for one in (folder / "broker-1" / "wal").glob("*.seg"))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logs]:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    base = os.environ.get("MYQ_BENCH_DIR")
    folder = Path(base) if base else tmp_path_factory.mktemp("spark")
    paths = [folder / name for name in ("small", "once", "twice")]
    sizes = (16, MIB // 2, MIB)
    written = {path: write_log(path, mib) for path, mib in zip(paths, sizes, strict=True)}
    yield Logs(*paths, written)


def measured(work: str, logs: Logs, report: list[Row]) -> dict[str, dict[str, Any]]:
    """The quickest run for each log, and the rows that all works have."""
    command = [sys.executable, "-P", str(WORK), work, str(ROUNDS), *map(str, logs[:3])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    best: dict[str, dict[str, Any]] = {}
    for run in found["runs"]:
        name = Path(run["log"]).name
        if work != "binaryFile":
            assert run["messages"] == logs.messages[Path(run["log"])]
        if name not in best or run["seconds"] < best[name]["seconds"]:
            best[name] = run
    runs = [f"{one['seconds']:.1f}" for one in found["runs"] if one["log"] == str(logs.twice)]
    once, twice = best["once"], best["twice"]
    memory = max(one["memory"] for one in found["runs"])
    seconds = f"runs of {', '.join(runs)} s, {twice['cpu_seconds']:.1f} s of CPU"
    report += [
        Row(f"spark {work}: start-up, not counted", found["started_s"], "s"),
        Row(f"spark {work}: {MIB} MiB", twice["seconds"], "s", seconds),
        Row(f"spark {work}: {MIB} by {MIB // 2} MiB", twice["seconds"] / once["seconds"], "times",
            "", TIMES_MAX if work != "binaryFile" else None, -1),
        Row(f"spark {work}: memory", memory / 1e6, "MB", "",
            MEMORY_MAX / 1e6 if work != "binaryFile" else None, -1),
    ]  # fmt: skip
    return best


@pytest.mark.parametrize(("work", "goal"), [("verify", 400), ("stats", 300), ("binaryFile", None)])
def test_spark_reads(work: str, goal: float | None, logs: Logs, report: list[Row]) -> None:
    twice = measured(work, logs, report)["twice"]
    speed = bytes_in(logs.twice) / twice["seconds"] / 1e6
    report.append(Row(f"spark {work}: {MIB} MiB", speed, "MB/s", "", goal))


def test_spark_exports_to_parquet(logs: Logs, report: list[Row]) -> None:
    twice = measured("export", logs, report)["twice"]
    speed = twice["messages"] / twice["seconds"]
    report.append(Row(f"spark export: {MIB} MiB", speed, "msg/s", "", 400_000))


def test_the_plain_check_beside_spark(logs: Logs, report: list[Row]) -> None:
    """`myq wal verify`: one process, with its start."""
    program = [sys.executable, "-P", "-m", "myqueue.cli", "wal", "verify", "--json"]
    took = []
    for _ in range(ROUNDS):
        began = perf_counter()
        subprocess.run([*program, logs.twice / "broker-1"], check=True, stdout=subprocess.DEVNULL)
        took.append(perf_counter() - began)
    speed = bytes_in(logs.twice) / min(took) / 1e6
    report.append(Row(f"myq wal verify beside spark: {MIB} MiB", speed, "MB/s", "", 1000))
