"""Read and write large JSON in steps, so that no other request has to wait for it.

The decoder and encoder of the standard library hold the interpreter until they are done: 15 MB of
`[],[],[],…` blocked all threads for 2.4 seconds. The number of values counts, not the bytes. So a
large body that can't have many values, by its brackets and commas, is left to the standard library
(it reads strings fast). Every other one is read here value by value, and other threads run in
between; it may have `VALUES_MAX` values. Answers are written row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

LARGE_BYTES: Final = 64 << 10
VALUES_AT_ONCE: Final = 40_000  # about 20 ms
VALUES_MAX: Final = 200_000  # of a body; 10,000 messages with all their members have fewer
DEPTH_MAX: Final = 100
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_OPENING_OR_COMMA: Final = (",", "[", "{")
# Only ASCII: an answer may repeat what a client sent, even if that is not valid text.
dumps: Final[Callable[[Any], str]] = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, default=str
).encode


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


def loads(data: str | bytes) -> Any:
    """Decode JSON; raise ValueError for everything else, and if it has too many values or is
    nested too deeply.
    """
    if isinstance(data, bytes):
        text = data.decode(json.detect_encoding(data), "surrogatepass")
    else:
        text = data
    try:
        is_quick = len(data) <= LARGE_BYTES or (
            sum(text.count(sign) for sign in _OPENING_OR_COMMA) <= VALUES_AT_ONCE
        )
        return _DECODER.decode(text) if is_quick else _Reader(text).read()
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _Reader:
    """Reads one text, value by value."""

    def __init__(self, text: str) -> None:
        self._text, self._left = text, VALUES_MAX
        self._plain = _DECODER.raw_decode

    def read(self) -> Any:
        value, at = self._value(self._skip(0), 0)
        if self._skip(at) != len(self._text):
            raise self._wrong("Extra data", at)
        return value

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {VALUES_MAX} values")
        if depth > DEPTH_MAX:
            raise ValueError("nested too deeply")
        first = self._text[at : at + 1]
        if first == "[":
            return self._list(at + 1, depth)
        if first == "{":
            return self._object(at + 1, depth)
        return self._plain(self._text, at)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self._skip(at)
        if self._text[at : at + 1] == "]":
            return values, at + 1
        while True:
            value, at = self._value(at, depth + 1)
            values.append(value)
            at = self._skip(at)
            if self._text[at : at + 1] == "]":
                return values, at + 1
            at = self._expect(",", at)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        at = self._skip(at)
        if self._text[at : at + 1] == "}":
            return members, at + 1
        while True:
            if self._text[at : at + 1] != '"':
                raise self._wrong("Expecting property name enclosed in double quotes", at)
            name, at = self._plain(self._text, at)
            at = self._expect(":", self._skip(at))
            members[name], at = self._value(at, depth + 1)
            at = self._skip(at)
            if self._text[at : at + 1] == "}":
                return members, at + 1
            at = self._expect(",", at)

    def _skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return at if space is None else space.end()

    def _expect(self, sign: str, at: int) -> int:
        if self._text[at : at + 1] != sign:
            raise self._wrong(f"Expecting {sign!r} delimiter", at)
        return self._skip(at + 1)

    def _wrong(self, text: str, at: int) -> ValueError:
        return json.JSONDecodeError(text, self._text, at)


def encoded(facts: dict[str, Any]) -> bytes:
    """Encode as JSON; a list "messages" row by row."""
    rows = facts.get("messages")
    if type(rows) is not list or not rows:
        return dumps(facts).encode()
    begin = dumps({name: value for name, value in facts.items() if name != "messages"})
    parts = [begin[:-1].encode(), b"," if len(begin) > 2 else b"", b'"messages":[']
    for number, row in enumerate(rows):
        parts.append(b"," if number else b"")
        parts.append(dumps(row).encode())
    parts.append(b"]}")
    return b"".join(parts)
