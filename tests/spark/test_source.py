"""D1: the data source on a real Spark, held against an independent reader of the same logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.plain_reader import messages, records
from support.queue_logs import Broker, Topic

from myqueue.wal import format as f


def test_messages_are_those_of_an_independent_reader(spark: Any, folder: Path) -> None:
    wanted = messages(folder / "broker-1")
    frame = spark.read.format("myqueue").option("splitBytes", 5000).load(str(folder))
    rows = frame.select("topic", "partition", "offset", "value").collect()
    assert len(rows) == len(wanted)
    assert sorted(bytes(row.value) for row in rows) == sorted(one.value for one in wanted)
    assert len({row[:3] for row in rows}) == len(rows)


def test_filters_schema_and_the_other_views(spark: Any, folder: Path) -> None:
    source = spark.read.format("myqueue")
    frame = source.load([str(folder / "broker-1"), str(folder / "broker-3")])
    few = frame.where("topic = 'a' and partition = 1 and offset >= 20 and offset < 23")
    assert [row.offset for row in few.orderBy("offset").collect()] == [20, 21, 22]
    assert frame.count() == len(messages(folder / "broker-1")), "the filter was another query's"
    pushing = spark.read.format("myqueue").option("pushFilters", "true")
    one = pushing.load(str(folder)).where("topic = 'a' and partition = 1 and offset = 20")
    assert [row.offset for row in one.collect()] == [20]
    pruned = spark.read.format("myqueue").schema("offset long, value binary").load(str(folder))
    assert pruned.columns == ["offset", "value"]
    assert pruned.count() == frame.count()
    kinds = spark.read.format("myqueue").option("view", "records").load(str(folder))
    counts = {row["kind"]: row["count"] for row in kinds.groupBy("kind").count().collect()}
    whole = [one for n in (1, 2, 3) for one in records(folder / f"broker-{n}")]
    assert counts["ENTRY"] == sum(one.kind == f.ENTRY for one in whole)
    entries = spark.read.format("myqueue").option("view", "entries").load(f"file://{folder}")
    assert entries.count() == counts["ENTRY"] // 3
    assert entries.where("type = 'data'").agg({"count": "sum"}).first()[0] == frame.count()


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("view", "nothing", "view 'nothing'"),
        ("fromOffset", "-3", "not a number from 0 on"),
        ("topics", "a", "option 'topics' is not known"),
    ],
)
def test_a_wrong_option_says_what_is_right(
    spark: Any, folder: Path, option: str, value: str, text: str
) -> None:
    with pytest.raises(Exception, match=text):
        spark.read.format("myqueue").option(option, value).load(str(folder)).count()


class Growing:
    """A log that is written to while streams read it."""

    def __init__(self, folder: Path) -> None:
        self.topic, self.broker = Topic("grow", 500), Broker(folder / "broker-1", 1, 1 << 14)
        self.broker.create(self.topic, [1])

    def grow(self, batches: int, count: int = 7) -> None:
        before = len(self.topic.entries)
        for _ in range(batches):
            self.topic.data(count)
        self.broker.append(self.topic, self.topic.entries[before:])
        self.broker.commit_hint(self.topic, len(self.topic.entries))
        self.broker.close()  # the last records are proved by then
        self.broker = Broker(self.broker.folder, 1, 1 << 14)


def test_a_stream_loses_and_doubles_nothing_over_restarts(spark: Any, tmp_path: Path) -> None:
    """D1: stopped after each part, once with its last batch undone; the checkpoint knows."""
    logs, out, point = tmp_path / "logs", tmp_path / "out", tmp_path / "point"
    growing = Growing(logs)

    def run() -> None:
        query = (
            spark.readStream.format("myqueue")
            .schema("topic string, offset long, value binary")
            .load(str(logs))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(point))
            .option("path", str(out))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    for round_ in range(3):
        growing.grow(20)
        run()
        if round_ == 1:  # as if it had died before it noted that the batch was done
            newest = max(int(p.name) for p in (point / "commits").iterdir() if p.name.isdigit())
            (point / "commits" / str(newest)).unlink()
            (point / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    run()  # a trigger that has to repeat a batch may end with that
    growing.broker.close()
    offsets = [row.offset for row in spark.read.parquet(str(out)).select("offset").collect()]
    assert sorted(offsets) == list(range(3 * 20 * 7))
