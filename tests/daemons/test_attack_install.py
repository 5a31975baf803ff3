"""A snapshot that is on its way to the disk: the store has nothing of it before (W13, R20)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.engine_rig import EngineNet, Node

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import Packet
from myqueue.daemons.replication import packets as peerwire
from myqueue.wal.config import JournalConfig
from myqueue.wire import protocol

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0, reserve_bytes=0)
GROUP = 5


def start_log_behind(node: Node, index: int) -> None:
    """As retention does it."""
    replica = node.replica(GROUP)
    entry = replica.read(index, index, 1)[0]
    before = (entry[t.TERM], entry[t.OFFSET] + entry[t.COUNT], entry[t.CHAIN])
    node.log.journal.start(GROUP, index + 1, *before)
    replica.raft.start_log_at(index + 1, *before)


def saved(node: Node) -> int:
    with node.log.store.view() as view:
        return view.applied_index(GROUP)


@pytest.mark.parametrize("is_due", [False, True])
def test_state_of_a_snapshot_is_saved_when_the_log_has_the_snapshot(
    is_due: bool, tmp_path: Path
) -> None:
    """`is_due`: something is to be saved just in the turn in which the snapshot comes. The core has
    its index then, and the machine gets its state at the end of the turn.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(5, GROUP)
        net.wait_until_settled(GROUP)
        leader = net.leader(GROUP)
        late = next(one for one in net.nodes.values() if one is not leader)
        ours = late.replica(GROUP)
        net.until("saved", lambda: saved(late) == ours.raft.applied_index)
        had = saved(late)
        net.cut = {(n, late.number) for n in net.nodes}
        net.write(20, GROUP)
        others = [one for one in net.nodes.values() if one is not late]
        for node in others:
            while node.replica(GROUP).raft.applied_index < had + 20:
                net.turn()
        for node in others:
            start_log_behind(node, 20)
        late.holds_reports = True
        net.cut = set()
        hints = list[int]()
        late.log.journal.commit_hint = lambda _, index: hints.append(index)  # type: ignore

        def has_come() -> bool:
            if is_due:
                saver = late.engine._saver
                saver._next_save = saver._next_hint = 0
                saver.note(ours)
                saver._hints[GROUP] = None
            return ours.raft.applied_index > had

        net.until("the snapshot", has_come)
        assert [one for one in hints if one > had] == [], "it would stand before the snapshot"
        for _ in range(60):  # the saver and the store's thread have their turns
            net.turn()
            time.sleep(0.005)
        assert saved(late) == had
        late.holds_reports = False
        net.wait_until_settled(GROUP)
        net.until("saved", lambda: saved(late) == ours.raft.applied_index > had)
        end = leader.replica(GROUP).machine.snapshot()
        assert ours.machine.snapshot() == end
        late.restart()
        net.write(3, GROUP)
        net.wait_until_settled(GROUP)
        assert late.replica(GROUP).machine.snapshot() == leader.replica(GROUP).machine.snapshot()


def test_a_log_that_is_filled_behind_a_saved_state_brings_no_members_of_before(
    tmp_path: Path,
) -> None:
    """R16: the state of a snapshot is in the store, a restart follows, and then come the entries up
    to that state. Changes of members among them were made before those that the state knows.
    """
    with EngineNet(tmp_path, 4, CONFIG) as net:
        for number in (1, 2, 3):
            net.nodes[number].create(GROUP, [1, 2, 3])
        net.write(5, GROUP)
        leader = net.leader(GROUP)
        late, third = (net.nodes[one] for one in (1, 2, 3) if net.nodes[one] is not leader)
        net.cut = {way for way in net.directions() if late.number in way}
        net.write(5, GROUP)
        now = leader.replica(GROUP).raft.config
        before = now._replace(learners=(t.replica_id(4, 1),))
        first = change(net, leader, before)
        newest = change(net, leader, now)
        net.until("applied", lambda: third.replica(GROUP).raft.applied_index >= newest)
        for node in (leader, third):
            start_log_behind(node, first - 1)
        late.holds_reports = True
        net.cut = set()
        net.until("installed", lambda: late.replica(GROUP).raft.applied_index >= newest)
        net.cut = {way for way in net.directions() if late.number in way}
        late.holds_reports = False
        net.until("saved", lambda: saved(late) >= newest)
        late.restart()
        raft, theirs = late.replica(GROUP).raft, leader.replica(GROUP).raft
        assert (raft.log.last_index, raft.config) == (first - 1, now)
        entries, _ = theirs.log.portion(first, 1 << 20, 1)
        message = t.Append(
            GROUP,
            theirs.replica,
            raft.replica,
            theirs.term,
            first - 1,
            theirs.log.start_term,
            0,
            entries,
            theirs.commit_index,
        )
        late.engine.host.receive(leader.number, Packet([message], []), net.clock.now)
        late.turn()
        assert (raft.log.last_index, raft.config) == (first, now), f"not {before}"
        net.cut = set()
        net.until("filled", lambda: raft.log.persisted_index >= newest)
        late.restart()
        assert late.replica(GROUP).raft.config == now


def change(net: EngineNet, leader: Node, config: t.Config) -> int:
    """The index of the entry that made it."""
    replica = leader.replica(GROUP)
    index = replica.raft.log.last_index + 1
    leader.engine.change(replica, config)
    net.until("applied", lambda: replica.raft.applied_index >= index)
    return index


def test_a_leader_that_was_replaced_makes_no_state_for_a_follower(tmp_path: Path) -> None:
    """R20: it hears of the newer leader late. What that one's node says makes it look for what its
    replica lacks, and in the same turn brings a state, which its own log does not reach.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(5, GROUP)
        net.wait_until_settled(GROUP)
        old = net.leader(GROUP)
        near, new = (node for node in net.nodes.values() if node is not old)
        net.cut = {(new.number, old.number)}  # what `new` has is not known from here on
        net.write(5, GROUP)
        start_log_behind(old, old.replica(GROUP).raft.applied_index)
        old.engine.propose(old.replica(GROUP), [t.Proposal(1, net.clock.wall, t.DATA, bytes(100))])
        had = old.replica(GROUP).raft.log.last_index
        net.until("all have it", lambda: new.replica(GROUP).raft.log.last_index == had)
        net.cut |= {(old.number, near.number), (old.number, new.number)}
        net.until("nobody leads", lambda: not near.replica(GROUP).leader_node)
        new.engine.campaign_soon(new.replica(GROUP))
        net.until("the new one leads", lambda: new.replica(GROUP).is_ready)
        items = [t.Proposal(1, net.clock.wall, t.DATA, bytes(100)) for _ in range(5)]
        new.engine.propose(new.replica(GROUP), items)
        end = new.replica(GROUP).raft.log.last_index
        net.until("applied", lambda: new.replica(GROUP).raft.applied_index == end)
        start_log_behind(new, end - 2)
        assert old.replica(GROUP).is_leader, "it hears one of them"
        net.cut = set()
        await_state(net, old)
        old.turn()
        assert old.replica(GROUP).raft.applied_index == end
        net.write(5, GROUP)
        net.wait_until_settled(GROUP)
        assert not old.engine.refused


class PowerLoss(Exception):
    """The process ends here."""


def test_a_start_finishes_an_install_that_a_crash_left_without_its_end(tmp_path: Path) -> None:
    """R25: the snapshot is on the disk, the START behind it is not. The log of before holds entries
    that were never committed, and the state is at an index beyond them.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(5, GROUP)
        net.wait_until_settled(GROUP)
        old = net.leader(GROUP)
        near, new = (node for node in net.nodes.values() if node is not old)
        net.cut = {(old.number, near.number), (old.number, new.number)}
        item = t.Proposal(1, net.clock.wall, t.DATA, bytes(100))
        old.engine.propose(old.replica(GROUP), [item] * 4)
        net.until("nobody leads", lambda: not near.replica(GROUP).leader_node)
        new.engine.campaign_soon(new.replica(GROUP))
        net.until("the new one leads", lambda: new.replica(GROUP).is_ready)
        theirs = new.replica(GROUP)
        new.engine.propose(theirs, [item] * 20)
        end = theirs.raft.log.last_index
        net.until("applied", lambda: theirs.raft.applied_index == end)
        start_log_behind(new, end - 2)

        def start(*_: Any, **__: Any) -> int:
            raise PowerLoss

        journal: Any = old.log.journal
        journal.start, net.cut = start, set()
        with pytest.raises(PowerLoss):
            net.until("the end of its snapshot", lambda: False)
        old.engine._saver.hold(old.replica(GROUP))  # so nothing of the state gets into the store
        net.cut = {way for way in net.directions() if old.number in way}
        old.restart()
        raft = old.replica(GROUP).raft
        assert (raft.applied_index, raft.commit_index) == (end, end - 2)
        assert (raft.log.first_index, raft.log.last_index) == (end - 1, end - 2)
        net.cut = set()
        net.write(5, GROUP)
        net.wait_until_settled(GROUP)
        assert old.replica(GROUP).machine.snapshot() == theirs.machine.snapshot()
        old.restart()
        assert old.replica(GROUP).raft.log.last_index == theirs.raft.log.last_index


def test_no_snapshot_is_made_of_a_state_that_is_being_taken_over(tmp_path: Path) -> None:
    """W13: the log that an install left is empty and begins behind the state, which looks whole;
    the machine has its state of before until the turn ends.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(5, GROUP)
        net.wait_until_settled(GROUP)
        leader = net.leader(GROUP)
        late, third = (node for node in net.nodes.values() if node is not leader)
        net.cut = {way for way in net.directions() if late.number in way}
        net.write(5, GROUP)
        end = leader.replica(GROUP).raft.applied_index
        net.until("applied", lambda: third.replica(GROUP).raft.applied_index == end)
        for node in (leader, third):
            start_log_behind(node, end)
        net.cut = set()
        await_state(net, late)
        ours, engine = late.replica(GROUP), late.engine
        for source, frames in late.inbox:
            engine.receive_packet(source, protocol.decode(frames[0]), frames[1:])
        late.inbox.clear()
        assert ours.raft.applied_index == ours.raft.log.persisted_index == end
        assert not engine.starts.write_snapshot(ours)
        net.until("installed", lambda: ours.machine.applied_index == end)
        assert engine.starts.write_snapshot(ours)


def await_state(net: EngineNet, node: Node) -> None:
    """All but this one take turns, until a state for it stands in its inbox."""
    net.clock.now += 100
    node.turn()  # its beat
    for _ in range(1000):
        packets = [
            peerwire.decode(protocol.decode(frames[0]), frames[1:]) for _, frames in node.inbox
        ]
        if any(isinstance(one, t.InstallSnapshot) for got in packets for one in got.messages):
            return
        net.clock.now += 10
        for other in net.nodes.values():
            if other is not node:
                other.turn()
        time.sleep(0.0005)
    raise AssertionError("no state comes")
