"""What can't be read any more comes back from the peers, and until then it counts for nothing.

Engines on real logs in one process; bits are turned in their files while they run or are down.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import wal_logs
from support.damage_rig import (
    CONFIG,
    GROUP,
    LOST,
    OTHER,
    SCRUB,
    damage,
    damage_and_notice,
    follower,
    forget_entries_in_memory,
    is_stored,
    payloads,
    place_of,
    wait_until_repaired,
    write_segments,
)
from support.engine_rig import EngineNet, Node

from myqueue import errors
from myqueue.daemons.manager.cluster_view import REPORTED_ROWS_MAX
from myqueue.daemons.manager.cluster_view import _is_damage_list as is_heard
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.log import next_chain
from myqueue.daemons.repair.damage import (
    DamagedSegment,
    LeaderAction,
    LostEntries,
    RepairSource,
    leader_action,
    matches_index_row,
    repair_source,
)
from myqueue.daemons.repair.messages import EntriesRequest, EntryReply
from myqueue.wal.groups import Row
from myqueue.wal.space.segment_repair import SegmentRepair


@pytest.mark.parametrize("header", [False, True])
def test_the_scrubber_finds_a_bit_in_data_at_rest(tmp_path: Path, header: bool) -> None:
    """W16, W21: nobody reads it; it is found, and comes back from the peers."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        path = damage(node, header=header)
        assert path != place_of(node, 80)[0], "it is in a sealed segment"
        node.engine.scrub_bytes_per_s = SCRUB
        wait_until_repaired(net, node, path)
        assert (
            node.engine.repair.repaired_segments == type(node.engine.repair.repaired_segments)()
        )  # a new process


def test_what_a_read_finds_is_not_told_and_comes_back(tmp_path: Path) -> None:
    """W16: who reads is told to come again, never the bytes."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        before, path = payloads(node), damage(node)
        with pytest.raises(errors.NotReady):
            node.replica(GROUP).read(LOST, LOST, 1)
        net.until("noticed", lambda: node.engine.repair.damaged_segments)
        assert node.engine.counts["damage_found_total"] == 1
        net.until("back", lambda: not node.engine.repair.damaged_segments, 6000)
        assert node.engine.counts["entries_repaired_total"] == 1
        assert payloads(node) == before
        wait_until_repaired(net, node, path)


@pytest.mark.parametrize("header", [False, True])
def test_in_the_open_segment(tmp_path: Path, header: bool) -> None:
    """Nothing follows what is bad: the segment is sealed before its time."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        last = node.replica(GROUP).raft.log.last_index
        path = damage(node, last, header=header)
        assert node.log.journal.end[0] == place_of(node, last)[1].segment
        node.engine.scrub_bytes_per_s = SCRUB
        wait_until_repaired(net, node, path)
        net.write(5, GROUP)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("end", ["open", "sealed"])
def test_found_on_start(tmp_path: Path, header: bool, end: str) -> None:
    """R2, W5: what the store knows of a bad place is not lost; its group alone is lacking."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        index = LOST if end == "sealed" else node.replica(GROUP).raft.log.last_index
        node.close()
        node.open()  # from now on entries are on disk alone
        path = damage(node, index, header=header)
        node.close()
        net.cut = {(n, node.number) for n in net.nodes}
        node.open()
        if end == "open":
            assert not node.engine.refused and not node.log.journal.recovered.unknown_loss
            assert node.replica(GROUP).raft.health == "repairing"
            assert node.replica(OTHER).raft.health.votes
        net.cut = set()
        node.engine.scrub_bytes_per_s = SCRUB
        wait_until_repaired(net, node, path)


def test_segments_that_wait_for_room_are_not_scrubbed(tmp_path: Path) -> None:
    """W15: what is to be written stands in segments whose files can't be made so far."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        journal, scrubbing = node.log.journal, node.engine.repair.scrub_pace
        first = min(journal.segments)
        while journal.end[0] < first + 2:
            net.write(20, GROUP, size=10_000)
        journal.persisted_at = (first, journal.segments[first].capacity // 2)
        scrubbing._last_number, rounds = first, scrubbing.status()["rounds"]
        scrubbing._begin(net.clock.now)
        assert scrubbing._scrub is None and scrubbing.status()["rounds"] == rounds + 1


def test_a_whole_segment_that_is_gone(tmp_path: Path) -> None:
    """The index knows what stood there; all of it comes from the peers, for all groups."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        path, _ = place_of(node, LOST)
        path.unlink()
        node.log.files._forget(path.name)
        node.engine.scrub_bytes_per_s = SCRUB
        wait_until_repaired(net, node, path)


def test_entries_in_memory_are_written_again_at_once(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        net.write(3, GROUP)
        forget_not = follower(net)
        last = forget_not.replica(GROUP).raft.log.last_index
        net.until("stored", lambda: is_stored(forget_not))
        net.cut = {(n, forget_not.number) for n in net.nodes}
        path = damage(forget_not, last)
        forget_not.engine.scrub_bytes_per_s = SCRUB
        repair = forget_not.engine.repair
        net.until(
            "repaired by itself",
            lambda: repair.repaired_segments and not repair.damaged_segments,
            6000,
        )
        net.cut = set()
        wait_until_repaired(net, forget_not, path)


def test_who_lacks_something_neither_votes_nor_counts(tmp_path: Path) -> None:
    """R2: with one of three lacking and one silent, nothing is committed any more."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        leader, node = net.leader(GROUP), follower(net)
        third = next(one for one in net.nodes.values() if one not in (leader, node))
        damage(leader)
        damage(third)
        net.cut = {(third.number, node.number), (node.number, third.number)}
        damage_and_notice(net, [node])  # the leader can't help
        for _ in range(20):
            net.turn()
        net.cut |= {(third.number, leader.number), (leader.number, third.number)}
        before = leader.replica(GROUP).raft.commit_index
        leader.engine.propose(leader.replica(GROUP), [t.Proposal(1, 1, t.DATA, bytes(100))])
        for _ in range(100):
            net.turn()
        assert leader.replica(GROUP).raft.commit_index == before
        assert not node.replica(GROUP).is_leader


def test_a_leader_that_lacks_something_does_not_count_itself(tmp_path: Path) -> None:
    """R2: it goes on leading for the moments that it takes, but two others have to have it."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        leader, node = net.leader(GROUP), follower(net)
        third = next(one for one in net.nodes.values() if one not in (leader, node))
        net.cut = {(a, b) for a, b in net.directions() if third.number in (a, b)}
        gives = node.engine.repair.serve_entries
        node.engine.repair.serve_entries = lambda ask: None  # type: ignore[method-assign]
        damage_and_notice(net, [leader])
        replica = leader.replica(GROUP)
        before, last = replica.raft.commit_index, replica.raft.log.last_index
        leader.engine.propose(replica, [t.Proposal(1, 1, t.DATA, bytes(100))])
        ours = node.replica(GROUP).raft.log
        net.until("on both disks", lambda: ours.persisted_index > last, 60)
        for _ in range(5):
            net.turn()
        assert replica.is_leader and replica.raft.commit_index == before
        node.engine.repair.serve_entries = gives  # type: ignore[method-assign]
        net.until("whole", lambda: replica.raft.health.votes)
        net.until("committed", lambda: replica.raft.commit_index > before)


def test_the_same_entry_lost_on_a_majority(tmp_path: Path) -> None:
    """The partition stops and says why; the other one goes on; it goes on when one has it."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        ends = {}
        third = follower(net)
        rest = [one for one in net.nodes.values() if one is not third]
        third.close()
        damage_and_notice(net, rest)

        def stands() -> bool:
            return not any(one.replica(GROUP).is_leader for one in rest)

        net.until("nobody leads", stands, 1000)
        net.until("told", lambda: all(GROUP in one.engine.refused for one in rest), 3000)
        for one in rest:
            assert "can't be read" in one.engine.refused[GROUP]
            assert "lost here" in one.engine.repair.damage_report()[0]["state"]
            with pytest.raises(errors.CorruptData):
                one.replica(GROUP).read(LOST, LOST, 1)
        assert stands()
        net.write(3, OTHER)
        for one in rest:  # a restart forgets nothing of it
            ends[one.number] = one.replica(GROUP).raft.log.last_index
            one.restart()
            assert one.replica(GROUP).raft.health == "repairing"
            assert one.replica(GROUP).raft.log.last_index == ends[one.number]
        for _ in range(300):
            net.turn()
        assert stands()
        third.open()
        net.write(3, GROUP)
        for one in rest:
            repair = one.engine.repair
            net.until(
                "repaired", lambda at=repair: not at.damaged_segments and not at.lost_entries, 6000
            )
            assert GROUP not in one.engine.refused
            assert payloads(one) == payloads(third)


def test_a_leader_hands_over_what_it_lacks_for_long(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        leader = net.leader(GROUP)
        rest = [one for one in net.nodes.values() if one is not leader]
        asked = {(one.number, leader.number) for one in rest}
        damage(leader)
        for one in rest:  # they don't have it either
            damage(one)
        lose_at = leader.replica(GROUP)
        with pytest.raises(errors.NotReady):
            lose_at.read(LOST, LOST, 1)
        net.until("lacking", lambda: lose_at.raft.health == "repairing")
        assert asked and lose_at.is_leader
        net.until("made way", lambda: not lose_at.is_leader, 2000)


def test_a_wrong_entry_is_not_taken(tmp_path: Path) -> None:
    """Whatever a peer says, it is the one that was lost or nothing."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node, leader = follower(net), net.leader(GROUP)
        entry = leader.replica(GROUP).read(LOST, LOST, 1)[0]
        net.cut = {(n, node.number) for n in net.nodes}
        damage_and_notice(net, [node])
        ours, theirs = node.replica(GROUP).replica_id, leader.replica(GROUP).replica_id
        wrong = (*entry[:7], bytes(len(entry[t.PAYLOAD]) - 1) + b"y")
        node.engine.repair.receive_entry(EntryReply(GROUP, theirs, ours, 1, wrong))
        assert node.engine.counts["entries_given_wrong_total"] == 1
        assert node.engine.counts["entries_repaired_total"] == 0
        node.engine.repair.receive_entry(EntryReply(GROUP, theirs, ours, 1, entry))
        assert node.engine.counts["entries_repaired_total"] == 1


def test_an_entry_that_retention_took_is_not_taken(tmp_path: Path) -> None:
    """R6: appended behind the START it would be the first of the log again, after a restart."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node, leader = follower(net), net.leader(GROUP)
        entry = leader.replica(GROUP).read(LOST, LOST, 1)[0]
        net.cut = {(n, node.number) for n in net.nodes}
        damage_and_notice(net, [node])
        replica = node.replica(GROUP)
        assert node.engine.starts.move(replica, LOST + 1)
        theirs = leader.replica(GROUP).replica_id
        node.engine.repair.receive_entry(EntryReply(GROUP, theirs, replica.replica_id, 1, entry))
        assert node.engine.counts["entries_repaired_total"] == 0
        net.until("on disk", lambda: is_stored(node))
        node.close()
        node.open()
        assert node.replica(GROUP).raft.log.first_index == LOST + 1


def test_a_beat_tells_of_no_more_damage_than_managers_hear(tmp_path: Path) -> None:
    """Of a beat that is malformed they take nothing, and the broker counts as silent."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        node = follower(net)
        repair, log = node.engine.repair, node.log
        lacking = repair.lost_entries[GROUP] = LostEntries(0)
        for number in range(100, 100 + REPORTED_ROWS_MAX // 2 + 1):
            salvage = SegmentRepair(log.reclaimer, number, lambda _: False)
            repair.damaged_segments[number] = DamagedSegment(
                f"{number}.seg", 0, "start", "a bit", salvage
            )
            lacking.add(number, (number + 100, 0))
        assert is_heard(repair.damage_report()) and len(repair.damage_report()) == REPORTED_ROWS_MAX
        repair.damaged_segments.clear()
        assert (
            is_heard(repair.damage_report())
            and len(repair.damage_report()) == REPORTED_ROWS_MAX // 2 + 1
        )
        repair.lost_entries.clear()


def test_what_is_asked_of_whom(tmp_path: Path) -> None:
    """Nobody but members is given anything, and nothing that is not on disk."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        leader = net.leader(GROUP).engine
        sent: list[object] = []
        leader.send_repair_messages = sent.append  # type: ignore[method-assign,assignment]
        replica = leader.replicas[GROUP]
        others = [one for one in replica.raft.config.members if one != replica.replica_id]

        def ask(who: int, at: list[int]) -> None:
            leader.repair.serve_entries(EntriesRequest(GROUP, who, replica.replica_id, 1, at))

        net.cut = set(net.directions())
        leader.propose(replica, [t.Proposal(1, 1, t.DATA, bytes(100))])
        log, at = replica.raft.log, replica.raft.commit_index + 1
        net.until("on the own disk alone", lambda: log.persisted_index == at, 40)
        ask(t.replica_id(9, 9), [LOST])
        ask(others[0], [0, at + 1, 1 << 40])
        assert not sent
        ask(others[0], [LOST])
        assert len(sent) == 1


def test_decisions() -> None:
    """`way_of`, `leader_step` and `is_the_entry`, case by case."""
    assert repair_source(4, 5, 20, 10) is RepairSource.GONE
    assert repair_source(21, 5, 20, 10) is RepairSource.GONE
    assert repair_source(5, 5, 20, 10) is RepairSource.PEERS
    assert repair_source(9, 5, 20, 10) is RepairSource.PEERS
    assert repair_source(10, 5, 20, 10) is RepairSource.MEMORY
    assert leader_action(999) is LeaderAction.LEAD
    assert leader_action(1000) is LeaderAction.TRANSFER
    assert leader_action(2000) is LeaderAction.STEP_DOWN
    chain = next_chain(77, 3, b"abc")
    row = Row(GROUP, 8, 1, 512, 3, 2, 100, 3, 1234, chain)
    right: t.Entry = (8, 3, 100, 2, 1234, t.DATA, chain, b"abc")
    assert matches_index_row(row, 77, right)
    assert not matches_index_row(row, 78, right)
    for place, value in enumerate((9, 4, 101, 3, 1235)):
        assert not matches_index_row(row, 77, (*right[:place], value, *right[place + 1 :]))
    assert not matches_index_row(row, 77, (*right[:7], b"abd"))
    assert not matches_index_row(row, 77, (*right[:7], b"abcd"))


def test_a_bit_in_the_last_records_stops_nobody_for_long(tmp_path: Path) -> None:
    """Found at a start, it may stand for promises (R2): who has it does not count until a new term.
    With all others there that takes a handover. With one of them away nothing is written, as two of
    three may not know what was promised; and it goes on as soon as that one is back.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        write_segments(net)
        leader, node = net.leader(GROUP), follower(net, GROUP)
        third = next(one for one in net.nodes.values() if one not in (leader, node))
        for away in (False, True):
            spoil_the_end(net, node)
            if away:
                third.close()
            node.open()
            assert any(one.raft.health == "recovering" for one in node.engine.replicas.values())
            if away:
                for _ in range(500):
                    net.turn()
                assert any(one.raft.health == "recovering" for one in node.engine.replicas.values())
                third.open()
            since = net.clock.now
            net.until("it counts", lambda: not waits(node), 500)
            assert net.clock.now - since <= 5000
            for group in (GROUP, OTHER):
                net.write(2, group)
            forget_entries_in_memory(net)
            node.close()
            node.open()
            net.until("whole", lambda: not waits(node), 500)


def spoil_the_end(net: EngineNet, node: Node) -> None:
    """It stops while it writes, and a bit turns in what it wrote last."""
    leader = net.leader(GROUP)
    for _ in range(50):
        item = t.Proposal(1, net.clock.wall, t.DATA, bytes(5000))
        leader.engine.propose(leader.replica(GROUP), [item])
        net.turn()
    number, end = node.log.journal.end
    named = node.log.journal.segment_name(number)
    assert named is not None
    node.close()
    wal_logs.flip(node.folder / "wal" / named[0], end - 7500)


def waits(node: Node) -> bool:
    """Some replica there does not count."""
    return any(not one.raft.health.votes for one in node.engine.replicas.values())
