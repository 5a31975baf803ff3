"""Replicas that join a group, leave it, and come back under another name: real logs, no network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.engine_rig import GROUP, EngineNet, Node

from myqueue import errors
from myqueue.daemons.broker import reconcile_members as module
from myqueue.daemons.broker.reconcile_members import MemberReconciler
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.replica import Replica
from myqueue.wal.config import JournalConfig
from myqueue.wire import protocol

CONFIG = JournalConfig(segment_bytes=1 << 20, soft_limit_bytes=0)


def change(net: EngineNet, voters: list[int], learners: list[int]) -> None:
    """Until it is committed."""
    wanted = t.Config(tuple(voters), tuple(learners))

    def done() -> bool:
        leader = net.leader()
        replica = leader.replica()
        raft = replica.raft
        if raft.config == wanted:
            return bool(raft.configs.current_index <= raft.commit_index)
        try:
            leader.engine.change(replica, wanted)
        except errors.NotReady:
            pass
        return False

    net.until(f"members are {wanted}", done)


def join(node: Node, incarnation: int, others: list[int]) -> Replica:
    """A replica that came later than its group."""
    about = protocol.pack(["t", 0, 1, {}])
    own = t.replica_id(node.number, incarnation)
    return node.engine.create(GROUP, own, others, [own], about)


def is_filled(net: EngineNet, node: Node) -> bool:
    leader = net.leader().replica().raft
    return bool(node.replica().raft.log.persisted_index >= leader.commit_index)


def messages(node: Node) -> int:
    machine = node.replica().machine
    assert isinstance(machine, PartitionMachine)
    return machine.end


def hinted(node: Node) -> int:
    return node.log.journal.groups.by_uid[GROUP].commit_index


A, B, C, D = (t.replica_id(node, 1) for node in (1, 2, 3, 4))


@pytest.fixture
def net(tmp_path: Path) -> Iterator[EngineNet]:
    with EngineNet(tmp_path, 4, CONFIG) as made:
        for number in (1, 2, 3):
            made.nodes[number].create(GROUP, [1, 2, 3])
        made.write(50, size=2000)
        yield made


def test_p4_r18_a_replica_joins_is_filled_and_votes(net: EngineNet) -> None:
    change(net, [A, B, C], [D])
    fourth = net.nodes[4]
    made = join(fourth, 1, [A, B, C])
    assert not made.raft.is_voter
    net.until("it is filled", lambda: is_filled(net, fourth))
    change(net, [A, B, C, D], [])
    leader = net.leader()
    gone = next(number for number in (2, 3) if number != leader.number)
    rest = [t.replica_id(n, 1) for n in (1, 2, 3, 4) if n != gone]
    change(net, rest, [])
    net.nodes[gone].engine.remove(GROUP)
    net.write(5)
    net.nodes[leader.number].close()  # of three two are left, the new one among them
    net.until("elected without it", lambda: net.leader().number != leader.number)
    net.write(5)
    fourth.restart()
    net.write(5)
    net.until("it knows all", lambda: messages(fourth) == 50 + 3 * 5)


def test_w11_w13_a_group_is_made_again_when_its_removal_is_on_disk(net: EngineNet) -> None:
    """Reports and saved state of the old replica would be taken for the new one's."""
    third = net.nodes[3]
    net.until("another leads", lambda: net.leader().number != 3 or hand_over(net))
    change(net, [A, B], [])
    third.holds_reports = True
    net.turn()
    third.engine._saver.hold(third.replica())  # as if a snapshot of the old one were under way
    third.engine.remove(GROUP)
    new = t.replica_id(3, 2)
    for _ in range(3):
        with pytest.raises(errors.NotReady):
            join(third, 2, [A, B])
        net.turn()
    third.holds_reports = False
    change(net, [A, B], [new])

    def made() -> bool:
        try:
            return bool(join(third, 2, [A, B]))
        except errors.NotReady:
            return False

    net.until("it may be made", made)
    net.until("it is filled", lambda: is_filled(net, third))
    change(net, [A, B, new], [])
    net.write(20)
    net.until("it has applied all", lambda: same_state(net, 1, 3))
    net.until("its state is saved", lambda: saved_index(third) > 50)
    third.restart()
    assert third.replica().replica_id == new and not third.engine.refused
    net.until("it has applied all", lambda: same_state(net, 1, 3))
    third.close()
    for file in (third.folder / "store").iterdir():
        file.unlink()  # what the log alone says, with both lives of the group in it
    third.open()
    assert third.replica().replica_id == new
    net.until("it has applied all", lambda: same_state(net, 1, 3))


def test_an_end_and_a_start_leave_nothing_applied_without_a_hint(net: EngineNet) -> None:
    """Readers of the segments know by hints alone what is committed."""
    leader = net.leader()
    net.write(3)
    last = leader.replica().raft.applied_index
    assert hinted(leader) < last
    leader.restart()
    assert hinted(leader) == last
    # As a crash leaves it between the store's commit and the hint: the state is ahead of the log.
    net.write(3)
    last = net.leader().replica().raft.applied_index
    net.until("it has it too", lambda: leader.replica().raft.applied_index == last)
    leader.log.journal.commit_hint = lambda *_: 0  # type: ignore[method-assign, assignment]
    leader.restart()
    net.cut = set(net.directions())
    assert hinted(leader) < leader.replica().raft.applied_index == last
    net.until("it has a hint", lambda: hinted(leader) == last)


def test_r15_r16_members_that_a_start_learned_from_the_log_are_saved_as_well(
    net: EngineNet, tmp_path: Path
) -> None:
    """Else the start after that one knows the members of before: the log is read from behind it."""
    third, old = net.nodes[3], tmp_path / "old"
    net.until("its state is saved", lambda: saved_index(third) > 0)
    third.close()
    shutil.copytree(third.folder / "store", old)
    third.open()
    change(net, [A, B, C], [D])
    with_learner = net.leader().replica().raft.config
    net.write(5)
    last = net.leader().replica().raft.commit_index
    net.until("it has noted so", lambda: third.replica().commit_saved >= last)
    third.close()
    shutil.rmtree(third.folder / "store")
    shutil.copytree(old, third.folder / "store")  # power was lost, and the store's last commits
    third.open()
    assert third.replica().raft.applied_index >= last
    assert third.replica().raft.config == with_learner
    net.write()
    net.until("its state is saved", lambda: saved_index(third) > last)
    third.restart()
    assert third.replica().raft.config == with_learner


def test_p4_r24_a_group_is_written_though_the_one_that_should_lead_it_can_not(
    net: EngineNet,
) -> None:
    """Its disk stands still, and it has everything: it is not asked all the time."""
    leader = net.leader()
    others = [t.replica_id(one, 1) for one in (1, 2, 3) if one != leader.number]
    members = MemberReconciler(leader.engine)
    net.until("all have all", lambda: same_state(net, 1, 2) and same_state(net, 2, 3))
    net.nodes[t.node_of(others[0])].replica().raft.may_lead = False
    members.set_wanted({GROUP: tuple(others)})
    taken = 0
    for _ in range(200):
        net.turn(50)
        members.tick(net.clock.now)
        with suppress(errors.NotReady):
            leader.engine.propose(
                leader.replica(), [t.Proposal(1, net.clock.wall, t.DATA, bytes(99))]
            )
            taken += 1
    assert taken > 150
    net.nodes[t.node_of(others[0])].replica().raft.may_lead = True
    net.until("it leads", lambda: members.tick(net.clock.now) or not leader.replica().is_leader)


def test_who_does_not_take_over_holds_up_no_other_group(
    net: EngineNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: a broker that is drained may lead more groups than are looked at in one go."""
    monkeypatch.setattr(module, "STEPS_PER_CHECK_MAX", 1)
    leader = net.leader()
    others = tuple(t.replica_id(one, 1) for one in (1, 2, 3) if one != leader.number)
    net.until("all have all", lambda: same_state(net, 1, 2) and same_state(net, 2, 3))
    net.nodes[t.node_of(others[0])].replica().raft.may_lead = False
    members, other = MemberReconciler(leader.engine), leader.replica()
    members.set_wanted({GROUP: others})
    members.tick(net.clock.now)
    waiting = members._step(other, others, net.clock.now)
    assert not waiting, "nothing was asked of the group, so the next one has its turn"


def saved_index(node: Node) -> int:
    with node.log.store.view() as view:
        return int(view.applied_index(GROUP))


def same_state(net: EngineNet, *numbers: int) -> bool:
    states = {net.nodes[n].replica().machine.snapshot() for n in numbers}
    return len(states) == 1


def hand_over(net: EngineNet) -> bool:
    leader = net.leader()
    try:
        leader.engine.transfer(leader.replica(), 1)
    except errors.NotReady:
        pass
    return False


def test_r2_a_replica_that_can_not_be_opened_is_removed_and_made_anew(net: EngineNet) -> None:
    third = net.nodes[3]
    net.until("another leads", lambda: net.leader().number != 3 or hand_over(net))
    third.close()
    lose_the_log(third.folder)
    third.open()
    assert GROUP in third.engine.refused and GROUP not in third.engine.replicas
    assert third.engine.held() == {GROUP: C}
    change(net, [A, B], [])
    third.engine.remove(GROUP)
    assert not third.engine.refused and third.engine.held() == {}
    assert third.engine.removals_in_progress == {GROUP: C}, "a start would find it"
    net.until("the removal is on disk", lambda: not third.engine.removals_in_progress)
    new = t.replica_id(3, 2)
    change(net, [A, B], [new])
    join(third, 2, [A, B])
    net.until("it is filled", lambda: is_filled(net, third))
    change(net, [A, B, new], [])
    net.until("it has applied all", lambda: same_state(net, 1, 3))


def lose_the_log(folder: Path) -> None:
    """The store knows of the group; what it voted for is gone."""
    shutil.rmtree(folder / "wal")
    (folder / "begun").unlink(missing_ok=True)


def test_r24_who_hands_over_does_so_to_one_that_is_there(tmp_path: Path) -> None:
    """Nothing was written since a follower died: it has as much of the log as the other one."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        leader = net.leader()
        first, second = sorted(set(net.nodes) - {leader.number})
        replica = leader.replica()
        both = replica.raft.leading.followers.values()
        last = replica.raft.log.last_index
        net.until("both said that they have it", lambda: {f.match_index for f in both} == {last})
        assert replica.best_successor(leader.engine.now) == first
        net.cut = {(first, leader.number), (leader.number, first)}
        for _ in range(60):
            net.turn()
        assert replica.is_leader and replica.best_successor(leader.engine.now) == second
