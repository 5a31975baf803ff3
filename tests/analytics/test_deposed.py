"""Logs that end in different terms: what of the older ones is right, and what will be cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plain_spread import PlainSpread
from support.queue_logs import TERM, Broker, Topic, make_entry, replica_id
from support.verifying import verified

from myqueue.analytics.log.catalog import Catalog, make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.analytics.log.plan import Wanted, committed_ranges, entry_tasks
from myqueue.analytics.log.task_reader import chosen
from myqueue.analytics.stats.stats import stats
from myqueue.analytics.verify.commit_point import CommitJudge, Judgement, refuse_unknown
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.open_group import snapshot_parts

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


def state_alone(folder: Path, node: int, topic: Topic, index: int, term: int) -> None:
    """A replica that is being filled: it has the state at the index, and no entry yet."""
    new, machine = Broker(folder / f"broker-{node}", node), PartitionMachine()
    machine.apply(topic.entries)
    new.create(topic, NODES, term=term)
    snapshot = t.Snapshot(
        index, term, t.Config(tuple(map(replica_id, NODES)), ()), 1, 0, 0, 0, machine.snapshot()
    )
    new.log.journal.snapshot(topic.group, index, term, snapshot_parts(snapshot))
    new.log.journal.start(topic.group, 1, 0, 0, 0, reset=True)
    new.close()


def read(folder: Path) -> tuple[list[tuple[int, int]], Judgement]:
    """(index, term) of all that counts as committed."""
    catalog = judged(folder)
    judgement = CommitJudge(ask_stores=False).judge(catalog, Wanted())
    refuse_unknown(judgement, "")
    tasks = entry_tasks(
        catalog, committed_ranges(catalog, Wanted()), Wanted(), 1 << 20, may_miss=True
    )
    entries = [(one.index, one.term) for task in tasks for one, _ in chosen(task)]
    return sorted(entries), judgement


def judged(folder: Path) -> Catalog:
    return make_catalog(find_logs([str(folder)]))


@pytest.mark.parametrize("term", [TERM + 1, TERM + 3])
def test_a_deposed_leaders_entries_do_not_count_beside_a_snapshot(
    term: int, tmp_path: Path
) -> None:
    """It knew of a commit of 8, and wrote two more that nobody followed: in an older term than the
    snapshot's entry, or in a newer one, when an older entry was the last that the state needed.
    """
    topic = a_topic()
    old = Broker(tmp_path / "broker-1", 1)
    old.create(topic, NODES)
    old.append(topic, topic.entries[:8])
    old.commit_hint(topic, 8)
    stray = Topic("a", 100, entries=list(topic.entries[:8]))
    stray.data(3, term=term)
    stray.data(3, term=term)
    old.log.journal.hard_state(100, term, replica_id(1))
    old.append(topic, stray.entries[8:])
    old.close()
    state_alone(tmp_path, 2, topic, 20, TERM + 2)
    entries, judgement = read(tmp_path)
    assert entries == [(index, TERM) for index in range(1, 9)]
    assert [(one.first, one.last) for one in judgement.absent] == [(9, 20)]
    assert judgement.beyond == judgement.unknown == []
    facts = stats([str(tmp_path)], PlainSpread())
    assert facts["messages"] == 2 * 7
    assert [one["why"] for one in facts["not_counted"]] == ["absent"]
    report = verified(tmp_path, tmp_path)
    assert "12 committed entries that are in none of these logs for certain" in report.notes[0]
    if term < TERM + 2:  # a leader of a newer term that lacks what is committed is another matter
        assert [one.entries for one in report.groups] == [8]


def test_entries_of_the_snapshots_own_term_do_count(tmp_path: Path) -> None:
    """The leader of that term had them in one log with the entry of the snapshot."""
    topic = a_topic()
    old = Broker(tmp_path / "broker-1", 1)
    old.create(topic, NODES)
    old.append(topic, topic.entries)
    old.close()
    state_alone(tmp_path, 2, topic, 20, TERM)
    entries, judgement = read(tmp_path)
    assert entries == [(index, TERM) for index in range(1, 11)]
    assert [(one.first, one.last) for one in judgement.absent] == [(11, 20)]


def test_terms_are_looked_at_where_footers_do_not_tell_them(tmp_path: Path) -> None:
    """The log that is right lacks its first segments; the other one ends in another term, and knows
    of no commit, but has the same entries before.
    """
    topic = a_topic()
    stray = Topic("a", 100, entries=list(topic.entries))
    stray.data(3, term=TERM + 1)
    topic.noop(TERM + 2)
    topic.data(4, term=TERM + 2)
    for node in (1, 2):
        at, busy = Broker(tmp_path / f"broker-{node}", node), Topic("busy", 999)
        for one in (topic, busy):
            at.create(one, NODES)
        fill(at, busy)
        at.append(topic, stray.entries if node == 1 else topic.entries[:7])
        fill(at, busy)
        if node == 2:
            at.append(topic, topic.entries[7:])
            at.commit_hint(topic, 12)
        at.commit_hint(busy, busy.entries[-1][t.INDEX])
        at.log.journal.remove_group(busy.group)
        at.close()
    second = sorted((tmp_path / "broker-2" / "wal").glob("*.seg"))[1]
    second.unlink()
    entries, judgement = read(tmp_path)
    assert entries == [(index, TERM + 2 * (index > 10)) for index in range(1, 13)]
    assert judgement.absent == judgement.beyond == []


def fill(at: Broker, busy: Topic) -> None:
    """Until the log goes on in the next segment."""
    first = at.log.journal.end[0]
    while at.log.journal.end[0] == first:
        had = len(busy.entries)
        busy.data(8, size=1000)
        at.append(busy, busy.entries[had:])
