"""Comparisons of columns: bytes of replicas with each other, acknowledgements with messages.

Comes in: blocks of 4,096 indices (or offsets), so a comparison holds a few blocks at a time. Goes
out: findings. Pure.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from myqueue.analytics.verify.inspection_rows import WRONG, Block, Finding


def judge_block(group: int, blocks: Iterable[Block], names: Any) -> Iterator[Finding]:
    """Check that entries of the same group, index and term have the same bytes everywhere."""
    blocks = list(blocks)
    if len({(one.indices, one.terms, one.digests) for one in blocks}) == 1:
        return
    first: dict[tuple[int, int], int] = {}
    differ: set[tuple[int, int]] = set()
    for block in blocks:
        for index, term, digest, _ in _entries(block):
            # 0: the entry's bytes are damaged, which is a finding already
            if digest and first.setdefault((index, term), digest) != digest:
                differ.add((index, term))
    for key in sorted(differ):
        yield from _told(group, key, blocks, names)


def _entries(block: Block) -> Iterator[tuple[int, int, int, int]]:
    columns = (
        *(_column("Q", block.indices), _column("Q", block.terms), _column("Q", block.digests)),
        _column("I", block.positions),
    )
    return zip(*columns, strict=True)


def _told(group: int, key: tuple[int, int], blocks: list[Block], names: Any) -> Iterator[Finding]:
    """A finding for each copy that differs from most others; from the first copy in a tie."""
    at_index, at_term = key
    copies = [
        (digest, block, position)
        for block in blocks
        for index, term, digest, position in _entries(block)
        if (index, term) == key and digest
    ]
    counts = Counter(digest for digest, _, _ in copies)
    usual = counts.most_common(1)[0][0]
    others = next(
        f"{names.daemons.get(b.disk, b.disk)}, {names.segments.get((b.disk, b.number), b.number)} "
        f"at position {at}"
        for digest, b, at in copies
        if digest == usual
    )
    for digest, block, position in copies:
        if digest != usual:
            what = f"entry {at_index} of term {at_term} has other bytes here than on {others}"
            yield Finding(
                WRONG,
                "bytes",
                what,
                names.daemons.get(block.disk, block.disk),
                names.segments.get((block.disk, block.number), str(block.number)),
                position,
                group,
                at_index,
            )


def _column(code: str, raw: bytes) -> array[int]:
    out = array(code)
    out.frombytes(raw)
    return out


class Pieces(NamedTuple):
    """Offsets with the CRC-32 of each value, of stored or of acknowledged messages."""

    topic: str
    partition: int
    block: int
    acknowledged: bool
    offsets: bytes
    crcs: bytes
    place: str  # the ledger's file, or the segment


def pieces(
    topic: str,
    partition: int,
    offset: int,
    crcs: list[int],
    acknowledged: bool,
    place: str,
    bits: int = 12,
) -> Iterator[Pieces]:
    """Cut a run of messages at the borders of blocks."""
    at = 0
    while at < len(crcs):
        block = offset + at >> bits
        end = min(len(crcs), ((block + 1) << bits) - offset)
        offsets = array("Q", range(offset + at, offset + end))
        part = array("I", crcs[at:end])
        yield Pieces(
            topic, partition, block, acknowledged, offsets.tobytes(), part.tobytes(), place
        )
        at = end


class LeftOut(NamedTuple):
    """How many acknowledgements of a topic were not looked for."""

    topic: str
    acknowledgements: int


def leave_out(rows: Iterable[Pieces]) -> Iterator[LeftOut]:
    """Count the acknowledgements without looking for them: their partition is deleted."""
    for row in rows:
        if row.acknowledged:
            yield LeftOut(row.topic, len(_column("Q", row.offsets)))


def judge_acks(rows: Iterable[Pieces], start: int) -> Iterator[Finding | int]:
    """Check in one block that each acknowledged message is stored once, with its bytes.

    Yields findings, and at the end the number of acknowledgements. Below `start` retention has
    removed messages, so these are not looked for.
    """
    stored: dict[int, int] = {}
    acked: dict[int, tuple[int, str]] = {}
    looked = 0
    for row in rows:
        pairs = zip(_column("Q", row.offsets), _column("I", row.crcs), strict=True)
        where = f"{row.topic}/{row.partition}"
        for offset, crc in pairs:
            if not row.acknowledged:
                if offset in stored:
                    what = f"{where}: offset {offset} is committed twice"
                    yield Finding(WRONG, "ack", what, "", row.place, 0, 0, offset)
                stored[offset] = crc
                continue
            looked += 1
            first_crc, _ = acked.setdefault(offset, (crc, row.place))
            if first_crc != crc:
                what = f"{where}: two different messages were acknowledged at offset {offset}"
                yield Finding(WRONG, "ack", what, "", row.place, 0, 0, offset)
    for offset, (crc, place) in acked.items():
        if offset < start:
            continue
        if offset not in stored:
            what = f"{where}: the message acknowledged at offset {offset} is not in the log"
            yield Finding(WRONG, "ack", what, "", place, 0, 0, offset)
        elif stored[offset] != crc:
            what = f"{where}: the message at offset {offset} is not the one that was acknowledged"
            yield Finding(WRONG, "ack", what, "", place, 0, 0, offset)
    yield looked
