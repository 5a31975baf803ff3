"""C6, P12, D2: what retention left is verified like all else; what it took is not asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forging import records_to_forge
from support.queue_logs import TERM, Broker, Topic, replica_id, write_replica
from support.verifying import A, everything, ledger, verified

from myqueue.daemons.partition.machine import start_command
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.open_group import snapshot_parts
from myqueue.wal import format as f
from myqueue.wal.store.dump import lines
from myqueue.wire import protocol

NODES = (1, 2, 3)
KEPT_FROM = 12  # place of an entry in the log
Line = dict[str, Any]


def a_topic() -> Topic:
    """Positions of a group and of a consumer stand before, at and behind the new start."""
    topic = Topic("a", A)
    topic.noop()
    for one in range(24):
        topic.data(3 + one % 3)
        if one in (4, 20):
            topic.commit("group/billing", topic.end - 1)
    topic.commit("slow", 2)
    first = topic.entries[KEPT_FROM]
    size = sum(len(one[t.PAYLOAD]) for one in topic.entries[:KEPT_FROM] if one[t.TYPE] == t.DATA)
    topic.command(start_command(first[t.OFFSET], first[t.INDEX], size))
    topic.data(4)
    return topic


def cut(broker: Broker, topic: Topic) -> None:
    """As a daemon does: the state first, then the log begins later."""
    machine, journal = broker.machines[topic.group], broker.log.journal
    config = t.Config(tuple(map(replica_id, NODES)), ())
    last, first = topic.entries[-1], topic.entries[KEPT_FROM]
    before = topic.entries[KEPT_FROM - 1]
    snapshot = t.Snapshot(last[t.INDEX], TERM, config, 1, 0, 0, 0, machine.snapshot())
    journal.snapshot(topic.group, snapshot.index, snapshot.term, snapshot_parts(snapshot))
    journal.start(topic.group, first[t.INDEX], before[t.TERM], first[t.OFFSET], before[t.CHAIN])
    broker.flush()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Broker 3 has not moved the beginning of its log yet."""
    topic = a_topic()
    for node in NODES:
        broker = Broker(tmp_path / "c" / f"broker-{node}", node)
        broker.create(topic, NODES)
        write_replica(broker, [topic])
        if node < 3:
            cut(broker, topic)
        broker.close()
    return tmp_path / "c"


def test_c6_what_is_left_is_whole_and_nobody_asks_for_what_went(kept: Path, tmp_path: Path) -> None:
    path = ledger(tmp_path / "acks", rows := everything([a_topic()]))
    report = verified(kept, tmp_path, stores=True, ledgers=[path])
    assert [*report.findings, *report.notes] == []
    assert report.acks == sum(len(one[3]) for one in rows)
    assert report.state_rows == 3 * 4  # a producer, a group, a consumer, where the log begins


def start_of(line: Line, by: int) -> Line:
    """The row that says where the partition begins."""
    if "key" not in line or bytes.fromhex(line["key"]) != b"m":
        return line
    form, end, start, *rest = protocol.unpack(bytes.fromhex(line["value"]))
    return {**line, "value": protocol.pack([form, end, start + by, *rest]).hex()}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("state", lambda line: start_of(line, 3)),
        ("state", lambda line: None if b"billing".hex() in line.get("key", "") else line),
        ("behind", lambda line: {**line, "applied": 5} if "applied" in line else line),
    ],
    ids=["start", "group", "behind"],
)
def test_a_store_that_has_another_start_or_position_is_found(
    rule: str, change: Callable[[Line], Line | None], kept: Path, tmp_path: Path
) -> None:
    told = [change(line) for line in lines(str(kept / "broker-1"))]
    state = tmp_path / "state"
    state.write_text("".join(json.dumps(line) + "\n" for line in told if line is not None))
    report = verified(kept, tmp_path, store_files=[str(state)])
    assert rule in {one.rule for one in report.findings}, report.findings
    assert {one.daemon for one in report.findings} == {"broker-1"}


def test_an_acknowledged_message_behind_the_start_is_missed(kept: Path, tmp_path: Path) -> None:
    """And one before it is not, though it is damaged everywhere as well."""
    topic = a_topic()
    path = ledger(tmp_path / "acks", everything([topic]))
    hurt = [topic.entries[place][t.INDEX] for place in (3, KEPT_FROM + 3)]
    for node in NODES:
        for spot in records_to_forge(kept / f"broker-{node}", f.ENTRY, A):
            if spot.record.index in hurt:
                spot.flip(f.RECORD_HEADER_BYTES + 60, 3)
    report = verified(kept, tmp_path, ledgers=[path])
    lost = topic.entries[KEPT_FROM + 3]
    wanted = set(range(lost[t.OFFSET], lost[t.OFFSET] + lost[t.COUNT]))
    assert {one.index for one in report.findings if one.rule == "ack"} == wanted
