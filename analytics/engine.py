"""How work is spread: a thin layer over Spark's RDDs, so that all that judges stays plain Python.

    Spread(session).run(orders, function)      a task for each order, its rows kept for several uses
    rows.judged(take, key, part, judge)        rows that belong together, in order, to one judge

RDDs and not data frames, as the rows are few and of many shapes: what is heavy was made small where
it was read. Sorting spills to disk, so no step depends on the size of the log.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any
from zlib import crc32

PARTS_PER_CORE = 2
PARTS_MAX = 2000
LOOK_S = 0.3


def stable(part: Any) -> int:
    """The same number for equal keys in every process."""
    return crc32(repr(part).encode())


class Rows:
    """What tasks handed on; read once, used by several."""

    def __init__(self, spread: Spread, rdd: Any) -> None:
        self._spread, self._rdd = spread, rdd

    def only(self, *kinds: type) -> Iterator[Any]:
        """Rows of these kinds in the order of the tasks, a task's at a time."""
        return iter(self._rdd.filter(lambda row: isinstance(row, kinds)).toLocalIterator(True))

    def judged(
        self, kinds: tuple[type, ...], key: Callable[[Any], tuple[Any, ...]], width: int,
        judge: Callable[[tuple[Any, ...], Iterator[Any]], Iterator[Any]],
    ) -> Iterator[Any]:  # fmt: skip
        """What `judge(first `width` items of the key, rows sorted by the whole key)` says."""

        def keyed(row: Any) -> tuple[Any, Any]:
            return key(row), row

        def each(pairs: Iterator[Any]) -> Iterator[Any]:
            for part, rows in groupby(pairs, lambda pair: pair[0][:width]):
                yield from judge(part, (row for _, row in rows))

        moved = (
            self._rdd.filter(lambda row: isinstance(row, kinds))
            .map(keyed)
            .repartitionAndSortWithinPartitions(
                self._spread.parts, lambda whole: stable(whole[:width])
            )
        )
        return iter(moved.mapPartitions(each).toLocalIterator(True))

    def forget(self) -> None:
        self._rdd.unpersist()


class Spread:
    def __init__(self, session: Any) -> None:
        self._context = session.sparkContext
        cores = max(1, self._context.defaultParallelism)
        self.parts = min(PARTS_MAX, PARTS_PER_CORE * cores)

    def run(self, orders: list[Any], function: Callable[[Any], Iterator[Any]]) -> Rows:
        from pyspark import StorageLevel

        tasks = self._context.parallelize(orders, max(1, len(orders)))
        rows = tasks.flatMap(function).persist(StorageLevel.MEMORY_AND_DISK)
        return Rows(self, rows)

    def join(self, *rows: Rows) -> Rows:
        return Rows(self, self._context.union([one._rdd for one in rows]))


@contextmanager
def progress(session: Any, label: str) -> Iterator[None]:
    """Tasks that are done, on a terminal; nothing anywhere else."""
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
        told = ", ".join(
            f"{one.numCompletedTasks}/{one.numTasks} tasks" for one in stages if one is not None
        )
        sys.stderr.write(
            f"\r\x1b[K{label} … {told or 'planning'}, {time.monotonic() - begin:.0f} s"
        )
        sys.stderr.flush()
