"""Checks that every request to the console passes first, and headers that every page carries.

Names, keys and messages on these pages may be hostile, and a browser carries out what it is told.
So: no script and no style but our own files (CSP without exceptions), no framing, no guessing of
types, no referrer. A form is accepted only from a page of this console: the browser says so itself
(Sec-Fetch-Site, else Origin), and the form has a token that other origins can't read.
`../api/browser_origins.py` decides for every path which names a gateway answers to.
"""

from __future__ import annotations

import hmac
import time
from secrets import token_bytes
from typing import Final
from urllib.parse import urlsplit

import flask
from flask import Response

from myqueue.errors import Forbidden
from myqueue.gateway.api.auth import CONSOLE_FORM_BYTES_MAX

FIELDS_MAX: Final = 20
TOKEN_S: Final = 12 * 3600
AGAIN: Final = "Open the page again and send the form from there."
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class FormTokens:
    """Tokens of forms: made by this process, valid for some hours, bound to the person who is
    logged in.
    """

    def __init__(self) -> None:
        self._secret = token_bytes(32)

    def make(self, user: str = "") -> str:
        return self._sign(int(time.monotonic()), user)

    def is_good(self, token: str, user: str = "") -> bool:
        made, _, _ = token.partition(".")
        if not (made.isascii() and made.isdigit() and len(made) < 20):
            return False
        fresh = 0 <= int(time.monotonic()) - int(made) <= TOKEN_S
        # Compared as bytes: a token with other letters is wrong, not an error.
        same = hmac.compare_digest(token.encode(), self._sign(int(made), user).encode())
        return fresh and same

    def _sign(self, made: int, user: str) -> str:
        signed = f"{made}\0{user}".encode()
        return f"{made}.{hmac.new(self._secret, signed, 'sha256').hexdigest()}"


def limit_form() -> None:
    """Limit the size of forms. The API parses bodies itself; the console accepts small forms."""
    request = flask.request
    request.max_content_length = CONSOLE_FORM_BYTES_MAX
    request.max_form_memory_size = CONSOLE_FORM_BYTES_MAX
    request.max_form_parts = FIELDS_MAX


def check_form(tokens: FormTokens, user: str = "") -> None:
    """Raise Forbidden unless a page of this console sent the form."""
    request = flask.request
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    else:
        ours = origin is None or urlsplit(origin).netloc == request.host
    if not ours:
        raise Forbidden("this form was sent by a page of another site", hint=AGAIN)
    if not tokens.is_good(request.form.get("token", ""), user):
        raise Forbidden(
            "the page with this form was too old, or came from another gateway", hint=AGAIN
        )


def protect(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers[name] = value
    if "Cache-Control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
    return response
