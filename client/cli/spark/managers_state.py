"""Rebuild the managers' tables from a manager's log, for `spark verify` to compare with its store.

The tables' operations are implemented only once, so the driver runs the daemons' own state machine
over the log. This finds differences between store and log, not defects of the state machine; the
simulator and the comparison of replicas find those.
"""

from __future__ import annotations

from collections.abc import Iterator

from myqueue.analytics.log.catalog import MANAGERS_GROUP, Catalog, Group
from myqueue.analytics.log.discovery import Log, walked
from myqueue.analytics.log.plan import Wanted, entry_tasks
from myqueue.analytics.log.task_reader import chosen
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.wal import format as f
from myqueue.wire import protocol

SPLIT_BYTES = 1 << 30


def rebuild(
    log: Log, group: Group, catalog: Catalog, applied: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows at the applied index, in the order of their keys."""
    part = group.parts[log.disk]
    machine = MetadataMachine(log.cluster)
    after = 0
    if part.first_index > 1:
        fitting = [
            snapshot
            for snapshot in part.snapshots
            if part.first_index - 1 <= snapshot[0] <= applied
        ]
        if fitting:
            after = min(fitting)[0]
            machine.restore(_snapshot(log, *min(fitting)))
    alone = Group(MANAGERS_GROUP, "managers", parts={log.disk: part})
    tasks = entry_tasks(
        Catalog([log], {MANAGERS_GROUP: alone}, catalog.certain),
        {MANAGERS_GROUP: (after + 1, applied + 1)},
        Wanted(),
        SPLIT_BYTES,
        may_miss=False,
    )
    entries = [
        (
            record.index,
            record.term,
            record.offset,
            record.count,
            record.time_ms,
            record.entry_type,
            record.chain,
            bytes(payload),
        )
        for task in tasks
        for record, payload in chosen(task)
    ]
    machine.apply(sorted(entries))
    for key in sorted(machine.tables.row_keys()):
        value = machine.tables.row(key)
        if value is not None:
            yield key, value


def _snapshot(log: Log, index: int, term: int) -> bytes:
    parts: dict[int, bytes] = {}
    for segment in log.segments:
        for record, payload in walked(segment) if segment.used else ():
            wanted = (f.SNAPSHOT, MANAGERS_GROUP, index, term)
            if (record.kind, record.group, record.index, record.term) == wanted:
                parts[record.count] = bytes(payload)
    _, _, state, *_start = protocol.unpack(b"".join(parts[number] for number in sorted(parts)))
    return bytes(state)
