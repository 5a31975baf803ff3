"""Write sums as Parquet in this process: they are few, so no Spark cluster is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from myqueue.analytics.source.rows import signed
from myqueue.analytics.stats.count_task import MINUTE_MS, Count

ROWS_AT_ONCE = 65_536


@contextmanager
def count_writer(path: str | None) -> Iterator[Callable[[Count], None] | None]:
    """Open a sink that writes sums to `path`; None without a path."""
    if path is None:
        yield None
        return
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    types = {
        "topic": pyarrow.string(),
        "partition": pyarrow.int32(),
        "minute": pyarrow.timestamp("ms", tz="UTC"),
    }
    schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in Count._fields])
    waiting: list[Count] = []
    with ParquetWriter(path, schema) as writer:

        def flush() -> None:
            columns: dict[str, list[Any]] = {
                name: list(column)
                for name, column in zip(Count._fields, zip(*waiting, strict=True), strict=True)
            }
            columns["producer"] = [signed(producer) for producer in columns["producer"]]
            columns["minute"] = [minute * MINUTE_MS for minute in columns["minute"]]
            writer.write_table(pyarrow.table(columns, schema=schema))
            waiting.clear()

        def sink(row: Count) -> None:
            waiting.append(row)
            if len(waiting) >= ROWS_AT_ONCE:
                flush()

        yield sink
        if waiting:
            flush()
