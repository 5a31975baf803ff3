"""Data folders that the first version wrote are opened by this one and read the same.

`data/first_version.tar.xz` has the folders of three managers and three brokers after an orderly
stop, but for broker 2 and manager 3, which were killed. Their logs hold messages with and without
keys, headers and compression, a deleted topic, a topic whose old messages were removed, segments
that were given back, and the positions of a group. `expected.json` has what a consumer read before
the stop: topic, partition, offset, timestamp, key, digest of the value, headers.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myqueue import Consumer, Message, Producer
from tests.support.processes import Cluster

FOLDERS = Path(__file__).with_name("data") / "first_version.tar.xz"
SEGMENT_BYTES = 4 << 20  # the setting that the folders were written with
COMMITTED_BY_BILLING = 151  # messages of the topic `plain`


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first_version")
    with tarfile.open(FOLDERS) as archive:
        archive.extractall(folder, filter="data")
    shutil.rmtree(folder / "broker-3" / "store")  # this one rebuilds it from its log
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    with Cluster(folder, segment_bytes=SEGMENT_BYTES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[Any]]:
    rows: list[list[Any]] = json.loads((folder / "expected.json").read_text())["messages"]
    return rows


def row_of(message: Message) -> list[Any]:
    return [
        message.topic,
        message.partition,
        message.offset,
        message.timestamp,
        None if message.key is None else message.key.decode(),
        hashlib.sha256(message.value).hexdigest()[:16],
        {name: value.decode() for name, value in (message.headers or {}).items()},
    ]


def test_the_tools_find_every_log_sound(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "myqueue.cli", "wal", "verify", str(folder)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("no corruption") == 6


def test_every_message_reads_the_same(cluster: Cluster, expected: list[list[Any]]) -> None:
    topics = sorted({row[0] for row in expected})
    assert topics == ["keyed", "plain", "short"]
    assert cluster.admin.topics() == topics
    with Consumer(cluster.address, topics, idle_timeout=5) as consumer:
        read = sorted(map(row_of, consumer), key=lambda row: row[:3])
    assert read == expected


def test_a_group_continues_at_its_position(cluster: Cluster, expected: list[list[Any]]) -> None:
    with Consumer(cluster.address, ["plain"], group="billing", idle_timeout=5) as consumer:
        rest = [row_of(message) for message in consumer]
    plain = [row for row in expected if row[0] == "plain"]
    assert len(rest) == len(plain) - COMMITTED_BY_BILLING
    assert all(row in plain for row in rest)


def test_new_messages_follow_the_old_ones(cluster: Cluster, expected: list[list[Any]]) -> None:
    with Producer(cluster.address) as producer:
        offset = producer.send("short", b"new").result(20).offset
    assert offset == 1 + max(row[2] for row in expected if row[0] == "short")
