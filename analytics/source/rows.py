"""From records to columns: the views of the data source, their schemas, and the reading of a task.

| view | a row is |
|---|---|
| records | a record of a log, every replica's, as it stands |
| entries | a committed entry of a partition, once |
| messages | a committed message, once |
| acks | a message that a ledger says was acknowledged |

A query that names its own schema (`.schema("offset long, value binary")`) gets those columns only,
and no others are built. Numbers of 64 bits without sign are given as Spark's long, so those above
2^63 - 1 come out negative; groups and disks are texts of hex digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from myqueue.analytics.log import batch
from myqueue.analytics.log.ack_ledger import AckTask, parsed
from myqueue.analytics.log.catalog import DATA, TYPES
from myqueue.analytics.log.moved_entries import opened
from myqueue.analytics.log.plan import Task
from myqueue.analytics.log.task_reader import chosen_of
from myqueue.errors import CorruptData
from myqueue.wal import format as f

ROWS_MAX: Final = 32_768
ACK_ROWS_MAX: Final = 65_536
BYTES_MAX: Final = 8 << 20

RECORDS, ENTRIES, MESSAGES, ACKS = "records", "entries", "messages", "acks"
SCHEMAS: Final = {
    RECORDS: (
        "daemon string, disk string, segment long, position long, kind string, flags int, "
        "length long, group string, index long, term long, offset long, count long, "
        "time timestamp, chain long, topic string, partition int, payload binary"
    ),
    ENTRIES: (
        "topic string, partition int, index long, term long, type string, offset long, "
        "count long, bytes long, time timestamp, producer long, epoch long, sequence long, "
        "codec int, body_bytes long, sent timestamp, group string, daemon string, segment long, "
        "position long, payload binary"
    ),
    MESSAGES: (
        "topic string, partition int, offset long, timestamp timestamp, key binary, "
        "value binary, headers map<string,binary>, stored timestamp, index long, "
        "producer long, epoch long, sequence long"
    ),
    ACKS: "topic string, partition int, offset long, crc long, line long",
}


def signed(number: int) -> int:
    """An unsigned number of 64 bits as a signed one with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def micros(time_ms: int) -> int | None:
    """Milliseconds as Spark's timestamp; None for 0 and for times beyond Spark's range."""
    return time_ms * 1000 if 0 < time_ms < 1 << 53 else None


class Builder:
    """Columns by name, cut into record batches."""

    def __init__(self, arrow_schema: Any) -> None:
        self._schema = arrow_schema
        self.columns: dict[str, list[Any]] = {name: [] for name in arrow_schema.names}
        self.rows = self.bytes = 0

    def take(self) -> Any:
        """Return the gathered rows as a RecordBatch, and begin a new one."""
        import pyarrow

        arrays = [
            pyarrow.array(self.columns[one.name], type=one.type)
            if pyarrow.types.is_timestamp(one.type) is False
            else pyarrow.array(self.columns[one.name], type=pyarrow.int64()).cast(one.type)
            for one in self._schema
        ]
        for column in self.columns.values():
            column.clear()
        self.rows = self.bytes = 0
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def read_task(
    task: Task,
    view: str,
    arrow_schema: Any,
    *,
    offsets: tuple[int, int],
    times_ms: tuple[int, int],
    skip_damage: bool,
) -> Iterator[Any]:
    """The record batches of one task. CorruptData at damage, unless it is to be skipped."""
    builder = Builder(arrow_schema)
    make: Callable[[], Any] = {RECORDS: _Records, ENTRIES: _Entries, MESSAGES: _Messages}[view]
    rows = make()
    for part, file in opened(task):
        rows.prepare(part, builder, offsets, times_ms)
        for record, payload in chosen_of(part, file, skip_damage):
            for _ in rows.add(record, payload):
                if builder.rows >= ROWS_MAX or builder.bytes >= BYTES_MAX:
                    yield builder.take()
    if builder.rows:
        yield builder.take()


_ONE_PIECE: Final = (None,)


class _Rows:
    """The common part of the three views. `add` takes a record and yields after each piece."""

    def prepare(
        self, task: Task, builder: Builder, offsets: tuple[int, int], times_ms: tuple[int, int]
    ) -> None:
        self._task, self._builder = task, builder
        self._offsets, self._times = offsets, times_ms
        self._columns = builder.columns

    def _put(self, values: dict[str, Any]) -> None:
        """Append one row."""
        for name, column in self._columns.items():
            column.append(values[name])
        self._builder.rows += 1


class _Records(_Rows):
    def add(self, record: f.Record, payload: memoryview) -> Iterable[None]:
        task = self._task
        topic, partition = task.names.get(record.group, (None, None))
        has_payload = "payload" in self._columns
        self._put(
            {
                "daemon": task.daemon,
                "disk": task.disk,
                "segment": task.number,
                "position": record.position,
                "kind": f.KIND_NAMES[record.kind],
                "flags": record.flags,
                "length": record.length,
                "group": f"{record.group:016x}" if record.group else None,
                "index": signed(record.index),
                "term": signed(record.term),
                "offset": signed(record.offset),
                "count": record.count,
                "time": micros(record.time_ms),
                "chain": signed(record.chain),
                "topic": topic,
                "partition": partition,
                "payload": bytes(payload) if has_payload else None,
            }
        )
        self._builder.bytes += record.length if has_payload else 0
        return _ONE_PIECE


class _Entries(_Rows):
    def add(self, record: f.Record, payload: memoryview) -> Iterable[None]:
        task = self._task
        if not (
            record.offset < self._offsets[1]
            and self._offsets[0] < max(record.offset + record.count, record.offset + 1)
            and self._times[0] <= record.time_ms < self._times[1]
        ):
            return ()
        topic, partition = task.names[record.group]
        head = batch.head(payload) if record.entry_type == DATA else None
        has_payload = "payload" in self._columns
        self._put(
            {
                "topic": topic,
                "partition": partition,
                "index": signed(record.index),
                "term": signed(record.term),
                "type": TYPES.get(record.entry_type, "unknown"),
                "offset": signed(record.offset),
                "count": record.count,
                "bytes": record.length,
                "time": micros(record.time_ms),
                "producer": signed(head.producer) if head else None,
                "epoch": head.epoch if head else None,
                "sequence": signed(head.sequence) if head else None,
                "codec": head.codec if head else None,
                "body_bytes": head.body_bytes if head else None,
                "sent": micros(head.time_ms) if head else None,
                "group": f"{record.group:016x}",
                "daemon": task.daemon,
                "segment": task.number,
                "position": record.position,
                "payload": bytes(payload) if has_payload else None,
            }
        )
        self._builder.bytes += record.length if has_payload else 0
        return _ONE_PIECE


class _Messages(_Rows):
    """Messages, a batch at a time: columns are extended, not appended to.

    A batch of few bytes may have a million messages, so its rows come in pieces of ROWS_MAX.
    """

    def add(self, record: f.Record, payload: memoryview) -> Iterator[None]:
        low, high = self._offsets
        if record.entry_type != DATA or not (
            record.offset < high
            and low < record.offset + record.count
            and self._times[0] <= record.time_ms < self._times[1]
        ):
            return
        try:
            head = batch.head(payload)
            messages = batch.columns(payload, head)
        except batch.BadBatch as error:
            raise CorruptData(
                f"{self._task.location} at position {record.position}: {error}",
                component=self._task.daemon,
            ) from None
        first = max(low - record.offset, 0)
        end = min(high - record.offset, head.count)
        for at in range(first, end, ROWS_MAX):
            self._extend(record, head, messages, at, min(end, at + ROWS_MAX))
            yield

    def _extend(
        self, record: f.Record, head: batch.Head, messages: batch.Columns, first: int, end: int
    ) -> None:
        count, columns = end - first, self._columns
        whole = count == head.count
        topic, partition = self._task.names[record.group]

        def part(column: list[Any] | None) -> list[Any]:
            if column is None:
                return [None] * count
            return column if whole else column[first:end]

        for name, column in columns.items():
            if name == "value":
                column.extend(part(messages.values))
            elif name == "offset":
                column.extend(range(record.offset + first, record.offset + end))
            elif name == "timestamp":
                if messages.times is None:
                    column.extend([micros(head.time_ms)] * count)
                else:
                    column.extend(micros(head.time_ms + one) for one in part(messages.times))
            elif name == "key":
                column.extend(part(messages.keys))
            elif name == "headers":
                column.extend(one and list(one.items()) for one in part(messages.headers))
            elif name == "sequence":
                sequence = head.sequence + first
                column.extend(map(signed, range(sequence, sequence + count)))
            else:
                column.extend([self._constant(name, record, head, topic, partition)] * count)
        self._builder.rows += count
        self._builder.bytes += head.body_bytes * count // head.count

    @staticmethod
    def _constant(name: str, record: f.Record, head: batch.Head, topic: str, partition: int) -> Any:
        match name:
            case "topic":
                return topic
            case "partition":
                return partition
            case "stored":
                return micros(record.time_ms)
            case "index":
                return signed(record.index)
            case "producer":
                return signed(head.producer)
            case "epoch":
                return head.epoch
        raise KeyError(name)


def read_acks(task: AckTask, arrow_schema: Any) -> Iterator[Any]:
    """The record batches of one task of a ledger."""
    builder = Builder(arrow_schema)
    for ack in parsed(task):
        count = len(ack.crcs)
        columns: dict[str, Any] = {
            "topic": [ack.topic] * count,
            "partition": [ack.partition] * count,
            "offset": range(ack.offset, ack.offset + count),
            "crc": ack.crcs,
            "line": [ack.line_at] * count,
        }
        for name, column in builder.columns.items():
            column.extend(columns[name])
        builder.rows += count
        if builder.rows >= ACK_ROWS_MAX:
            yield builder.take()
    if builder.rows:
        yield builder.take()
