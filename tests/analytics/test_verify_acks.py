"""S2: every acknowledged message is in the log once, with its bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from kit.plain_spread import PlainSpread
from kit.queue_logs import Topic, some_topics, write_cluster

from myqueue import batch
from myqueue.analytics.report import Report
from myqueue.analytics.verify import Asked, verify
from myqueue.daemons.raft import types as t

A, B, C = 100, 101, 102  # groups: a/0, a/1, b/0


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One segment per broker; the tests of single faults plant them in copies."""
    path: Path = tmp_path_factory.mktemp("healthy")
    write_cluster(path, some_topics(20))
    return path


@pytest.fixture
def cluster(healthy: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "cluster"
    shutil.copytree(healthy, copy)
    return copy


def verified(cluster: Path, scratch: Path, *, stores: bool = False, **asked: Any) -> Report:
    wanted = Asked([str(cluster)], with_stores=stores, **asked)
    return verify(wanted, PlainSpread(), scratch)


def ledger(to: Path, rows: list[tuple[str, int, int, list[int]]]) -> str:
    told = [{"schema": "myq.acks/1"}]
    told += [  # type: ignore[misc]
        {"topic": topic, "partition": partition, "offset": offset, "crcs": crcs}
        for topic, partition, offset, crcs in rows
    ]
    to.write_text("".join(json.dumps(line) + "\n" for line in told))
    return str(to)


def everything(topics: list[Topic]) -> list[tuple[str, int, int, list[int]]]:
    out = []
    for topic in topics:
        for one in topic.entries:
            if one[t.TYPE] == t.DATA:
                values = batch.open_batch(one[t.PAYLOAD])[1].values
                crcs = [crc32(value) for value in values]
                out.append((topic.name, topic.partition, one[t.OFFSET], crcs))
    return out


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
