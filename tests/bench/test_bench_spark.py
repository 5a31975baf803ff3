"""Spark over the log on local[2]: verify, stats, messages to Parquet; beside Spark's own scan.

`MYQ_BENCH_SPARK_MIB` is the size of the log (1,024 unless set), of batches of 16 KiB with messages
of 100 B. Each measurement is made after a warm-up on a small log; memory is the most that the JVM
and the Python workers held at once, looked at some times a second, for one and for twice the data.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.figures import Row
from kit.queue_logs import Broker, Topic

MIB = int(os.environ.get("MYQ_BENCH_SPARK_MIB", "1024"))
BATCH_MESSAGES = 160
MESSAGE_BYTES = 100
LOOK_S = 0.2


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


def resident(root: int) -> int:
    """Of a process and all below it, without what they share with the disk's cache."""
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = Path("/proc", name, "status").read_text()
            except OSError:
                continue
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            children.setdefault(int(fields["PPid"]), []).append(int(name))
            sizes[int(name)] = int(fields.get("RssAnon", "0 kB").split()[0]) << 10
    total, left = 0, [root]
    while left:
        one = left.pop()
        total += sizes.get(one, 0)
        left += children.get(one, [])
    return total


@contextmanager
def memory() -> Iterator[list[int]]:
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            most[0] = max(most[0], resident(os.getpid()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from myqueue.analytics.session import make_session

    made = make_session("local[2]", name="bench")
    yield made
    made.stop()


def timed(work: Callable[[], Any]) -> tuple[float, int]:
    begin = time.monotonic()
    with memory() as most:
        work()
    return time.monotonic() - begin, most[0]


def test_spark_over_the_log(session: Any, disk: Path, report: list[Row]) -> None:
    from myqueue.analytics.engine import Spread
    from myqueue.analytics.export import export
    from myqueue.analytics.stats import stats
    from myqueue.analytics.verify import Asked, verify

    def works(folder: Path) -> dict[str, Callable[[], Any]]:
        def checked() -> None:
            found = verify(Asked([str(folder)], with_stores=False), Spread(session), disk)
            assert found.ok and found.messages == sizes[folder]

        def counted() -> None:
            assert stats([str(folder)], Spread(session))["messages"] == sizes[folder]

        def exported() -> None:
            out = disk / f"out-{folder.name}-{time.monotonic_ns()}"
            assert export(session, [str(folder)], str(out), (), restart=False) == sizes[folder]

        def scanned() -> None:
            frame = session.read.format("binaryFile").load(f"{folder}/broker-1/wal/*.seg")
            frame.selectExpr("sum(crc32(content))").collect()

        return {"verify": checked, "stats": counted, "export": exported, "binaryFile": scanned}

    sizes: dict[Path, int] = {}
    for name, mib in (("small", 16), ("once", MIB // 2), ("twice", MIB)):
        sizes[disk / name] = write_log(disk / name, mib)
    for work in works(disk / "small").values():
        work()
    figures = {
        (name, kind): timed(work)
        for name in ("once", "twice")
        for kind, work in works(disk / name).items()
    }
    size = bytes_in(disk / "twice") / 1e6
    bare = size / figures["twice", "binaryFile"][0]
    for kind, goal in (("verify", 400), ("stats", 300)):
        speed = size / figures["twice", kind][0]
        beside = f"binaryFile {bare:,.0f} MB/s"
        report.append(Row(f"spark {kind}, {MIB} MiB", speed, "MB/s", beside, goal))
    messages = sizes[disk / "twice"] / figures["twice", "export"][0]
    report.append(Row(f"spark export to Parquet, {MIB} MiB", messages, "msg/s", "", 400_000))
    for kind in ("verify", "stats", "export", "binaryFile"):
        most, before = figures["twice", kind][1], figures["once", kind][1]
        beside = f"{before / 1e6:,.0f} MB at half the data"
        report.append(Row(f"spark {kind}: memory", most / 1e6, "MB", beside))
