"""The batch: producers make it, brokers store it, consumers open it. `PROTOCOL.md`, section 4.

Invariant: a batch is packed once, by its producer. The same bytes go over the wire, into the log,
to the followers and to the consumers. Brokers read only the fixed header and check the CRC.

A body has columns instead of rows: packing a thousand values as one list costs a twentieth of
packing a thousand little maps. A column of keys, headers or times that no message uses costs one
byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

import msgpack

from myqueue.checksum import crc32
from myqueue.errors import BatchInvalid
from myqueue.wire import protocol

MAGIC: Final = 0x4D51  # "QM", little-endian
VERSION: Final = 1
HEADER_BYTES: Final = 48
PLAIN, ZLIB = 0, 1
CODECS: Final = {"none": PLAIN, "zlib": ZLIB}
BODY_BYTES_MAX: Final = 64 << 20  # after decompression
COUNT_MAX: Final = 1 << 20  # 64 MiB could be as many empty maps, of 72 bytes each
UNCOUNTED_BYTES: Final = 128 << 10  # become 15 MiB of maps at most; counting takes 0.2 µs a map
COLUMNS: Final = 4
# In place of a producer's epoch: producer and sequence are the two halves of the batch's own key.
KEYED_EPOCH: Final = (1 << 32) - 1

_HEADER = Struct("<HBBIQIIQQII")
_FIRST = Struct("<HBBIQIIQQI")  # without the CRC
_CRC_AT = _FIRST.size
_NIL: Final = type(None)
_BINS: Final = (0xC4, 0xC5, 0xC6)  # of msgpack, with one, two or four bytes of length
_DICTIONARY: Final = 32  # zlib's flag that a dictionary is needed; there is none
Buffer = bytes | memoryview


class Header(NamedTuple):
    """The fixed beginning of a batch: all that a broker reads of it."""

    codec: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    producer: int
    epoch: int
    body_bytes: int  # after decompression
    sequence: int  # of the first message
    time_ms: int  # of the first message
    stored_bytes: int  # of the body, as it follows the header


class Columns(NamedTuple):
    """The messages of a batch, one list for each of their parts."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[dict[str, bytes] | None] | None
    times: list[int] | None  # relative to the header's


def make(
    columns: Sequence[Any],
    time_ms: int,
    *,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = 0,
    codec: int = PLAIN,
) -> bytes:
    """Pack messages into a batch. The caller guarantees columns of equal length."""
    body: bytes = msgpack.packb(columns)
    size = len(body)
    if codec == ZLIB:
        body = zlib.compress(body, 1)
    count = len(columns[0])
    first = _FIRST.pack(
        MAGIC, VERSION, codec, count, producer, epoch, size, sequence, time_ms, len(body)
    )
    crc = crc32(body, crc32(first))
    return b"".join((first, crc.to_bytes(4, "little"), body))


def header(batch: Buffer) -> Header:
    """Read the header of a complete batch of this version; `check` tests the CRC too.

    Raises BatchInvalid.
    """
    try:
        magic, version, codec, count, *rest = _HEADER.unpack_from(batch)
    except StructError:
        raise BatchInvalid(f"a batch of {len(batch)} bytes is shorter than its header") from None
    if magic != MAGIC or version != VERSION:
        raise BatchInvalid("not a batch of version 1")
    facts = Header(codec, count, *rest[:6])
    if not count or HEADER_BYTES + facts.stored_bytes != len(batch):
        raise BatchInvalid(f"a batch of {count} messages in {len(batch)} bytes is cut or empty")
    if count > COUNT_MAX or facts.body_bytes > BODY_BYTES_MAX:
        raise BatchInvalid(f"a batch of {count} messages, {facts.body_bytes} bytes is too large")
    if codec not in (PLAIN, ZLIB):
        raise BatchInvalid(f"codec {codec} of a batch is not known")
    if codec == PLAIN and facts.body_bytes != facts.stored_bytes:
        raise BatchInvalid(f"a body of {facts.stored_bytes} bytes claims {facts.body_bytes}")
    return facts


def check(batch: Buffer) -> Header:
    """Read the header and test the CRC: the bytes are those that the producer packed."""
    facts = header(batch)
    whole = memoryview(batch)
    crc = crc32(whole[HEADER_BYTES:], crc32(whole[:_CRC_AT]))
    if crc != int.from_bytes(whole[_CRC_AT:HEADER_BYTES], "little"):
        raise BatchInvalid("a batch fails its checksum: it was damaged on its way")
    return facts


def check_beginning(codec: int, count: int, batch: Buffer) -> None:
    """Raise BatchInvalid if the first bytes of a body show that no consumer could read it.

    It costs the same for every size. `check` must have passed. For brokers only: a consumer opens
    whatever a broker has stored.
    """
    try:
        if codec == ZLIB:
            kind, flags = batch[HEADER_BYTES], batch[HEADER_BYTES + 1]
            is_right = kind & 15 == 8 and not (kind << 8 | flags) % 31 and not flags & _DICTIONARY
        else:
            columns, at = _list_at(batch, HEADER_BYTES)
            values, at = _list_at(batch, at)
            is_right = columns == COLUMNS and values == count and batch[at] in _BINS
    except IndexError:
        is_right = False
    if not is_right:
        form = "zlib" if codec == ZLIB else f"{COLUMNS} columns with {count} values of bytes"
        raise BatchInvalid(f"the body of a batch does not begin as {form} does: nobody can read it")


def _list_at(data: Buffer, at: int) -> tuple[int, int]:
    """Find the length of the msgpack list at a position, and its first item; -1: no list."""
    kind = data[at]
    if kind & 0xF0 == 0x90:
        return kind & 15, at + 1
    if kind == 0xDC:
        return data[at + 1] << 8 | data[at + 2], at + 3
    if kind == 0xDD:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    return -1, at + 1


def is_whole(batch: Buffer) -> bool:
    """Are these the bytes that the producer packed? If so, another copy is no better."""
    try:
        check(batch)
    except BatchInvalid:
        return False
    return True


def open_batch(batch: Buffer) -> tuple[Header, Columns]:
    """Open a batch: each list has the length in the header, each value the right type.

    A producer is not trusted: the header's numbers bound the cost of opening a batch, and the
    limits bound those numbers. Raises BatchInvalid.
    """
    facts = check(batch)
    body = plain_body(facts, memoryview(batch)[HEADER_BYTES:])
    try:
        protocol.require_whole(body)
        shape = _Shape(facts.count)
        columns = Columns(
            *msgpack.unpackb(
                body,
                raw=False,
                strict_map_key=True,
                timestamp=0,
                max_ext_len=0,
                max_array_len=max(facts.count, COLUMNS),
                list_hook=shape.count,
                object_hook=shape.count_map if len(body) > UNCOUNTED_BYTES else None,
            )
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BatchInvalid(f"the body of a batch is not what it should be: {error}") from None
    _check_columns(columns, facts.count)
    return facts, columns


class _Shape:
    """Refuses further lists and maps while a body is unpacked.

    A body has five lists (its columns, and the one around them), and at most one map for each
    message. An empty list takes one byte in a body and 56 in memory, a map within another two and
    some 200, so a check after unpacking would be too late.
    """

    def __init__(self, count: int) -> None:
        self._left, self._maps_left = COLUMNS + 1, count

    def count_map(self, table: dict[Any, Any]) -> dict[Any, Any]:
        self._maps_left -= 1
        if self._maps_left < 0 or dict in map(type, table.values()):
            raise ValueError("it has maps within its maps, or more of them than messages")
        return table

    def count(self, items: list[Any]) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise ValueError("it has lists within its columns")
        return items


def have_same_messages(one: Buffer, other: Buffer) -> bool:
    """Have two complete batches the same values, keys, headers and relative times?

    A sender that repeats a request packs it at another time, perhaps with another codec.
    """
    ours, theirs = header(one), header(other)
    if (ours.count, ours.body_bytes) != (theirs.count, theirs.body_bytes):
        return False
    # Bytes, because memoryviews are compared item by item.
    bodies = [bytes(memoryview(batch)[HEADER_BYTES:]) for batch in (one, other)]
    if ours.codec == theirs.codec and bodies[0] == bodies[1]:
        return True
    if ours.codec == theirs.codec == PLAIN:
        return False
    return plain_body(ours, bodies[0]) == plain_body(theirs, bodies[1])


def plain_body(facts: Header, body: Buffer) -> Buffer:
    """Decompress a body."""
    return _inflate(body, facts.body_bytes) if facts.codec == ZLIB else body


def part_of(columns: Columns, begin: int, end: int) -> Columns:
    """Cut out the messages from `begin` to before `end`, counted within the batch."""
    values, keys, headers, times = columns
    return Columns(
        values[begin:end],
        keys and keys[begin:end],
        headers and headers[begin:end],
        times and times[begin:end],
    )


def _check_columns(columns: Columns, count: int) -> None:
    for column in columns:
        if column is not None and (type(column) is not list or len(column) != count):
            raise BatchInvalid(f"a column of a batch does not have {count} items")
    values, keys, headers, times = columns
    if values is None:
        raise BatchInvalid("a batch without values")
    if (
        _types(values) != {bytes}
        or (keys is not None and not _types(keys) <= {bytes, _NIL})
        or (times is not None and (_types(times) != {int} or min(times) < 0))
        or (headers is not None and not _are_headers(headers))
    ):
        raise BatchInvalid("a column of a batch has items of another type")


def _types(column: Iterable[Any]) -> set[type]:
    return set(map(type, column))


def _are_headers(column: list[Any]) -> bool:
    """Is each item None or a map of texts to bytes?"""
    if not _types(column) <= {dict, _NIL}:
        return False
    given = [headers for headers in column if headers]
    names, contents = chain.from_iterable(given), chain.from_iterable(map(dict.values, given))
    return _types(names) <= {str} and _types(contents) <= {bytes}


def _inflate(body: Buffer, size: int) -> bytes:
    """Decompress at most `size` bytes, which `header` has checked against the limit."""
    engine = zlib.decompressobj()
    try:
        out = engine.decompress(body, size + 1)
    except zlib.error as error:
        raise BatchInvalid(f"a batch can't be decompressed: {error}") from None
    if len(out) != size or not engine.eof or engine.unused_data:
        raise BatchInvalid("a batch is not as long as its header says")
    return out
