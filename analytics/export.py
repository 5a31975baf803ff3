"""Messages to Parquet, incrementally: a stream that takes all there is and stops.

Spark's checkpoint says how far the export is, and its file sink which files count: those listed in
`_spark_metadata` in the target. So a run that was killed is repeated without doubling anything.
Read the target with Spark, which heeds that list; others see files of a killed run, too.
"""

from __future__ import annotations

import json
from typing import Any

from myqueue.analytics import storage
from myqueue.errors import InvalidRequest

PROGRESS = "_progress"
COLUMNS = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers map<string,binary>, stored timestamp"
)


def export(
    session: Any, paths: list[str], target: str, topics: tuple[str, ...], *, restart: bool
) -> int:
    """How many messages were written now."""
    target = storage.canonical(target)
    checkpoint = storage.join(target, PROGRESS)
    if restart:
        _remove(session, target)
    source = session.readStream.format("myqueue").schema(COLUMNS)
    source = source.option("paths", json.dumps([storage.canonical(one) for one in paths]))
    if topics:
        source = source.option("topic", ",".join(topics))
    query = (
        source.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .option("path", target)
        .partitionBy("topic", "partition")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sum(int(one["numInputRows"]) for one in query.recentProgress)


def _remove(session: Any, target: str) -> None:
    """Only what is an export: a folder with its progress in it."""
    jvm = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(target)
    system = path.getFileSystem(session._jsc.hadoopConfiguration())
    if not system.exists(path):
        return
    if not system.exists(jvm.org.apache.hadoop.fs.Path(storage.join(target, PROGRESS))):
        raise InvalidRequest(f"{target} is there, and is not an export", hint="Name another one.")
    system.delete(path, True)
