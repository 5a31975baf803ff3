"""The bytes on disk: they must not change unnoticed, and nothing else may pass for them.

`GOLDEN` holds one record of each kind, a footer and a segment header as they were in format version
1. A change that breaks them breaks every log that was ever written.
"""

from random import Random
from struct import unpack_from
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f

UID = 0x0123456789ABCDEF
SEED = f.segment_seed(UID)
OWNER = bytes(range(16))
HEADER = f.SegmentHeader(7, UID, 64 << 20, 1_700_000_000_123, OWNER)
FIELDS = {
    "group": 0x1122334455667788,
    "index": 9,
    "term": 3,
    "offset": 1000,
    "count": 5,
    "time_ms": 1_700_000_000_456,
    "chain": 0xFEDCBA9876543210,
}
ROWS = [
    f.FooterRow(2, 5, 9, 50, 90, 3, 1000, 2000, 5, 777, 1 << f.ENTRY | 1 << f.HARD_STATE),
    f.FooterRow(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << f.GROUP_CREATED),
]
GOLDEN = {
    "segment": (
        "4d595157414c0d0a0100000076e8acf40700000000000000efcdab896745230100000004000000007b68"
        "e5cf8b010000000102030405060708090a0b0c0d0e0f"
    ),
    "ENTRY": (
        "6dcdf3e9c70dd2744d5101510c0000000110000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662001"
    ),
    "HARD_STATE": (
        "63e38650a813a7244d5102020c0000000210000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662002"
    ),
    "TRUNCATE": (
        "c41008fb475ad2d14d5103020c0000000310000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662003"
    ),
    "COMMIT": (
        "33c6421f09ad0b764d5104020c0000000410000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662004"
    ),
    "SNAPSHOT": (
        "9435ccb4e6e47e834d5105020c0000000510000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662005"
    ),
    "GROUP_CREATED": (
        "3c272e93963890474d5106020c0000000610000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662006"
    ),
    "GROUP_REMOVED": (
        "9bd4a0387971e5b24d5107020c0000000710000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662007"
    ),
    "START": (
        "938cca804bd052d34d5108020c0000000810000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662008"
    ),
    "MARK": (
        "347f442ba49927264d5109020c0000000910000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f662009"
    ),
    "FOOTER": (
        "8ac15985fc138dc04d510a02b00000000a10000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe010000000000000000000000"
        "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000000000000000000000000040000000000000000200000000000000"
        "0500000000000000090000000000000032000000000000005a000000000000000300000000000000e803"
        "000000000000d007000000000000050000000000000009030000000000000600000000000000"
    ),
    "TRAILER": (
        "3b9e28a73b0cbc174d510b020c0000000b10000005000000887766554433221109000000000000000300"
        "000000000000e803000000000000c869e5cf8b0100001032547698badcfe7061796c6f6164206f66200b"
    ),
}
U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


def golden_record(kind: int) -> bytes:
    payload = f.encode_footer(ROWS) if kind == f.FOOTER else b"payload of " + bytes([kind])
    flags = f.RELOCATED | 5 << f.ENTRY_TYPE_SHIFT if kind == f.ENTRY else f.LAST
    header = f.encode_record(SEED, kind, 4096 + kind, payload, flags=flags, **FIELDS)
    return header + payload


def decode(raw: bytes, position: int, seed: int = SEED) -> f.Record | None:
    return f.record_at(raw, 0, position, seed)


# -- what is written -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(f.KIND_NAMES))
def test_golden_records(kind: int) -> None:
    assert golden_record(kind).hex() == GOLDEN[f.KIND_NAMES[kind]]


def test_golden_segment_header() -> None:
    raw = f.encode_segment_header(HEADER)
    assert raw.hex().rstrip("0") == GOLDEN["segment"]
    assert len(raw) == f.SEGMENT_HEADER_BYTES == 512


def test_every_golden_record_is_read() -> None:
    """The other direction: old bytes, this program."""
    for kind, name in f.KIND_NAMES.items():
        raw = bytes.fromhex(GOLDEN[name])
        record = decode(raw, 4096 + kind)
        assert record is not None and record.kind == kind
        assert f.payload_is_right(record, raw[72:])
        assert record.end == 4096 + kind + len(raw)
        assert record._asdict().items() >= FIELDS.items()
    header = bytes.fromhex(GOLDEN["segment"]).ljust(512, b"\0")
    assert f.decode_segment_header(header) == HEADER
    assert f.decode_footer(bytes.fromhex(GOLDEN["FOOTER"])[72:]) == sorted(ROWS)


def test_the_fields_stand_where_format_md_says() -> None:
    """W23: and each checksum is the CRC-32 of what it covers."""
    raw = golden_record(f.ENTRY)
    assert raw[8:10] == b"MQ" and raw[10] == 1 and raw[11] == 0x51
    assert unpack_from("<III", raw, 12) == (len(raw) - 72, 4097, 5)
    assert unpack_from("<6Q", raw, 24) == (
        FIELDS["group"],
        9,
        3,
        1000,
        FIELDS["time_ms"],
        FIELDS["chain"],
    )
    uid_crc = crc32(UID.to_bytes(8, "little"))
    header_crc = crc32(raw[8:72], uid_crc)
    assert unpack_from("<II", raw) == (header_crc, crc32(raw[72:], header_crc))
    header = f.encode_segment_header(HEADER)
    assert header[:8] == b"MYQWAL\r\n" and unpack_from("<I", header, 8) == (1,)
    assert unpack_from("<4Q", header, 16) == (7, UID, 64 << 20, HEADER.created_ms)
    assert header[48:64] == OWNER and not any(header[64:])


@given(
    seed=U32,
    kind=st.sampled_from(sorted(f.KIND_NAMES)),
    position=U32,
    payload=st.binary(),
    flags=st.integers(0, 255),
    group=U64,
    index=U64,
    term=U64,
    offset=U64,
    count=U32,
    time_ms=U64,
    chain=U64,
)
def test_what_is_written_is_read(
    seed: int, kind: int, position: int, payload: bytes, **fields: int
) -> None:
    raw = f.encode_record(seed, kind, position, payload, **fields)
    assert len(raw) == f.RECORD_HEADER_BYTES
    record = f.record_at(b"before" + raw + payload, 6, position, seed)
    assert record is not None
    assert (record.kind, record.position, record.length) == (kind, position, len(payload))
    assert record._asdict().items() >= fields.items()
    assert record.entry_type == fields["flags"] >> 4
    assert f.payload_is_right(record, payload) and f.payload_is_right(record, memoryview(payload))


@given(number=U64, uid=U64, capacity=U64, created_ms=U64, owner=st.binary(min_size=16, max_size=16))
def test_segment_headers_are_read(**fields: Any) -> None:
    header = f.SegmentHeader(**fields)
    assert f.decode_segment_header(f.encode_segment_header(header)) == header


@given(st.lists(st.tuples(*[U64] * 9, U32, U32).map(lambda row: f.FooterRow(*row[:9], *row[9:]))))
def test_footers_are_read_sorted(rows: list[f.FooterRow]) -> None:
    raw = f.encode_footer(rows)
    assert f.decode_footer(raw) == sorted(rows)
    assert len(raw) == 88 * len(rows)


@given(number=st.integers(0, 10**12 - 1), uid=U64)
def test_names_of_segments(number: int, uid: int) -> None:
    name = f.segment_name(number, uid)
    assert f.parse_segment_name(name) == (number, uid)
    for other in (name + ".new", name + ".trash", name[1:], name[:-1], f"x{name}", name + "x"):
        assert f.parse_segment_name(other) is None


def test_names_sort_as_numbers() -> None:
    names = [f.segment_name(number, Random(number).getrandbits(64)) for number in range(2000)]
    assert names == sorted(names)


# -- what is refused -------------------------------------------------------------------------


def test_magic_then_version_then_checksum() -> None:
    """Three different errors, in this order."""
    raw = bytearray(f.encode_segment_header(HEADER))
    raw[500] ^= 1
    texts = []
    for at in (None, 8, 0):  # each hides the one before
        if at is not None:
            raw[at] ^= 2
        with pytest.raises(FormatUnknown) as caught:
            f.decode_segment_header(bytes(raw))
        texts.append(str(caught.value))
    assert ["checksum" in texts[0], "version 3" in texts[1], "magic" in texts[2]] == [True] * 3
    for size in (0, 1, 511):
        with pytest.raises(FormatUnknown, match="cut short"):
            f.decode_segment_header(bytes(raw[:size]))


def test_every_flipped_bit_of_a_segment_header_is_noticed() -> None:
    raw = bytearray(f.encode_segment_header(HEADER))
    for bit in range(8 * len(raw)):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatUnknown):
            f.decode_segment_header(bytes(raw))
        raw[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("kind", sorted(f.KIND_NAMES))
def test_every_flipped_byte_of_a_record_is_noticed(kind: int) -> None:
    """W8: in the header, in either checksum, in the payload; one bit, or all of them."""
    good = golden_record(kind)
    for at in range(len(good)):
        for mask in (*(1 << bit for bit in range(8)), 0xFF):
            raw = bytearray(good)
            raw[at] ^= mask
            record = decode(bytes(raw), 4096 + kind)
            assert record is None or not f.payload_is_right(record, raw[72:])
            if 8 <= at < 72 or at < 4:
                assert record is None, "no field is believed before the header's checksum"


def test_a_record_belongs_to_its_place() -> None:
    """W8: the same bytes at another position, or in another segment, are no record."""
    raw = golden_record(f.ENTRY)
    assert decode(raw, 4097) is not None
    for position in (0, 4096, 4098, 4097 + 512, 4097 + 2**31):
        assert decode(raw, position) is None
    for uid in (0, UID + 1, UID ^ 1 << 63):
        assert decode(raw, 4097, f.segment_seed(uid)) is None


@pytest.mark.parametrize("field", ["group", "index", "term", "offset", "count", "time_ms"])
def test_a_payload_belongs_to_its_header(field: str) -> None:
    """W8: the same payload behind the header of another record is not its payload."""
    one = golden_record(f.ENTRY)
    fields = {**FIELDS, field: FIELDS[field] + 1}
    other = f.encode_record(SEED, f.ENTRY, 4097, one[72:], **fields)
    mixed = one[:4] + other[4:8] + one[8:]  # its header is right, the payload's checksum foreign
    record = decode(mixed, 4097)
    assert record is not None and not f.payload_is_right(record, one[72:])
    assert not f.payload_is_right(record, one[72:-1])


def test_zeros_are_no_record() -> None:
    """W18: zero bytes mean the end, whatever the seed; kind 0 is invalid."""
    for seed in range(1000):
        assert decode(bytes(72), 0, seed) is None
    for size in range(72):
        assert decode(golden_record(f.ENTRY)[:size], 4097) is None
    with pytest.raises(FormatUnknown):
        decode(f.encode_record(SEED, 0, 512), 512)


@pytest.mark.parametrize("kind", [0, 12, 200, 255])
def test_a_kind_of_a_newer_version_is_refused(kind: int) -> None:
    with pytest.raises(FormatUnknown, match="newer"):
        decode(f.encode_record(SEED, kind, 512), 512)


def test_noise_is_no_record() -> None:
    rng = Random(1)
    for _ in range(2000):
        raw = b"\0" * 8 + f.RECORD_SIGN + rng.randbytes(62)
        assert decode(rng.randbytes(8) + raw[8:], 0, SEED) is None


def test_a_footer_of_another_size_is_refused() -> None:
    raw = f.encode_footer(ROWS)
    for size in (1, 87, 89, 175):
        with pytest.raises(FormatUnknown):
            f.decode_footer(raw[:size])


@given(st.binary(max_size=600))
def test_nothing_else_is_raised(raw: bytes) -> None:
    assert f.record_at(raw, 0, 0, SEED) is None
    with pytest.raises(FormatUnknown):
        f.decode_segment_header(raw)
