"""The log follows its machine's start: never ahead of a state that is in the log as well."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support import wal_logs
from support.engine_rig import GROUP, EngineNet, Node

from myqueue.daemons.partition.machine import start_command
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication import log_prefix
from myqueue.wal import format as f
from myqueue.wal.config import JournalConfig

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0, reserve_bytes=0)


def move(net: EngineNet, index: int) -> None:
    """As a leader does it whose retention says so: messages before this entry may go."""
    leader = net.leader()
    replica = leader.replica()
    rows = [leader.log.index.row(GROUP, at) for at in range(replica.machine.start_index, index)]
    offset = max(row.offset + row.count for row in rows if row is not None)
    gone = sum(row.length for row in rows if row is not None and row.count)
    item = t.Proposal(0, 0, t.COMMAND, start_command(offset, index, gone))
    at = leader.engine.propose(replica, [item])
    net.until("applied", lambda: replica.raft.applied_index >= at)


def first_index(node: Node) -> int:
    return node.replica().raft.log.first_index


def others(net: EngineNet, node: Node) -> list[Node]:
    return [one for one in net.nodes.values() if one is not node]


def test_each_replica_cuts_its_log_behind_a_snapshot(tmp_path: Path) -> None:
    """R20, W20: all of them, and at the same place; whatever of the log a crash leaves, the state
    before a START reaches it.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(30)
        move(net, 12)
        net.until("cut", lambda: all(first_index(node) == 12 for node in net.nodes.values()))
        net.write(5)
        move(net, 25)
        for node in net.nodes.values():
            net.until("cut", lambda at=node: first_index(at) == 25)
            assert node.replica().machine.start == 23  # the first entry of a term has no message
            assert node.replica().machine.bytes_kept == 12 * 100
        net.until(
            "on disk", lambda: not any(node.log.journal.queued_bytes for node in net.nodes.values())
        )
        for node in net.nodes.values():
            node.close()
            state, cuts = 0, 0
            for found in wal_logs.records(node.folder / "wal"):
                record = found.record
                if record.kind == f.SNAPSHOT and record.flags & f.LAST:
                    state = record.index
                elif record.kind == f.START:
                    cuts += 1
                    assert state >= record.index - 1, "a log that begins behind its state"
            assert cuts == 2


def test_what_is_cut_is_not_missed_by_a_rebuild(tmp_path: Path) -> None:
    """W20: with and without the store."""
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create()
        net.write(30)
        move(net, 20)
        node = net.nodes[1]
        net.until("cut", lambda: first_index(node) == 20)
        net.write(4)
        for wipe in (False, True):
            node.close()
            if wipe:
                shutil.rmtree(node.folder / "store")
            node.open()
            assert not node.engine.refused and first_index(node) == 20
            machine = node.replica().machine
            assert machine.start == 18
            net.leader()
            assert (machine.end, machine.bytes_kept) == (34, 16 * 100)


def test_a_log_that_is_being_filled_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R19, R20: the leader's log begins before its machine's start, as its cut is put off. Who was
    away gets state and log, and cuts its own when it has as much as it applied.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(30)
        leader = net.leader()
        away = others(net, leader)[0]
        net.cut = {(n, away.number) for n in net.nodes}
        net.write(400, size=30_000)  # more than stays in memory, or fits into one message
        move(net, 300)
        net.until("cut", lambda: first_index(leader) == 300)
        with monkeypatch.context() as patch:
            patch.setattr(log_prefix.LogPrefix, "_is_worth_it", lambda *_: False)
            move(net, 420)
            net.cut = set()
            ours = away.replica()
            net.until("the state", lambda: ours.machine.start_index == 420)
            assert first_index(away) == 300
        net.until("all of it", lambda: first_index(away) == 420)
        net.wait_until_settled()
        assert ours.machine.snapshot() == leader.replica().machine.snapshot()
        net.until("the leader's cut", lambda: first_index(leader) == 420)


def test_a_large_state_waits_until_the_cut_is_worth_it(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create()
        net.write(50)
        node = net.nodes[1]
        move(net, 5)
        net.until("the first cut", lambda: first_index(node) == 5)
        costs: Any = node.engine.starts._costs
        costs[GROUP] = 1000  # bytes of a state; each entry here gives 100 back
        move(net, 10)
        for _ in range(50):
            net.turn()
        assert first_index(node) == 5 and node.replica().machine.start_index == 10
        move(net, 16)
        net.until("worth it", lambda: first_index(node) == 16)
        costs[GROUP] = 1_000_000
        move(net, 20)
        begin = net.clock.now
        net.until("later, in any case", lambda: net.turn(1000) or first_index(node) == 20)
        assert net.clock.now - begin >= log_prefix.LATEST_MS


def test_half_a_snapshot_does_not_hold_segments(tmp_path: Path) -> None:
    """W12: a crash left the first parts of one; the next start puts another in its place."""
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create()
        net.write(5)
        node = net.nodes[1]
        journal: Any = node.log.journal
        journal._record(f.SNAPSHOT, GROUP, b"part", index=4, term=1, count=0)
        net.until("on disk", lambda: not journal.queued_bytes)
        assert journal.groups.by_uid[GROUP].pending_from
        node.restart()
        group = node.log.journal.groups.by_uid[GROUP]
        assert not group.pending_from and group.snapshot_parts


def test_a_start_that_moves_while_a_follower_asks_is_no_trouble(tmp_path: Path) -> None:
    """What it asked for is gone, not unreadable: nobody hands over, and it gets a snapshot."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(30)
        move(net, 12)
        leader = net.leader()
        net.until("cut", lambda: first_index(leader) == 12)
        follower = others(net, leader)[0].replica().replica_id
        leader.engine._catch_up.fetch(t.Fetch(GROUP, follower, 5, 8))
        assert not leader.engine.refused
        assert not leader.engine.counts["peer_fetches_failed_total"]
        net.wait_until_settled()
        assert net.leader() is leader


def test_what_could_not_be_read_for_a_follower_is_not_said_for_ever(tmp_path: Path) -> None:
    """Who handed over because of it is not asked again."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(30)
        leader = net.leader()
        follower = others(net, leader)[0].replica().replica_id
        leader.engine._catch_up.fetch(t.Fetch(GROUP, follower, 900, 901))  # there is no such entry
        assert GROUP in leader.engine.refused
        net.until("forgotten", lambda: not leader.engine.refused)
