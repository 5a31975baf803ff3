"""The file of a task, or the files to which reclaim moved its entries.

Comes in: a task. Goes out: the task with its open file, or other tasks with theirs.

Reclaim removes segments of a running daemon at any time, also between the planning of a task and
its reading. Before it removes a segment, it writes what is still needed of it into later segments
of the same folder. So if a task's segment is removed, its entries are read where they were moved
to. Entries before the log's start were removed by retention, and are no longer wanted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from sys import maxsize

from myqueue.analytics.log import storage
from myqueue.analytics.log.catalog import Catalog, Group, make_catalog
from myqueue.analytics.log.discovery import LOOKS, Log, SegmentGone, open_segment, segments_in
from myqueue.analytics.log.plan import Span, Task, tasks_of
from myqueue.analytics.log.replica_choice import choose


def opened(task: Task, looks: int = LOOKS) -> Iterator[tuple[Task, storage.File]]:
    """Yield the task with its file, which is closed after use; or the tasks that replace it.

    Raises SegmentGone if the task can't be replaced: it is of all records, or of a part of a
    segment, and which entries stood in that part is no longer known.
    """
    try:
        file = open_segment(task.location)
    except SegmentGone:
        if task.spans is None or not task.is_whole or not looks:
            raise
        for one in _moved(task):
            yield from opened(one, looks - 1)
        return
    try:
        yield task, file
    finally:
        file.close()


def _moved(task: Task) -> list[Task]:
    """The tasks that read the moved entries.

    They read also what no mark proves to be synced: reclaim synced it before it removed the first
    copy.
    """
    log = Log(task.disk, task.daemon, segments=segments_in(storage.parent(task.location)))
    catalog = make_catalog([log], with_tails=True)
    spans: defaultdict[tuple[str, int], dict[int, list[Span]]] = defaultdict(dict)
    for uid, its in (task.spans or {}).items():
        group = catalog.groups.get(uid)
        if group is None or task.disk not in group.parts or group.removed:
            raise SegmentGone(f"{task.location} was removed, and a partition in it was deleted")
        group.topic, group.partition = task.names[uid]
        for span in its:
            for number, one in _found(task, group, span):
                spans[task.disk, number].setdefault(uid, []).append(one)
    return tasks_of(Catalog([log], catalog.groups, catalog.certain), spans, maxsize)


def _found(task: Task, group: Group, span: Span) -> Iterator[tuple[int, Span]]:
    """(segment, span) of the span's entries from the log's start on; all are committed."""
    part = group.parts[task.disk]
    part.right = max(part.right, span.last)
    index = max(span.first, part.first_index)
    for _, piece in choose(group, [task.disk], index, span.last + 1, may_miss=True):
        if piece.first != index:
            break
        index = piece.last + 1
        yield piece.segment, Span(piece.first, piece.last, piece.begin, piece.end)
    if index <= span.last:
        raise SegmentGone(f"{task.location} was removed while the log was read")
