"""`myq spark stats`: counts, sizes, delays, and how evenly messages are spread.

    logs ─▶ catalog ─▶ tasks (each committed entry once) ─▶ count_task.count (executors)
         ─▶ sums by key (executors) ─▶ here: totals for the page, rows for Parquet

Facts about replicas (how far each one is, sizes over time) come from the catalog alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from myqueue.analytics.log.catalog import Catalog
from myqueue.analytics.log.plan import SPLIT_BYTES, Wanted, committed_ranges, entry_tasks
from myqueue.analytics.spread import Judge, Spreader
from myqueue.analytics.stats import count_task
from myqueue.analytics.stats.count_task import (
    COUNT_KEY,
    SPREAD_KEY,
    Count,
    Election,
    Spread,
    Sums,
)
from myqueue.analytics.verify.commit_point import (
    CommitJudge,
    Judgement,
    notes,
    refuse_strangers,
    refuse_unknown,
)
from myqueue.analytics.verify.verify import quiet

POINTS_MAX = 400  # of a curve over time
PRODUCERS_SHOWN = 50
SHARES = (0.5, 0.9, 0.99, 0.999)

Sink = Callable[[Count], None]


def stats(
    paths: list[str],
    spread: Spreader,
    *,
    topics: tuple[str, ...] | None = None,
    skip_unknown: bool = False,
    sink: Sink | None = None,
    split_bytes: int = SPLIT_BYTES,
    progress: Callable[[str], AbstractContextManager[Any]] = quiet,
) -> dict[str, Any]:
    """Return the facts of the page and of --json; every summed row goes to `sink`.

    UnknownTopic for a topic that no log has; CorruptData if nothing tells what is committed of a
    partition, unless `skip_unknown`.
    """
    wanted = Wanted(topics=topics)
    with progress("Looking at footers"):
        catalog, judgement = CommitJudge().looked_at(paths, wanted)
        refuse_strangers(catalog, topics)
    if not skip_unknown:
        refuse_unknown(judgement, "Or leave these partitions out: --skip-unknown.")
    ranges = committed_ranges(catalog, wanted)
    tasks = entry_tasks(catalog, ranges, wanted, split_bytes, may_miss=True)
    totals = _Totals()
    with progress("Counting"):
        for row in spread.judged(list(tasks), count_task.count, _JUDGES):
            if isinstance(row, Count):
                totals.count(row)
                if sink is not None:
                    sink(row)
            elif isinstance(row, Spread):
                totals.spread(row)
            else:
                totals.elections.append(row)
    return {
        "paths": paths,
        "bytes_read": sum(task.end - task.begin for task in tasks),
        **totals.facts(),
        "replicas": list(_replicas(catalog, ranges)),
        "growth": _growth(catalog),
        "logs": len(catalog.logs),
        "not_counted": _not_counted(judgement),
        "notes": notes(judgement),
    }


def _not_counted(judgement: Judgement) -> list[dict[str, Any]]:
    """The entries left out. `why`: unknown (nothing tells what of the partition is committed),
    beyond (after the last one known to be committed), absent (committed, but in no log for
    certain).
    """
    return [
        {
            "topic": left_out.topic,
            "partition": left_out.partition,
            "first_index": left_out.first,
            "last_index": left_out.last,
            "why": why,
        }
        for why in ("unknown", "beyond", "absent")
        for left_out in getattr(judgement, why)
    ]


def _summed_counts(key: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Count]:
    yield count_task.sum_counts(key, rows)


def _summed_spreads(key: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Spread]:
    yield count_task.sum_spreads(key, rows)


_JUDGES = [
    Judge((Count,), lambda row: row[:COUNT_KEY], COUNT_KEY, _summed_counts),
    Judge((Spread,), lambda row: row[:SPREAD_KEY], SPREAD_KEY, _summed_spreads),
]


class _Totals:
    """Totals by partition, by producer and by minute."""

    def __init__(self) -> None:
        self._partitions: defaultdict[tuple[str, int], Sums] = defaultdict(Sums)
        self._producers: defaultdict[int, Sums] = defaultdict(Sums)
        self._minutes: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._minute_bytes: Counter[int] = Counter()
        self._spreads: list[Spread] = []
        self.elections: list[Election] = []

    def count(self, row: Count) -> None:
        self._partitions[row.topic, row.partition].add(row)
        self._producers[row.producer].add(row)
        if row.minute:
            self._minutes[row.topic][row.minute] += row.messages
            self._minute_bytes[row.minute] += row.bytes

    def spread(self, row: Spread) -> None:
        self._spreads.append(row)

    def facts(self) -> dict[str, Any]:
        total = Sums.of(self._partitions.values())
        overhead = total.bytes - self._sum(count_task.SIZE)
        topics = sorted({topic for topic, _ in self._partitions})
        return {
            **asdict(total),
            "messages_per_batch": total.messages / total.entries if total.entries else 0.0,
            "overhead_per_message": overhead / total.messages if total.messages else 0,
            "topics": [self._topic(topic) for topic in topics],
            "partitions": [
                {"topic": topic, "partition": partition, **asdict(sums)}
                for (topic, partition), sums in sorted(self._partitions.items())
            ],
            "producers_known": len(self._producers),
            "producers": [
                {"producer": producer, **asdict(sums)}
                for producer, sums in sorted(
                    self._producers.items(), key=lambda item: (-item[1].messages, item[0])
                )[:PRODUCERS_SHOWN]
            ],
            "minutes": self._curves(),
            "sizes": self._distribution(count_task.SIZE),
            "batches": self._distribution(count_task.BATCH),
            "sent_to_stamped_ms": self._distribution(count_task.SENT),
            "stamped_to_hint_ms": self._distribution(count_task.HINT),
            "elections": [
                election._asdict()
                for election in sorted(self.elections, key=lambda e: (e.time_ms, e))
            ],
        }

    def _sum(self, kind: str) -> int:
        return sum(spread.sum for spread in self._spreads if spread.kind == kind)

    def _topic(self, topic: str) -> dict[str, Any]:
        partitions = [sums for (name, _), sums in self._partitions.items() if name == topic]
        total = Sums.of(partitions)
        most = max(sums.messages for sums in partitions)
        mean = total.messages / len(partitions)
        sizes = self._distribution(count_task.SIZE, topic)
        return {
            "topic": topic,
            "partitions": len(partitions),
            **asdict(total),
            "skew": most / mean if mean else 1.0,
            "p50_bytes": sizes["p50"],
            "p99_bytes": sizes["p99"],
            "largest_bytes": sizes["max"],
        }

    def _distribution(self, kind: str, topic: str | None = None) -> dict[str, Any]:
        spreads = [
            spread
            for spread in self._spreads
            if spread.kind == kind and topic in (None, spread.topic)
        ]
        whole = count_task.sum_spreads((kind, topic or "", 0), spreads)
        count = sum(whole.buckets.values())
        places = range(min(whole.buckets, default=0), max(whole.buckets, default=-1) + 1)
        shares = {
            f"p{share * 100:g}".replace(".", ""): round(
                count_task.percentile(whole.buckets, share, whole.most), 1
            )
            for share in SHARES
        }
        return {
            "count": count,
            "mean": whole.sum / count if count else 0.0,
            **shares,
            "max": whole.most,
            "buckets": [
                [count_task.low_of(at), count_task.low_of(at + 1), whole.buckets.get(at, 0)]
                for at in places
            ],
        }

    def _curves(self) -> dict[str, Any]:
        """Sums per minute, or per several minutes if there are more than POINTS_MAX."""
        minutes = sorted(self._minute_bytes)
        if not minutes:
            return {"step_minutes": 1, "times_ms": [], "messages": {}, "bytes": []}
        span = minutes[-1] - minutes[0] + 1
        step = -(-span // POINTS_MAX)
        places = range(-(-span // step))

        def curve(counts: Counter[int]) -> list[int]:
            out = [0] * len(places)
            for minute, value in counts.items():
                out[(minute - minutes[0]) // step] += value
            return out

        return {
            "step_minutes": step,
            "times_ms": [(minutes[0] + place * step) * count_task.MINUTE_MS for place in places],
            "messages": {topic: curve(counts) for topic, counts in sorted(self._minutes.items())},
            "bytes": curve(self._minute_bytes),
        }


def _replicas(catalog: Catalog, ranges: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """How many entries each replica's log lacks of the longest one, and the commit index."""
    for uid in sorted(ranges):
        group = catalog.groups[uid]
        lasts = {
            disk: max((run.last for run in part.in_force()), default=part.first_index - 1)
            for disk, part in group.parts.items()
        }
        longest = max(lasts.values(), default=0)
        yield {
            "topic": group.topic,
            "partition": group.partition,
            "longest": longest,
            "commit_index": group.commit_index,
            "behind": {catalog.log(disk).name: longest - last for disk, last in lasts.items()},
        }


def _growth(catalog: Catalog) -> list[dict[str, Any]]:
    """Bytes of entries on each disk, by the time at which segments were created."""
    out = []
    for log in catalog.logs:
        total = 0
        points = []
        for segment in log.segments:
            if not segment.used:
                continue
            rows = segment.rows
            size = (
                sum(row.entry_bytes for row in rows)
                if rows is not None
                else (catalog.certain.get((log.disk, segment.number), 0))
            )
            total += size
            points.append([segment.created_ms, total])
        out.append({"daemon": log.name, "disk": log.disk, "points": points})
    return out
