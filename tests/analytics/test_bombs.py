"""Batches that are small in a log and large in memory: what a reader of logs spends is bounded."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.batches import forged
from support.queue_logs import Topic, make_entry, write_cluster

from myqueue.analytics.log import batch as batches
from myqueue.analytics.log.catalog import make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.analytics.log.plan import Wanted, committed_ranges, entry_tasks
from myqueue.analytics.source.rows import MESSAGES, ROWS_MAX, read_task
from myqueue.daemons.raft import types as t
from myqueue.errors import CorruptData
from myqueue.wire import batch

MIB = 1 << 20
ROWS = 1 << 16


def packed(body: bytes, count: int, size: int | None = None) -> bytes:
    says = len(body) if size is None else size
    return forged(zlib.compress(body, 9), count, size=says, codec=batch.ZLIB)


def column(item: bytes, count: int = ROWS) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


NIL, VALUES = b"\xc0", column(b"\xc4\x00")
LISTS = column(column(b"\x90", 128))  # eight MiB of empty lists, which take 56 bytes each
MAPS = column(b"\x81\xa0" * 20 + b"\x80")
FILLED = column(b"\x82\xa1a\x91\x90\xa1b" + b"\xdc\x00\x40" + b"\x90" * 64)
BODIES = {
    "lists as values": b"\x94" + LISTS + NIL * 3,
    "lists as keys": b"\x94" + VALUES + LISTS + NIL * 2,
    "lists as headers": b"\x94" + VALUES + NIL + LISTS + NIL,
    "lists as times": b"\x94" + VALUES + NIL * 2 + LISTS,
    "maps in headers": b"\x94" + VALUES + NIL + MAPS + NIL,
    "lists in headers": b"\x94" + VALUES + NIL + FILLED + NIL,
}


def cost_of(job: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes at most, and what was raised or returned."""
    tracemalloc.start()
    try:
        found = job()
    except (batches.BadBatch, CorruptData) as error:
        found = error
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most, found


@pytest.mark.parametrize("name", BODIES)
def test_lists_and_maps_within_columns_are_not_made(name: str) -> None:
    data = memoryview(packed(BODIES[name], ROWS))
    assert len(data) < 128 << 10
    most, found = cost_of(lambda: batches.columns(data, batches.head(data)))
    assert isinstance(found, batches.BadBatch), found
    assert most < 40 * MIB, "some would be 500"


@pytest.mark.parametrize("read", [batches.columns, batches.value_sizes])
def test_no_more_is_unpacked_than_the_header_says(read: Callable[..., Any]) -> None:
    data = memoryview(packed(bytes(60 * MIB), 1, 1000))
    most, found = cost_of(lambda: read(data, batches.head(data)))
    assert "not as long as its header says" in str(found) and most < MIB
    data = memoryview(packed(b"", 1, 65 * MIB))
    most, found = cost_of(lambda: read(data, batches.head(data)))
    assert f"a body of {65 * MIB} bytes" in str(found) and most < MIB


def test_a_batch_has_no_more_messages_than_brokers_take() -> None:
    data = memoryview(packed(b"", batches.COUNT_MAX + 1))
    most, found = cost_of(lambda: batches.head(data))
    assert "1048577 messages is too large" in str(found) and most < MIB


def tasks_of(folder: Path, payload: bytes, count: int) -> list[Any]:
    topic = Topic("orders", 0x64, 3, uid=0xABC)
    topic.entries.append(make_entry(topic.entries, t.DATA, payload, count))
    write_cluster(folder, [topic], (1,), segment_bytes=1 << 20)
    catalog = make_catalog(find_logs([str(folder)]))
    ranges = committed_ranges(catalog, Wanted())
    return list(entry_tasks(catalog, ranges, Wanted(), 1 << 30, may_miss=False))


def test_a_million_messages_in_few_bytes_come_in_pieces(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
    fields = {name: pyarrow.int64() for name in ("offset", "sequence", "index", "epoch")}
    schema = pyarrow.schema(fields | {"topic": pyarrow.string(), "value": pyarrow.binary()})
    payload = packed(b"\x94" + column(b"\xc4\x00", batches.COUNT_MAX) + NIL * 3, batches.COUNT_MAX)
    assert len(payload) < 4096
    (task,) = tasks_of(tmp_path, payload, batches.COUNT_MAX)
    rows: list[int] = []

    def read() -> None:
        every = (0, 1 << 63)
        for part in read_task(
            task, MESSAGES, schema, offsets=every, times_ms=every, skip_damage=False
        ):
            assert part["offset"][0].as_py() == sum(rows)
            rows.append(part.num_rows)

    most, error = cost_of(read)
    assert error is None and sum(rows) == batches.COUNT_MAX and max(rows) <= ROWS_MAX
    assert most < 32 * MIB, "all at once would be 140"


def test_a_bomb_is_told_by_its_place(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
    (task,) = tasks_of(tmp_path, packed(BODIES["lists as headers"], ROWS), ROWS)
    every, schema = (0, 1 << 63), pyarrow.schema({"offset": pyarrow.int64()})
    most, error = cost_of(
        lambda: list(
            read_task(task, MESSAGES, schema, offsets=every, times_ms=every, skip_damage=False)
        )
    )
    assert isinstance(error, CorruptData) and most < 40 * MIB
    assert f"{task.location} at position " in str(error) and "type 0xdd in a column" in str(error)
