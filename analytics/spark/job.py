"""Spread work over executors: a thin layer over Spark's RDDs, so that judges stay plain Python.

    Spread(session).judged(orders, function, judges)

One job has two stages: tasks read and yield few rows, and these are sorted to their judges. Every
byte is read once, by all cores at a time. RDDs are used and not data frames, since the rows have
many shapes; tasks made them few already. Sorting spills to disk, and Spark keeps what judges say
until it is fetched, part by part, so the memory of no step depends on the size of the log.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any
from zlib import crc32

from myqueue.analytics.spread import Judge

# A task costs some 10 ms besides its reading, so an order does not always get one of its own.
ORDERS_PER_TASK = 2
TASKS_PER_CORE = 4
PARTS_PER_CORE = 2
PARTS_MAX = 2000
UNJUDGED = -1
LOOK_S = 0.3


def stable(part: Any) -> int:
    """The same number for equal keys in every process."""
    return crc32(repr(part).encode())


class SparkSpreader:
    """Implements `Spreader` with a Spark session."""

    def __init__(self, session: Any) -> None:
        self._context = session.sparkContext
        self._cores = max(1, self._context.defaultParallelism)

    def judged(
        self, orders: list[Any], function: Callable[[Any], Iterator[Any]], judges: Sequence[Judge]
    ) -> Iterator[Any]:
        from pyspark import StorageLevel

        fewest = min(len(orders), TASKS_PER_CORE * self._cores)
        tasks = max(1, fewest, -(-len(orders) // ORDERS_PER_TASK))
        parts = min(PARTS_MAX, PARTS_PER_CORE * self._cores)
        rows = self._context.parallelize(orders, tasks).flatMap(function)
        results = _sorted(rows, judges, parts).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            # The count in the JVM only makes Spark compute all parts at once: the iterator would
            # compute one part after the other.
            results._jrdd.count()
            yield from results.toLocalIterator(True)
        finally:
            results.unpersist()


def _sorted(rows: Any, judges: Sequence[Judge], parts: int) -> Any:
    places = {kind: place for place, one in enumerate(judges) for kind in one.kinds}
    keys = {place: one.key for place, one in enumerate(judges)}
    widths = {place: 1 + one.width for place, one in enumerate(judges)} | {UNJUDGED: 1}

    def keyed(row: Any) -> tuple[tuple[Any, ...], Any]:
        place = places.get(type(row), UNJUDGED)
        return ((place,) if place == UNJUDGED else (place, *keys[place](row))), row

    def part_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return key[: widths[key[0]]]

    def each(pairs: Iterator[Any]) -> Iterator[Any]:
        for part, its in groupby(pairs, lambda pair: part_of(pair[0])):
            its_rows = (row for _, row in its)
            place = part[0]
            yield from its_rows if place == UNJUDGED else judges[place].judge(part[1:], its_rows)

    moved = rows.map(keyed).repartitionAndSortWithinPartitions(
        parts, lambda key: stable(part_of(key))
    )
    return moved.mapPartitions(each)


@contextmanager
def progress(session: Any, label: str) -> Iterator[None]:
    """Show on a terminal how many tasks are done; show nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_show, args=(session.sparkContext.statusTracker(), label, ended), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2)
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _show(tracker: Any, label: str, ended: threading.Event) -> None:
    begin = time.monotonic()
    while not ended.wait(LOOK_S):
        stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
        tasks = ", ".join(
            f"{one.numCompletedTasks}/{one.numTasks} tasks" for one in stages if one is not None
        )
        sys.stderr.write(
            f"\r\x1b[K{label} … {tasks or 'planning'}, {time.monotonic() - begin:.0f} s"
        )
        sys.stderr.flush()
