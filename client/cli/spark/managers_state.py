"""The managers' tables, rebuilt from a manager's log: what `spark verify` holds against its store.

The tables' operations are many and exist once, so here the daemons' own machine is run over the
log, by the driver. It finds stores and logs that part, not mistakes in the machine; those are what
the simulator and the other replicas are for.
"""

from __future__ import annotations

from collections.abc import Iterator

from myqueue.analytics.log.catalog import MANAGERS_GROUP, Catalog, Group
from myqueue.analytics.log.discovery import Log, walked
from myqueue.analytics.log.plan import Wanted, entry_tasks
from myqueue.analytics.source.rows import chosen
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.wal import format as f
from myqueue.wire import protocol

SPLIT_BYTES = 1 << 30


def rebuild(
    log: Log, group: Group, catalog: Catalog, applied: int
) -> Iterator[tuple[bytes, bytes]]:
    """The rows at the applied index, in the order of their keys."""
    part = group.parts[log.disk]
    machine = MetadataMachine(log.cluster)
    after = 0
    if part.first_index > 1:
        fitting = [one for one in part.snapshots if part.first_index - 1 <= one[0] <= applied]
        if fitting:
            after = min(fitting)[0]
            machine.restore(_snapshot(log, *min(fitting)))
    alone = Group(MANAGERS_GROUP, "managers", parts={log.disk: part})
    tasks = entry_tasks(
        Catalog([log], {MANAGERS_GROUP: alone}, catalog.certain),
        {MANAGERS_GROUP: (after + 1, applied + 1)}, Wanted(), SPLIT_BYTES, may_miss=False,
    )  # fmt: skip
    entries = [
        (
            record.index, record.term, record.offset, record.count, record.time_ms,
            record.entry_type, record.chain, bytes(payload),
        )
        for task in tasks
        for record, payload in chosen(task)
    ]  # fmt: skip
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
    _, _, state = protocol.unpack(b"".join(parts[one] for one in sorted(parts)))
    return bytes(state)
