"""A manager's log that is damaged: `verify` tells where, and goes on with all else (W16, B8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.forging import records_to_forge
from support.queue_logs import Broker, Topic, some_topics, write_cluster, write_replica
from support.verifying import verified

from myqueue.analytics.log.catalog import MANAGERS_GROUP
from myqueue.analytics.log.discovery import walked
from myqueue.errors import CorruptData
from myqueue.wal import format as f


def read_all(log: Any, group: Any, catalog: Any, applied: int) -> Iterator[tuple[bytes, bytes]]:
    """As the managers' tables are rebuilt: entry by entry, and what can't be read is an error."""
    found = 0
    for segment in log.segments:
        for record, _ in walked(segment) if segment.used else ():
            found += (record.kind, record.group) == (f.ENTRY, MANAGERS_GROUP)
    if found < applied:
        raise CorruptData("a record can't be read")
    yield from ()


def test_its_tables_are_not_compared_and_all_else_is(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    write_cluster(data, some_topics(5), (1, 2, 3))
    managers = Topic("managers", MANAGERS_GROUP)
    managers.noop()
    for _ in range(9):
        managers.data(1)
    one = Broker(data / "manager-1", 9)
    one.create(managers, (9,))
    write_replica(one, [managers])
    one.close()
    whole = verified(data, tmp_path, stores=True, metadata=read_all)
    assert not [note for note in whole.notes if "tables" in note]
    hurt = [spot for spot in records_to_forge(data / "manager-1", f.ENTRY) if spot.record.count][3]
    raw = bytearray(hurt.path.read_bytes())
    raw[hurt.record.position + 9] ^= 4
    hurt.path.write_bytes(raw)
    report = verified(data, tmp_path, stores=True, metadata=read_all)
    assert [note for note in report.notes if "its tables were not compared" in note]
    assert "header" in {one.rule for one in report.findings}
    assert len(report.groups) == len(whole.groups) == 4
