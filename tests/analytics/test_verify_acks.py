"""D2: every acknowledged message is in the log once, with its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forging import records_to_forge
from support.queue_logs import some_topics
from support.verifying import everything, ledger, verified

from myqueue.analytics.log.catalog import DATA
from myqueue.wal import format as f


def test_all_that_was_acknowledged_is_there(healthy: Path, tmp_path: Path) -> None:
    rows = everything(some_topics(20))
    path = ledger(tmp_path / "acks", rows)
    report = verified(healthy, tmp_path, ledgers=[path], split_bytes=2000)
    assert report.findings == []
    assert report.acks == sum(len(one[3]) for one in rows) == report.messages // 3


@pytest.mark.parametrize("what", ["lost", "other bytes", "two at one offset", "no such partition"])
def test_an_acknowledged_message_that_is_not_there(
    what: str, healthy: Path, tmp_path: Path
) -> None:
    rows = everything(some_topics(20))
    topic, partition, offset, crcs = rows[4]
    match what:
        case "lost":
            rows.append(("a", 0, 10_000, [1]))
        case "other bytes":
            rows[4] = (topic, partition, offset, [crcs[0] ^ 1, *crcs[1:]])
        case "two at one offset":
            rows.append((topic, partition, offset, [crcs[0] ^ 1]))
        case _:
            rows.append(("nobody", 3, 0, [5]))
    report = verified(healthy, tmp_path, ledgers=[ledger(tmp_path / "acks", rows)])
    assert [one.rule for one in report.findings] == ["ack"]
    assert str(report.findings[0].index if what != "lost" else 10_000) in report.findings[0].what


def cut(broker: Path, *, keeps_last: bool) -> None:
    """As SIGKILL may leave a log: behind the last batch, or before it, stands nothing more."""
    last = [one for one in records_to_forge(broker, f.ENTRY) if one.record.entry_type == DATA][-1]
    raw = bytearray(last.path.read_bytes())
    begin = last.record.end if keeps_last else last.position
    raw[begin:] = bytes(len(raw) - begin)
    last.path.write_bytes(raw)


def test_the_last_write_of_a_killed_daemon_has_no_mark_behind_it(
    cluster: Path, tmp_path: Path
) -> None:
    """It was synced and acknowledged: it counts if it is whole, else it is missed."""
    path = ledger(tmp_path / "acks", everything(some_topics(20)))
    brokers = [cluster / f"broker-{node}" for node in (1, 2, 3)]
    for broker in brokers:
        cut(broker, keeps_last=True)
    assert verified(cluster, tmp_path, ledgers=[path]).findings == []
    for broker in brokers:
        cut(broker, keeps_last=False)
    lost = verified(cluster, tmp_path, ledgers=[path]).findings
    assert {one.rule for one in lost} == {"ack"}


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_damaged_copy_loses_nothing(node: int, cluster: Path, tmp_path: Path) -> None:
    """Wherever it is, and whichever log is read first: the others have the message."""
    path = ledger(tmp_path / "acks", everything(some_topics(20)))
    hurt = [
        one for one in records_to_forge(cluster / f"broker-{node}", f.ENTRY) if one.record.count
    ][3]
    raw = bytearray(hurt.path.read_bytes())
    raw[hurt.record.end - 9] ^= 4
    hurt.path.write_bytes(raw)
    report = verified(cluster, tmp_path, ledgers=[path])
    assert {one.rule for one in report.findings} == {"payload"}
    assert {one.daemon for one in report.findings} == {f"broker-{node}"}
