"""A machine that is short of something, descriptors say, is no damaged disk (W16)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from support import damage_rig as kit
from support import wal_logs
from support.damage_rig import GROUP
from support.engine_rig import EngineNet

from myqueue.wal import format as f
from myqueue.wal.space.segment_repair import SegmentRepair


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_the_scrubber_comes_again(tmp_path: Path, number: int) -> None:
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = net.nodes[1]
        scrubbing, files = node.engine.repair.scrub_pace, node.log.files
        read, left = files.read, [20]
        scrubbing.round_ms = 1

        def short(*place: Any) -> bytes:
            if left[0] > 0:
                left[0] -= 1
                raise OSError(number, "too many of something")
            return read(*place)

        files.read = short  # type: ignore[method-assign]
        node.engine.scrub_bytes_per_s = 1 << 40
        rounds = scrubbing.status()["rounds"]
        net.until("two rounds", lambda: scrubbing.status()["rounds"] >= rounds + 2, 20_000)
        assert not left[0] and not node.engine.repair.damaged_segments
        assert not node.engine.counts["damage_found_total"]


def test_what_is_damaged_is_not_judged_then(tmp_path: Path) -> None:
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net, GROUP)
        path = kit.damage(node)
        number = int(path.name.split("-")[0])
        salvage = SegmentRepair(node.log.reclaimer, number, lambda _: False)
        segment = node.log.journal.segments[number]

        def short(*_: Any) -> bytes:
            raise OSError(errno.EMFILE, "too many open files")

        read, node.log.files.read = node.log.files.read, short  # type: ignore[method-assign]
        with pytest.raises(OSError, match="too many"):
            salvage._kinds_in(segment)
        node.log.files.read = read  # type: ignore[method-assign]
        assert salvage._kinds_in(segment)


def test_the_last_mark_of_a_log_is_looked_at_as_well(tmp_path: Path) -> None:
    """Behind it nothing proves that it was synced, but its daemon knows: of one that holds nothing
    it may be all there is in the newest segment. Found by the nemesis.
    """
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        node = net.nodes[1]
        net.until("its start is noted", lambda: node.log.journal.persisted_at[0])
        records = list(wal_logs.records(node.folder / "wal"))
        assert {one.record.kind for one in records} == {f.MARK}
        wal_logs.flip(records[-1].path, records[-1].record.position + 9)
        node.engine.repair.scrub_pace.round_ms = 1
        node.engine.scrub_bytes_per_s = 1 << 40
        net.until("found", lambda: node.engine.counts["damage_found_total"])
        net.until("repaired", lambda: node.engine.counts["damage_repaired_total"])
        assert not records[0].path.exists()


def test_synced_writes_that_read_as_zeros_are_lost_ones(tmp_path: Path) -> None:
    """W16: by itself the log looks as if it ended there. Its daemon knows that there was more."""
    with EngineNet(tmp_path, 3, kit.CONFIG) as net:
        kit.write_segments(net)
        node = kit.follower(net)
        for _ in range(3):
            net.write(1, GROUP, size=100)
        net.wait_until_settled(GROUP)
        kit.forget_entries_in_memory(net)
        before = kit.payloads(node)
        path, row = kit.place_of(node, node.replica(GROUP).raft.log.last_index - 1)
        batches = [
            one.record.position
            for one in wal_logs.records(node.folder / "wal")
            if one.path == path and one.record.kind == f.MARK and one.record.position < row.position
        ]
        begin = max(batches)
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(node.log.journal.end[1] - begin))
        node.engine.repair.scrub_pace.round_ms = 1
        node.engine.scrub_bytes_per_s = 1 << 40
        net.until("found", lambda: node.engine.counts["damage_found_total"], 9000)
        net.until("repaired", lambda: node.engine.counts["damage_repaired_total"], 9000)
        assert kit.payloads(node) == before
