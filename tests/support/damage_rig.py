"""Damage on disks, for tests of repair: engines on real logs, bits turned in their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import wal_logs
from support.engine_rig import EngineNet, Node

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.wal import format as f
from myqueue.wal.config import JournalConfig
from myqueue.wal.groups import Row

CONFIG = JournalConfig(segment_bytes=1 << 20, soft_limit_bytes=0, reserve_bytes=0)
GROUP, OTHER = 5, 6
SCRUB = 1 << 30  # bytes per second
LOST = 8  # an index


def write_segments(net: EngineNet) -> None:
    """Write two groups on three nodes into several segments; no entry stays in memory."""
    net.create(GROUP)
    net.create(OTHER)
    for _ in range(4):
        net.write(20, GROUP, size=10_000)
        net.write(20, OTHER, size=10_000)
    forget_entries_in_memory(net)


def forget_entries_in_memory(net: EngineNet) -> None:
    for group in (GROUP, OTHER):
        net.wait_until_settled(group)
    net.until("all in the stores", lambda: all(is_stored(one) for one in net.nodes.values()))
    for node in net.nodes.values():
        for replica in node.engine.replicas.values():
            replica.raft.log.forget_before(replica.raft.applied_index + 1)


def is_stored(node: Node) -> bool:
    return not node.log.journal.queued_bytes and not node.log.index.works_waiting


def place_of(node: Node, index: int, group: int = GROUP) -> tuple[Path, Row]:
    row = node.log.index.row(group, index)
    assert row is not None
    named = node.log.journal.segment_name(row.segment)
    assert named is not None
    return node.folder / "wal" / named[0], row


def damage(node: Node, index: int = LOST, group: int = GROUP, *, header: bool = False) -> Path:
    """Flip one bit of an entry, in a file that its daemon has open."""
    path, row = place_of(node, index, group)
    at = 20 if header else f.RECORD_HEADER_BYTES + row.length // 2
    wal_logs.flip(path, row.position + at)
    return path


def follower(net: EngineNet, group: int = GROUP) -> Node:
    leader = net.leader(group)
    return next(one for one in net.nodes.values() if one is not leader)


def payloads(node: Node, group: int = GROUP) -> list[bytes]:
    replica = node.replica(group)
    first, last = replica.raft.log.first_index, replica.raft.log.last_index
    out: list[bytes] = []
    while first <= last:
        for entry in replica.read(first, last, 1 << 20):
            out.append(bytes(entry[t.PAYLOAD]))
            first += 1
    return out


def wait_until_repaired(net: EngineNet, node: Node, path: Path) -> None:
    """Wait until every entry reads as before, the segment is removed and the log is sound."""
    repair = node.engine.repair
    net.until("repaired", lambda: repair.repaired_segments and not repair.damaged_segments, 6000)
    assert not repair.lost_entries and all(
        one.raft.health.votes for one in node.engine.replicas.values()
    )
    assert not path.exists()
    whole = next(one for one in net.nodes.values() if one is not node)
    for group in (GROUP, OTHER):
        assert payloads(node, group) == payloads(whole, group)
    net.until("on disk", lambda: is_stored(node))
    node.close()
    found, summary = wal_logs.check(node.folder / "wal")
    assert not summary.corrupt, [str(one) for one in found]
    node.open()
    assert all(one.raft.health.votes for one in node.engine.replicas.values())
    for group in (GROUP, OTHER):
        assert payloads(node, group) == payloads(whole, group)


def damage_and_notice(net: EngineNet, nodes: list[Node], index: int = LOST) -> None:
    """Damage the same entry on each node, and read it, so that each notices."""
    for node in nodes:
        damage(node, index)
        with pytest.raises(errors.NotReady):
            node.replica(GROUP).read(index, index, 1)
        net.until("lacking", lambda at=node: at.replica(GROUP).raft.health == "repairing")
