"""A machine that stood still: nobody is dead, and no disk is stalled, because a turn came late."""

from __future__ import annotations

from pathlib import Path

from daemons.test_rivals import Door
from support.engine_rig import Clock, EngineNet, Node

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.suspicion import LAPSES_MAX
from myqueue.daemons.replication.disk_health import STALL_MS
from myqueue.wal.config import JournalConfig

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0)
WAIT_MS = 50


class Times(Clock):
    """A clock that says these times, one after another, and then the last one."""

    def __init__(self, *times: int) -> None:
        super().__init__()
        self._times = list(times)

    def now_ms(self) -> int:
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


def put(node: Node, net: EngineNet) -> None:
    node.engine.propose(node.replica(), [t.Proposal(1, net.clock.wall, t.DATA, b"x")])
    node.engine.end_turn()


def begin_turns(net: EngineNet, passed_ms: int = 0) -> None:
    """The clock goes on, and every engine notes when its turn begins."""
    net.clock.now += passed_ms
    for node in net.nodes.values():
        node.engine.now = net.clock.now
        node.engine.begin_turn(WAIT_MS)


def test_r33_a_machine_that_stood_still_keeps_its_leaders(tmp_path: Path) -> None:
    """A write was under way, and the disk reports it only after the first turn."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(3)
        leader = net.leader()
        begin_turns(net)
        leader.holds_reports = True
        put(leader, net)
        begin_turns(net, 10 * STALL_MS)
        for node in net.nodes.values():
            node.engine.tick()
        assert leader.replica().is_leader
        leader.holds_reports = False
        net.turn()
        net.wait_until_settled()
        assert net.leader() is leader
        assert all(node.engine.counts["disk_stalls_total"] == 0 for node in net.nodes.values())
        assert all(node.engine.counts["late_turns_total"] == 1 for node in net.nodes.values())
        assert all(node.engine.counts["peer_silences_total"] == 0 for node in net.nodes.values())


def test_w17_a_stalled_disk_is_noticed_by_one_that_is_always_late(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create()
        net.write(3)
        leader = net.leader()
        begin_turns(net)
        leader.holds_reports = True
        put(leader, net)
        late_turns = 0
        while not leader.engine.counts["disk_stalls_total"]:
            begin_turns(net, 500)
            leader.engine.tick()
            late_turns += 1
            assert late_turns <= LAPSES_MAX + STALL_MS // 500 + 1
        assert late_turns > LAPSES_MAX


def test_the_loop_measures_how_late_it_is(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        door = Door(net)
        host, late = door.engine.host, []
        for passed_ms in (5, 100, 101, 0, 4000):
            door.turn(passed_ms)
            late.append(host.late_turns)
        begun = net.clock.now
        door.engine.clock = Times(begun, begun + 140)
        door.loop._has_more_work, door.loop._next_tick = False, begun + 40
        door.loop.turn()  # 140 ms, of which it wanted to wait for 40
        door.close()
        assert [*late, host.late_turns] == [0, 0, 1, 1, 2, 2]
