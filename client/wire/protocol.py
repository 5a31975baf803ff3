"""The messages between processes: kinds of envelopes, their fields and limits (`PROTOCOL.md`).

An envelope is a msgpack array `[version, kind, request_id, …fields]`. Comes in: bytes from an
untrusted peer. Goes out: a list whose fields have the types in the table `KINDS`, or an error.
`decode` checks the size before it decodes, gives limits to msgpack, and then checks the type of
each field. The caller checks the values: whether a topic exists or a number makes sense.

Limits alone are not enough: msgpack allocates a list when it reads its length, and lists nest 1024
deep, so 3 KiB that announce 65,535 items a level cost 80 ms and 70 MiB (measured). Long lists are
therefore unpacked only after a walk over the bytes, which allocates nothing and stops where an
announced item is missing.

No sockets here. This module alone packs and unpacks envelopes, commands and saved state (`pack`,
`unpack`); batches have a module of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from myqueue import PROTOCOL_VERSION
from myqueue.errors import InvalidRequest, Unsupported

VERSION: Final = PROTOCOL_VERSION
ENVELOPE_BYTES_MAX: Final = 1 << 20
FRAME_BYTES_MAX: Final = (16 << 20) + (64 << 10)
FRAMES_MAX: Final = 4097
ITEMS_MAX: Final = 1 << 16
KEYS_MAX: Final = 1024
INT_END: Final = 1 << 64
TAKES_MAX: Final = 256  # in one message
NO_OFFSET: Final = INT_END - 1  # the offset of a COMMIT that only fences
FORGET: Final = INT_END - 2  # the offset of a COMMIT that deletes the position
SMALL_BYTES_MAX: Final = 64 << 10  # for kinds of envelopes that are never long
FOUND_MAX: Final = 1 << 17  # lists and maps in a command; it has at most 65,536 rows
DEPTH_MAX: Final = 8  # of lists and maps in arguments
SHORT_LIST: Final = 64  # cheap to allocate, even at every level
_FEW_BYTES: Final = 512  # too few to announce much
_HEAD_BYTES: Final = 32  # hold version, kind and request id in every encoding

# Places in an envelope.
KIND, REQUEST, FIELDS = 1, 2, 3

HELLO, WELCOME, ERROR, STATUS, STATS, INFO = 1, 2, 3, 4, 5, 6
ROUTE, ROUTES, UPDATE, UPDATED, READ, ANSWER, ALIVE, ALIVE_OK = 10, 11, 12, 13, 14, 15, 16, 17
MEMBER, MEMBERSHIP = 18, 19
PRODUCE, PRODUCED, FETCH, FETCHED, COMMIT, COMMITTED = 30, 31, 32, 33, 34, 35
TAKE, TAKEN, OFFSETS, POSITIONS, WHERE = 36, 37, 38, 39, 40
GREET, GREETED, PACKET, BEAT, ORDERS = 50, 51, 52, 53, 54

Envelope = list[Any]
Check = Callable[[Any], bool]


# -- types of fields ------------------------------------------------------------------------------


def is_int(value: Any) -> bool:
    return type(value) is int and 0 <= value < INT_END


def is_text(value: Any) -> bool:
    return type(value) is str


def is_bytes(value: Any) -> bool:
    return type(value) is bytes


def is_key(value: Any) -> bool:
    """Is it an idempotency key of 16 bytes, by which a repeat is recognised?"""
    return type(value) is bytes and len(value) == 16


def is_bool(value: Any) -> bool:
    return type(value) is bool


def is_map(value: Any) -> bool:
    return type(value) is dict


def is_list(value: Any) -> bool:
    return type(value) is list


def is_arguments(value: Any) -> bool:
    """Is it a map of bounded depth, which is safe to show, pack again and keep?"""
    return type(value) is dict and _is_flat(value, DEPTH_MAX)


def _is_flat(value: Any, depth: int) -> bool:
    inner = value.values() if type(value) is dict else value
    nested = [item for item in inner if type(item) is list or type(item) is dict]
    return not nested or (depth > 1 and all(_is_flat(item, depth - 1) for item in nested))


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def distinct(check: Check) -> Check:
    """Check a list without duplicates, so that one item cannot cost its work 65,536 times."""
    return lambda value: (
        type(value) is list and all(map(check, value)) and len(set(value)) == len(value)
    )


def row(*checks: Check) -> Check:
    """Check a list of exactly these fields."""
    count = len(checks)

    def fits(value: Any) -> bool:
        if type(value) is not list or len(value) != count:
            return False
        return all(check(field) for check, field in zip(checks, value, strict=True))

    return fits


_ints = list_of(is_int)
_texts = list_of(is_text)

# kind -> (name, checks of its fields)
KINDS: Final[dict[int, tuple[str, tuple[Check, ...]]]] = {
    HELLO: ("HELLO", (is_text, is_text)),
    WELCOME: ("WELCOME", (is_text, is_text, is_int, is_text, is_map)),
    ERROR: ("ERROR", (is_int, is_text, is_text, is_map)),
    STATUS: ("STATUS", (is_int,)),
    STATS: ("STATS", ()),
    INFO: ("INFO", (is_map,)),
    ROUTE: ("ROUTE", (distinct(is_text), is_int)),
    ROUTES: (
        "ROUTES",
        (
            is_int,
            list_of(row(is_int, is_text, is_text, is_bool)),
            list_of(
                row(is_text, is_int, is_map, list_of(row(is_int, is_int, is_int, is_int, _ints)))
            ),
            _texts,
        ),
    ),
    UPDATE: ("UPDATE", (is_key, is_text, is_arguments)),
    UPDATED: ("UPDATED", (is_int, is_map)),
    READ: ("READ", (is_text, is_arguments, is_int, is_bool)),
    ANSWER: ("ANSWER", (is_int, is_map)),
    ALIVE: ("ALIVE", (_ints, _ints)),
    ALIVE_OK: ("ALIVE_OK", ()),
    MEMBER: ("MEMBER", (is_text, is_int, is_int, is_int, list_of(row(is_int, is_int)))),
    MEMBERSHIP: (
        "MEMBERSHIP",
        (is_int, is_int, list_of(row(is_int, is_text, is_int, is_int, is_bool, is_bool))),
    ),
    PRODUCE: ("PRODUCE", (_ints,)),
    PRODUCED: ("PRODUCED", (list_of(row(is_int, is_int, is_int, is_int, optional(is_map))),)),
    FETCH: ("FETCH", (is_int, is_int, is_int, list_of(row(is_int, is_int)))),
    FETCHED: (
        "FETCHED",
        (
            list_of(
                row(is_int, is_int, is_int, is_int, list_of(row(is_int, is_int)), optional(is_map))
            ),
        ),
    ),
    COMMIT: ("COMMIT", (is_text, list_of(row(is_int, is_int, is_int, is_int)))),
    COMMITTED: ("COMMITTED", (list_of(row(is_int, is_int, is_int, optional(is_map))),)),
    TAKE: ("TAKE", (list_of(row(is_int, is_text, is_key, is_int, is_bool)),)),
    TAKEN: (
        "TAKEN",
        (
            list_of(
                row(is_int, is_int, is_int, is_int, list_of(row(is_int, is_int)), optional(is_map))
            ),
        ),
    ),
    OFFSETS: ("OFFSETS", (optional(is_text), optional(is_int), distinct(is_int))),
    POSITIONS: (
        "POSITIONS",
        (list_of(row(is_int, is_int, is_int, is_int, optional(is_int), optional(is_int), is_int)),),
    ),
    WHERE: ("WHERE", (is_int, is_int)),
    GREET: ("GREET", (is_text, is_text, is_int, is_text, is_int, is_text, is_text)),
    GREETED: ("GREETED", (is_text, is_text, is_int, is_text, is_int)),
    PACKET: ("PACKET", (is_list, is_list)),
    BEAT: ("BEAT", (is_map,)),
    ORDERS: ("ORDERS", (is_map,)),
}
# These may name many topics, groups or clients. All other kinds are at most SMALL_BYTES_MAX long.
LONG: Final = frozenset(
    (
        *(ERROR, INFO, ROUTE, ROUTES, UPDATED, ANSWER, ALIVE, MEMBER, MEMBERSHIP),
        *(PRODUCE, PRODUCED, FETCH, FETCHED, COMMIT, COMMITTED),
        *(TAKE, TAKEN, OFFSETS, POSITIONS, PACKET, BEAT, ORDERS),
    )
)


# -- bytes ----------------------------------------------------------------------------------------

pack: Callable[[Any], bytes] = msgpack.packb


def unpack(data: bytes | memoryview) -> Any:
    """Unpack commands and saved state, whose checksum was tested; extension types are refused."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False, timestamp=0, max_ext_len=0)


def unpack_found(data: bytes | memoryview) -> Any:
    """Unpack bytes that may be a command or anything else.

    Raises ValueError if they are not msgpack, or have more lists and maps than any command: one
    takes a byte here and 50 to 200 in memory.
    """
    left = FOUND_MAX

    def count(container: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("more lists and maps than any command has")
        return container

    try:
        require_whole(data)
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            timestamp=0,
            max_ext_len=0,
            list_hook=count,
            object_hook=count,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"bytes that can't be unpacked: {error}") from None


def unpack_rows(data: bytes | memoryview) -> Any:
    """Unpack lists of numbers from an untrusted peer; raises ValueError for anything else."""
    try:
        if len(data) > _FEW_BYTES:
            require_whole(data)
        return msgpack.unpackb(
            data, timestamp=0, max_ext_len=0, max_map_len=0, max_str_len=0, max_bin_len=0
        )
    except msgpack.UnpackException as error:
        raise ValueError(f"rows that can't be read: {error}") from None


def require_whole(data: bytes | memoryview) -> None:
    """Raise unless every announced item is there. Walks over the bytes, allocates nothing."""
    room = max(len(data), 64)
    walk = msgpack.Unpacker(max_buffer_size=room, read_size=64)
    walk.feed(data)
    walk.skip()


def encode(kind: int, request: int, *fields: Any) -> bytes:
    """Pack an envelope."""
    return pack([VERSION, kind, request, *fields])


def decode(frame: bytes | memoryview) -> Envelope:
    """Unpack an envelope and check the type of each field.

    Raises InvalidRequest or Unsupported. The error's `request` is the id to answer to, or None if
    it could not be read either.
    """
    if len(frame) > SMALL_BYTES_MAX:
        _check_size(frame)
    try:
        envelope = _unpack(frame)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidRequest(
            f"an envelope that is not msgpack within the limits: {error}", request=request_of(frame)
        ) from None
    if type(envelope) is not list or len(envelope) < FIELDS or not is_int(envelope[REQUEST]):
        raise InvalidRequest("an envelope is an array: version, kind, request id, fields")
    _check(envelope)
    return envelope


def _unpack(frame: bytes | memoryview) -> Any:
    """Unpack an envelope. One with long lists is first walked over, as explained above."""
    try:
        return _unpack_lists(frame, SHORT_LIST)
    except ValueError:
        require_whole(frame)
        return _unpack_lists(frame, ITEMS_MAX)


def _unpack_lists(frame: bytes | memoryview, items_max: int) -> Any:
    return msgpack.unpackb(
        frame,
        raw=False,
        strict_map_key=True,
        timestamp=0,
        ext_hook=_no_extension,
        max_ext_len=0,
        max_str_len=ITEMS_MAX,
        max_bin_len=ENVELOPE_BYTES_MAX,
        max_array_len=items_max,
        max_map_len=KEYS_MAX,
        object_hook=_text_keys,
    )


def _no_extension(code: int, data: bytes) -> Any:
    """Refuse extensions; an empty one would be within any limit."""
    raise ValueError(f"an extension of type {code}")


def _text_keys(table: dict[Any, Any]) -> dict[Any, Any]:
    for key in table:
        if type(key) is not str:
            raise ValueError("a map with a key that is not a text")
    return table


def _head(frame: bytes | memoryview) -> list[Any]:
    """Read version, kind and request id, whatever follows; empty if they cannot be read."""
    few = msgpack.Unpacker(
        max_buffer_size=2 * _HEAD_BYTES,
        read_size=2 * _HEAD_BYTES,
        max_array_len=0,
        max_map_len=0,
        max_str_len=0,
        max_bin_len=0,
        max_ext_len=0,
    )
    try:
        few.feed(frame[:_HEAD_BYTES])
        if few.read_array_header() < FIELDS:
            return []
        return [few.unpack() for _ in range(FIELDS)]
    except (ValueError, TypeError, msgpack.UnpackException):
        return []


def request_of(frame: bytes | memoryview) -> int | None:
    """Find the id to answer to in an envelope that could not be decoded."""
    head = _head(frame)
    return head[REQUEST] if head and is_int(head[REQUEST]) and type(head[KIND]) is int else None


def _check_size(frame: bytes | memoryview) -> None:
    head = _head(frame)
    kind = head[KIND] if head and head[:KIND] == [VERSION] else None
    limit = ENVELOPE_BYTES_MAX if type(kind) is int and kind in LONG else SMALL_BYTES_MAX
    if len(frame) > limit:
        raise InvalidRequest(
            f"an envelope of {len(frame)} bytes; the limit is {limit >> 10} KiB",
            request=request_of(frame),
        )


def _check(envelope: Envelope) -> None:
    version, kind, request = envelope[:FIELDS]
    if type(version) is not int or type(kind) is not int:  # may be anything: not even shown
        raise InvalidRequest("version and kind of an envelope are numbers", request=request)
    if version != VERSION:
        raise Unsupported(f"version {version}; this side speaks {VERSION}", request=request)
    row_of_kind = KINDS.get(kind)
    if row_of_kind is None:
        raise Unsupported(f"a message of kind {kind} is not known here", request=request)
    name, checks = row_of_kind
    if len(envelope) != FIELDS + len(checks):
        count = len(envelope) - FIELDS
        raise InvalidRequest(f"{name} has {len(checks)} fields, not {count}", request=request)
    for place, check in enumerate(checks):
        if not check(envelope[FIELDS + place]):
            raise InvalidRequest(f"field {place + 1} of {name} is malformed", request=request)
    if kind in (PRODUCE, TAKE) and request + len(envelope[FIELDS]) > INT_END:
        raise InvalidRequest(f"the request ids of {name} go beyond 2^64 - 1", request=request)


def name_of(kind: int) -> str:
    """The name of a kind of envelope, for people."""
    return KINDS[kind][0] if kind in KINDS else f"kind {kind}"
