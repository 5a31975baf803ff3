"""A disk that stalls can't lead; one that is full can (W15, W17)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from support.engine_rig import EngineNet, Node

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.disk_health import STALL_MS
from myqueue.wal.config import JournalConfig

CONFIG = JournalConfig(segment_bytes=64 << 10, soft_limit_bytes=0, reserve_bytes=0)


def fill_disk(node: Node, patch: pytest.MonkeyPatch) -> None:
    """No segment can be made any more; what is there can be written to its end."""

    def no_room(name: str, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    patch.setattr(node.log.files, "create", no_room)
    patch.setattr(node.log.files, "free_bytes", lambda: 0)


def propose(node: Node, size: int, **how: Any) -> int:
    items = [t.Proposal(1, 0, t.DATA, bytes(size))]
    return node.engine.propose(node.replica(), items, **how)


def test_a_full_disk_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(3)
        leader = net.leader()
        term = leader.replica().raft.term
        with monkeypatch.context() as patch:
            fill_disk(leader, patch)
            for _ in range(40):  # more than the open segment and the next one hold
                last = propose(leader, 10_000, urgent=True)
            writer = leader.log.journal.writer
            net.until("the log waits for room", lambda: writer.out_of_room)
            for _ in range(10 * STALL_MS // 50):
                net.turn(50)
            assert leader.replica().is_leader and leader.replica().raft.term == term
            assert leader.engine.counts["disk_full_total"] == 1
            assert not leader.engine.counts["disk_stalls_total"]
            with pytest.raises(errors.DiskFull):
                propose(leader, 100)
            with pytest.raises(errors.DiskFull):
                leader.engine.disk.check_room_for_commands()
        applied = leader.replica().raft
        net.until("all is written by itself", lambda: applied.applied_index >= last)
        net.until("room again", lambda: not leader.log.journal.space_low)
        assert applied.term == term and not leader.engine.counts["disk_stalls_total"]
        net.write(3)


def test_a_silent_disk_makes_way(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, CONFIG) as net:
        net.create()
        net.write(3)
        leader = net.leader()
        leader.holds_reports = True
        propose(leader, 100)
        net.until("another leads", lambda: not leader.replica().is_leader, 300)
        assert leader.engine.counts["disk_stalls_total"] == 1
        leader.holds_reports = False
        net.until("well again", lambda: leader.replica().raft.may_lead)


def test_below_the_soft_limit_commands_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        net.create()
        node = net.leader()
        with monkeypatch.context() as patch:
            patch.setattr(node.log.files, "free_bytes", lambda: 1 << 20)
            node.log.journal.spares.set_low(True)
            net.until("low", lambda: node.log.journal.space_low)
            with pytest.raises(errors.DiskFull):
                propose(node, 100)
            node.engine.disk.check_room_for_commands()
            propose(node, 100, urgent=True)
