"""The words that processes say to each other: kinds of envelopes, their fields, limits.

`PROTOCOL.md` is the page that this module puts into code. An envelope is a msgpack array
`[version, kind, request_id, …fields]`. `decode` trusts nothing: the size is looked at before
anything is decoded, msgpack gets limits of its own (M3), and afterwards every field must be of
the type that the table of its kind says (M5). What comes out may be used without further checks
of types; whether a topic exists or a number makes sense is for others to say.

Bytes in, lists out: no sockets here. This is the one importer of msgpack for envelopes, commands
and saved state (`pack`, `unpack`); batches have a module of their own.
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
INT_END: Final = 1 << 64

# Places in an envelope.
KIND, REQUEST, FIELDS = 1, 2, 3

HELLO, WELCOME, ERROR, STATUS, STATS, INFO = 1, 2, 3, 4, 5, 6
ROUTE, ROUTES, UPDATE, UPDATED, READ, ANSWER, ALIVE, ALIVE_OK = 10, 11, 12, 13, 14, 15, 16, 17
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
    """A request's key, by which a repeat is recognised."""
    return type(value) is bytes and len(value) == 16


def is_bool(value: Any) -> bool:
    return type(value) is bool


def is_map(value: Any) -> bool:
    return type(value) is dict


def is_list(value: Any) -> bool:
    return type(value) is list


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def row(*checks: Check) -> Check:
    """A list of exactly these fields."""
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
    ROUTE: ("ROUTE", (_texts, is_int)),
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
    UPDATE: ("UPDATE", (is_key, is_text, is_map)),
    UPDATED: ("UPDATED", (is_int, is_map)),
    READ: ("READ", (is_text, is_map, is_int, is_bool)),
    ANSWER: ("ANSWER", (is_int, is_map)),
    ALIVE: ("ALIVE", (_ints, _ints)),
    ALIVE_OK: ("ALIVE_OK", ()),
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
    TAKE: ("TAKE", (is_int, is_text, is_key, is_int)),
    TAKEN: ("TAKEN", (is_int, is_int, _ints)),
    OFFSETS: ("OFFSETS", (optional(is_text), optional(is_int), _ints)),
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


# -- bytes ----------------------------------------------------------------------------------------

pack: Callable[[Any], bytes] = msgpack.packb


def unpack(data: bytes | memoryview) -> Any:
    """Commands and saved state, which a checksum has vouched for; still no types of others."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False, timestamp=0, max_ext_len=0)


def encode(kind: int, request: int, *fields: Any) -> bytes:
    return pack([VERSION, kind, request, *fields])


def decode(frame: bytes | memoryview) -> Envelope:
    """The envelope, with every field of its type; else InvalidRequest or Unsupported.

    The error's `request` is the id to answer to, or None if not even that could be read.
    """
    if len(frame) > ENVELOPE_BYTES_MAX:
        raise InvalidRequest(f"an envelope of {len(frame)} bytes; the limit is 1 MiB")
    try:
        envelope = msgpack.unpackb(
            frame, raw=False, strict_map_key=True, timestamp=0, max_ext_len=0,
            max_str_len=ITEMS_MAX, max_bin_len=ENVELOPE_BYTES_MAX, max_array_len=ITEMS_MAX,
            max_map_len=1024,
        )  # fmt: skip
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidRequest(
            f"an envelope that is not msgpack within the limits: {error}"
        ) from None
    if type(envelope) is not list or len(envelope) < FIELDS or not is_int(envelope[REQUEST]):
        raise InvalidRequest("an envelope is an array: version, kind, request id, fields")
    _check(envelope)
    return envelope


def _check(envelope: Envelope) -> None:
    version, kind, request = envelope[:FIELDS]
    if version != VERSION:
        raise Unsupported(f"version {version!r}; this side speaks {VERSION}", request=request)
    known = KINDS.get(kind) if type(kind) is int else None
    if known is None:
        raise Unsupported(f"a message of kind {kind!r} is not known here", request=request)
    name, checks = known
    if len(envelope) != FIELDS + len(checks):
        count = len(envelope) - FIELDS
        raise InvalidRequest(f"{name} has {len(checks)} fields, not {count}", request=request)
    for place, check in enumerate(checks):
        if not check(envelope[FIELDS + place]):
            raise InvalidRequest(f"field {place + 1} of {name} is malformed", request=request)


def name_of(kind: int) -> str:
    return KINDS[kind][0] if kind in KINDS else f"kind {kind}"
