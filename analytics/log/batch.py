"""Opening a batch (`PROTOCOL.md`, section 4), column by column, without trust.

Comes in: the bytes of an entry. Goes out: `Head` and `Columns`, or `BadBatch`.

The body is msgpack: `[values, keys?, headers?, times?]`, and no other shape is accepted. Values of
one size, the common case of small messages, are cut at equal distances: their heads are compared
all at once instead of one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from myqueue.analytics.log.msgpack_values import BadPack, item_at

MAGIC, VERSION, HEADER_BYTES = 0x4D51, 1, 48
PLAIN, ZLIB = 0, 1
BODY_BYTES_MAX: Final = 64 << 20
COUNT_MAX: Final = 1 << 20
_HEADER: Final = Struct("<HBBIQIIQQII")
Bytes = bytes | memoryview


class BadBatch(ValueError):
    """These bytes are not a batch as the protocol describes it."""


class Head(NamedTuple):
    """The fields of a batch's header."""

    codec: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    producer: int
    epoch: int
    body_bytes: int
    sequence: int
    time_ms: int
    stored_bytes: int
    crc: int


class Columns(NamedTuple):
    """The messages of a batch, column by column; None for a column that the batch lacks."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[dict[str, bytes] | None] | None
    times: list[int] | None  # ms after the header's


def head(batch: Bytes) -> Head:
    """Read the fixed header; BadBatch if it is none, or the length is wrong."""
    if len(batch) < HEADER_BYTES:
        raise BadBatch(f"a batch of {len(batch)} bytes is shorter than its header")
    magic, version, *fields = _HEADER.unpack_from(batch)
    header = Head(*fields)
    if magic != MAGIC or version != VERSION or header.codec not in (PLAIN, ZLIB):
        raise BadBatch("not a batch of version 1")
    if not header.count or HEADER_BYTES + header.stored_bytes != len(batch):
        raise BadBatch(f"a batch of {header.count} messages in {len(batch)} bytes is cut or empty")
    if header.count > COUNT_MAX:
        raise BadBatch(f"a batch of {header.count} messages is too large")
    return header


def is_right(batch: memoryview) -> bool:
    """Whether the producer's checksum fits, which covers header and body."""
    crc = crc32(batch[HEADER_BYTES:], crc32(batch[: HEADER_BYTES - 4]))
    return crc == int.from_bytes(batch[HEADER_BYTES - 4 : HEADER_BYTES], "little")


def body_of(batch: memoryview, header: Head) -> bytes:
    raw = batch[HEADER_BYTES:]
    if header.codec == PLAIN:
        return bytes(raw)
    if header.body_bytes > BODY_BYTES_MAX:
        raise BadBatch(f"a body of {header.body_bytes} bytes")
    engine = zlib.decompressobj()
    try:
        out = engine.decompress(raw, header.body_bytes + 1)
    except zlib.error as error:
        raise BadBatch(f"a body that can't be decompressed: {error}") from None
    if len(out) != header.body_bytes or not engine.eof:
        raise BadBatch("a body is not as long as its header says")
    return out


def columns(batch: memoryview, header: Head) -> Columns:
    """Unpack the messages; every column is as long as the header says. BadBatch otherwise."""
    body = body_of(batch, header)
    try:
        if body[:1] != b"\x94":
            raise BadBatch("a body that is not four columns")
        values, at = _byte_column(body, 1, header.count)
        if values is None or None in values:
            raise BadBatch("a batch without values")
        keys, at = _byte_column(body, at, header.count)
        if body[at:] == b"\xc0\xc0":
            return Columns(values, keys, None, None)
        headers, at = _item_column(body, at, header.count, _is_map)
        times, at = _item_column(body, at, header.count, _is_number)
    except (BadPack, IndexError) as error:
        raise BadBatch(f"the body of a batch is not what it should be: {error}") from None
    if at != len(body):
        raise BadBatch(f"{len(body) - at} bytes behind the columns of a batch")
    return Columns(values, keys, headers, times)


def _is_map(tag: int) -> bool:
    return 0x80 <= tag <= 0x8F or tag in (0xC0, 0xDE, 0xDF)


def _is_number(tag: int) -> bool:
    return tag < 0x80 or 0xCC <= tag <= 0xCF


def _item_column(
    body: bytes, at: int, count: int, is_wanted: Callable[[int], bool]
) -> tuple[list[Any] | None, int]:
    """Unpack a column of items whose first byte is wanted, or nil; and the position after it.

    Any other item is refused before it is unpacked: an empty list takes a byte in a body and 56 in
    memory.
    """
    if body[at] == 0xC0:
        return None, at + 1
    at = _column_begins(body, at, count)
    out = []
    for _ in range(count):
        if not is_wanted(body[at]):
            raise BadBatch(f"an item of type {body[at]:#x} in a column of a batch")
        item, at = item_at(body, at)
        out.append(item)
    return out, at


def _column_begins(body: bytes, at: int, count: int) -> int:
    """The position of the column's first item."""
    tag = body[at]
    if 0x90 <= tag <= 0x9F:
        size, at = tag & 15, at + 1
    elif tag in (0xDC, 0xDD):
        width = 2 if tag == 0xDC else 4
        size, at = int.from_bytes(body[at + 1 : at + 1 + width], "big"), at + 1 + width
    else:
        raise BadBatch(f"a column of type {tag:#x}")
    if size != count or size > len(body) - at:
        raise BadBatch(f"a column of {size} items in a batch of {count} messages")
    return at


def _byte_column(body: bytes, at: int, count: int) -> tuple[list[Any] | None, int]:
    """Unpack a column of bytes (or nil), or nil itself; and the position after it."""
    if body[at] == 0xC0:
        return None, at + 1
    at = _column_begins(body, at, count)
    column = _of_one_size(body, at, count)
    return column if column is not None else _of_any_size(body, at, count)


def _of_one_size(body: bytes, at: int, count: int) -> tuple[list[Any], int] | None:
    """Cut items at equal distances if all their heads are the same; None if they are not."""
    widths = _equal_widths(body, at, count) if count >= 4 else None
    if widths is None:
        return None
    width, size = widths
    step = width + size
    end = at + step * count
    begins = range(at + width, end + width - 1, step)
    return [body[begin : begin + size] for begin in begins], end


def _equal_widths(body: bytes, at: int, count: int) -> tuple[int, int] | None:
    """(bytes of a head, bytes of an item) if all heads are the same; None if they are not."""
    tag = body[at]
    if tag not in (0xC4, 0xC5):
        return None
    width = 2 if tag == 0xC4 else 3
    size = int.from_bytes(body[at + 1 : at + width], "big")
    step = width + size
    end = at + step * count
    if end > len(body):
        return None
    for place in range(width):
        if body[at + place : end : step] != body[at + place : at + place + 1] * count:
            return None
    return width, size


def _of_any_size(body: bytes, at: int, count: int) -> tuple[list[Any], int]:
    out: list[bytes | None] = []
    for _ in range(count):
        tag = body[at]
        if tag == 0xC4:
            begin = at + 2
            at = begin + body[at + 1]
        elif tag == 0xC0:
            out.append(None)
            at += 1
            continue
        elif tag in (0xC5, 0xC6):
            begin = at + (3 if tag == 0xC5 else 5)
            at = begin + int.from_bytes(body[at + 1 : begin], "big")
        else:
            raise BadBatch(f"an item of type {tag:#x} in a column of bytes")
        out.append(body[begin:at])
    if at > len(body):
        raise BadBatch("a column that is longer than its batch")
    return out, at


def value_sizes(batch: memoryview, header: Head) -> list[tuple[int, int]]:
    """(size, how many in a row) of the values, without unpacking them if all are of one size."""
    body = body_of(batch, header)
    try:
        if body[:1] != b"\x94":
            raise BadBatch("a body that is not four columns")
        at = _column_begins(body, 1, header.count)
        widths = _equal_widths(body, at, header.count) if header.count > 1 else None
        if widths is not None:
            return [(widths[1], header.count)]
        values, _ = _of_any_size(body, at, header.count)
        return [(len(value), 1) for value in values]
    except IndexError as error:
        raise BadBatch(f"the body of a batch is not what it should be: {error}") from None
    except TypeError:  # len(None); looking for None first would cost a tenth more
        raise BadBatch("a batch without values") from None
