"""Batches that are small on their way and large in memory: what they may cost is bounded."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from myqueue.cluster.routing import Partition
from myqueue.errors import BatchInvalid
from myqueue.taker import opened_batches
from myqueue.wire import batch

MIB = 1 << 20
PARTITION = Partition("t", 0, 100, 1, 1, (1,))


def forged(body: bytes, count: int, size: int | None = None) -> bytes:
    """A batch of this body, compressed, with a right checksum."""
    packed = zlib.compress(body, 9)
    first = batch._FIRST.pack(
        batch.MAGIC,
        batch.VERSION,
        batch.ZLIB,
        count,
        0,
        0,
        len(body) if size is None else size,
        0,
        0,
        len(packed),
    )
    crc = zlib.crc32(packed, zlib.crc32(first))
    return first + crc.to_bytes(4, "little") + packed


def cost_of(job: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes at most, and what was raised or returned."""
    tracemalloc.start()
    try:
        found = job()
    except BatchInvalid as error:
        found = error
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most, found


def nested(count: int, rows: int) -> bytes:
    """Values that are lists of empty lists: a byte each in the body, 64 in memory."""
    row = b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    values = b"\xdd" + count.to_bytes(4, "big") + row * rows + b"\xc0" * (count - rows)
    return b"\x94" + values + b"\xc0" * 3


def test_lists_in_lists_are_not_made() -> None:
    data = forged(nested(1 << 16, 128), 1 << 16)
    assert len(data) < 63 << 10
    most, found = cost_of(lambda: batch.open_batch(data))
    assert isinstance(found, BatchInvalid) and "lists within" in str(found)
    assert most < 64 * MIB, "eight MiB of body would be 500"


def test_maps_in_maps_are_not_made() -> None:
    """Two bytes each in the body, some 200 in memory."""
    rows, deep = 20_000, 200
    chain = b"\x81\xa0" * deep + b"\x80"
    values = b"\xdd" + rows.to_bytes(4, "big") + chain * rows
    data = forged(b"\x94" + values + b"\xc0" * 3, rows)
    assert len(data) < 63 << 10
    most, found = cost_of(lambda: batch.open_batch(data))
    assert isinstance(found, BatchInvalid) and "maps within" in str(found)
    assert most < 64 * MIB, "eight MiB of body would be 800"


@pytest.mark.parametrize("says", [100, 63 << 10])
def test_no_more_is_unpacked_than_the_header_says(says: int) -> None:
    data = forged(bytes(60 * MIB), 1, says)
    most, found = cost_of(lambda: batch.open_batch(data))
    assert isinstance(found, BatchInvalid) and most < MIB


def test_a_taker_keeps_open_what_is_bounded_in_memory() -> None:
    """Of batches with a hundred thousand messages each, which are a few hundred bytes."""
    count = 100_000
    body = msgpack.packb(([b""] * count, None, [{}] * count, None))
    frames = [forged(body, count) for _ in range(20)]
    one = opened_batches.OpenedBatches()

    def take_all() -> int:
        taken = 0
        for number, frame in enumerate(frames):
            first = number * count
            taken += len(one.messages(PARTITION, first, frame, first + 3, first + 5))
        return taken

    most, found = cost_of(take_all)
    assert found == 2 * len(frames)
    assert most < 3 * opened_batches.OPENED_BYTES_MAX, "all of them would be 400 MiB"


def test_messages_of_an_open_batch_are_those_that_are_wanted() -> None:
    columns = [[b"%d" % n for n in range(10)], [b"k%d" % n for n in range(10)], None, [*range(10)]]
    frame = batch.make(columns, 1000)
    one = opened_batches.OpenedBatches()
    for first, behind in ((100, 101), (103, 107), (95, 102), (108, 120), (90, 95), (120, 125)):
        found = one.messages(PARTITION, 100, frame, first, behind)
        wanted = [at for at in range(first, behind) if 100 <= at < 110]
        assert [(m.offset, m.value, m.key, m.timestamp) for m in found] == [
            (at, b"%d" % (at - 100), b"k%d" % (at - 100), 900 + at) for at in wanted
        ]
    assert len(one._opened) == 1
