"""A new replica is filled out of the log at a pace, so that producers need not wait for it (P4)."""

from __future__ import annotations

from pathlib import Path

from kit.engine_rig import GROUP, Net

from myqueue import protocol
from myqueue.daemons.raft import types as t
from myqueue.wal.config import JournalConfig

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0)
SIZE, COUNT = 60_000, 50
RATE = 1_000_000


def test_p4_a_new_replica_is_filled_at_a_pace(tmp_path: Path) -> None:
    with Net(tmp_path, 4, CONFIG) as net:
        for number in (1, 2, 3):
            net.nodes[number].create(GROUP, [1, 2, 3])
        for _ in range(COUNT):
            net.write(size=SIZE)
        for number in (1, 2, 3):
            net.nodes[number].restart()  # all is on disk alone
        for node in net.nodes.values():
            node.engine.fill_bytes_per_s = RATE
        leader = net.leader()
        learner = t.replica_id(4, 1)
        voters = [t.replica_id(one, 1) for one in (1, 2, 3)]
        about = protocol.pack(["t", 0, 1, {}])
        net.nodes[4].engine.create(GROUP, learner, voters, [learner], about)
        leader.engine.change(leader.replica(), t.Config(tuple(voters), (learner,)))
        began = net.clock.now
        net.until("it has a part", lambda: net.nodes[4].replica().node.log.last_index > COUNT // 2)
        net.until("it has all", lambda: has(net, 4) >= COUNT, 20_000)
        took_ms = net.clock.now - began
        at_pace_ms = COUNT * SIZE * 1000 // RATE
        assert 0.8 * at_pace_ms <= took_ms <= 2 * at_pace_ms, took_ms


def has(net: Net, number: int) -> int:
    return net.nodes[number].replica().node.log.persisted_index
