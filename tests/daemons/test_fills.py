"""A new replica is filled out of the log at a pace, so that producers need not wait for it (P4)."""

from __future__ import annotations

from pathlib import Path

from support.engine_rig import GROUP, EngineNet

from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.catch_up import FILL_AHEAD_MS
from myqueue.wal.config import JournalConfig
from myqueue.wire import protocol

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0)
SIZE, COUNT = 60_000, 50
RATE = 1_000_000


def filled(net: EngineNet) -> None:
    """Three of them have the group, on disk alone."""
    for number in (1, 2, 3):
        net.nodes[number].create(GROUP, [1, 2, 3])
    for _ in range(COUNT):
        net.write(size=SIZE)
    for number in (1, 2, 3):
        net.nodes[number].restart()
    for node in net.nodes.values():
        node.engine.fill_bytes_per_s = RATE


def test_p4_a_new_replica_is_filled_at_a_pace(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 4, CONFIG) as net:
        filled(net)
        join(net)
        began = net.clock.now
        net.until("it has a part", lambda: net.nodes[4].replica().raft.log.last_index > COUNT // 2)
        net.until("it has all", lambda: has(net, 4) >= COUNT, 20_000)
        took_ms = net.clock.now - began
        at_pace_ms = COUNT * SIZE * 1000 // RATE
        assert 0.8 * at_pace_ms <= took_ms <= 2 * at_pace_ms, took_ms


def test_p4_a_voter_that_was_away_keeps_a_new_replica_waiting_for_a_moment(tmp_path: Path) -> None:
    """It is served as fast as it goes, and what that was does not have to be made up for."""
    with EngineNet(tmp_path, 4, CONFIG) as net:
        for number in (1, 2, 3):
            net.nodes[number].create(GROUP, [1, 2, 3])
        away = next(one for one in (1, 2, 3) if net.nodes[one] is not net.leader())
        net.nodes[away].close()
        for _ in range(COUNT):
            net.write(size=SIZE)
        for number in {1, 2, 3} - {away}:
            net.nodes[number].restart()  # all is on disk alone
        for node in net.nodes.values():
            node.engine.fill_bytes_per_s = RATE // 4  # 12 s for what the voter gets
        net.leader()
        net.nodes[away].open()
        net.until("the voter has all", lambda: has(net, away) >= COUNT)
        began = net.clock.now
        join(net)
        net.until("it has some", lambda: has(net, 4) > 0)
        assert net.clock.now - began <= 2 * FILL_AHEAD_MS


def test_p4_voters_that_are_served_all_the_time_let_a_new_replica_have_some(tmp_path: Path) -> None:
    """A voter with hours to make up for would keep it waiting for as long."""
    with EngineNet(tmp_path, 4, CONFIG) as net:
        filled(net)
        join(net)
        serving, portion = net.leader().engine._catch_up, 2 * RATE // 20
        began = net.clock.now
        while has(net, 4) < COUNT:
            serving._delay_next_fill(portion, is_fill=False)
            net.turn(50)
            assert net.clock.now - began <= COUNT * 2 * FILL_AHEAD_MS


def test_p4_a_new_replica_of_a_group_that_grows_faster_than_the_pace_gets_there(
    tmp_path: Path,
) -> None:
    with EngineNet(tmp_path, 4, CONFIG) as net:
        for number in (1, 2, 3):
            net.nodes[number].create(GROUP, [1, 2, 3])
        for _ in range(COUNT):
            net.write(size=SIZE)
        for number in (1, 2, 3):
            net.nodes[number].restart()  # all is on disk alone
        leader = net.leader()
        for node in net.nodes.values():
            node.engine.fill_bytes_per_s = RATE // 10
        join(net)
        began, written = net.clock.now, 0
        while net.nodes[4].replica().raft.log.last_index < COUNT:
            passed_ms = net.clock.now - began
            assert passed_ms < 20_000, "at the pace alone it would take 30 s"
            if written * 1000 < RATE // 2 * passed_ms:
                net.write(size=SIZE)
                written += SIZE
                leader.engine.counts["produced_bytes_total"] += SIZE
            net.turn()


def join(net: EngineNet) -> None:
    """Node 4, as a learner."""
    leader, learner = net.leader(), t.replica_id(4, 1)
    voters = [t.replica_id(one, 1) for one in (1, 2, 3)]
    about = protocol.pack(["t", 0, 1, {}])
    net.nodes[4].engine.create(GROUP, learner, voters, [learner], about)
    leader.engine.change(leader.replica(), t.Config(tuple(voters), (learner,)))


def has(net: EngineNet, number: int) -> int:
    return net.nodes[number].replica().raft.log.persisted_index
