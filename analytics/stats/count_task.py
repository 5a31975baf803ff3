"""Count one task for `stats`: sums by topic, partition, producer and minute, and histograms.

Runs on executors. A task comes in; a few `Count`, `Spread` and `Election` rows go out. Work is per
batch: of messages only the sizes of their values are read, with one comparison for the whole batch
if all are of one size.

A histogram is {bucket: how often}, with four buckets for each doubling, so a percentile is right
within a fifth. Times are the leader's stamps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import frexp
from operator import attrgetter
from typing import NamedTuple

from myqueue.analytics.log import batch, storage
from myqueue.analytics.log.catalog import DATA, NOOP
from myqueue.analytics.log.moved_entries import opened
from myqueue.analytics.log.plan import Task
from myqueue.analytics.log.segment_reader import END, Walk
from myqueue.analytics.log.task_reader import is_wanted
from myqueue.wal import format as f

STEPS = 4  # buckets for each doubling
MINUTE_MS = 60_000
SIZE, BATCH, SENT, HINT = "size", "batch", "sent", "hint"


class Count(NamedTuple):
    """Sums for one partition, producer and minute: a row of the Parquet file.

    Its key is the first four fields; the others are those of `Sums`, in the same order.
    """

    topic: str
    partition: int
    producer: int
    minute: int  # since 1970
    entries: int
    messages: int
    bytes: int
    body_bytes: int


class Spread(NamedTuple):
    """A histogram: sizes of values, messages in a batch, ms from sender to leader or to a hint."""

    kind: str
    topic: str
    partition: int
    buckets: dict[int, int]
    sum: int
    most: int


class Election(NamedTuple):
    """An election: a leader opened a term with an entry without content."""

    topic: str
    partition: int
    group: int
    term: int
    index: int  # type: ignore[assignment]  # tuple.index is not used
    time_ms: int  # of the next entry with a time, or of the one before


Row = Count | Spread | Election
COUNT_KEY, SPREAD_KEY = 4, 3  # fields, the first ones, by which rows are summed
SUMMED = Count._fields[COUNT_KEY:]
_sums_of = attrgetter(*SUMMED)  # of a `Count` or of `Sums`; `astuple` takes 3 µs more


@dataclass(slots=True)
class Sums:
    """The sums of a `Count` while they grow; the facts have them by these names."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    body_bytes: int = 0

    def add(self, other: Count | Sums) -> None:
        for name, addend in zip(SUMMED, _sums_of(other), strict=True):
            setattr(self, name, getattr(self, name) + addend)

    @staticmethod
    def of(rows: Iterable[Count | Sums]) -> Sums:
        total = Sums()
        for row in rows:
            total.add(row)
        return total


def bucket(value: int) -> int:
    """The bucket of a value: 0 for 0, then `STEPS` buckets for each doubling."""
    if value <= 0:
        return 0
    mantissa, exponent = frexp(value)
    return 1 + STEPS * (exponent - 1) + int((mantissa - 0.5) * 2 * STEPS)


def middle_of(place: int) -> float:
    """The middle of the bucket; the number itself if the bucket has one whole number only."""
    low, high = low_of(place), low_of(place + 1)
    return float(-int(-low // 1)) if high - low <= 1 else (low + high) / 2


def low_of(place: int) -> float:
    """The lowest value of a bucket."""
    if place <= 0:
        return 0.0
    doubling, part = divmod(place - 1, STEPS)
    return float(2**doubling * (1 + part / STEPS))


def percentile(buckets: dict[int, int], share: float, most: int) -> float:
    """The value that this share of all values does not exceed, to the precision of buckets."""
    remaining = share * sum(buckets.values())
    for place in sorted(buckets):
        remaining -= buckets[place]
        if remaining <= 0:
            return min(middle_of(place), float(most))
    return float(most)


class _Histogram:
    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.sum = self.most = 0

    def add(self, value: int, times: int = 1) -> None:
        self.buckets[bucket(value)] += times
        self.sum += value * times
        self.most = max(self.most, value)


def count(task: Task) -> Iterator[Row]:
    """Count one task; run by executors."""
    counting = _Counting(task)
    yield from counting.rows()


@dataclass(slots=True)
class _OpenElection:
    """An `Election` whose time may still be unknown (0)."""

    group: int
    term: int
    index: int
    time_ms: int = 0


class _Unhinted(NamedTuple):
    """A batch that waits for the next commit hint of its group."""

    index: int  # type: ignore[assignment]
    time_ms: int
    messages: int


class _Counting:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._counts: dict[tuple[int, int, int], Sums] = {}  # by group, producer and minute
        self._spreads: dict[tuple[str, int], _Histogram] = {}
        self._waiting: dict[int, list[_Unhinted]] = {}
        self._elections: list[_OpenElection] = []
        self._last_time: dict[int, int] = {}

    def rows(self) -> Iterator[Row]:
        names = self._task.names
        for task, file in opened(self._task):
            self._task = task
            self._read(task, file)
        for (group, producer, minute), sums in self._counts.items():
            yield Count(*names[group], producer, minute, *_sums_of(sums))
        for (kind, group), histogram in self._spreads.items():
            buckets = dict(histogram.buckets)
            yield Spread(kind, *names[group], buckets, histogram.sum, histogram.most)
        for seen in self._elections:
            time_ms = seen.time_ms or self._last_time.get(seen.group, 0)
            yield Election(*names[seen.group], seen.group, seen.term, seen.index, time_ms)

    def _read(self, task: Task, file: storage.File) -> None:
        walk = Walk(file.read, task.uid, task.capacity)
        walk.seek(task.begin)
        while walk.position < task.end:
            for record, payload in walk.records(task.end):
                self._record(record, payload)
            if walk.problem == END and walk.last_nonzero() == walk.position:
                break
            if walk.position < task.end:  # skip damage: `verify` reports it
                walk.seek(walk.position + 1 if walk.bad is None else walk.bad.end)

    def _record(self, record: f.Record, payload: memoryview) -> None:
        if record.kind == f.COMMIT and record.group in self._waiting:
            self._hint(record)
        elif self._task.spans is not None and is_wanted(self._task.spans, record):
            if record.entry_type == DATA:
                self._batch(record, payload)
            elif record.entry_type == NOOP:
                self._elections.append(_OpenElection(record.group, record.term, record.index))

    def _batch(self, record: f.Record, payload: memoryview) -> None:
        group, time_ms, number = record.group, record.time_ms, record.count
        try:
            head = batch.head(payload)
            sizes = batch.value_sizes(payload, head)
        except batch.BadBatch:
            return
        key = (group, head.producer, time_ms // MINUTE_MS)
        sums = self._counts.get(key)
        if sums is None:
            sums = self._counts[key] = Sums()
        sums.entries += 1
        sums.messages += number
        sums.bytes += record.length
        sums.body_bytes += head.body_bytes
        histogram = self._spread(SIZE, group)
        for size, times in sizes:
            histogram.add(size, times)
        self._spread(BATCH, group).add(number)
        if time_ms >= head.time_ms > 0:
            self._spread(SENT, group).add(time_ms - head.time_ms, number)
        if not record.flags & f.RELOCATED:  # the next hint after a relocated entry is much later
            self._waiting.setdefault(group, []).append(_Unhinted(record.index, time_ms, number))
        self._last_time[group] = time_ms
        for election in reversed(self._elections):
            if election.time_ms:
                break
            if election.group == group:
                election.time_ms = time_ms

    def _spread(self, kind: str, group: int) -> _Histogram:
        histogram = self._spreads.get((kind, group))
        if histogram is None:
            histogram = self._spreads[kind, group] = _Histogram()
        return histogram

    def _hint(self, hint: f.Record) -> None:
        waiting = self._waiting[hint.group]
        done = [unhinted for unhinted in waiting if unhinted.index <= hint.index]
        self._waiting[hint.group] = waiting[len(done) :]
        histogram = self._spread(HINT, hint.group)
        for unhinted in done:
            histogram.add(max(0, hint.time_ms - unhinted.time_ms), unhinted.messages)


# -- putting together -----------------------------------------------------------------------------


def sum_counts(key: tuple[str, int, int, int], rows: Iterable[Count]) -> Count:
    """Add up rows of one key."""
    return Count(*key, *_sums_of(Sums.of(rows)))


def sum_spreads(key: tuple[str, str, int], rows: Iterable[Spread]) -> Spread:
    """Add up histograms of one key."""
    buckets: Counter[int] = Counter()
    total = most = 0
    for row in rows:
        buckets.update(row.buckets)
        total += row.sum
        most = max(most, row.most)
    return Spread(*key, dict(buckets), total, most)
