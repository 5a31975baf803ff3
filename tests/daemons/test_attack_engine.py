"""What once went wrong in the engine, on real logs: reads of several groups, removals, stalls."""

from __future__ import annotations

from pathlib import Path

from support.engine_rig import EngineNet, Node
from support.wal_logs import flip

from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.disk_health import STALL_MS
from myqueue.wal import format as f
from myqueue.wal.config import JournalConfig
from myqueue.wire import protocol

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0, reserve_bytes=0)


def put(net: EngineNet, node: Node, group: int) -> int:
    item = t.Proposal(1, net.clock.wall, t.DATA, bytes(100))
    return node.engine.propose(node.replica(group), [item])


def lead(net: EngineNet, node: Node, group: int) -> None:
    node.engine.campaign_soon(node.replica(group))
    net.until(f"node {node.number} leads {group}", lambda: node.replica(group).is_ready)


def test_a_read_waits_for_its_own_group_not_for_any(tmp_path: Path) -> None:
    """R10: what is committed is not applied yet, as our own disk is behind; others' is."""
    with EngineNet(tmp_path, 4, CONFIG) as net:
        first, a, b = net.nodes[1], 5, 6
        for group, nodes in ((a, [1, 3, 4]), (b, [1, 2])):
            for number in nodes:
                net.nodes[number].create(group, nodes)
            lead(net, first, group)
        net.write(50, b)
        net.cut = {(1, 2)}
        index = put(net, first, b)
        net.until("b on our disk", lambda: first.replica(b).raft.log.persisted_index == index)
        first.holds_reports = True
        put(net, first, a)
        raft = first.replica(a).raft
        net.until("a committed", lambda: raft.commit_index > raft.applied_index)
        first.engine.read(first.replica(a), 1234)
        for _ in range(20):
            net.turn(1)
        net.cut = set()
        net.until("b applied", lambda: first.replica(b).raft.applied_index == index)
        assert raft.commit_index > raft.applied_index
        assert first.owner.reads == []
        first.holds_reports = False
        net.until("answered", lambda: first.owner.reads == [1234])
        assert raft.applied_index == raft.commit_index


def test_a_group_is_removed_in_the_turn_in_which_entries_for_it_came(tmp_path: Path) -> None:
    """A deletion under load: what the core still wanted to write has no group any more."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(5)
        net.create(6)
        net.write(5, 5)
        net.wait_until_settled(5)
        leader = net.leader(5)
        follower = next(one for one in net.nodes.values() if one is not leader)
        put(net, leader, 5)
        leader.turn()
        engine = follower.engine
        for source, frames in follower.inbox:
            engine.receive_packet(source, protocol.decode(frames[0]), frames[1:])
        follower.inbox.clear()
        engine.remove(5)
        engine.end_turn()
        leader.engine.remove(5)
        net.write(5, 6)


def test_a_disk_that_says_nothing_does_not_lead(tmp_path: Path) -> None:
    """W17, R29: the network is well and the disk is not; another one has to lead."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(5)
        net.write(5, 5)
        net.wait_until_settled(5)
        leader = net.leader(5)
        leader.holds_reports = True
        put(net, leader, 5)
        net.turn(10)
        begin = net.clock.now
        net.until("it makes way", lambda: not leader.replica(5).is_leader, 1000)
        assert net.clock.now - begin <= STALL_MS + 200
        net.until("another one leads", lambda: net.leader(5) is not leader)
        net.write(5, 5)
        leader.holds_reports = False
        net.wait_until_settled(5)
        assert leader.replica(5).raft.may_lead


def test_a_busy_disk_that_reports_leads_on(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(5)
        leader = net.leader(5)
        for _ in range(300):
            put(net, leader, 5)
            net.turn(10)
        assert leader.replica(5).is_leader
        assert not leader.engine.counts.get("disk_stalls_total")


def test_a_leader_that_cannot_read_what_a_follower_lacks_makes_way(tmp_path: Path) -> None:
    """W16: another replica is whole; and a bad place is not read again in every turn."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(5)
        net.write(60, 5, size=10_000)
        net.wait_until_settled(5)
        leader = net.leader(5)
        late = next(one for one in net.nodes.values() if one is not leader)
        net.cut = {(one, late.number) for one in net.nodes}
        net.write(10, 5, size=10_000)
        lost = leader.replica(5).raft.log.last_index - 5
        net.write(20, 5, size=10_000)
        damage(leader, lost)
        log = leader.replica(5).raft.log
        log.forget_before(log.last_index)
        net.until("in the index", lambda: leader.log.index.row(5, lost) is not None)
        net.cut = set()
        counts, turns = leader.engine.counts, net.clock.now
        net.wait_until_settled(5)
        assert net.leader(5) is not leader
        assert 1 <= counts["peer_fetches_failed_total"] <= 2 + (net.clock.now - turns) // 1000


def damage(node: Node, index: int) -> None:
    row = node.log.index.row(5, index)
    assert row is not None
    name, _ = node.log.journal.segment_name(row.segment) or ("", 0)
    flip(node.folder / "wal" / name, row.position + f.RECORD_HEADER_BYTES + 100)
