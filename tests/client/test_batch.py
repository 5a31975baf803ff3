"""A batch is what its producer made, whole, or it is BatchInvalid; and opening it has an end.

M3 and Z6 (limits, also for what a compressed body turns into), M4 (a fixed header in front; the
checksum of all is looked at before anything is unpacked), M5 (types of all that is in it).
"""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.errors import BatchInvalid
from myqueue.wire import batch

VALUES = [b"one", b"", b"three"]
FULL = (VALUES, [b"k", None, b""], [{"h": b"1"}, None, {}], [0, 5, 2])
HEADER = struct.Struct("<HBBIQIIQQII")
CRC = HEADER.size - 4


def sealed(
    body: bytes,
    count: int,
    *,
    size: int | None = None,
    codec: int = batch.PLAIN,
    magic: int = batch.MAGIC,
    version: int = 1,
    stored: int | None = None,
) -> bytes:
    """A batch with a right checksum, whatever it says."""
    head = HEADER.pack(
        magic,
        version,
        codec,
        count,
        0,
        0,
        len(body) if size is None else size,
        0,
        0,
        len(body) if stored is None else stored,
        0,
    )[:CRC]
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") + body


def refused(data: bytes) -> str:
    with pytest.raises(BatchInvalid) as caught:
        batch.open_batch(data)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def peak(data: bytes) -> int:
    """Bytes that opening it takes at most, beyond those that came."""
    tracemalloc.start()
    try:
        try:
            batch.open_batch(data)
        except BatchInvalid:
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [batch.PLAIN, batch.ZLIB])
def test_a_batch_comes_out_as_it_went_in(codec: int) -> None:
    for columns in (FULL, (VALUES, None, None, None)):
        made = batch.make(columns, 77, producer=3, epoch=2, sequence=9, codec=codec)
        for data in (made, memoryview(made)):
            header, opened = batch.open_batch(data)
            assert opened == columns
            assert header == batch.check(data) == batch.header(data)
            assert (header.count, header.time_ms, header.producer) == (3, 77, 3)


# -- M4: the header, the checksum -----------------------------------------------------------------


@pytest.mark.parametrize("codec", [batch.PLAIN, batch.ZLIB])
def test_no_bit_of_it_may_differ(codec: int) -> None:
    made = batch.make(FULL, 77, producer=3, codec=codec)
    for at in range(len(made) * 8):
        raw = bytearray(made)
        raw[at // 8] ^= 1 << at % 8
        with pytest.raises(BatchInvalid):
            batch.check(bytes(raw))


def test_no_byte_may_be_missing_or_too_much() -> None:
    made = batch.make(FULL, 77)
    for at in range(len(made)):
        for data in (made[:at], made[at + 1 :], made + made[: at + 1]):
            refused(data)


def test_headers_that_lie() -> None:
    """Brokers see no more than this, so what can be seen there is refused there."""
    body = msgpack.packb((VALUES, None, None, None))
    for data in (
        sealed(body, 0),
        sealed(body, 2**32 - 1),
        sealed(body, batch.COUNT_MAX + 1),
        sealed(body, 3, magic=1),
        sealed(body, 3, version=2),
        sealed(body, 3, codec=2),
        sealed(body, 3, codec=255),
        sealed(body, 3, stored=2**32 - 1),
        sealed(body, 3, stored=0),
        sealed(body, 3, size=5),
        sealed(body, 3, size=2**32 - 1),
        b"",
        sealed(body, 3, size=batch.BODY_BYTES_MAX + 1, codec=batch.ZLIB),
        bytes(48),
        bytes(10_000),
    ):
        refused(data)
        with pytest.raises(BatchInvalid):
            batch.check(data)
    refused(sealed(body, 2))
    refused(sealed(body, 4))
    assert batch.open_batch(sealed(body, 3))[1].values == VALUES


# -- M5: what is in it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        *([], [VALUES], [VALUES, None, None], [VALUES, None, None, None, None]),
        *(None, 5, "abcd", b"abcd", {"a": 1, "b": 2, "c": 3, "d": 4}, True, 1.5),
        *([None, None, None, None], [[1, 2, 3], None, None, None], [["a"] * 3, None, None, None]),
        *([[None] * 3, None, None, None], [[VALUES] * 3, None, None, None]),
        *([VALUES, [1, 2, 3], None, None], [VALUES, ["a"] * 3, None, None]),
        *([VALUES, None, [1, 2, 3], None], [VALUES, None, [{"a": "b"}] * 3, None]),
        *([VALUES, None, [{b"a": b"b"}] * 3, None], [VALUES, None, [[]] * 3, None]),
        *([VALUES, None, [{"a": None}] * 3, None], [VALUES, None, ["", "", ""], None]),
        *([VALUES, None, None, [True] * 3], [VALUES, None, None, [None] * 3]),
        *([VALUES, None, None, [0.0] * 3], [VALUES, None, None, [float("nan")] * 3]),
        *([VALUES, None, None, [0, 1, -1]], [VALUES, None, None, ["0"] * 3]),
        *([VALUES, [], None, None], [VALUES, None, [None], None], [VALUES, None, None, [0] * 4]),
        *(["abc", None, None, None], [b"abc", None, None, None], [VALUES, b"abc", None, None]),
        *([VALUES, None, b"abc", None], [VALUES, None, None, b"abc"], [VALUES, {}, {}, {}]),
    ],
)
def test_columns_are_of_their_types(columns: Any) -> None:
    """M5: for an application's code there is no other check behind this one."""
    refused(sealed(msgpack.packb(columns), 3))


@pytest.mark.parametrize(
    "body",
    [
        *(b"\x94\x91\xc7\x00\x05\xc0\xc0\xc0", b"\x94\x91\xd4\x01a\xc0\xc0\xc0", b"\xc1", b"\x94"),
        *(
            b"\x94\x91\xc4\x01a\x91\xc7\x00\x01\xc0\xc0",
            b"\x94\x91\xd6\xff\x00\x00\x00\x00\xc0\xc0",
        ),
        *(b"\x94\x91\xc4\x01a\xc0\x91\x81\x01\xc4\x00\xc0", b"\x94\x91\xc4\x01a\xc0\xc0\xc0\x00"),
        *(
            b"\x94\x91\xc4\x01a\xc0\x91\x81\x90\xc4\x00\xc0",
            b"\x94\x91\xc4\x01a\xc0\x91\xa1\xff\xc0",
        ),
        *(b"\x91" * 2000, b"\x94\x91" + b"\x91" * 1030 + b"\xc0" * 4, b"\x81\xa1a" * 1500),
    ],
)
def test_bodies_that_are_no_columns(body: bytes) -> None:
    """M3: extensions (even empty), times, strange keys, deep nesting."""
    refused(sealed(body, 1))


# -- M3, Z6: what it costs ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [batch.PLAIN, batch.ZLIB])
@pytest.mark.parametrize(
    "head", [b"\xdc\xff\xff", b"\xdd\x00\x10\x00\x00", b"\xdd\xff\xff\xff\xff"]
)
def test_lists_that_only_announce_their_items(codec: int, head: bytes) -> None:
    for levels in (1, 1000, 1030):  # 1024 is the most that msgpack follows
        body = head * levels + bytes(100)
        kept = zlib.compress(body) if codec else body
        for count in (1, len(body), batch.COUNT_MAX):
            data = sealed(kept, count, size=len(body), codec=codec)
            refused(data)
            assert peak(data) < 4 << 20


def test_what_a_body_becomes_is_not_more_than_its_header_says() -> None:
    """Z6: 256 MiB of zeros in 260 KiB."""
    engine = zlib.compressobj(1)
    zeros = b"".join(engine.compress(bytes(1 << 20)) for _ in range(256)) + engine.flush()
    for size in (0, 1, 1000, batch.BODY_BYTES_MAX, batch.BODY_BYTES_MAX + 1, 2**32 - 1):
        bomb = sealed(zeros, 1, size=size, codec=batch.ZLIB)
        refused(bomb)
        bound = size if size <= batch.BODY_BYTES_MAX else 0
        assert peak(bomb) < 2.5 * bound + (2 << 20)  # the output grows by doubling


def test_a_body_of_nothing_but_empty_maps() -> None:
    """64 MiB of the cheapest thing to send and the dearest to hold: refused by the count."""
    many = batch.COUNT_MAX + 1
    body = b"\x94\xc0\xc0" + b"\xdd" + many.to_bytes(4, "big") + b"\x80" * many + b"\xc0"
    for count in (many, batch.COUNT_MAX, 1):
        data = sealed(zlib.compress(body), count, size=len(body), codec=batch.ZLIB)
        refused(data)
        assert peak(data) < 8 << 20


def test_bodies_that_are_not_what_a_codec_makes() -> None:
    body = msgpack.packb((VALUES, None, None, None))
    good = zlib.compress(body)
    assert batch.open_batch(sealed(good, 3, size=len(body), codec=batch.ZLIB))[1].values == VALUES
    for kept in (
        body,
        good[:-1],
        good[:5],
        good + b"\x00",
        good + good,
        b"",
        b"\x78\x9c",
        good[2:],
        zlib.compress(body + b"\x00"),
        zlib.compress(body[:-1]),
        zlib.compress(good),
    ):
        refused(sealed(kept, 3, size=len(body), codec=batch.ZLIB))


# -- whatever comes -------------------------------------------------------------------------------


def opens_or_refuses(data: bytes) -> None:
    try:
        header, (values, keys, headers, times) = batch.open_batch(data)
    except BatchInvalid:
        return
    assert len(values) == header.count and {type(one) for one in values} == {bytes}
    for column in (keys, headers, times):
        assert column is None or len(column) == header.count
    assert all(one is None or type(one) is bytes for one in keys or ())
    assert all(type(one) is int and one >= 0 for one in times or ())
    for one in headers or ():
        assert one is None or all(
            type(name) is str and type(content) is bytes for name, content in one.items()
        )


@given(st.binary(max_size=300), st.sampled_from([batch.PLAIN, batch.ZLIB]), st.integers(0, 9))
@settings(max_examples=400, deadline=None)
def test_random_bodies(body: bytes, codec: int, count: int) -> None:
    opens_or_refuses(body)
    opens_or_refuses(sealed(body, count, codec=codec))
    kept = zlib.compress(body) if codec else body
    opens_or_refuses(sealed(kept, count, size=len(body), codec=codec))


_item = (
    st.none()
    | st.binary(max_size=4)
    | st.text(max_size=3)
    | st.integers(-5, 2**64 - 1)
    | st.booleans()
    | st.floats()
    | st.dictionaries(st.text(max_size=2), st.binary(max_size=2))
)
_column = st.none() | st.lists(_item, min_size=2, max_size=3) | st.just(VALUES[:2])


@given(st.lists(_column, min_size=3, max_size=5))
@settings(max_examples=600, deadline=None)
def test_random_columns(columns: list[Any]) -> None:
    opens_or_refuses(sealed(msgpack.packb(columns), 2))


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_damage_behind_a_right_checksum(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from([batch.PLAIN, batch.ZLIB]))
    raw = bytearray(batch.make(FULL, 7, producer=1, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(batch.HEADER_BYTES, len(raw)))])
    crc = zlib.crc32(cut[batch.HEADER_BYTES :], zlib.crc32(cut[:CRC]))
    opens_or_refuses(cut[:CRC] + crc.to_bytes(4, "little") + cut[batch.HEADER_BYTES :])
    opens_or_refuses(bytes(raw))
