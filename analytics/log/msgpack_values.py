"""The part of msgpack that occurs in the log: commands, saved rows, contents of creation records.

A second implementation, so that executors need no compiled package besides pyarrow, and so that the
daemons' codec is not trusted to read what it wrote. A size is believed only if there are as many
bytes; nesting has a limit; extension types and floats do not occur in the log and are refused.
"""

from __future__ import annotations

from typing import Any, Final

DEPTH_MAX: Final = 32
FIRST_BYTES_MAX: Final = 1 << 16
Bytes = bytes | memoryview


class BadPack(ValueError):
    """These bytes are not what a daemon packs."""


def unpack(data: Bytes) -> Any:
    """The one value that these bytes hold; BadPack if they do not."""
    raw = bytes(data)
    try:
        value, end = _value(raw, 0, 0)
    except (IndexError, UnicodeDecodeError, TypeError) as error:  # of a map: an odd key
        raise BadPack(f"packed bytes that are cut or wrong: {error}") from None
    if end != len(raw):
        raise BadPack(f"{len(raw) - end} bytes behind the packed value")
    return value


def item_at(raw: bytes, at: int) -> tuple[Any, int]:
    """The value at this position, and the position after it. A list or map must be flat."""
    try:
        return _value(raw, at, DEPTH_MAX - 1)
    except (UnicodeDecodeError, TypeError) as error:
        raise BadPack(f"packed bytes that are wrong: {error}") from None


def first_item(data: Bytes) -> Any:
    """The first item of a packed list. The rest is not read: it may be large, or cut off."""
    raw = bytes(data[:FIRST_BYTES_MAX])
    try:
        if raw[0] not in _LISTS and not 0x91 <= raw[0] <= 0x9F:
            raise BadPack("no packed list with an item")
        at = _size(raw, 1, _LISTS[raw[0]])[1] if raw[0] in _LISTS else 1
        return _value(raw, at, 1)[0]
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise BadPack(f"packed bytes that are cut or wrong: {error}") from None


_UINTS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_INTS: Final = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_BINS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXTS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}
_PLAIN: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def _value(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    tag = raw[at]
    if tag < 0x80:
        return tag, at + 1
    if tag >= 0xE0:
        return tag - 0x100, at + 1
    if tag in _PLAIN:
        return _PLAIN[tag], at + 1
    if tag in _UINTS or tag in _INTS:
        size = _UINTS.get(tag) or _INTS[tag]
        _require(raw, at + 1, size)
        number = int.from_bytes(raw[at + 1 : at + 1 + size], "big", signed=tag in _INTS)
        return number, at + 1 + size
    if tag in _BINS:
        size, at = _size(raw, at + 1, _BINS[tag])
        _require(raw, at, size)
        return raw[at : at + size], at + size
    if tag in _TEXTS or 0xA0 <= tag <= 0xBF:
        size, at = _size(raw, at + 1, _TEXTS[tag]) if tag in _TEXTS else (tag & 31, at + 1)
        _require(raw, at, size)
        return raw[at : at + size].decode(), at + size
    if depth == DEPTH_MAX:
        raise BadPack("packed values are nested too deep")
    if tag in _LISTS or 0x90 <= tag <= 0x9F:
        size, at = _size(raw, at + 1, _LISTS[tag]) if tag in _LISTS else (tag & 15, at + 1)
        return _list(raw, at, size, depth + 1)
    if tag in _MAPS or 0x80 <= tag <= 0x8F:
        size, at = _size(raw, at + 1, _MAPS[tag]) if tag in _MAPS else (tag & 15, at + 1)
        items, at = _list(raw, at, 2 * size, depth + 1)
        return dict(zip(items[::2], items[1::2], strict=True)), at
    raise BadPack(f"a packed value of type {tag:#x}")


def _size(raw: bytes, at: int, width: int) -> tuple[int, int]:
    _require(raw, at, width)
    return int.from_bytes(raw[at : at + width], "big"), at + width


def _require(raw: bytes, at: int, size: int) -> None:
    if len(raw) - at < size:
        raise BadPack(f"{size} bytes announced, {len(raw) - at} there")


def _list(raw: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    _require(raw, at, size)  # each item has a byte at least
    out = []
    for _ in range(size):
        value, at = _value(raw, at, depth)
        out.append(value)
    return out, at


def pack(value: Any) -> bytes:
    """Pack in the shortest form, as the daemons do: equal values give equal bytes."""
    out = bytearray()
    _pack(value, out)
    return bytes(out)


def _pack(value: Any, out: bytearray) -> None:
    match value:
        case None:
            out.append(0xC0)
        case bool():
            out.append(0xC3 if value else 0xC2)
        case int():
            _pack_int(value, out)
        case bytes():
            _head(out, len(value), (0xC4, 0xC5, 0xC6))
            out += value
        case str():
            raw = value.encode()
            if len(raw) < 32:
                out.append(0xA0 | len(raw))
            else:
                _head(out, len(raw), (0xD9, 0xDA, 0xDB))
            out += raw
        case list() | tuple():
            _short_head(out, len(value), 0x90, 0xDC)
            for item in value:
                _pack(item, out)
        case dict():
            _short_head(out, len(value), 0x80, 0xDE)
            for key, item in value.items():
                _pack(key, out)
                _pack(item, out)
        case _:
            raise TypeError(f"a {type(value).__name__} is never packed")


def _head(out: bytearray, size: int, tags: tuple[int, int, int]) -> None:
    for tag, width in zip(tags, (1, 2, 4), strict=True):
        if size < 1 << 8 * width:
            out.append(tag)
            out += size.to_bytes(width, "big")
            return
    raise ValueError(f"{size} bytes in one packed value")


def _short_head(out: bytearray, size: int, short: int, tag: int) -> None:
    if size < 16:
        out.append(short | size)
    elif size < 1 << 16:
        out.append(tag)
        out += size.to_bytes(2, "big")
    else:
        out.append(tag + 1)
        out += size.to_bytes(4, "big")


def _pack_int(value: int, out: bytearray) -> None:
    if 0 <= value < 0x80 or -32 <= value < 0:
        out.append(value & 0xFF)
        return
    tag = 0xCC if value > 0 else 0xD0
    for place, width in enumerate((1, 2, 4, 8)):
        bits = 8 * width
        low, high = (0, 1 << bits) if value > 0 else (-(1 << bits - 1), 1 << bits - 1)
        if low <= value < high:
            out.append(tag + place)
            out += value.to_bytes(width, "big", signed=value < 0)
            return
    raise ValueError(f"{value} does not fit into 64 bits")
