"""Repair where it is hard: commits that nobody knows of any more, much damage at once, lost files.

Engines on real logs in one process, as in `test_repair`.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support import damage_rig as kit
from support import wal_logs
from support.damage_rig import GROUP, LOST, OTHER, SCRUB
from support.engine_rig import EngineNet, Node

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.daemons.repair import coordinator as repair
from myqueue.daemons.repair.messages import EntryReply
from myqueue.wal.config import JournalConfig
from myqueue.wal.read import reader

SMALL = JournalConfig(segment_bytes=1 << 18, soft_limit_bytes=0, reserve_bytes=0)


def alone(net: EngineNet, node: Node) -> None:
    net.cut = {(n, node.number) for n in net.nodes} | {(node.number, n) for n in net.nodes}


def test_who_has_it_gives_it_though_it_does_not_know_that_it_is_committed(tmp_path: Path) -> None:
    """R2: two of three have everything together; after a restart that has to be enough."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        one = net.leader(GROUP)
        two, three = (node for node in net.nodes.values() if node is not one)
        three.close()
        item = t.Proposal(1, 1, t.DATA, bytes(1000))
        last = one.engine.propose(one.replica(GROUP), [item])
        while one.replica(GROUP).raft.applied_index < last:
            two.turn()
            net.clock.now += 10
            one.turn()
            time.sleep(0.0005)
        assert two.replica(GROUP).raft.commit_index < last
        one.close()
        two.close()
        one.open()  # from now on the entry is on disk alone
        path, row = kit.place_of(one, last)
        assert row.index == last
        kit.damage(one, last)
        one.restart()
        two.open()
        assert one.replica(GROUP).raft.health == "repairing"
        assert two.replica(GROUP).raft.commit_index < last
        net.until("it came", lambda: one.replica(GROUP).raft.health.votes, 1500)
        net.write(3, GROUP)
        assert kit.payloads(one) == kit.payloads(two)
        assert not path.exists() or not one.engine.repair.lost_entries


def test_a_start_with_more_damage_than_readers_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2: the flag of a group stays, though another one's damage came in between."""
    monkeypatch.setattr(reader, "DAMAGE_MAX", 3)
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        alone(net, node)
        kit.damage_and_notice(net, [node])
        for index in range(LOST, LOST + 10):
            kit.damage(node, index, OTHER)
            with pytest.raises(errors.NotReady):
                node.replica(OTHER).read(index, index, 1)
            net.turn()
        node.turn()
        net.until("on disk", lambda: kit.is_stored(node))
        for _ in range(2):
            node.restart()
            assert (
                node.replica(GROUP).raft.health == "repairing"
                and node.replica(OTHER).raft.health == "repairing"
            )


def segments_of(node: Node, group: int = GROUP) -> dict[int, int]:
    """A segment -> an entry in it, but not of the newest."""
    found: dict[int, int] = {}
    log = node.replica(group).raft.log
    for index in range(2, log.last_index + 1):  # the first one is empty
        row = node.log.index.row(group, index)
        assert row is not None
        if row.segment != node.log.journal.end[0]:
            found.setdefault(row.segment, index)
    return found


def test_what_nobody_has_holds_up_nothing_else(tmp_path: Path) -> None:
    """Segments that wait for a lost entry, however many, keep no other one from its repair."""
    with EngineNet(tmp_path, 3, SMALL) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        found = segments_of(node)
        assert len(found) >= 6
        *hopeless, last = sorted(found)
        for number in hopeless:
            for one in net.nodes.values():
                kit.damage(one, found[number])
        path = kit.damage(node, found[last])
        node.engine.scrub_bytes_per_s = SCRUB
        net.until("the last one is whole", lambda: not path.exists(), 6000)
        lacks = node.engine.repair.lost_entries[GROUP]
        assert sorted(lacks.entries) == sorted(found[number] for number in hopeless)


def test_thousands_of_lost_entries_leave_the_loop_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn looks at some of what is lacking, not at all of it; and all comes back soon."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        net.create(GROUP)
        net.create(OTHER)
        for _ in range(10):
            net.write(400, GROUP, size=300)
        net.write(10, OTHER, size=60_000)
        kit.forget_entries_in_memory(net)
        node = kit.follower(net)
        path, _ = kit.place_of(node, LOST)
        before = kit.payloads(node)
        path.unlink()
        node.log.files._forget(path.name)
        node.engine.scrub_bytes_per_s = SCRUB
        looks = 0
        row = node.log.index.row

        def counted(*of: int) -> Any:
            nonlocal looks
            looks += 1
            return row(*of)

        monkeypatch.setattr(node.log.index, "row", counted)
        most, until = 0, time.monotonic() + 60
        while not node.engine.repair.repaired_segments:
            looks = 0
            net.turn()
            most = max(most, looks)
            assert time.monotonic() < until
        assert most <= 2500
        assert kit.payloads(node) == before


def test_a_segment_that_is_missing_at_a_start(tmp_path: Path) -> None:
    """W16: a file that went while its daemon was down is found before somebody reads it."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        path, _ = kit.place_of(node, LOST)
        node.close()
        path.unlink()
        node.open()
        node.engine.scrub_bytes_per_s = SCRUB
        repair = node.engine.repair
        net.until("noticed", lambda: repair.lost_entries, 2000)
        net.until("back", lambda: not repair.lost_entries, 6000)
        for group in (GROUP, OTHER):
            net.wait_until_settled(group)
            whole = next(one for one in net.nodes.values() if one is not node)
            assert kit.payloads(node, group) == kit.payloads(whole, group)


def test_more_is_missing_than_readers_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2: whoever votes again has all entries of a segment that is not there; and it is told."""
    monkeypatch.setattr(reader, "DAMAGE_MAX", 3)
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        path, _ = kit.place_of(node, LOST)
        alone(net, node)
        node.engine.repair._salvage_segment = lambda *_: None  # type: ignore[method-assign]
        kit.damage_and_notice(net, [node])
        net.until("on disk", lambda: kit.is_stored(node))
        node.close()
        path.unlink()
        node.open()
        repair = node.engine.repair
        assert len(repair.lost_entries[GROUP].entries) > 50
        (told,) = repair.damage_report()
        assert told["groups"] == [GROUP, OTHER] and "entries of 2 groups" in told["state"]
        net.cut = set()
        for group in (GROUP, OTHER):
            net.until("whole", lambda of=group: node.replica(of).raft.health.votes, 6000)
            whole = next(one for one in net.nodes.values() if one is not node)
            assert kit.payloads(node, group) == kit.payloads(whole, group)
        assert not repair.damage_report()


def test_a_segment_that_was_cut_short(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        path, row = kit.place_of(node, LOST)
        os.truncate(path, row.position + 20)
        node.engine.scrub_bytes_per_s = SCRUB
        kit.wait_until_repaired(net, node, path)


def test_an_entry_that_is_of_the_log_no_more_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: what was lost may have been overwritten while somebody looked for it."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node, leader = kit.follower(net), net.leader(GROUP)
        entry = leader.replica(GROUP).read(LOST, LOST, 1)[0]
        alone(net, node)
        kit.damage_and_notice(net, [node])
        log = node.replica(GROUP).raft.log
        monkeypatch.setattr(type(log), "has", lambda self, index, term: False)
        ours, theirs = node.replica(GROUP).replica_id, leader.replica(GROUP).replica_id
        node.engine.repair.receive_entry(EntryReply(GROUP, theirs, ours, 1, entry))
        assert node.engine.counts["entries_repaired_total"] == 0
        monkeypatch.undo()
        node.engine.repair.receive_entry(EntryReply(GROUP, theirs, ours, 1, entry))
        assert node.engine.counts["entries_repaired_total"] == 1


def persisted_and_not_committed(net: EngineNet, node: Node, count: int) -> int:
    """Entries that are on this disk, and of which nobody said that they are committed."""
    leader = net.leader(GROUP)
    items = [t.Proposal(1, 1, t.DATA, bytes(1000)) for _ in range(count)]
    last = leader.engine.propose(leader.replica(GROUP), items) + count - 1
    log = node.replica(GROUP).raft.log
    while log.persisted_index < last:
        net.clock.now += 10
        leader.turn()
        net.cut = {(n, node.number) for n in net.nodes}  # what is in its inbox by now, it takes
        node.turn()
        time.sleep(0.0005)
    return last


def test_an_entry_that_turns_bad_before_it_is_applied(tmp_path: Path) -> None:
    """W16, R2: what can't be read when its turn comes holds up applying, and not the daemon."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node, leader = kit.follower(net), net.leader(GROUP)
        last = persisted_and_not_committed(net, node, 5)
        node.restart()  # from now on the entries are on disk alone
        replica = node.replica(GROUP)
        assert replica.raft.commit_index < last - 4
        kit.damage(node, last - 2)
        others = [one for one in net.nodes.values() if one is not node]
        given = [one.engine.repair.serve_entries for one in others]
        for one in others:
            one.engine.repair.serve_entries = lambda ask: None  # type: ignore[method-assign]
        net.cut = set()
        net.until("held up", lambda: replica.raft.health == "repairing")
        assert replica.has_unapplied
        net.until("all before it", lambda: replica.raft.applied_index == last - 3)
        for _ in range(100):
            net.turn()
        assert replica.raft.applied_index == replica.machine.applied_index == last - 3
        assert replica.raft.log.memory_first > last - 2, "it is on disk alone"
        for one, gives in zip(others, given, strict=True):
            one.engine.repair.serve_entries = gives  # type: ignore[method-assign]
        net.until("applied", lambda: replica.raft.applied_index >= last)
        net.until("whole", lambda: replica.raft.health.votes)
        assert replica.machine.applied_index == replica.raft.applied_index
        net.write(3, GROUP)
        net.wait_until_settled(GROUP)
        assert kit.payloads(node) == kit.payloads(leader)


def test_what_nobody_has_keeps_no_other_entry_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many are asked for at once; if nobody has these, the next ones have their turn."""
    monkeypatch.setattr(repair, "ENTRIES_PER_REQUEST_MAX", 3)
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        hopeless = list(range(LOST, LOST + 6))
        for index in hopeless:
            for one in net.nodes.values():
                kit.damage(one, index)
        kit.damage(node, LOST + 8)
        for index in (*hopeless, LOST + 8):
            with pytest.raises(errors.NotReady):
                node.replica(GROUP).read(index, index, 1)
        lacks = node.engine.repair.lost_entries
        net.until("noticed", lambda: len(lacks[GROUP].entries) == 7 if GROUP in lacks else False)
        net.until("the last one is back", lambda: LOST + 8 not in lacks[GROUP].entries, 1500)
        assert sorted(lacks[GROUP].entries) == hopeless


def test_an_unreadable_snapshot_is_looked_at_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment waits for a newer one; meanwhile the disk is left alone, and people are told."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        assert node.engine.starts.write_snapshot(node.replica(GROUP))
        group = node.log.journal.groups.by_uid[GROUP]
        number = group.snapshot_at
        node.turn()
        net.until("on disk", lambda: kit.is_stored(node))
        named = node.log.journal.segment_name(number)
        assert named is not None
        wal_logs.flip(node.folder / "wal" / named[0], group.snapshot_position + 60)
        with pytest.raises(errors.CorruptData):
            node.log.reader.snapshot(group)
        lines: list[tuple[str, dict[str, Any]]] = []
        node.engine.report = lambda level, event, **about: lines.append((event, about))
        makes = node.engine.starts.write_snapshot
        node.engine.starts.write_snapshot = lambda replica: False  # type: ignore[method-assign]
        looks = 0
        reads = node.log.reader.snapshot

        def counted(group: Any) -> Any:
            nonlocal looks
            looks += 1
            return reads(group)

        monkeypatch.setattr(node.log.reader, "snapshot", counted)
        node.engine.repair.add_damage(number, group.snapshot_position, "scrub", "a bit turned")
        net.until("told", lambda: any(event == "damage-waits" for event, _ in lines))
        looks, begun = 0, net.clock.now
        for _ in range(500):
            net.turn()
        assert 1 <= looks <= (net.clock.now - begun) // repair.AGAIN_MS + 1
        assert sum(event == "damage-waits" for event, _ in lines) == 1
        assert "newer snapshot" in node.engine.repair.damage_report()[0]["state"]
        node.engine.starts.write_snapshot = makes  # type: ignore[method-assign]
        net.until(
            "gone",
            lambda: (
                node.engine.repair.repaired_segments and not node.engine.repair.damaged_segments
            ),
        )


def test_what_reclaim_meets_is_repaired(tmp_path: Path) -> None:
    """W16: nobody reads it and nobody scrubs, but it was to be appended again."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        net.create(GROUP)
        net.create(OTHER)
        net.write(5, GROUP, size=10_000)
        for _ in range(6):
            net.write(20, OTHER, size=10_000)
        kit.forget_entries_in_memory(net)
        node = kit.follower(net)
        before, path = kit.payloads(node), kit.damage(node, 4)
        node.engine.remove(OTHER)
        repair = node.engine.repair
        net.until("repaired", lambda: repair.repaired_segments, 9000)
        assert not path.exists()
        assert kit.payloads(node) == before


def test_the_last_room_of_a_full_disk_is_not_for_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W15: one bad bit would have all of its segment written again, in front of votes and of the
    deletions that give room back.
    """
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        journal = node.log.journal
        with monkeypatch.context() as patch:
            patch.setattr(node.log.files, "create", no_room)
            patch.setattr(node.log.files, "free_bytes", lambda: 0)
            while journal.spares.has_next:
                net.write(20, GROUP, size=10_000)
            net.until("low", lambda: journal.spares.low)
            kit.forget_entries_in_memory(net)
            path = kit.damage(node)
            node.engine.scrub_bytes_per_s = SCRUB
            repair = node.engine.repair
            net.until(
                "it waits",
                lambda: repair.damaged_segments and "room" in repair.damage_report()[0]["state"],
            )
            net.until("the entry is back", lambda: node.engine.counts["entries_repaired_total"])
            net.until("it counts", lambda: node.replica(GROUP).raft.health.votes)
            node.engine.remove(OTHER)
            net.until("a deletion goes on", lambda: not node.engine.removals_in_progress)
            assert not journal.writer.out_of_room and path.exists()
        net.until("repaired", lambda: repair.repaired_segments, 6000)
        assert not path.exists()


def no_room(name: str, size: int) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")
