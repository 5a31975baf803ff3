"""C5, D1, D2: partitions that were moved, came back, were deleted; each entry has a whole copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forging import records_to_forge
from support.queue_logs import (
    TERM,
    WALL_MS,
    Broker,
    Topic,
    make_entry,
    replica_id,
    some_topics,
    write_cluster,
    write_replica,
)
from support.verifying import everything, ledger, verified

from myqueue.analytics.log.catalog import make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.analytics.log.plan import Wanted, committed_ranges
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.membership import encode_config
from myqueue.daemons.replication.open_group import snapshot_parts
from myqueue.wal import format as f

NODES = (1, 2, 3)


def a_topic(group: int = 100, uid: int = 900, rounds: int = 30) -> Topic:
    topic = Topic("a", group, uid=uid)
    topic.noop()
    for one in range(rounds):
        topic.data(3 + one % 3, term=6 if one > 18 else 3)
    return topic


def broker(folder: Path, node: int) -> Broker:
    return Broker(folder / f"broker-{node}", node)


def remove(at: Broker, topic: Topic) -> None:
    at.log.journal.remove_group(topic.group)
    at.flush()


@pytest.mark.parametrize("returns", [False, True])
def test_a_partition_that_moved_is_read_where_it_is(returns: bool, tmp_path: Path) -> None:
    """Off broker 3, whose log still begins with a part of it; to broker 4, or back again as a new
    replica with the vote of one.
    """
    topic, data = a_topic(), tmp_path / "cluster"
    nodes = NODES if returns else (1, 2, 4)
    write_cluster(data, [topic], (1, 2))
    old = broker(data, 3)
    old.create(topic, NODES)
    old.append(topic, topic.entries[:20])
    # What a leader wrote that nobody followed: at those indices stands something else by now.
    stray = Topic("a", 100, entries=list(topic.entries[:20]))
    stray.data(2, term=5, sequence=topic.sequences[7])
    old.append(topic, stray.entries[20:])
    old.commit_hint(topic, 19)
    remove(old, topic)
    new = old if returns else broker(data, 4)
    new.create(topic, nodes, vote=new.node)
    write_replica(new, [topic])
    for one in {old, new}:
        one.close()
    path = ledger(tmp_path / "acks", rows := everything([topic]))
    report = verified(data, tmp_path, ledgers=[path], stores=True)
    assert report.findings == []
    assert report.acks == sum(len(one[3]) for one in rows)
    assert [one.removed for one in report.groups] == [False]
    catalog = make_catalog(find_logs([str(data)]))
    assert committed_ranges(catalog, Wanted()) == {100: (1, topic.entries[-1][t.INDEX] + 1)}


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_what_was_moved_is_on_a_majority_of_those_that_have_it_now(
    behind: int, tmp_path: Path
) -> None:
    """Whoever let go of it does not count. `behind`: of three, so many lack the end."""
    topic, data, nodes = a_topic(), tmp_path / "cluster", (1, 2, 4)
    moved = encode_config(t.Config(tuple(map(replica_id, nodes)), ()))
    topic.entries.append(make_entry(topic.entries, t.CONFIG, moved, 0, 6))
    for one in range(5):
        topic.data(3 + one, term=6)
    last = topic.entries[-1][t.INDEX]
    for node in (*nodes, 3):
        at = broker(data, node)
        at.create(topic, nodes if node == 4 else NODES)
        is_behind = node in nodes[:behind]
        at.append(topic, topic.entries[:-5] if is_behind else topic.entries)
        at.commit_hint(topic, last - 5 if is_behind else last)
        if node == 3:
            remove(at, topic)
        at.close()
    found = [(one.rule, one.index) for one in verified(data, tmp_path).findings]
    assert found == ([("majority", last - 4)] if behind > 1 else [])


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_who_votes_is_known_though_retention_took_the_entry_that_said_so(
    behind: int, tmp_path: Path
) -> None:
    """None of the founders is left: by them nobody would vote, and nothing be on a majority."""
    topic, data, nodes = a_topic(), tmp_path / "cluster", (4, 5, 6)
    config = t.Config(tuple(map(replica_id, nodes)), ())
    begin = len(topic.entries)
    for one in range(5):
        topic.data(3 + one, term=6)
    before, last = topic.entries[begin - 1], topic.entries[-1][t.INDEX]
    start = (before[t.INDEX] + 1, before[t.TERM], before[t.OFFSET] + before[t.COUNT])
    for node in nodes:
        at, machine = broker(data, node), PartitionMachine()
        at.create(topic, NODES)
        machine.apply(topic.entries[:begin])
        snapshot = t.Snapshot(
            start[0] - 1, before[t.TERM], config, *start, before[t.CHAIN], machine.snapshot()
        )
        at.log.journal.snapshot(topic.group, start[0] - 1, before[t.TERM], snapshot_parts(snapshot))
        at.log.journal.start(topic.group, *start, before[t.CHAIN], reset=True)
        lacks = node in nodes[:behind]
        at.append(topic, topic.entries[begin : -2 if lacks else None])
        at.commit_hint(topic, last - 2 if lacks else last)
        at.close()
    report = verified(data, tmp_path)
    found = [(one.rule, one.index) for one in report.findings]
    assert found == ([("majority", last - 1)] if behind > 1 else [])
    assert [(one.voters, one.missing) for one in report.groups] == [(3, 0)]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_new_replica_that_is_being_filled_is_no_wrong_one(
    is_removed: bool, tmp_path: Path
) -> None:
    """It has the state first, and says that all is committed up to there; the entries come later,
    or not at all if the move is called off.
    """
    topic, data = a_topic(), tmp_path / "cluster"
    write_cluster(data, [topic], NODES)
    new, machine = broker(data, 4), PartitionMachine()
    machine.apply(topic.entries)
    last = topic.entries[-1][t.INDEX]
    new.create(topic, NODES)
    config = t.Config(tuple(map(replica_id, NODES)), (replica_id(4),))
    snapshot = t.Snapshot(last, TERM, config, 1, 0, 0, 0, machine.snapshot())
    journal = new.log.journal
    journal.snapshot(topic.group, last, TERM, snapshot_parts(snapshot))
    journal.start(topic.group, 1, 0, 0, 0, reset=True)
    new.append(topic, topic.entries[:12])
    new.commit_hint(topic, last)
    if is_removed:
        remove(new, topic)
    new.close()
    path = ledger(tmp_path / "acks", everything([topic]))
    assert verified(data, tmp_path, ledgers=[path]).findings == []
    new = broker(data, 4)
    if not is_removed:
        new.commit_hint(topic, last + 1)
    new.close()
    found = {one.rule for one in verified(data, tmp_path).findings}
    assert found == (set() if is_removed else {"hint", "majority"})


def test_what_was_acknowledged_of_a_topic_that_is_deleted_is_not_missed(tmp_path: Path) -> None:
    """D2: nobody lost it. It is told that it was not looked for; of others all is."""
    topic, deleted, data = a_topic(), Topic("gone", 200, uid=901), tmp_path / "cluster"
    deleted.noop()
    for count in range(1, 9):
        deleted.data(count)
    for node in NODES:
        at = broker(data, node)
        for one in (topic, deleted):
            at.create(one, NODES)
        write_replica(at, [topic, deleted])
        remove(at, deleted)
        at.close()
    rows, others = everything([topic]), everything([deleted])
    report = verified(data, tmp_path, ledgers=[ledger(tmp_path / "acks", rows + others)])
    assert report.findings == []
    assert report.acks == sum(len(one[3]) for one in rows)
    assert "36 acknowledgements are of gone, which is deleted: not looked for" in report.notes


def test_a_name_belongs_to_the_topic_that_was_made_last(tmp_path: Path) -> None:
    """One broker was not there when the topic of that name before was deleted."""
    before, topic, data = a_topic(rounds=9), a_topic(200, 901), tmp_path / "cluster"
    for node in NODES:
        at = Broker(data / f"broker-{node}", node, wall_ms=WALL_MS)
        at.create(before, NODES)
        write_replica(at, [before])
        if node < 3:
            remove(at, before)
        at.close()
        later = Broker(data / f"broker-{node}", node, wall_ms=WALL_MS + 60_000)
        if node < 3:
            later.create(topic, NODES)
            write_replica(later, [topic])
        later.close()
    path = ledger(tmp_path / "acks", everything([topic]))
    assert verified(data, tmp_path, ledgers=[path]).findings == []
    assert set(committed_ranges(make_catalog(find_logs([str(data)])), Wanted())) == {200}


def test_a_topic_that_is_gone_from_all_disks_is_not_read(tmp_path: Path) -> None:
    topic, data = a_topic(rounds=3), tmp_path / "cluster"
    for node in NODES:
        at = broker(data, node)
        at.create(topic, NODES)
        write_replica(at, [topic])
        remove(at, topic)
        at.close()
    assert committed_ranges(make_catalog(find_logs([str(data)])), Wanted()) == {}
    report = verified(data, tmp_path)
    assert report.findings == [] and [one.removed for one in report.groups] == [True]


def damage(folder: Path, number: int) -> None:
    """One bit of the batch that comes so many after the first."""
    hurt = [one for one in records_to_forge(folder, f.ENTRY) if one.record.count][number]
    raw = bytearray(hurt.path.read_bytes())
    raw[hurt.record.end - 9] ^= 4
    hurt.path.write_bytes(raw)


def test_copies_that_are_damaged_in_different_places_lose_nothing(
    cluster: Path, tmp_path: Path
) -> None:
    """Each entry has two whole copies; none of the logs is whole. The later one first: what stands
    behind a damage is not found here.
    """
    path = ledger(tmp_path / "acks", everything(some_topics(20)))
    for node in NODES:
        for number in (2 * node + 1, 2 * node):
            damage(cluster / f"broker-{node}", number)
    report = verified(cluster, tmp_path, ledgers=[path])
    assert [one.rule for one in report.findings] == ["payload"] * 6


def test_an_entry_that_is_damaged_everywhere_is_lost(cluster: Path, tmp_path: Path) -> None:
    path = ledger(tmp_path / "acks", everything(some_topics(20)))
    for node in NODES:
        damage(cluster / f"broker-{node}", 5)
    report = verified(cluster, tmp_path, ledgers=[path])
    assert {one.rule for one in report.findings} == {"payload", "ack"}
