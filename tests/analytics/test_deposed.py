"""Logs that end in different terms: what of the older ones is right, and what will be cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.queue_logs import TERM, Broker, Topic, make_entry, replica_id
from kit.verifying import verified

from myqueue.daemons.raft import types as t

NODES = (1, 2, 3)


def a_topic() -> Topic:
    topic = Topic("a", 100)
    topic.noop()
    for _ in range(9):
        topic.data(2)
    return topic


@pytest.mark.parametrize("hints", [(0, 0, 0), (8, 8, 8), (10, 8, 8, 8, 8)])
def test_all_were_killed_when_a_new_leader_had_just_begun(
    tmp_path: Path, hints: tuple[int, ...]
) -> None:
    """Its first entry is on its own disk alone; what stands before it is on all, and committed."""
    topic, nodes = a_topic(), range(1, len(hints) + 1)
    for node, hint in zip(nodes, hints, strict=True):
        broker = Broker(tmp_path / "c" / f"broker-{node}", node)
        broker.create(topic, nodes)
        broker.append(topic, topic.entries)
        if hint:
            broker.commit_hint(topic, hint)
        if node > 1 or len(hints) == 3:
            broker.log.journal.hard_state(100, TERM + 1, replica_id(2))
        if node == 2:
            broker.append(topic, [make_entry(topic.entries, t.NOOP, b"", 0, TERM + 1)])
        broker.close()
    report = verified(tmp_path / "c", tmp_path)
    assert report.ok and report.findings == []
    assert [one.commit for one in report.groups] == [10]
