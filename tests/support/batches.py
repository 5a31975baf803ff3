"""Batches as producers make them."""

from __future__ import annotations

from zlib import crc32

import msgpack

from myqueue.wire import batch

WALL_MS = 1_700_000_000_000


def make_batch(
    count: int = 1, producer: int = 0, sequence: int = 0, epoch: int = 0, size: int = 10
) -> bytes:
    columns = [[b"v" * size] * count, None, None, None]
    return batch.make(columns, WALL_MS, producer=producer, epoch=epoch, sequence=sequence)


def forged(
    body: bytes,
    count: int,
    *,
    size: int | None = None,
    codec: int = batch.PLAIN,
    producer: int = 0,
    sequence: int = 0,
) -> bytes:
    """Make a batch of any body with a correct checksum; `size` is its announced size."""
    says = len(body) if size is None else size
    first = batch._FIRST.pack(
        batch.MAGIC, batch.VERSION, codec, count, producer, 0, says, sequence, WALL_MS, len(body)
    )
    return first + crc32(body, crc32(first)).to_bytes(4, "little") + body


def unreadable(count: int = 1) -> bytes:
    """Make a batch with a valid header and one value too few."""
    body: bytes = msgpack.packb(([b"v" * 10] * (count - 1), None, None, None))
    return forged(body, count)
