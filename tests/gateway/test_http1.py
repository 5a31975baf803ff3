"""Heads of requests: what is read, and that everything doubtful is refused (H3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.errors import Malformed
from myqueue.gateway.http import request_head
from myqueue.gateway.http.answer import Answer, status_line

HOST = b"\r\nHost: h:1"


def test_a_plain_head() -> None:
    head = request_head.parse(
        b"POST /a%2Fb/c?x=1&y=%C3%BC HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n"
        b"X-A:  one \r\nx-a: two"
    )
    assert (head.method, head.path, head.query) == ("POST", "/a/b/c", "x=1&y=%C3%BC")
    assert (head.body_bytes, head.keep_alive, head.minor) == (12, True, 1)
    assert head.headers == {"host": "h", "content-length": "12", "x-a": "one, two"}


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        (b"GET / HTTP/1.1" + HOST, True), (b"GET / HTTP/1.0", False),
        (b"GET / HTTP/1.1" + HOST + b"\r\nConnection: Keep-Alive, Close", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive", True),
    ],
)  # fmt: skip
def test_who_keeps_the_connection(text: bytes, keeps: bool) -> None:
    assert request_head.parse(text).keep_alive is keeps


def test_absolute_targets_and_continue() -> None:
    head = request_head.parse(b"PUT http://h:1/x HTTP/1.1" + HOST + b"\r\nExpect: 100-Continue")
    assert head.path == "/x" and head.expects_continue


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"GET /",
        b"GET / HTTP/1.2" + HOST,
        b"GET  / HTTP/1.1" + HOST,
        b"G@T / HTTP/1.1" + HOST,
        b"GET / HTTP/1.1",
        b"GET x HTTP/1.1" + HOST,
        b"GET /\x00 HTTP/1.1" + HOST,
        b"GET / HTTP/1.1" + HOST + b"\r\n X: folded",
        b"GET / HTTP/1.1" + HOST + b"\r\nX : y",
        b"GET / HTTP/1.1" + HOST + b"\r\nX: a\nb",
        b"GET / HTTP/1.1" + HOST + b"\r\nX: a\rb",
        b"GET / HTTP/1.1" + HOST + b"\r\nX: \x00",
        b"GET / HTTP/1.1" + HOST + b"\r\nnothing",
        b"GET / HTTP/1.1" + HOST + HOST,
        b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: -1",
        b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: 1, 1",
        b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: 0x1",
        b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: \xb2",
        b"GET / HTTP/1.1" + HOST + b"\r\nContent-Length: 1\r\nContent-Length: 1",
        b"POST / HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: chunked",
        b"POST / HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        b"GET / HTTP/1.1" + HOST + b"\r\nX: y" * 101,
        b"GET /" + b"x" * 9000 + b" HTTP/1.1" + HOST,
    ],
)
def test_what_is_doubtful_is_refused(text: bytes) -> None:
    with pytest.raises(Malformed):
        request_head.parse(text)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text("GET/ HTP1.0\r\n:aX-", max_size=80).map(str.encode))
def test_nothing_else_is_raised(data: bytes) -> None:
    try:
        head = request_head.parse(data)
    except Malformed:
        return
    assert head.path.startswith("/") and head.body_bytes >= 0


def test_heads_of_answers() -> None:
    text = Answer("200 OK", [("A", "b")], b"", True).encode_head("now", True)
    assert text == (
        b"HTTP/1.1 200 OK\r\nDate: now\r\nServer: myqueue\r\nA: b\r\nConnection: close\r\n\r\n"
    )
    assert status_line(429) == "429 Too Many Requests"
