"""`spark.read.format("myqueue")` and `spark.readStream.format("myqueue")`.

Comes in: options. Goes out: tasks (planning) and Arrow record batches (reading). Planning reads
headers, footers and few records, in one process. Executors read the tasks independently, and need
only Python and pyarrow.

| option | meaning |
|---|---|
| path, or `.load([…])` | daemons' folders, a cluster's data folder, archives; paths or URIs |
| view | messages (default), entries, records, acks |
| topic, partition | one or several, separated by commas |
| fromOffset, toOffset | the first offset, and the one after the last |
| fromTime, toTime | the same by the stamp of the partition's leader: ms since 1970, or ISO 8601 |
| splitBytes | bytes of a segment for one task, 64 MiB unless set |
| pushFilters | false: filters are applied by Spark alone; see below |
| failOnDamage | true: a record that fails its checksum is an error; false: it is left out |
| failOnDataLoss | true: committed entries that no log has are an error; false: they are left out |
| failOnUnknown | true: an error if nothing in the logs tells what of a partition is committed; \
false: it is left out |

With `pushFilters=true`, filters on topic, partition, offset, group, daemon, segment and kind are
compared with footers as well, if `spark.sql.python.filterPushdown.enabled` is true. It is off by
default, since Spark 4 (seen with 4.3) keeps the plan of a data frame's filtered query and uses it
for a later query of the same data frame without filters, which then lacks rows. With this option,
load a new data frame for each query. The options above do the same and are always safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from myqueue.analytics.log import ack_ledger
from myqueue.analytics.log.catalog import ALL, make_catalog
from myqueue.analytics.log.discovery import find_logs, looked
from myqueue.analytics.log.plan import (
    SPLIT_BYTES,
    Task,
    Wanted,
    committed_ranges,
    entry_tasks,
    record_tasks,
)
from myqueue.analytics.source import filters as pushdown
from myqueue.analytics.source.rows import ACKS, MESSAGES, RECORDS, SCHEMAS, read_acks, read_task
from myqueue.analytics.verify.commit_point import CommitJudge, refuse_strangers, refuse_unknown
from myqueue.errors import InvalidRequest

WAY_ON = "Or leave these partitions out: failOnUnknown=false."
VIEWS = tuple(SCHEMAS)
OPTIONS = (
    *("path", "paths", "view", "topic", "partition", "fromoffset", "tooffset", "fromtime"),
    *("totime", "splitbytes", "failondamage", "failondataloss", "failonunknown"),
    *("maxentriespertrigger", "pushfilters"),
)


class Options:
    """The checked options of a reader; InvalidRequest for one that is unknown or wrong."""

    def __init__(self, given: dict[str, str]) -> None:
        # Spark hands some options over twice, in two spellings.
        options = {name.lower(): value for name, value in given.items()}
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise InvalidRequest(
                f"option {unknown[0]!r} is not known", hint=f"Known: {', '.join(OPTIONS)}."
            )
        self.paths = pushdown.paths_of(options.get("path"), options.get("paths"))
        self.view = options.get("view", MESSAGES)
        if self.view not in VIEWS:
            raise InvalidRequest(f"view {self.view!r}; there are {', '.join(VIEWS)}")
        self.split_bytes = _number("splitBytes", options.get("splitbytes"), SPLIT_BYTES) or 1
        self.skip_damage = not _truth("failOnDamage", options.get("failondamage"))
        self.may_miss = not _truth("failOnDataLoss", options.get("failondataloss"))
        self.skip_unknown = not _truth("failOnUnknown", options.get("failonunknown"))
        self.pushes = _truth("pushFilters", options.get("pushfilters", "false"))
        self.entries_max = _number("maxEntriesPerTrigger", options.get("maxentriespertrigger"), 0)
        self.topics = _list(options.get("topic"))
        self.wanted = Wanted(
            topics=self.topics,
            partitions=_partitions(options.get("partition")),
            offsets=(
                _number("fromOffset", options.get("fromoffset"), 0),
                _number("toOffset", options.get("tooffset"), ALL),
            ),
            times_ms=(
                _time("fromTime", options.get("fromtime"), 0),
                _time("toTime", options.get("totime"), ALL),
            ),
        )


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(one.strip() for one in text.split(",") if one.strip())


def _partitions(text: str | None) -> tuple[int, ...] | None:
    numbers = _list(text)
    return None if numbers is None else tuple(_number("partition", one, 0) for one in numbers)


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidRequest(f"option {name}={text!r} is not a number from 0 on")
    return number


def _truth(name: str, text: str | None) -> bool:
    known = {"true": True, "false": False}
    truth = known.get((text or "true").lower())
    if truth is None:
        raise InvalidRequest(f"option {name}={text!r} is neither true nor false")
    return truth


def _time(name: str, text: str | None, default: int) -> int:
    if text is None or text.isdigit():
        return _number(name, text, default)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"option {name}={text!r} is neither ms since 1970 nor an ISO 8601 time"
        ) from None
    zone = moment.tzinfo or UTC
    return int(moment.replace(tzinfo=zone).timestamp() * 1000)


class SourcePartition(InputPartition):  # type: ignore[misc]
    """A task on its way to an executor."""

    def __init__(self, task: Any) -> None:
        super().__init__(None)
        self.task = task


class MyQueueSource(DataSource):  # type: ignore[misc]
    """The format `myqueue`, as Spark calls it: schema, batch reader and stream reader.

    Options are those of the table above. Run `spark.dataSource.register(MyQueueSource)` where
    Spark does not find the package `pyspark_myqueue` by itself.
    """

    @classmethod
    def name(cls) -> str:
        return "myqueue"

    def schema(self) -> str:
        view = Options(self.options).view
        return SCHEMAS[view]

    def reader(self, schema: Any) -> DataSourceReader:
        options = Options(self.options)
        return Reader(options, arrow_schema(schema, options.view))

    def streamReader(self, schema: Any) -> Any:
        from myqueue.analytics.source.streaming import StreamReader

        options = Options(self.options)
        return StreamReader(options, arrow_schema(schema, options.view))


def arrow_schema(schema: Any, view: str) -> Any:
    """Spark's schema as Arrow's. It may have some or all of the view's columns, of their types."""
    import pyarrow

    types = {
        "string": pyarrow.string(),
        "int": pyarrow.int32(),
        "bigint": pyarrow.int64(),
        "binary": pyarrow.binary(),
        "timestamp": pyarrow.timestamp("us", tz="UTC"),
        "map<string,binary>": pyarrow.map_(pyarrow.string(), pyarrow.binary()),
    }
    text = SCHEMAS[view]
    known = dict(one.split(" ") for one in text.replace("long", "bigint").split(", "))
    for one in schema.fields:
        wanted, given = known.get(one.name), one.dataType.simpleString()
        if wanted != given:
            what = f"is {wanted}, not {given}" if wanted else "is not one of its columns"
            raise InvalidRequest(f"view {view}: {one.name} {what}", hint=f"It has {text}.")
    return pyarrow.schema([(one.name, types[known[one.name]]) for one in schema.fields])


class _Pushes:
    """The method `pushFilters`, only for readers with that option.

    Spark refuses a reader that has the method while pushing down is off. Pushed filters are handed
    back, so Spark applies all of them again.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        options = self._reader.options
        options.wanted = pushdown.narrowed(options.wanted, filters, options.view)
        return filters


class Reader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads one batch query."""

    def __init__(self, options: Options, schema: Any) -> None:
        self.options, self._schema = options, schema
        if options.pushes:
            self.pushFilters = _Pushes(self)

    def partitions(self) -> list[InputPartition]:
        options = self.options
        if options.view == ACKS:
            return [
                SourcePartition(one) for one in ack_ledger.tasks(options.paths, options.split_bytes)
            ]
        if options.view == RECORDS:
            catalog = looked(lambda: make_catalog(find_logs(options.paths)))
            refuse_strangers(catalog, options.topics)
            tasks = record_tasks(catalog, options.wanted, options.split_bytes)
        else:
            catalog, judgement = CommitJudge().looked_at(options.paths, options.wanted)
            refuse_strangers(catalog, options.topics)
            if not options.skip_unknown:
                refuse_unknown(judgement, WAY_ON)
            ranges = committed_ranges(catalog, options.wanted)
            tasks = entry_tasks(
                catalog, ranges, options.wanted, options.split_bytes, may_miss=options.may_miss
            )
        return [SourcePartition(one) for one in tasks] or [SourcePartition(None)]

    def read(self, partition: SourcePartition) -> Iterator[Any]:
        return read_part(partition.task, self.options, self._schema)


def read_part(task: Any, options: Options, schema: Any) -> Iterator[Any]:
    """The record batches of a task of any view; none for the empty part of an empty query."""
    if isinstance(task, Task):
        yield from read_task(
            task,
            options.view,
            schema,
            offsets=options.wanted.offsets,
            times_ms=options.wanted.times_ms,
            skip_damage=options.skip_damage,
        )
    elif task is not None:
        yield from read_acks(task, schema)
