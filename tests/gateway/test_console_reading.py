"""The console's browser and tail, of batches that are small on their way and large in memory."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.batches import forged
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import fill, serve_reads

from myqueue.cluster.session import Session
from myqueue.errors import BatchUnreadable
from myqueue.gateway.console import message_reader
from myqueue.wire import batch

MIB = 1 << 20
PARTITIONS = 16


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(1) as cluster:
        serve_reads(cluster)
        yield cluster


@pytest.fixture
def session(cluster: EchoCluster) -> Iterator[Session]:
    with Session(cluster.address, name="test") as session:
        yield session


def cost_of(job: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes at most, and what was returned."""
    tracemalloc.start()
    try:
        found = job()
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


def last_of_each(session: Session, cluster: EchoCluster) -> Any:
    logs = [cluster.logs[group] for group in cluster.topics["t"]]
    at = {number: max(0, log.end - 5) for number, log in enumerate(logs)}
    upto = {number: log.end for number, log in enumerate(logs)}
    return message_reader.read(session, "t", at, upto)


@pytest.mark.parametrize(
    ("count", "size", "bound"), [(20_000, 0, 32 * MIB), (1, 24 * MIB, 120 * MIB)]
)
def test_few_batches_are_open_at_a_time(
    cluster: EchoCluster,
    session: Session,
    count: int,
    size: int,
    bound: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_reader, "LIMIT_S", 60.0)  # counting memory is slow
    for log in cluster.topic("t", PARTITIONS):
        log.append(batch.make([[bytes(size)] * count, None, None, None], 1, codec=batch.ZLIB))
    most, found = cost_of(lambda: last_of_each(session, cluster))
    assert found.error is None and found.messages
    if not size:
        assert len(found.messages) == 5 * PARTITIONS
        assert {one.offset for one in found.messages} == set(range(count - 5, count))
    assert sum(len(one.value) for one in found.messages) <= message_reader.BYTES_MAX + size
    assert most < bound, most // MIB


def test_one_that_nobody_can_unpack_is_told(cluster: EchoCluster, session: Session) -> None:
    (log,) = cluster.topic("t")
    fill(log, 3)
    rows = 1 << 14
    row = b"\xdc\x00\x80" + b"\x90" * 128
    body = b"\x94\xdd" + rows.to_bytes(4, "big") + row * rows + b"\xc0" * 3

    log.append(forged(zlib.compress(body), rows, size=len(body), codec=batch.ZLIB))
    upto = {0: log.end}
    most, found = cost_of(lambda: message_reader.read(session, "t", {0: 0}, upto))
    assert [one.offset for one in found.messages] == [0, 1, 2]
    assert isinstance(found.error, BatchUnreadable) and "lists within" in str(found.error)
    assert most < 32 * MIB, "all of it would be 120"
