"""Batches as producers make them."""

from __future__ import annotations

from myqueue import batch

WALL_MS = 1_700_000_000_000


def make_batch(
    count: int = 1, producer: int = 0, sequence: int = 0, epoch: int = 0, size: int = 10
) -> bytes:
    columns = [[b"v" * size] * count, None, None, None]
    return batch.make(columns, WALL_MS, producer=producer, epoch=epoch, sequence=sequence)
