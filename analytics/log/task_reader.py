"""Read the wanted records of a task: a task comes in, verified records with payloads go out."""

from __future__ import annotations

from collections.abc import Iterator

from myqueue.analytics.log import storage
from myqueue.analytics.log.moved_entries import opened
from myqueue.analytics.log.plan import Span, Task
from myqueue.analytics.log.segment_reader import END, Walk
from myqueue.errors import CorruptData
from myqueue.wal import format as f


def chosen(task: Task, skip_damage: bool = False) -> Iterator[tuple[f.Record, memoryview]]:
    """Verified records of a task with their payloads, of the wanted spans."""
    for part, file in opened(task):
        yield from chosen_of(part, file, skip_damage)


def chosen_of(
    task: Task, file: storage.File, skip_damage: bool
) -> Iterator[tuple[f.Record, memoryview]]:
    """The same, of one open segment. CorruptData at damage, unless it is to be skipped."""
    spans = task.spans
    walk = Walk(file.read, task.uid, task.capacity)
    walk.seek(task.begin)
    while True:
        for record, payload in walk.records(task.end):
            if spans is None or is_wanted(spans, record):
                yield record, payload
        if walk.position >= task.end or (walk.problem == END and not task.complete):
            return
        if walk.problem == END and walk.last_nonzero() == walk.position:
            return
        if not skip_damage:
            raise CorruptData(
                f"{task.location} at position {walk.position}: {walk.problem}",
                hint="`myq spark verify` tells all; failOnDamage=false leaves it out.",
                component=task.daemon,
            )
        walk.seek(walk.position + 1 if walk.bad is None else walk.bad.end)


def is_wanted(spans: dict[int, list[Span]], record: f.Record) -> bool:
    """Whether the record is an entry in one of the spans."""
    if record.kind != f.ENTRY:
        return False
    for span in spans.get(record.group, ()):
        if span.first <= record.index <= span.last and span.begin <= record.position <= span.end:
            return True
    return False
