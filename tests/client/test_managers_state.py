"""The managers' tables, rebuilt from a manager's log: from its first entry on, or a snapshot."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support.metadata_rig import random_script
from support.queue_logs import TERM, Broker, Topic, make_entry

from myqueue.analytics.log.catalog import MANAGERS_GROUP, make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.cli.spark.managers_state import rebuild
from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.daemons.raft import types as t
from myqueue.errors import CorruptData
from myqueue.wire import protocol

LENGTH = 300
Rows = list[tuple[bytes, bytes]]


@pytest.fixture(scope="module")
def managers() -> Topic:
    """A long history of the managers' group, with refusals, repeats and deletions in it."""
    topic = Topic("managers", MANAGERS_GROUP)
    for entry in random_script(Random(7), LENGTH):
        topic.entries.append(make_entry(topic.entries, entry[t.TYPE], entry[t.PAYLOAD], 0))
    return topic


def applied_to(topic: Topic, index: int) -> MetadataMachine:
    machine = MetadataMachine("test")
    machine.apply(topic.entries[:index])
    return machine


def expected(topic: Topic, index: int) -> Rows:
    tables = applied_to(topic, index).tables
    rows = [(key, tables.row(key)) for key in sorted(tables.row_keys())]
    return [(key, value) for key, value in rows if value is not None]


class Manager(Broker):
    """A manager's folder while it is being written."""

    def save(self, topic: Topic, index: int, parts: int) -> None:
        """A snapshot in so many parts, as a manager writes it; with the start of its log."""
        last = topic.entries[index - 1]
        voters = t.Config((t.replica_id(self.node, 1),), ())
        state = applied_to(topic, index).snapshot()
        start = [last[t.OFFSET] + last[t.COUNT], last[t.CHAIN]]
        raw = protocol.pack([voters.voters, voters.learners, state, *start])
        size = -(-len(raw) // parts)
        pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
        assert len(pieces) == parts
        self.log.journal.snapshot(topic.group, index, TERM, pieces)
        self.flush()

    def start_after(self, topic: Topic, index: int) -> None:
        last = topic.entries[index - 1]
        offset = last[t.OFFSET] + last[t.COUNT]
        self.log.journal.start(topic.group, index + 1, last[t.TERM], offset, last[t.CHAIN])
        self.flush()


def rebuilt(folder: Path, applied: int) -> Rows:
    catalog = make_catalog(find_logs([str(folder)]))
    [log] = catalog.logs
    return list(rebuild(log, catalog.groups[MANAGERS_GROUP], catalog, applied))


def written(folder: Path, topic: Topic, saved: tuple[int, ...], start: int = 0) -> Path:
    """A log with snapshots at these indices; it starts after the entry `start`."""
    manager = Manager(folder, 1)
    manager.create(topic, (1,))
    done = 0
    for number, index in enumerate(saved):
        manager.append(topic, topic.entries[done:index])
        manager.commit_hint(topic, index)
        manager.save(topic, index, number + 3)
        done = index
    manager.append(topic, topic.entries[done:])
    if start:
        manager.start_after(topic, start)
    manager.commit_hint(topic, len(topic.entries))
    manager.close()
    return folder


def test_from_the_first_entry_on(managers: Topic, tmp_path: Path) -> None:
    folder = written(tmp_path / "m", managers, ())
    for applied in (1, 150, LENGTH):
        assert rebuilt(folder, applied) == expected(managers, applied)


def test_from_a_snapshot_of_several_parts(managers: Topic, tmp_path: Path) -> None:
    """The log starts after the first one: its entries are there no more, and it alone has them."""
    folder = written(tmp_path / "m", managers, (120, 200, 260), start=120)
    assert expected(managers, 120) != expected(managers, 200) != expected(managers, 260)
    for applied in (120, 121, 200, 259, 260, LENGTH):
        assert rebuilt(folder, applied) == expected(managers, applied), applied


def test_a_snapshot_before_the_start_is_not_begun_with(managers: Topic, tmp_path: Path) -> None:
    """Entries between it and the start are missing."""
    folder = written(tmp_path / "m", managers, (120, 200, 260), start=200)
    for applied in (200, 230, LENGTH):
        assert rebuilt(folder, applied) == expected(managers, applied), applied


def test_a_state_that_the_log_has_no_more_is_not_made_up(managers: Topic, tmp_path: Path) -> None:
    """The store is of index 150; the log has the entries after 120, and a snapshot at 200."""
    folder = written(tmp_path / "m", managers, (200,), start=120)
    with pytest.raises(CorruptData, match="entries 1 to 120 "):
        rebuilt(folder, 150)
