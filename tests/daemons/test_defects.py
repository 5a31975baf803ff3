"""A defect in one group's machine closes this group alone, also at a start; troubles of the disk,
of the store and of memory end the daemon. Real engines on real logs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from daemons.test_attack_install import start_log_behind
from daemons.test_closing import CONFIG, FIRST, GROUP, OTHER, Events, is_closed, others_go_on
from support.damage_rig import is_stored
from support.engine_rig import EngineNet, Node

from myqueue import errors
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.close_group import HINT_DEFECT, PACE_MS_MIN
from myqueue.daemons.replication.replica import Defect
from myqueue.wal.store.index import Index

DEFECTS = [KeyError("x"), RecursionError("deep"), errors.FormatUnknown("a newer form")]
OF_ALL = [OSError(5, "EIO"), MemoryError(), errors.JournalStopped("x"), errors.DiskFull("x")]


class Faulty(PartitionMachine):
    """One of a program with a defect: `fails` raises in the methods named there."""

    def __init__(self, fails: dict[str, Exception]) -> None:
        super().__init__()
        self.fails = fails

    def _may_fail(self, name: str) -> None:
        if name in self.fails:
            raise self.fails[name]

    def apply(self, entries: Any) -> Any:
        done = super().apply(entries[:1])  # it stops half-way
        self._may_fail("apply")
        return done + super().apply(entries[1:])

    def load(self, applied_index: int, rows: Any) -> None:
        self._may_fail("load")
        super().load(applied_index, rows)

    def restore(self, snapshot: bytes) -> None:
        self._may_fail("restore")
        super().restore(snapshot)

    def snapshot(self) -> bytes:
        self._may_fail("snapshot")
        return super().snapshot()

    def take_changes(self) -> Any:
        self._may_fail("take_changes")
        return super().take_changes()


def faulty(node: Node, **fails: Exception) -> None:
    """The machine of GROUP at this node, from its next start on."""

    def make(group: int, about: bytes) -> PartitionMachine:
        return Faulty(fails if group == GROUP else {})

    node.owner.make_state_machine = make  # type: ignore[method-assign]


def filled(net: EngineNet) -> Node:
    net.create(GROUP)
    net.create(OTHER)
    net.write(FIRST, GROUP)
    net.write(FIRST, OTHER)
    net.wait_until_settled(GROUP)
    leader = net.leader(GROUP)
    return next(node for node in net.nodes.values() if node is not leader)


def saved(node: Node) -> int:
    with node.log.store.view() as view:
        return view.applied_index(GROUP)


@pytest.mark.parametrize("error", DEFECTS, ids=repr)
def test_what_can_not_be_applied_closes_its_group_until_a_start_that_can(
    tmp_path: Path, error: Exception
) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        one = filled(net)
        faulty(one)
        one.restart()
        net.wait_until_settled(GROUP)
        events = Events(one)
        one.replica(GROUP).machine.fails = {"apply": error}  # type: ignore[attr-defined]
        net.write(FIRST, GROUP)
        net.until("closed", lambda: is_closed(one))
        others_go_on(net)
        (told,) = events.closed()
        assert told["do"] == HINT_DEFECT and repr(error) in str(told["reason"])
        assert not list(one.folder.glob("closed-*"))
        faulty(one, apply=error)
        one.restart()  # and again, at each start: alone, if what is committed is known
        net.until("closed", lambda: is_closed(one))
        others_go_on(net)
        faulty(one)
        one.restart()  # the next version
        assert GROUP in one.engine.replicas and not one.engine.refused
        net.write(1, GROUP)
        net.wait_until_settled(GROUP)
        assert one.replica(GROUP).machine.snapshot() == (
            net.leader(GROUP).replica(GROUP).machine.snapshot()
        )


@pytest.mark.parametrize("error", OF_ALL, ids=repr)
@pytest.mark.parametrize("where", ["apply", "load"])
def test_a_trouble_of_all_ends_the_daemon(tmp_path: Path, where: str, error: Exception) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        one = filled(net)
        net.until("saved", lambda: saved(one) == one.replica(GROUP).raft.applied_index)
        faulty(one, **{where: error})
        with pytest.raises(type(error)):
            one.restart()
            net.write(FIRST, GROUP)
            net.wait_until_settled(GROUP)
        assert not one.engine.closing.closed
        one.log.close()
        one.runs = False


@pytest.mark.parametrize("error", DEFECTS, ids=repr)
def test_a_state_that_can_not_be_loaded_keeps_no_other_group_from_starting(
    tmp_path: Path, error: Exception
) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        one = filled(net)
        net.until("saved", lambda: saved(one) == one.replica(GROUP).raft.applied_index)
        faulty(one, load=error)
        one.restart()
        assert is_closed(one) and repr(error) in one.engine.refused[GROUP]
        assert one.engine.closing.report()[0]["partition"] == "t/0"
        others_go_on(net)
        faulty(one)
        one.restart()
        assert GROUP in one.engine.replicas


def test_a_store_that_is_broken_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start builds it anew."""
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create(GROUP)
        net.write(FIRST, GROUP)
        (one,) = net.nodes.values()

        def row(index: Index, group: int, at: int) -> None:
            raise errors.StoreBroken("x")

        with monkeypatch.context() as patched:
            patched.setattr(Index, "row", row)
            with pytest.raises(errors.StoreBroken):
                one.restart()
        one.log.close()
        one.open()
        assert GROUP in one.engine.replicas


@pytest.mark.parametrize("error", DEFECTS, ids=repr)
def test_a_snapshot_that_can_not_be_taken_over_closes_its_group_and_is_not_logged(
    tmp_path: Path, error: Exception
) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        late = filled(net)
        faulty(late, restore=error)
        late.restart()
        net.wait_until_settled(GROUP)
        had = late.replica(GROUP).raft.applied_index
        net.cut = {(n, late.number) for n in net.nodes}
        net.write(20, GROUP)
        others = [one for one in net.nodes.values() if one is not late]
        for node in others:
            net.until("all", lambda at=node: at.replica(GROUP).raft.applied_index >= had + 20)
            start_log_behind(node, 20)
        net.cut = set()
        net.until("closed", lambda: is_closed(late))
        assert late.log.journal.group(GROUP).snapshot_index == 0
        assert late.log.journal.group(GROUP).last_index < had + 20
        others_go_on(net)
        faulty(late)
        late.restart()
        net.write(1, GROUP)
        net.wait_until_settled(GROUP)
        assert late.replica(GROUP).machine.snapshot() == (
            net.leader(GROUP).replica(GROUP).machine.snapshot()
        )


def test_what_follows_a_snapshot_that_was_not_taken_over_is_not_logged(tmp_path: Path) -> None:
    """Entries behind it would stand behind a gap."""
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create(GROUP)
        net.write(FIRST, GROUP)
        (one,) = net.nodes.values()
        faulty(one, restore=KeyError("x"))
        one.restart()
        net.write(1, GROUP)
        replica, last = one.replica(GROUP), one.log.journal.group(GROUP).last_index
        replica.raft.applied_index = 99
        snapshot = t.Snapshot(99, 9, replica.raft.config, 100, 9, 99, 0, b"")
        entry = (100, 9, 99, 1, 0, t.DATA, 0, b"x")
        one.engine._persist([t.PersistSnapshot(GROUP, snapshot), t.PersistEntries(GROUP, [entry])])
        assert one.log.journal.group(GROUP).last_index == last
        net.until("closed", lambda: is_closed(one))


@pytest.mark.parametrize("where", ["take_changes", "snapshot"])
def test_a_state_that_can_not_be_given_closes_its_group(tmp_path: Path, where: str) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        one = filled(net)
        faulty(one)
        one.restart()
        net.wait_until_settled(GROUP)
        one.replica(GROUP).machine.fails = {where: KeyError("x")}  # type: ignore[attr-defined]
        if where == "snapshot":
            one.engine.starts.write_snapshot(one.replica(GROUP))
        else:
            net.write(1, GROUP)
        net.until("closed", lambda: is_closed(one))
        others_go_on(net)


def test_nothing_is_saved_of_a_group_that_broke(tmp_path: Path) -> None:
    """It stopped half-way; between that and its end in the next turn there is a tick."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        one = filled(net)
        faulty(one)
        one.restart()
        net.wait_until_settled(GROUP)
        replica, engine = one.replica(GROUP), one.engine
        net.until("saved", lambda: saved(one) == replica.raft.applied_index)
        before = replica.raft.applied_index
        replica.machine.fails = {"apply": KeyError("x")}  # type: ignore[attr-defined]
        net.write(1, GROUP)
        net.until("broken", lambda: GROUP in engine.host.broken or is_closed(one))
        assert GROUP in engine.host.broken and replica.machine.applied_index == before + 1
        replica.machine.applied_index = before  # in the middle of an entry
        saver, given, hints = engine._saver, set[int](), list[int]()
        saver.note(replica)
        saver._hints[GROUP] = replica.commit_saved = 0  # type: ignore[assignment]
        saver._next_save = saver._next_hint = 0
        one.log.index.apply = given.update  # type: ignore[method-assign, assignment]
        one.log.journal.commit_hint = lambda uid, _: hints.append(uid)  # type: ignore
        saver.tick(engine.now)
        saver.finish()
        del one.log.index.apply
        assert GROUP not in given and GROUP not in hints


def test_a_group_that_is_closed_again_and_again_is_replaced_ever_more_seldom(
    tmp_path: Path,
) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        (one,) = net.nodes.values()
        waited = []
        for _ in range(3):
            one.create(GROUP, [1])
            net.write(1, GROUP)
            one.engine.host.mark_broken(GROUP, Defect("x"))
            net.until("closed", lambda: is_closed(one))
            closed = one.engine.closing.closed[GROUP]
            waited.append(max(0, closed.may_go_at - net.clock.now))
            net.until("stored", lambda: is_stored(one))
            for _ in range(50 if waited[-1] else 0):
                assert not one.engine.prepare_removal(GROUP)
                net.turn()
            net.clock.now = max(net.clock.now, closed.may_go_at)
            net.until("its segments are kept", lambda: one.engine.prepare_removal(GROUP))
            one.engine.remove(GROUP)
            net.until("removed", lambda: GROUP not in one.engine.removals_in_progress)
        assert waited == [0, PACE_MS_MIN, 2 * PACE_MS_MIN]
