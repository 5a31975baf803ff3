"""A replica that is contradicted is closed, alone: its daemon and all other groups go on.

Two of three disks are set back to an older copy, so that those two agree on another history than
the third one, which has all that was acknowledged. Real engines on real logs.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support import wal_logs
from support.damage_rig import is_stored
from support.engine_rig import EngineNet, Node

from myqueue.daemons.manager.cluster_view import ClusterView
from myqueue.daemons.raft import types as t
from myqueue.daemons.repair.damage import REPORTED_MAX
from myqueue.daemons.replication.close_group import HINT
from myqueue.wal import format as f
from myqueue.wal.config import JournalConfig
from myqueue.wal.space.evacuate import entry_again
from myqueue.wire import protocol

CONFIG = JournalConfig(segment_bytes=1 << 20, soft_limit_bytes=0, reserve_bytes=0)
GROUP, OTHER = 5, 6
FIRST, MORE = 3, 4  # messages before the copy, and after it


class Events:
    """What an engine reports for people."""

    def __init__(self, node: Node) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []
        node.engine.report = lambda _, event, **about: self.told.append((event, about))

    def of(self, event: str) -> list[dict[str, object]]:
        return [about for name, about in self.told if name == event]

    def closed(self) -> list[dict[str, object]]:
        return [about for about in self.of("replica-health-changed") if about["to"] == "closed"]


def rolled_back(net: EngineNet, folder: Path) -> int:
    """Nodes 2 and 3 have forgotten the newest entries of GROUP; returns the last that 1 has."""
    net.create(GROUP)
    net.create(OTHER)
    net.write(FIRST, GROUP)
    net.write(FIRST, OTHER)
    net.wait_until_settled(GROUP)
    net.wait_until_settled(OTHER)
    for number in (2, 3):
        net.nodes[number].close()
        shutil.copytree(net.nodes[number].folder, folder / f"old-{number}")
        net.nodes[number].open()
    net.write(MORE, GROUP)
    net.wait_until_settled(GROUP)
    committed = net.nodes[1].replica(GROUP).raft.commit_index
    for node in net.nodes.values():
        node.close()
    for number in (2, 3):
        shutil.rmtree(net.nodes[number].folder)
        shutil.copytree(folder / f"old-{number}", net.nodes[number].folder)
        net.nodes[number].open()
    net.write(1, GROUP)  # of two that agree
    return committed


def is_closed(node: Node) -> bool:
    return GROUP in node.engine.closing.closed and GROUP not in node.engine.replicas


def others_go_on(net: EngineNet) -> None:
    net.write(FIRST, GROUP)
    net.write(FIRST, OTHER)
    net.wait_until_settled(OTHER)


def test_only_the_contradicted_group_is_closed_also_over_a_start(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        events = Events(one)
        net.until("closed", lambda: is_closed(one))
        others_go_on(net)
        found = events.closed()
        assert len(found) == 1 and found[0]["partition"] == "t/0" and found[0]["do"] == HINT
        assert "committed" in str(found[0]["reason"]) and "committed" in one.engine.refused[GROUP]
        assert one.engine.held()[GROUP] == t.replica_id(1, 1)  # its files are here
        assert one.engine.counts["groups_closed_total"] == 1
        net.until("noted", lambda: one.engine.closing.closed[GROUP].is_noted)
        one.restart()
        assert is_closed(one) and "committed" in one.engine.refused[GROUP]
        assert list(one.engine.replicas) == [OTHER]
        others_go_on(net)
        told = one.engine.closing.report()
        assert [(row["partition"], row["kept"]) for row in told] == [("t/0", "")]


def test_it_neither_votes_nor_answers(tmp_path: Path) -> None:
    """Nothing of the turn in which it was closed leaves, and nothing comes later."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        net.until("closed", lambda: is_closed(one))
        leader = net.leader(GROUP)
        raft = leader.replica(GROUP).raft
        net.nodes[5 - leader.number].close()  # the other one of the two
        before, term = raft.commit_index, raft.term
        leader.engine.propose(leader.replica(GROUP), [t.Proposal(1, net.clock.wall, t.DATA, b"x")])
        for _ in range(100):
            net.turn()
        assert raft.commit_index == before  # it does not count
        leader.engine.host.touch(GROUP)
        raft.step_down(net.clock.now, leader.engine.host.out)
        for _ in range(300):
            net.turn()
        assert raft.term == term and not leader.replica(GROUP).is_leader  # not even a pre-vote
        assert is_closed(one)


def test_what_it_alone_has_is_kept_when_another_replica_takes_its_place(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        committed = rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        events = Events(one)
        net.until("closed", lambda: is_closed(one))
        net.until("its segments are kept", lambda: one.engine.prepare_removal(GROUP))
        one.engine.remove(GROUP)
        assert GROUP not in one.engine.refused and not one.engine.closing.closed
        folder = Path(str(events.of("closed-group-kept")[0]["folder"]))
        found = {
            at.record.index
            for at in wal_logs.records(folder)
            if at.record.kind == f.ENTRY and at.record.group == GROUP
        }
        assert committed in found and committed - MORE + 1 in found
        net.until("removed", lambda: GROUP not in one.engine.removals_in_progress)
        voters = [t.replica_id(node, 1) for node in (2, 3)]
        new = t.replica_id(1, 2)
        one.engine.create(GROUP, new, voters, [new], protocol.pack(["t", 0, 1, {}]))
        leader = net.leader(GROUP)
        raft = leader.replica(GROUP).raft
        for voting, learning in ((voters, []), (voters, [new]), ([*voters, new], [])):
            if new in voting:
                net.until("filled", lambda: raft.leading.is_caught_up(new, net.clock.now))
            leader.engine.change(leader.replica(GROUP), t.Config(tuple(voting), tuple(learning)))
            net.until("in force", lambda: raft.commit_index >= raft.configs.current_index)
        others_go_on(net)
        net.wait_until_settled(GROUP)
        net.until("stored", lambda: is_stored(one))
        one.restart()
        assert sorted(one.engine.replicas) == [GROUP, OTHER] and not one.engine.refused
        told = one.engine.closing.report()  # until people have removed the folder
        assert [row["kept"] for row in told] == [str(folder)]
        shutil.rmtree(folder)
        net.until("noticed", lambda: not one.engine.closing.report())


def test_entries_that_are_moved_before_their_segments_are_linked_are_kept_too(
    tmp_path: Path,
) -> None:
    """The work waits for its turn, and reclaim appends them again in a segment opened since."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        committed = rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        events, turn, journal = Events(one), Event(), one.log.journal
        net.until("closed", lambda: is_closed(one))
        last = journal.groups.by_uid[GROUP].last_index
        moved = [entry_again(*one.log.reader.entry(GROUP, at)) for at in range(1, last + 1)]
        one.log.background.start(lambda: turn.wait(30))
        is_kept = one.engine.prepare_removal
        net.until("ordered", lambda: is_kept(GROUP) or one.engine.closing._is_busy("keep"))
        journal.leave_segment()
        journal.append(GROUP, moved, relocated=True)
        journal.submit()
        net.until("stored", lambda: is_stored(one))
        turn.set()
        net.until("its segments are kept", lambda: is_kept(GROUP))
        (told,) = events.of("closed-group-kept")
        assert told["segments"] == 1
        found = {
            at.record.index
            for at in wal_logs.records(Path(str(told["folder"])))
            if at.record.kind == f.ENTRY and at.record.group == GROUP
        }
        assert committed in found and committed - MORE + 1 in found


def test_a_note_that_can_not_be_read_still_closes(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        net.until("noted", lambda: is_closed(one) and one.engine.closing.closed[GROUP].is_noted)
        one.close()
        (note,) = one.folder.glob("closed-*[0-9a-f]")
        note.write_bytes(b"\0" * 10)
        one.open()
        assert is_closed(one) and "can't be read" in one.engine.refused[GROUP]


def test_a_disk_that_is_full_has_the_note_written_later(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        events, note = Events(one), one.log.kept.note

        def fails(*_: object) -> None:
            raise OSError(28, "no space")

        one.log.kept.note = fails  # type: ignore[method-assign, assignment]
        net.until("tried", lambda: events.of("closed-group-not-noted"))
        assert is_closed(one) and not one.engine.closing.closed[GROUP].is_noted
        one.log.kept.note = note  # type: ignore[method-assign]
        net.until("noted", lambda: one.engine.closing.closed[GROUP].is_noted)


def test_entries_that_do_not_fit_to_the_state_close_their_group_alone(tmp_path: Path) -> None:
    """A bit that turned in our own memory: applying finds out."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.create(OTHER)
        net.write(FIRST, GROUP)
        net.wait_until_settled(GROUP)
        one = next(node for node in net.nodes.values() if node is not net.leader(GROUP))
        machine = one.replica(GROUP).machine
        machine.end += 1  # type: ignore[attr-defined]
        net.write(FIRST, GROUP)
        net.until("closed", lambda: is_closed(one))
        others_go_on(net)


def test_a_lack_of_memory_closes_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes with the next start of the daemon; a closed group would stay closed."""
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create(GROUP)
        (one,) = net.nodes.values()

        def apply(machine: object, entries: object) -> list[object]:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(type(one.replica(GROUP).machine), "apply", apply)
            with pytest.raises(MemoryError):
                net.write(FIRST, GROUP)
                net.until("closed", lambda: is_closed(one))
        assert not is_closed(one)


def two_histories(net: EngineNet, tmp_path: Path) -> bool:
    """Give nodes 2 and 3 another history than node 1. False: it has not the same length and term,
    because the machine was so slow that there was one more election.
    """
    net.create(GROUP)
    net.write(1, GROUP)
    net.wait_until_settled(GROUP)
    for number in (2, 3):
        net.nodes[number].close()
        shutil.copytree(net.nodes[number].folder, tmp_path / f"old-{number}")
        net.nodes[number].open()
    net.nodes[1].restart()  # another term
    net.write(1, GROUP, size=101)
    net.wait_until_settled(GROUP)
    for node in net.nodes.values():
        node.close()
    for number in (2, 3):
        shutil.rmtree(net.nodes[number].folder)
        shutil.copytree(tmp_path / f"old-{number}", net.nodes[number].folder)
        net.nodes[number].open()
    net.write(1, GROUP, size=96)
    one = net.nodes[1]
    one.open()
    ours, theirs = (at.replica(GROUP).raft.log for at in (one, net.leader(GROUP)))
    assert ours.last_chain != theirs.last_chain
    return (ours.last_index, ours.last_term) == (theirs.last_index, theirs.last_term)


@pytest.mark.parametrize("third_leads", [False, True])
def test_other_entries_at_the_same_places_in_the_same_term_are_found_out(
    tmp_path: Path, third_leads: bool
) -> None:
    """Votes were forgotten with the entries: both histories are as long, and of the same terms."""
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with EngineNet(folder, 3, CONFIG) as net:
            if two_histories(net, folder):
                found_out(net, third_leads)
                return
    raise AssertionError("never the same length and term")


def found_out(net: EngineNet, third_leads: bool) -> None:
    one, two = net.nodes[1], net.nodes[2]
    if third_leads:
        for node in (two, net.nodes[3]):
            node.restart()
        one.engine.campaign_soon(one.replica(GROUP))
    net.until("found out", lambda: any(at.engine.closing.closed for at in net.nodes.values()))
    for _ in range(100):
        net.turn()
    closed = {at.number for at in net.nodes.values() if at.engine.closing.closed}
    assert closed in ({1}, {2, 3}), "those that are open agree"


def test_the_note_of_a_removed_replica_stays_until_its_removal_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, the daemon finds the replica, and must find it closed. Killed right after,
    it finds a note that says nothing.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        rolled_back(net, tmp_path)
        one = net.nodes[1]
        one.open()
        net.until("kept", lambda: is_closed(one) and one.engine.prepare_removal(GROUP))
        net.until("written", lambda: not one.log.journal.queued_bytes)
        write, may_write, written = one.log.files.write, Event(), Event()

        def late(name: str, position: int, buffers: list[Any], sync: bool) -> None:
            may_write.wait(30)
            write(name, position, buffers, sync)
            written.set()

        monkeypatch.setattr(one.log.files, "write", late)
        one.engine.remove(GROUP)
        for _ in range(50):  # the note would be forgotten now
            net.turn()
        net.until("nothing to do", lambda: not one.engine.closing._jobs)
        shutil.copytree(one.folder, tmp_path / "before")
        one.holds_reports = True
        may_write.set()
        assert written.wait(30)
        shutil.copytree(one.folder, tmp_path / "after")
        one.holds_reports = False
        net.until("forgotten", lambda: not list(one.folder.glob("closed-*")))
        one.close()
        for image, is_here in (("before", True), ("after", False)):
            shutil.rmtree(one.folder)
            shutil.copytree(tmp_path / image, one.folder)
            one.open()
            assert is_closed(one) is is_here and GROUP not in one.engine.replicas
            if not is_here:
                net.until("forgotten", lambda: not list(one.folder.glob("closed-*")))
            one.close()


def test_the_loop_does_not_read_the_disk_for_what_is_kept(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        (one,) = net.nodes.values()
        looked, look = list[int](), one.log.kept.all

        def all_of() -> dict[str, dict[str, Any]]:
            looked.append(threading.get_ident())
            return look()

        one.log.kept.all = all_of  # type: ignore[method-assign]
        folder = one.folder / "kept" / "5-1"
        folder.mkdir(parents=True)
        (folder / "why.json").write_text('{"group": 5, "replica": 1}')
        net.until("seen", one.engine.closing.report)
        shutil.rmtree(folder)
        net.until("noticed", lambda: not one.engine.closing.report())
        assert looked and threading.get_ident() not in looked


def test_of_many_closed_groups_all_are_told_in_some_beats(tmp_path: Path) -> None:
    """Each beat is bounded."""
    count = 2 * REPORTED_MAX + 5
    with EngineNet(tmp_path, 1, CONFIG) as net:
        (one,) = net.nodes.values()
        for group in range(1, count + 1):
            one.create(group, [1])
        net.until("leads", lambda: all(r.is_ready for r in one.engine.replicas.values()))
        closing, host, cluster_view = one.engine.closing, one.engine.host, ClusterView()
        beat = {
            "disk": "d",
            "incarnation": 1,
            "address": "a",
            "peer": "p",
            "host": "h",
            "version": 0,
            "producers": [],
            "consumers": [],
            "disk_low": False,
            "free_bytes": 0,
            "load": 0,
        }
        reports = [[group, 1, True, 1, 1, 0, 0, 0, None] for group in range(1, count + 1)]
        cluster_view.receive_broker_heartbeat(
            1, beat | {"full": True, "groups": reports, "lost": []}, 0, 0
        )
        for group in range(1, count + 1):
            host.mark_broken(group, t.InvariantBroken("x"))
        net.until("closed", lambda: len(closing.closed) == count)
        lost = [[group, 1] for group in closing.closed]

        def told(beats: int = 3) -> set[int]:
            for _ in range(beats):
                state: dict[str, Any] = beat | {"full": False, "groups": [], "lost": lost}
                state |= closing.next_told()
                assert len(state["closed"]) <= REPORTED_MAX
                cluster_view.receive_broker_heartbeat(1, state, 0, 0)
            return {row["group"] for row in cluster_view.brokers[1].closed}

        assert told() == set(range(1, count + 1))
        assert len(closing.report()) == REPORTED_MAX and closing.total == count
        assert not any(cluster_view.leader_of(group, 0)[0] for group in range(1, count + 1))
        for group in range(1, 31):
            net.until("kept", lambda uid=group: one.engine.prepare_removal(uid))
            one.engine.remove(group)
            shutil.rmtree(one.log.kept.folder(f"{group:x}-{t.replica_id(1, 1):x}"))
        net.until("noticed", lambda: closing.total == count - 30)
        assert told(6) == set(range(31, count + 1))
