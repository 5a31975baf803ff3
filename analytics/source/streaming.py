"""The stream: committed entries (or their messages) as they come, each exactly once.

The offset that Spark checkpoints is, for each group, the index of its next entry. A committed index
has the same entry on every replica for ever. So a batch that is planned again after a crash holds
the same rows, whichever replicas are read and whatever was sealed, archived or moved meanwhile.
With a sink that is idempotent by batch, as Spark's are, each entry is delivered exactly once.

`latestOffset` never falls, although a commit may look lower for a moment when a log can't be read.

A wanted topic that no log has may be created later, so the stream waits for it. A partition without
any proof of what is committed ends the stream (`failOnUnknown`), unless it was created a moment
ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from myqueue.analytics.log.catalog import Catalog
from myqueue.analytics.log.plan import committed_ranges, entry_tasks
from myqueue.analytics.source.datasource import WAY_ON, Options, SourcePartition, read_part
from myqueue.analytics.source.rows import ENTRIES, MESSAGES
from myqueue.analytics.verify.commit_point import CommitJudge, Judgement, refuse_unknown
from myqueue.errors import InvalidRequest


class StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Plans and reads a stream. Offsets are {group in hex: index of its next entry}; groups may
    join later.
    """

    def __init__(self, options: Options, schema: Any) -> None:
        if options.view not in (ENTRIES, MESSAGES):
            raise InvalidRequest(f"view {options.view!r} is not streamed; entries and messages are")
        self._options, self._schema = options, schema
        self._judge = CommitJudge()

    def initialOffset(self) -> dict[str, int]:
        """The beginning: a group without an offset begins at its log's start."""
        return {}

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """How far entries can be read now, at most `maxEntriesPerTrigger` after `start`."""
        catalog, judgement = self._judged()
        if not self._options.skip_unknown:
            refuse_unknown(judgement, WAY_ON)
        offsets = dict(start or {})
        for uid, (first, committed_end) in committed_ranges(catalog, self._options.wanted).items():
            name = f"{uid:016x}"
            at = max(offsets.get(name, first), first)
            end = max(at, self._available(catalog, uid, at, committed_end))
            most = self._options.entries_max if start is not None else 0
            offsets[name] = min(end, at + most) if most and not _takes_all(limit) else end
        return offsets

    def _available(self, catalog: Catalog, uid: int, at: int, end: int) -> int:
        """How far entries are there without a hole, at most to `end`: an archive may lack some."""
        group = catalog.groups[uid]
        pieces = [one for disk in group.parts for one in group.right_pieces(disk)]
        for first, last in sorted((one.first, one.last) for one in pieces):
            if first > at:
                break
            at = max(at, last + 1)
        return min(at, end)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        options, (catalog, _) = self._options, self._judged()
        ranges = {}
        for name, index_end in end.items():
            uid = int(name, 16)
            group = catalog.groups.get(uid)
            if group is None:
                if options.may_miss or start.get(name, 0) >= index_end:
                    continue
                raise InvalidRequest(
                    f"group {name} is in none of the logs any more",
                    hint="Give its logs as well, or set failOnDataLoss=false.",
                )
            first = start.get(name, group.first_index)
            if first < index_end:
                ranges[uid] = (first, index_end)
        tasks = entry_tasks(
            catalog, ranges, options.wanted, options.split_bytes, may_miss=options.may_miss
        )
        return [SourcePartition(one) for one in tasks] or [SourcePartition(None)]

    def _judged(self) -> tuple[Catalog, Judgement]:
        """Catalog and judgement. Planning needs both: proofs decide which log is read."""
        return self._judge.looked_at(self._options.paths, self._options.wanted)

    def read(self, partition: SourcePartition) -> Iterator[Any]:
        return read_part(partition.task, self._options, self._schema)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is removed: the logs belong to their daemons."""


def _takes_all(limit: Any) -> bool:
    """Whether a trigger such as availableNow asks for all there is, whatever the options say."""
    return type(limit).__name__ == "ReadAllAvailable"
