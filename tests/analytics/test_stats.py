"""D3, without a JVM: the sums are those of an independent reader; the page holds together."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.plain_reader import messages
from support.plain_spread import PlainSpread
from support.queue_logs import (
    Broker,
    Topic,
    make_entry,
    some_topics,
    write_cluster,
    write_replica,
)

from myqueue.analytics.html import svg
from myqueue.analytics.log import batch as batches
from myqueue.analytics.stats import count_task
from myqueue.analytics.stats.count_task import Count
from myqueue.analytics.stats.page import stats_page
from myqueue.analytics.stats.parquet import count_writer
from myqueue.analytics.stats.stats import stats
from myqueue.analytics.stats.topic_columns import TOPIC_COLUMNS
from myqueue.daemons.raft import types as t
from myqueue.wire import batch


def test_sums_are_those_of_an_independent_reader(tmp_path: Path) -> None:
    topics = some_topics(60)
    write_cluster(tmp_path, topics, segment_bytes=1 << 14)
    rows: list[Count] = []
    facts = stats([str(tmp_path)], PlainSpread(), sink=rows.append, split_bytes=3000)
    found = messages(tmp_path / "broker-2")
    by_group = Counter(one.group for one in found)
    assert facts["messages"] == len(found) == sum(one.messages for one in rows)
    assert {(p["topic"], p["partition"]): p["messages"] for p in facts["partitions"]} == {
        (one.name, one.partition): by_group[one.group] for one in topics
    }
    assert {one.producer for one in rows} == {7, 8}
    assert len(rows) == len({row[:4] for row in rows})
    assert facts["sizes"]["count"] == len(found)
    assert facts["sizes"]["max"] == max(len(one.value) for one in found) == 40
    assert sum(facts["minutes"]["bytes"]) == facts["bytes"]
    assert [one["index"] for one in facts["elections"]] == [1, 1, 1]
    only = stats([str(tmp_path)], PlainSpread(), topics=("b",))
    assert only["messages"] == by_group[102]


def test_replicas_behind_are_told(tmp_path: Path) -> None:
    topic = some_topics(20, groups=1)[0]
    whole = list(topic.entries)
    for node in (1, 2):
        topic.entries = whole[: len(whole) - 3 * (node == 2)]
        broker = Broker(tmp_path / f"broker-{node}", node)
        broker.create(topic, (1, 2))
        write_replica(broker, [topic])
        broker.close()
    [row] = stats([str(tmp_path)], PlainSpread())["replicas"]
    assert row["behind"] == {"broker-1": 0, "broker-2": 3}


def test_a_hint_that_was_moved_is_no_delay(tmp_path: Path) -> None:
    """It stands behind an entry that was moved as well, at any time later."""
    topic = Topic("a", 100)
    topic.data(5)
    topic.data(5)
    broker = Broker(tmp_path / "broker-1", 1)
    broker.create(topic, [1])
    broker.log.journal.append(100, topic.entries[:1], relocated=True)
    broker.commit_hint(topic, 1)
    broker.append(topic, topic.entries[1:])
    broker.commit_hint(topic, 2)
    broker.close()
    facts = stats([str(tmp_path)], PlainSpread())
    assert facts["messages"] == 10
    assert facts["stamped_to_hint_ms"]["count"] == 0


def test_sums_as_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra spark is not installed")
    sums = range(1, 1 + len(count_task.SUMMED))
    rows = [Count("a", 1, 2**64 - 1, 28_000_000 + at, *sums) for at in range(5)]
    with count_writer(str(tmp_path / "sums.parquet")) as sink:
        assert sink is not None
        for row in rows:
            sink(row)
    table = parquet.read_table(tmp_path / "sums.parquet")
    assert table.num_rows == 5
    assert table.column_names == list(Count._fields)
    assert table.schema.field("minute").type == pyarrow.timestamp("ms", tz="UTC")
    assert table.schema.field("partition").type == pyarrow.int32()
    assert [table.column(name).to_pylist()[0] for name in count_task.SUMMED] == list(sums)
    assert table.column("producer").to_pylist()[0] == -1
    assert table.column("minute").to_pylist()[4].timestamp() == (28_000_000 + 4) * 60


@pytest.mark.parametrize("value", [*range(70), 1000, 2**31 - 1, 2**40])
def test_a_bucket_holds_its_value(value: int) -> None:
    place = count_task.bucket(value)
    assert count_task.low_of(place) <= value < max(count_task.low_of(place + 1), 1)
    near = count_task.percentile({place: 1}, 0.5, value)
    assert abs(near - value) <= value * 0.2


@pytest.mark.parametrize("sizes", [[5], [100] * 20, [300] * 5, [1, 0, 70_000, 3], [0] * 9])
@pytest.mark.parametrize("codec", [batch.PLAIN, batch.ZLIB])
def test_sizes_without_opening(sizes: list[int], codec: int) -> None:
    values = [b"x" * size for size in sizes]
    raw = memoryview(batch.make([values, None, None, None], 5, codec=codec))
    runs = batches.value_sizes(raw, batches.head(raw))
    assert [size for size, times in runs for _ in range(times)] == sizes


@pytest.mark.parametrize("values", [[b"a", None], [None, None], [b"abc"] * 4 + [None]])
def test_a_batch_with_a_message_without_value_is_not_counted(
    values: list[bytes | None], tmp_path: Path
) -> None:
    """Brokers look at the heads of items only, so a broken producer can have it stored."""
    raw = batch.make([values, None, None, None], 5)
    with pytest.raises(batches.BadBatch, match="without values"):
        batches.value_sizes(memoryview(raw), batches.head(raw))
    topic = Topic("a", 100)
    topic.data(3)
    topic.entries.append(make_entry(topic.entries, t.DATA, raw, len(values)))
    topic.data(4)
    write_cluster(tmp_path, [topic])
    facts = stats([str(tmp_path)], PlainSpread())
    assert (facts["entries"], facts["messages"], facts["sizes"]["count"]) == (2, 7, 7)


def test_a_row_has_all_sums_and_they_are_added_up_by_name() -> None:
    assert tuple(asdict(count_task.Sums())) == count_task.SUMMED == Count._fields[4:]
    rows = [Count("a", 1, 7, 5, *range(at, at + len(count_task.SUMMED))) for at in (10, 200)]
    whole = count_task.sum_counts(("a", 1, 7, 5), rows)
    assert whole == ("a", 1, 7, 5, *(210 + 2 * at for at in range(len(count_task.SUMMED))))


def plots_in(page: str) -> list[ElementTree.Element]:
    parts = page.split("<svg")[1:]
    return [ElementTree.fromstring("<svg" + one.split("</svg>")[0] + "</svg>") for one in parts]


def test_the_page_has_its_plots_and_loads_nothing(tmp_path: Path) -> None:
    topic = Topic("<b>&", 100)
    topic.noop()
    topic.data(3)
    write_cluster(tmp_path, [topic])
    facts = stats([str(tmp_path)], PlainSpread()) | {"took_s": 0.5}
    page = stats_page(facts)
    assert all(f">{column.heading}</th>" in page for column in TOPIC_COLUMNS)
    assert len(plots_in(page)) == 10
    assert "<b>&" not in page and "&lt;b&gt;&amp;" in page
    assert "http" not in page and "<script" not in page


def test_plots_of_nothing_are_plots() -> None:
    assert svg.curves([], {}).startswith("<svg")
    assert svg.bars([], []).startswith("<svg")
    assert svg.lines({"a": []}).startswith("<svg")
    for most in (0, 0.3, 1, 7, 99, 1e6, 12_345_678):
        assert svg.nice_top([most]) >= most
