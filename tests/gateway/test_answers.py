"""Headers that every answer has, on whichever way it was made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask import Flask
from support.sites import BareConnection, serving

from myqueue.gateway.app import create_app
from myqueue.gateway.settings import DEFAULTS


@pytest.fixture(scope="module")
def app() -> Iterator[Flask]:
    app = create_app(replace(DEFAULTS, cluster="127.0.0.1:9", request_timeout_ms=100))
    yield app
    app.extensions["myqueue"].close()


def test_no_browser_guesses_or_keeps_an_answer(app: Flask) -> None:
    """The short way, Flask, and what the server itself refuses; a success and failures."""
    with serving(app, app.extensions["myqueue-fast-path"]) as (port, _):
        for first_line, body, status in (
            ("GET /livez", b"", 200),
            ("GET /", b"", 200),
            ("GET /openapi.json", b"", 200),
            ("POST /producer/produce", b"{", 400),
            ("GET /none", b"", 404),
            ("GET /topics", b"[]", 400),
            ("GET /topics/./settings", b"", 405),
            ("BAD", b"", 400),
        ):
            line = BareConnection(port)
            head = f"{first_line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            line.sock.sendall(head.encode() + b"\r\n" + body)
            found, fields = line.head()
            assert found == status, first_line
            assert fields["content-type"] == "application/json", first_line
            assert fields["x-content-type-options"] == "nosniff", first_line
            assert fields["cache-control"] == "no-store", first_line
            line.close()
