"""Export messages to Parquet, incrementally: a stream that takes all there is and stops.

Comes in: logs and a target. Goes out: Parquet files in folders by topic and partition.

Spark's checkpoint says how far the export is. Spark's file sink lists the files that count in
`_spark_metadata` in the target. So a run that was killed can be repeated, and no message is
doubled. Read the target with Spark, which follows that list; other readers see files of a killed
run as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from myqueue.analytics.log import storage
from myqueue.analytics.log.plan import Wanted
from myqueue.analytics.verify.commit_point import (
    CommitJudge,
    notes,
    refuse_strangers,
    refuse_unknown,
)
from myqueue.errors import InvalidRequest

PROGRESS = "_progress"
COLUMNS = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers map<string,binary>, stored timestamp"
)


def export(
    session: Any,
    paths: list[str],
    target: str,
    topics: tuple[str, ...],
    *,
    restart: bool,
    skip_unknown: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> int:
    """Export messages that are not exported yet, and return how many were written.

    UnknownTopic or CorruptData is raised before anything is written. `note(text)` is called for
    everything that is left out. `restart` removes an earlier export at the target first.
    """
    catalog, judgement = CommitJudge().looked_at(paths, Wanted(topics=topics or None))
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
    """Remove an export; InvalidRequest for a folder that is none: one without its progress."""
    jvm = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(target)
    system = path.getFileSystem(session._jsc.hadoopConfiguration())
    if not system.exists(path):
        return
    if not system.exists(jvm.org.apache.hadoop.fs.Path(storage.join(target, PROGRESS))):
        raise InvalidRequest(f"{target} is there, and is not an export", hint="Name another one.")
    system.delete(path, True)
