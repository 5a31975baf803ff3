"""D2: faults of whole segments, of logs' ends, and of stores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forging import records_to_forge, segments
from support.partition_commands import commit_command, forget_command, take_command
from support.plain_spread import PlainSpread
from support.queue_logs import Broker, Topic, some_topics, write_cluster, write_replica
from support.verifying import A, verified

from myqueue.analytics.verify import partition_state
from myqueue.analytics.verify.report import Report
from myqueue.analytics.verify.verify import Asked, verify
from myqueue.daemons.partition import old_takes
from myqueue.daemons.partition.machine import (
    key_step_command,
)
from myqueue.wal import format as f
from myqueue.wal.store.dump import lines
from myqueue.wire import batch, protocol

Line = dict[str, Any]


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    write_cluster(tmp_path / "r", some_topics(40), segment_bytes=1 << 14)
    return tmp_path / "r"


def rules(report: Report, daemon: str) -> set[str]:
    return {one.rule for one in report.findings if one.daemon == daemon}


def test_a_footer_that_counts_otherwise(rotated: Path, tmp_path: Path) -> None:
    footer = records_to_forge(rotated / "broker-2", f.FOOTER)[1]
    rows = f.decode_footer(footer.payload)
    rows[0] = rows[0]._replace(entries=rows[0].entries + 1)
    footer.forge(f.encode_footer(rows))
    report = verified(rotated, tmp_path)
    [finding] = report.findings
    assert (finding.rule, finding.daemon, finding.position) == (
        *("footer", "broker-2", footer.position),
    )


def test_a_trailer_that_is_gone(rotated: Path, tmp_path: Path) -> None:
    segment = segments(rotated / "broker-1")[1]
    path = rotated / "broker-1" / "wal" / segment.name
    raw = bytearray(path.read_bytes())
    raw[-60] ^= 1
    path.write_bytes(raw)
    report = verified(rotated, tmp_path)
    assert "seal" in rules(report, "broker-1")
    assert {one.segment for one in report.findings} == {segment.name}


def test_a_segment_that_is_gone(rotated: Path, tmp_path: Path) -> None:
    second = segments(rotated / "broker-3")[1]
    (rotated / "broker-3" / "wal" / second.name).unlink()
    report = verified(rotated, tmp_path)
    assert rules(report, "broker-3") == {"gap"}
    assert rules(report, "broker-1") == set()


def test_a_segment_of_another_disk(rotated: Path, tmp_path: Path) -> None:
    foreign = segments(rotated / "broker-2")[-1]
    name = f.segment_name(foreign.number + 7, foreign.uid)
    shutil.copy(rotated / "broker-2" / "wal" / foreign.name, rotated / "broker-1" / "wal" / name)
    report = verified(rotated, tmp_path)
    assert "file" in rules(report, "broker-1")


def test_records_that_were_synced_and_are_not_there(rotated: Path, tmp_path: Path) -> None:
    last = records_to_forge(rotated / "broker-1")[-1]
    segment = segments(rotated / "broker-1")[0]
    inside = [
        one for one in records_to_forge(rotated / "broker-1") if one.path.name == segment.name
    ]
    spot = inside[-2]
    with open(spot.path, "r+b") as file:
        file.seek(spot.position)
        file.write(bytes(segment.capacity - f.RECORD_HEADER_BYTES - spot.position))
    report = verified(rotated, tmp_path)
    found = [(one.rule, one.position) for one in report.findings if one.daemon == "broker-1"]
    assert ("lost", spot.position) in found
    assert spot.path != last.path


def test_a_record_of_a_newer_version(rotated: Path, tmp_path: Path) -> None:
    """In a sealed segment with nothing but batches: one with more is read while planning,
    and ends all of it.
    """
    names = sorted(path.name for path in (rotated / "broker-3" / "wal").glob("*.seg"))
    spot = next(one for one in records_to_forge(rotated / "broker-3") if one.path.name == names[1])
    spot.forge(kind=200)
    report = verified(rotated, tmp_path)
    found = [one for one in report.findings if one.rule == "format"]
    assert [(one.daemon, one.position) for one in found] == [("broker-3", spot.position)]


def test_a_tail_that_a_crash_cut_off_is_no_failure(cluster: Path, tmp_path: Path) -> None:
    """Nobody was promised what no mark proves; but what was committed must be on a majority."""
    for node in (1,):
        last = records_to_forge(cluster / f"broker-{node}", f.ENTRY)[-1]
        raw = bytearray(last.path.read_bytes())
        begin = last.position + 40
        raw[begin:] = bytes(len(raw) - begin)
        last.path.write_bytes(raw)
    report = verified(cluster, tmp_path)
    assert report.torn == 1 and report.ok, report.findings


def test_committed_entries_on_a_minority(tmp_path: Path) -> None:
    topics = some_topics(20)
    whole = [list(topic.entries) for topic in topics]
    for node in (1, 2, 3):
        broker = Broker(tmp_path / "c" / f"broker-{node}", node)
        for topic, entries in zip(topics, whole, strict=True):
            broker.create(topic, (1, 2, 3))
            topic.entries = entries if node == 1 else entries[:-4]
        write_replica(broker, topics)
        broker.close()
    report = verified(tmp_path / "c", tmp_path)
    assert {one.rule for one in report.findings} == {"majority"}
    assert len(report.findings) == 3
    assert report.findings[0].index == len(whole[0]) - 3
    assert "on 1 of 3 voters" in report.findings[0].what


def test_logs_that_were_not_given_may_have_it(healthy: Path, tmp_path: Path) -> None:
    report = verify(Asked([str(healthy / "broker-1")], with_stores=False), PlainSpread(), tmp_path)
    assert report.findings == []
    assert {one.missing for one in report.groups} == {2}


def edited(
    cluster: Path, to: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> str:
    """The state of broker 1's store, with something changed."""
    told = [change(line) for line in lines(str(cluster / "broker-1"))]
    to.write_text("".join(json.dumps(line) + "\n" for line in told if line is not None))
    return str(to)


def group_a(line: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {**line, **change} if line.get("group") == f"{A:016x}" else line


def row(line: Line, **change: str) -> Line:
    return {**line, **change} if "key" in line else line


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("ahead", lambda line: group_a(line, applied=4000)),
        ("ahead", lambda line: group_a(line, last_index=4000)),
        ("ahead", lambda line: group_a(line, term=77)),
        ("state", lambda line: group_a(line, applied=10)),
        ("state", lambda line: None if line.get("key", "").startswith("63") else line),
        (
            "state",
            lambda line: {**line, "value": line["value"][:-2] + "7f"} if "key" in line else line,
        ),
        ("state", lambda line: {**line, "key": line["key"] + "00"} if "key" in line else line),
    ],
    ids=["applied", "entries", "term", "behind", "row-missing", "other-value", "other-key"],
)
def test_a_store_that_is_not_what_the_log_says(
    rule: str, change: Any, healthy: Path, tmp_path: Path
) -> None:
    path = edited(healthy, tmp_path / "state", change)
    report = verified(healthy, tmp_path, store_files=[path])
    assert {one.rule for one in report.findings} == {rule}, report.findings
    assert {one.daemon for one in report.findings} == {"broker-1"}


def test_a_store_that_cant_be_read(cluster: Path, tmp_path: Path) -> None:
    path = cluster / "broker-2" / "store" / "data.mdb"
    raw = bytearray(path.read_bytes())
    for at in range(8192, len(raw), 512):
        raw[at] ^= 0xFF
    path.write_bytes(raw)
    report = verified(cluster, tmp_path, stores=True)
    assert [(one.rule, one.daemon) for one in report.findings] == [("store", "broker-2")]


def test_the_store_of_a_running_daemon_is_left_alone(cluster: Path, tmp_path: Path) -> None:
    broker = Broker(cluster / "broker-1", 1)
    report = verified(cluster, tmp_path, stores=True)
    broker.close()
    assert report.findings == []
    assert len(report.notes) == 1 and "broker-1" in report.notes[0]


def test_takes_fencing_and_forgetting_are_rebuilt_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second implementation of the partition's state, against the first one."""
    monkeypatch.setattr(old_takes, "OLDER_TAKES_MAX", 70)
    monkeypatch.setattr(partition_state, "OLDER_TAKES_MAX", 70)
    topic = Topic("a", A)
    topic.noop()
    for one in range(200):
        topic.data(1 + one % 4, producer=1 + one % 3)
        topic.command(take_command([["taker", one.to_bytes(16, "big"), 1 + one % 5]]))
        if one % 7 == 0:
            topic.command(take_command([["taker", one.to_bytes(16, "big"), 9]]))  # a repeat
            topic.commit(f"reader-{one % 3}", one)
            topic.commit("reader-0", one // 2)
            fence = [[f"reader-{one % 4}", protocol.NO_OFFSET, 1, 2 + one // 50]]
            topic.command(commit_command(fence))
            topic.command(take_command([[f"reader-{one % 4}", one.to_bytes(16, "little"), 2]]))
            topic.command(take_command([["looker", one.to_bytes(16, "big"), 2, one % 2 == 0]]))
            topic.data(
                1 + one % 2, producer=1 << 63 | one, epoch=batch.KEYED_EPOCH, sequence=977 * one
            )
        if one == 120:  # the second one is fenced, the third was never there
            forgotten = [["reader-0", 0, 9], ["reader-1", 0, 1], ["nobody", 0, 1]]
            topic.command(forget_command(forgotten))
        if one == 150:
            topic.command(forget_command([["looker", 0, 0]]))
        if one % 50 == 49:
            topic.sequences[1] = 0
            topic.data(2, producer=1, epoch=one, sequence=0)
            topic.sequences[1] = 0
            topic.data(1, producer=1, epoch=one + 1, sequence=0)
            topic.sequences[1] = 0
    write_cluster(tmp_path / "c", [topic], nodes=[1])
    report = verified(tmp_path / "c", tmp_path, stores=True)
    assert {one.rule for one in report.findings} <= {"sequence"}  # epochs that fell were planted
    assert report.state_rows == 1 + 3 + 6 + 29 + 70  # keys of batches, older takes


@pytest.mark.parametrize("first_step", [0, 30])
def test_keys_that_age_by_steps_are_rebuilt_alike(tmp_path: Path, first_step: int) -> None:
    """Also in a log whose beginning an older version wrote, without steps."""
    topic = Topic("a", A)
    topic.noop()
    for one in range(90):
        topic.data(1 + one % 2, producer=1 << 63 | one, epoch=batch.KEYED_EPOCH, sequence=one)
        if one >= first_step and one % 3 == 0:
            topic.command(key_step_command())
    write_cluster(tmp_path / "c", [topic], nodes=[1])
    report = verified(tmp_path / "c", tmp_path, stores=True)
    assert report.findings == []
    assert report.state_rows == 1 + 1 + 15 * 3 + 2  # how far it is, steps, keys of the last 15
