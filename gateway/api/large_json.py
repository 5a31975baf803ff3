"""JSON of large bodies and answers, in steps, so that no other request stands still.

The decoder and encoder of the standard library hold the interpreter until they are done: 15 MB of
`[],[],[],…` took it for 2.4 seconds, from all threads. What decides is not the bytes but how many
values they hold. So a large body whose brackets and commas can't be many is left to them (strings
are quick), and every other one is read here value by value, between which other threads run; of
values there may be `VALUES_MAX`. Answers are written row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from myqueue.gateway.api.responses import dumps

LARGE_BYTES: Final = 64 << 10
VALUES_AT_ONCE: Final = 40_000  # some 20 ms
VALUES_MAX: Final = 200_000  # in a body; 10,000 messages with all that they may have are fewer
DEPTH_MAX: Final = 100
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_OPENING_OR_COMMA: Final = (",", "[", "{")


def loads(data: str | bytes, parse_constant: Callable[[str], Any]) -> Any:
    """As `json.loads`; raises ValueError for what is no JSON, or too much of it."""
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
    if sum(text.count(one) for one in _OPENING_OR_COMMA) <= VALUES_AT_ONCE:
        return json.loads(text, parse_constant=parse_constant)
    return _Reader(text, parse_constant).read()


class _Reader:
    """Reads one text."""

    def __init__(self, text: str, parse_constant: Callable[[str], Any]) -> None:
        self._text, self._left = text, VALUES_MAX
        self._plain = json.JSONDecoder(parse_constant=parse_constant).raw_decode

    def read(self) -> Any:
        found, at = self._value(self._skip(0), 0)
        if self._skip(at) != len(self._text):
            raise self._wrong("Extra data", at)
        return found

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
        found: list[Any] = []
        at = self._skip(at)
        if self._text[at : at + 1] == "]":
            return found, at + 1
        while True:
            value, at = self._value(at, depth + 1)
            found.append(value)
            at = self._skip(at)
            if self._text[at : at + 1] == "]":
                return found, at + 1
            at = self._expect(",", at)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._skip(at)
        if self._text[at : at + 1] == "}":
            return found, at + 1
        while True:
            if self._text[at : at + 1] != '"':
                raise self._wrong("Expecting property name enclosed in double quotes", at)
            name, at = self._plain(self._text, at)
            at = self._expect(":", self._skip(at))
            found[name], at = self._value(at, depth + 1)
            at = self._skip(at)
            if self._text[at : at + 1] == "}":
                return found, at + 1
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
    """As JSON; a long list in it row by row."""
    rows = facts.get("messages")
    if type(rows) is not list or not rows:
        return dumps(facts).encode()
    begin = dumps({name: value for name, value in facts.items() if name != "messages"})
    out = [begin[:-1].encode(), b"," if len(begin) > 2 else b"", b'"messages":[']
    for number, row in enumerate(rows):
        out.append(b"," if number else b"")
        out.append(dumps(row).encode())
    out.append(b"]}")
    return b"".join(out)
