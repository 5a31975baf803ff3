"""Messages to Parquet, incrementally: a stream that takes all there is and stops.

Spark's checkpoint says how far the export is, and its file sink which files count: those listed in
`_spark_metadata` in the target. So a run that was killed is repeated without doubling anything.
Read the target with Spark, which heeds that list; others see files of a killed run, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from myqueue.analytics.log import storage
from myqueue.analytics.log.plan import Wanted
from myqueue.analytics.verify.commit_point import Judge, notes, refuse_strangers, refuse_unknown
from myqueue.errors import InvalidRequest

PROGRESS = "_progress"
COLUMNS = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers map<string,binary>, stored timestamp"
)


def export(
    session: Any, paths: list[str], target: str, topics: tuple[str, ...], *, restart: bool,
    skip_unknown: bool = False, note: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """How many messages were written now. What can't be exported is refused before anything is
    written; `note` is told of what is left out.
    """
    catalog, judgement = Judge().looked_at(paths, Wanted(topics=topics or None))
    refuse_strangers(catalog, topics)
    if not skip_unknown:
        refuse_unknown(judgement, "Or leave these partitions out: --skip-unknown.")
    for text in notes(judgement):
        note(text)
    target = storage.canonical(target)
    checkpoint = storage.join(target, PROGRESS)
    if restart:
        _remove(session, target)
    source = session.readStream.format("myqueue").schema(COLUMNS)
    source = source.option("paths", json.dumps([storage.canonical(one) for one in paths]))
    if topics:
        source = source.option("topic", ",".join(topics))
    if skip_unknown:
        source = source.option("failOnUnknown", "false")
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
