"""What once went wrong at a start: logs that lost something, and what may be asked of the rest."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support import wal_logs
from support.engine_rig import EngineNet, Node

from myqueue.daemons.raft import types as t
from myqueue.daemons.replication import open_group
from myqueue.errors import EntryMissing, IdentityMismatch, NotReady, StoreBroken
from myqueue.wal import format as f
from myqueue.wal.config import JournalConfig

CONFIG = JournalConfig(segment_bytes=4 << 20, soft_limit_bytes=0, reserve_bytes=0)
GROUP = 5


def damage(node: Node, index: int) -> None:
    """One bit of the payload of an entry; the node is down."""
    found = [
        one
        for one in wal_logs.records(node.folder / "wal")
        if (one.record.kind, one.record.group, one.record.index) == (f.ENTRY, GROUP, index)
    ]
    record = found[-1].record
    wal_logs.flip(found[-1].path, record.position + f.RECORD_HEADER_BYTES + record.length // 2)


def a_follower(net: EngineNet) -> Node:
    leader = net.leader(GROUP)
    return next(one for one in net.nodes.values() if one is not leader)


def follows_completely(net: EngineNet, node: Node) -> None:
    net.write(5, GROUP)
    leader = net.leader(GROUP)
    ours, theirs = node.replica(GROUP).raft.log, leader.replica(GROUP).raft.log
    net.until("as long as the leader's", lambda: ours.persisted_index == theirs.persisted_index)
    terms = [theirs.term(index) for index in range(1, theirs.last_index + 1)]
    assert [ours.term(index) for index in range(1, ours.last_index + 1)] == terms
    net.until("recovered", lambda: node.replica(GROUP).raft.health != "recovering")


def test_a_cut_log_knows_no_terms_behind_its_end(tmp_path: Path) -> None:
    """R2, R22: a term that only this log has entries of, and damage before them."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(20, GROUP)
        net.wait_until_settled(GROUP)
        leader, alone = net.leader(GROUP), a_follower(net)
        ours = alone.replica(GROUP)
        rest = [one for one in net.nodes.values() if one is not alone]
        leader.engine.transfer(leader.replica(GROUP), alone.number)
        voted = [one.replica(GROUP).raft for one in rest]
        net.until("votes", lambda: any(one.vote == ours.replica_id for one in voted))
        net.cut = {(alone.number, one.number) for one in rest}  # nobody hears its first entry
        net.until("elected", lambda: ours.is_leader)
        log, term = ours.raft.log, ours.raft.term
        net.until("on its disk", lambda: log.persisted_index == log.last_index > 21)
        assert log.last_term == term
        alone.close()
        net.cut = set()
        net.write(5, GROUP)
        damage(alone, 8)
        shutil.rmtree(alone.folder / "store")
        alone.open()
        assert alone.replica(GROUP).raft.health == "recovering"
        assert alone.replica(GROUP).raft.log.last_index == 7
        follows_completely(net, alone)


def test_a_newest_entry_that_cannot_be_read_is_fetched_again(tmp_path: Path) -> None:
    """W16, R2: found by reading it, not by recovery; one bad place does not stop the daemon."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.create(6)
        net.write(10, GROUP)
        net.wait_until_settled(GROUP)
        for _ in range(5):  # the next segments
            net.write(10, 6, size=200_000)
        net.wait_until_settled(6)
        for _ in range(50):
            net.turn()
        node = a_follower(net)
        last = node.replica(GROUP).raft.log.last_index
        node.close()
        damage(node, last)
        net.cut = {(n, node.number) for n in net.nodes}
        node.open()
        assert not node.engine.refused
        ours = node.replica(GROUP).raft
        assert ours.health == "repairing" and not ours.health.votes
        # That it lacks something is on the disk: a crash here does not forget it.
        net.until("on disk", lambda: not node.log.journal.queued_bytes)
        node.restart()
        assert node.replica(GROUP).raft.health == "repairing"
        assert node.replica(GROUP).raft.log.last_index == last, "it is known, but for its bytes"
        net.cut = set()
        follows_completely(net, node)
        net.until("whole", lambda: node.replica(GROUP).raft.health.votes)


@pytest.mark.parametrize("trouble", [NotReady("too many open files"), StoreBroken("a row")])
def test_what_only_can_t_be_read_now_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """R2: a start that fails is tried again; entries that were cut off are gone."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(20, GROUP)
        net.wait_until_settled(GROUP)
        node = a_follower(net)
        group, log = node.log.journal.groups.by_uid[GROUP], node.log
        last = group.last_index

        def fails(*_: Any) -> Any:
            raise trouble

        with monkeypatch.context() as patch:
            patch.setattr(log.reader, "entries", fails)
            with pytest.raises(type(trouble)):
                open_group._cut_unreadable(log, group, applied=3)
        assert group.last_index == last and not group.incomplete and not group.lacking


def test_votes_go_with_the_log_whatever_the_store_says(tmp_path: Path) -> None:
    """R2, W6: the segments are gone, the store is there; none of its groups may vote."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(10, GROUP)
        net.wait_until_settled(GROUP)
        node = a_follower(net)
        node.close()
        shutil.rmtree(node.folder / "wal")
        (node.folder / "begun").unlink(missing_ok=True)
        node.open()
        assert list(node.engine.refused) == [GROUP]
        assert not node.engine.replicas
        node.restart()
        assert list(node.engine.refused) == [GROUP], "nor after another start"


@pytest.mark.parametrize("store_too", [False, True])
def test_an_empty_log_under_an_old_identity_is_refused(tmp_path: Path, store_too: bool) -> None:
    """W7, R2: as if the wal's file system was not mounted. The replicas would be made anew, under
    the ids of those that voted.
    """
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.write(10, GROUP)
        net.wait_until_settled(GROUP)
        node = a_follower(net)
        node.close()
        (node.folder / "wal").rename(node.folder / "elsewhere")
        if store_too:
            shutil.rmtree(node.folder / "store")
        with pytest.raises(IdentityMismatch):
            node.open()
        shutil.rmtree(node.folder / "wal", ignore_errors=True)
        (node.folder / "elsewhere").rename(node.folder / "wal")
        node.open()
        follows_completely(net, node)


def test_offsets_by_time_look_at_messages_only(tmp_path: Path) -> None:
    """A leader's first entry has no time of its own; nobody's search ends there."""
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        for _ in range(4):
            net.clock.wall += 1000
            net.write(3, GROUP)
            net.wait_until_settled(GROUP)
            leader, other = net.leader(GROUP), a_follower(net)
            leader.engine.transfer(leader.replica(GROUP), other.number)
            while not other.replica(GROUP).is_ready:
                net.turn()
        replica = net.leader(GROUP).replica(GROUP)
        found = [replica.read(i, i, 1)[0] for i in range(1, replica.raft.log.last_index + 1)]
        times = [entry[t.TIME] for entry in found if entry[t.TYPE] == t.DATA]
        assert len(times) == 12
        for at, time_ms in enumerate(times):
            assert replica.offset_at_time(time_ms) == at
        assert replica.offset_at_time(1) == 0
        assert replica.offset_at_time(times[-1] + 1) is None


@pytest.mark.parametrize(
    "error", [EntryMissing("entry 3 is gone"), t.InvariantBroken("offset 9, not 7")]
)
def test_a_group_that_can_t_be_opened_keeps_no_other_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """W6: it is refused and says why, and gets a new replica."""
    real = open_group._apply_committed

    def catch_up(log: Any, group: Any, *rest: Any) -> None:
        if group.uid == GROUP:
            raise error
        real(log, group, *rest)

    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create(GROUP)
        net.create(GROUP + 1)
        net.write(3, GROUP)
        net.write(3, GROUP + 1)
        node = net.nodes[1]
        with monkeypatch.context() as broken:
            broken.setattr(open_group, "_apply_committed", catch_up)
            node.restart()
        assert list(node.engine.replicas) == [GROUP + 1]
        assert str(error) in node.engine.refused[GROUP]
        is_closed = isinstance(error, t.InvariantBroken)  # what it has is kept when it is replaced
        assert [row["group"] for row in node.engine.closing.report()] == [GROUP] * is_closed
        assert node.engine.prepare_removal(GROUP) is not is_closed
        net.write(3, GROUP + 1)
