"""FORMAT.md in code: segment headers, records, footers. Pure: no file, no clock.

Two checksums guard each record. The header's is seeded with the segment's uid and covers position,
group, index and term; the payload's is seeded with the header's. So a length is never trusted
before its header was verified, and no bytes can be mistaken for a record of another place, group or
time.

    header = encode_record(seed, kind, position, payload, group=7, ...)
    record = record_at(buffer, at, position, seed)       # a Record, or None
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from myqueue.checksum import crc32
from myqueue.errors import FormatUnknown

VERSION = 1
SEGMENT_MAGIC = b"MYQWAL\r\n"
SEGMENT_HEADER_BYTES = 512
RECORD_HEADER_BYTES = 72
CAPACITY_MIN, CAPACITY_MAX = 4096, 2**32 - 1

ENTRY, HARD_STATE, TRUNCATE, COMMIT, SNAPSHOT = 1, 2, 3, 4, 5
GROUP_CREATED, GROUP_REMOVED, START, MARK, FOOTER, TRAILER = 6, 7, 8, 9, 10, 11
KIND_NAMES = {
    ENTRY: "ENTRY",
    HARD_STATE: "HARD_STATE",
    TRUNCATE: "TRUNCATE",
    COMMIT: "COMMIT",
    SNAPSHOT: "SNAPSHOT",
    GROUP_CREATED: "GROUP_CREATED",
    GROUP_REMOVED: "GROUP_REMOVED",
    START: "START",
    MARK: "MARK",
    FOOTER: "FOOTER",
    TRAILER: "TRAILER",
}

RELOCATED, LAST, RESET, CLEAN = 1, 2, 4, 8
DOUBTFUL, INCOMPLETE, LACKING = 2, 4, 8  # of a HARD_STATE
ENTRY_TYPE_SHIFT = 4

RECORD_MAGIC = int.from_bytes(b"MQ", "little")
MARK_SIGN = b"MQ" + bytes([MARK])  # bytes 8..10 of a mark, for a search
RECORD_SIGN = b"MQ"

_SEGMENT = Struct("<8sIIQQQQ16s")
_CRCS = Struct("<II")
_BODY = Struct("<HBBIIIQQQQQQ")
_FOOTER_ROW = Struct("<10QII")
FOOTER_ROW_BYTES = _FOOTER_ROW.size

pack_crcs, pack_body = _CRCS.pack, _BODY.pack
_unpack_body = _BODY.unpack_from
_unpack_crcs = _CRCS.unpack_from


class SegmentHeader(NamedTuple):
    """The first 512 bytes of a segment."""

    number: int
    uid: int
    capacity: int
    created_ms: int
    owner: bytes


class Record(NamedTuple):
    """A record's header, verified. `payload_is_right` verifies the payload."""

    header_crc: int
    payload_crc: int
    kind: int
    flags: int
    length: int
    position: int
    count: int  # type: ignore[assignment]  # tuple.count and .index are not used
    group: int
    index: int  # type: ignore[assignment]
    term: int
    offset: int
    time_ms: int
    chain: int

    @property
    def end(self) -> int:
        """Position of the first byte after the payload."""
        return self.position + RECORD_HEADER_BYTES + self.length

    @property
    def entry_type(self) -> int:
        """The type that the owner gave an ENTRY, 0 to 15."""
        return self.flags >> ENTRY_TYPE_SHIFT


class FooterRow(NamedTuple):
    """The records of one group in one sealed segment; indices are 0 if it has no ENTRY."""

    group: int
    first_index: int
    last_index: int
    first_offset: int
    next_offset: int
    last_term: int
    first_time_ms: int
    last_time_ms: int
    entries: int
    entry_bytes: int
    kinds: int


def segment_seed(uid: int) -> int:
    """Return the seed of every header checksum in the segment with this uid."""
    return crc32(uid.to_bytes(8, "little"))


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first 512 bytes of a segment."""
    number, uid, capacity, created_ms, owner = header
    raw = bytearray(SEGMENT_HEADER_BYTES)
    fields = (SEGMENT_MAGIC, VERSION, 0, number, uid, capacity, created_ms, owner)
    _SEGMENT.pack_into(raw, 0, *fields)
    raw[12:16] = _segment_crc(raw).to_bytes(4, "little")
    return bytes(raw)


def decode_segment_header(raw: bytes) -> SegmentHeader:
    """Decode a header; FormatUnknown says: not a segment, another version, or damaged."""
    if len(raw) < SEGMENT_HEADER_BYTES:
        raise FormatUnknown(f"segment header is cut short: {len(raw)} of 512 bytes")
    magic, version, crc, number, uid, capacity, created_ms, owner = _SEGMENT.unpack_from(raw)
    if magic != SEGMENT_MAGIC:
        raise FormatUnknown("not a segment: wrong magic in its first 8 bytes")
    if version != VERSION:
        raise FormatUnknown(f"segment of format version {version}, this program knows {VERSION}")
    if crc != _segment_crc(raw):
        raise FormatUnknown("segment header is damaged: its checksum is wrong")
    return SegmentHeader(number, uid, capacity, created_ms, owner)


def _segment_crc(raw: bytes | bytearray) -> int:
    return crc32(raw[16:SEGMENT_HEADER_BYTES], crc32(raw[0:12]))


def encode_record(
    seed: int,
    kind: int,
    position: int,
    payload: bytes = b"",
    *,
    group: int = 0,
    index: int = 0,
    term: int = 0,
    offset: int = 0,
    count: int = 0,
    time_ms: int = 0,
    chain: int = 0,
    flags: int = 0,
) -> bytes:
    """Return the 72 header bytes of one record. `Layout.encode` has this code inlined."""
    length = len(payload)
    body = pack_body(
        RECORD_MAGIC,
        kind,
        flags,
        length,
        position,
        count,
        group,
        index,
        term,
        offset,
        time_ms,
        chain,
    )
    header_crc = crc32(body, seed)
    return pack_crcs(header_crc, crc32(payload, header_crc)) + body


def record_at(buffer: bytes | memoryview, at: int, position: int, seed: int) -> Record | None:
    """Return the record whose header is at `buffer[at]` and names `position`; None if none is.

    FormatUnknown if a valid header has a kind that only newer versions know.
    """
    if len(buffer) - at < RECORD_HEADER_BYTES:
        return None
    header_crc, payload_crc = _unpack_crcs(buffer, at)
    if crc32(buffer[at + 8 : at + RECORD_HEADER_BYTES], seed) != header_crc:
        return None
    magic, kind, flags, length, claimed, count, group, index, term, offset, time_ms, chain = (
        _unpack_body(buffer, at + 8)
    )
    if magic != RECORD_MAGIC or claimed != position:
        return None
    if kind not in KIND_NAMES:
        raise FormatUnknown(f"record kind {kind} at position {position} is of a newer version")
    return Record(
        header_crc,
        payload_crc,
        kind,
        flags,
        length,
        position,
        count,
        group,
        index,
        term,
        offset,
        time_ms,
        chain,
    )


def payload_is_right(record: Record, payload: bytes | memoryview) -> bool:
    """Whether the payload has the record's length and checksum."""
    return len(payload) == record.length and crc32(payload, record.header_crc) == record.payload_crc


def footer_bits(kind: int, flags: int) -> int:
    """Return the bits of a record in its group's mask of kinds; a reset counts as TRUNCATE, too."""
    return 1 << kind | (1 << TRUNCATE if kind == START and flags & RESET else 0)


def encode_footer(rows: list[FooterRow]) -> bytes:
    """Return the payload of a FOOTER with these rows."""
    return b"".join(_FOOTER_ROW.pack(*row, 0) for row in sorted(rows))


def decode_footer(payload: bytes) -> list[FooterRow]:
    """Return the rows of a footer's payload, which must be verified."""
    if len(payload) % FOOTER_ROW_BYTES:
        raise FormatUnknown(f"footer of {len(payload)} bytes is not a whole number of rows")
    return [FooterRow(*fields[:-1]) for fields in _FOOTER_ROW.iter_unpack(payload)]


def segment_name(number: int, uid: int) -> str:
    """Return the file name of a segment."""
    return f"{number:012d}-{uid:016x}.seg"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return (number, uid) of a segment's file name, None for any other file."""
    stem, _, suffix = name.partition(".")
    number, dash, uid = stem.partition("-")
    if suffix != "seg" or not dash or len(number) != 12 or len(uid) != 16:
        return None
    try:
        return int(number), int(uid, 16)
    except ValueError:
        return None
