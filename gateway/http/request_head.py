"""Parse the head of an HTTP/1.1 request.

Pure: no socket, no clock. The head decides where a request ends and the next one begins, and an
attacker can exploit two parsers that disagree about that (request smuggling). So everything that
RFC 9112 does not plainly allow is refused and the connection closed: folded lines, blanks before
the colon, bare CR or LF, two lengths, a length together with a transfer coding, and transfer
codings altogether: bodies are JSON, and clients know their length.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from myqueue.errors import Malformed

END: Final = b"\r\n\r\n"
TARGET_BYTES_MAX: Final = 8 << 10
HEADERS_MAX: Final = 100

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(r"[0-9]{1,18}")
_NOT_REPEATABLE: Final = ("host", "content-length", "transfer-encoding")


class Head(NamedTuple):
    """The parsed head of a request."""

    method: str
    path: str  # as WSGI has it: percent-decoded, its bytes as latin-1
    query: str
    minor: int  # of HTTP/1.x
    headers: dict[str, str]  # by name in lower case
    body_bytes: int  # 0 without a Content-Length
    keep_alive: bool
    expects_continue: bool


def parse(data: bytes) -> Head:
    """Parse everything before the empty line. Raises Malformed."""
    request_line, *lines = data.split(b"\r\n")
    match = _LINE.fullmatch(request_line)
    if match is None:
        raise Malformed("the first line is not: METHOD /path HTTP/1.1")
    method, target, minor = match[1].decode(), match[2], int(match[3])
    headers = _parse_headers(lines)
    if minor and "host" not in headers:
        raise Malformed("the header Host is missing")
    body_bytes = _body_bytes(headers)
    connection = headers.get("connection", "").lower()
    tokens = [token.strip() for token in connection.split(",")] if connection else ()
    keep_alive = "close" not in tokens if minor else "keep-alive" in tokens
    path, query = _split_target(target)
    expects_continue = bool(minor) and headers.get("expect", "").lower() == "100-continue"
    return Head(method, path, query, minor, headers, body_bytes, keep_alive, expects_continue)


def _body_bytes(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Malformed(
            "bodies with Transfer-Encoding are not supported", hint="Send a Content-Length instead."
        )
    length = headers.get("content-length", "0")
    if _LENGTH.fullmatch(length) is None:
        raise Malformed(f"Content-Length is {length[:40]!r}")
    return int(length)


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise Malformed(f"{len(lines)} headers; {HEADERS_MAX} at most")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None:
            raise Malformed(f"not a header: {line[:60]!r}")
        if _BAD_VALUE.search(value) is not None:
            raise Malformed(f"a control character in the header {name[:60]!r}")
        key = name.decode().lower()
        text = value.strip(b" \t").decode("latin-1")
        if key in headers:
            if key in _NOT_REPEATABLE:
                raise Malformed(f"the header {key} is given twice")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    return headers


def _split_target(target: bytes) -> tuple[str, str]:
    if len(target) > TARGET_BYTES_MAX:
        raise Malformed(f"a path of {len(target)} bytes; {TARGET_BYTES_MAX} at most")
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        scheme, mark, rest = path.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https"):
            raise Malformed(f"not a path: {target[:60]!r}")
        path = b"/" + rest.partition(b"/")[2]
    if b"%" in path:
        path = unquote_to_bytes(path)
    return path.decode("latin-1"), query.partition(b"#")[0].decode("latin-1")
