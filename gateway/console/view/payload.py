"""Show bytes that may be hostile. Pure.

Text is shown as text, but characters that are invisible or reverse the line (controls, overrides of
direction) are written out. Bytes that are not UTF-8 are shown in hex. HTML is escaped where the
page is drawn.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

PREVIEW_CHARS: Final = 160
PREVIEW_BYTES: Final = 4 * PREVIEW_CHARS
SHOWN_BYTES: Final = 64 << 10
HEX_ROW: Final = 16
HEX_PREVIEW: Final = 24
INDENT: Final = "  "
DEPTH_MAX: Final = 40  # deeper values would be more blanks than text
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class ShownPayload(NamedTuple):
    form: str  # json, text, hex
    text: str
    is_cut: bool
    forms: tuple[str, ...]  # forms in which it can be shown


def preview(value: bytes) -> str:
    """Return one short line."""
    head = value[:PREVIEW_BYTES]
    text = text_of(head, is_cut=len(value) > len(head))
    if text is None:
        return value[:HEX_PREVIEW].hex(" ") + (" …" if len(value) > HEX_PREVIEW else "")
    line = visible(text).replace("\n", "⏎").replace("\t", "⇥")
    is_short = len(line) <= PREVIEW_CHARS and len(head) == len(value)
    return line if is_short else line[:PREVIEW_CHARS] + "…"


def text_of(value: bytes, is_cut: bool = False) -> str | None:
    """Return the bytes as text; None if they are not text. A cut may end inside a character."""
    for end in range(len(value), max(-1, len(value) - (4 if is_cut else 1)), -1):
        try:
            text = value[:end].decode()
        except UnicodeDecodeError:
            continue
        odd = sum(not (one.isprintable() or one in "\n\t\r") for one in text)
        return None if odd * 4 > len(text) else text
    return None


def visible(text: str) -> str:
    """Write out all invisible characters except line ends and tabs."""
    plain = text.replace("\r\n", "\n")
    if plain.isprintable():
        return plain
    return "".join(one if one.isprintable() or one in "\n\t" else _escape(one) for one in plain)


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{{{number:x}}}"


def show(value: bytes, form: str = "") -> ShownPayload:
    """Show a value in the form that was asked for, if possible; else in the most readable one."""
    is_cut = len(value) > SHOWN_BYTES
    head = value[:SHOWN_BYTES]
    text = text_of(head, is_cut)
    pretty = None if text is None or is_cut else _json(text)
    forms = tuple(
        name
        for name, known in (("json", pretty), ("text", text), ("hex", head))
        if known is not None
    )
    chosen = form if form in forms else forms[0]
    if chosen == "json" and pretty is not None:
        return ShownPayload("json", visible(pretty), is_cut, forms)
    if chosen == "text" and text is not None:
        return ShownPayload("text", visible(text), is_cut, forms)
    return ShownPayload("hex", hex_dump(head), is_cut, forms)


def _json(text: str) -> str | None:
    """Indent an object or a list; every token stays as it was written. None if it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth, opened = 0, False  # opened: nothing came since a bracket was
    for token in _TOKENS.findall(text):
        if token in ("}", "]"):
            depth -= 1
            out.append(token if opened else "\n" + INDENT * depth + token)
            opened = False
            continue
        if opened:
            out.append("\n" + INDENT * depth)
        opened = token in ("{", "[")
        depth += opened
        if depth > DEPTH_MAX:
            return None
        out.append({",": ",\n" + INDENT * depth, ":": ": "}.get(token, token))
    return "".join(out)


def hex_dump(value: bytes) -> str:
    """Return rows of position, sixteen bytes, and the readable ones of them."""
    rows = []
    for at in range(0, len(value), HEX_ROW):
        part = value[at : at + HEX_ROW]
        readable = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        rows.append(f"{at:06x}  {part.hex(' '):<47}  {readable}")
    return "\n".join(rows) or "(empty)"
