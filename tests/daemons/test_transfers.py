"""Leaders that go back to where they should be: only to who has all there is (B4, R24)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_rig import EngineNet
from support.manager_rig import ManagerCluster

from myqueue import errors
from myqueue.daemons.manager.balancer.controller import LEADER_ALIVE_MS_MIN, TRANSFER_RETRY_MS
from myqueue.daemons.raft import types as t
from myqueue.wal.config import JournalConfig

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0)


def test_nobody_waits_for_one_who_has_to_catch_up(tmp_path: Path) -> None:
    """While leadership is handed over nothing is taken; so it is not begun too early."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(5)
        leader = net.leader()
        late = next(node for node in net.nodes.values() if node is not leader)
        late.close()
        for _ in range(50):
            net.write(size=50_000)
            net.turn(100)
        late.open()
        engine, replica = leader.engine, leader.replica()
        net.until("heard", lambda: replica.raft.is_heard(late.replica().replica_id, engine.now))
        refused = 0
        while late.replica().raft.log.last_index < replica.raft.commit_index:
            with pytest.raises(errors.NotReady, match="lags behind"):
                engine.transfer(replica, late.number, at_once=True)
            refused += 1
            engine.propose(replica, [t.Proposal(1, 1, t.DATA, bytes(100))])
            net.turn()
        assert refused
        name, raft = late.replica().replica_id, replica.raft
        net.until("it has all", lambda: raft.leading.is_caught_up(name, engine.now))
        engine.transfer(replica, late.number, at_once=True)
        net.until("it leads", lambda: net.leader() is late)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_disk_that_is_to_be_filled_leads_nothing(is_lost: bool) -> None:
    """Its old replicas count as voters until the new ones are there."""
    cluster = ManagerCluster(brokers=3)
    cluster.live(LEADER_ALIVE_MS_MIN + 600)
    cluster.update("create_topic", topic="t", partitions=24)
    cluster.beat_all()
    third = cluster.brokers[3]
    for group in third.groups:
        cluster.brokers[1].leads[group] = 2
    if is_lost:
        third.lost = [[group, third.incarnation_of(group)] for group in third.groups]
    cluster.live(TRANSFER_RETRY_MS)
    assert {node for _, node in cluster.brokers[1].transfers} == ({2} if is_lost else {2, 3})
