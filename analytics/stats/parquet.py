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

    schema = pyarrow.schema([
        ("topic", pyarrow.string()), ("partition", pyarrow.int32()),
        ("producer", pyarrow.int64()), ("minute", pyarrow.timestamp("ms", tz="UTC")),
        ("entries", pyarrow.int64()), ("messages", pyarrow.int64()), ("bytes", pyarrow.int64()),
        ("body_bytes", pyarrow.int64()),
    ])  # fmt: skip
    waiting: list[Count] = []
    with ParquetWriter(path, schema) as writer:

        def flush() -> None:
            columns: list[Any] = [list(column) for column in zip(*waiting, strict=True)]
            columns[2] = list(map(signed, columns[2]))
            columns[3] = [minute * MINUTE_MS for minute in columns[3]]
            arrays = [pyarrow.array(c, one.type) for c, one in zip(columns, schema, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            waiting.clear()

        def sink(one: Count) -> None:
            waiting.append(one)
            if len(waiting) >= ROWS_AT_ONCE:
                flush()

        yield sink
        if waiting:
            flush()
