"""Whether a request may come in, by its head alone: asked before its body is read.

What is refused here would be refused with its body as well, and by the same judge
(`gateway/api/auth.py`); so nobody without a token makes a gateway hold bodies for them. How large a
body may be depends on what it is for: only messages to be produced need all of `body_bytes_max`.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Final

from flask import Flask

from myqueue.errors import BodyTooLarge
from myqueue.gateway.api.auth import Guard
from myqueue.gateway.api.browser_origins import SAFE
from myqueue.gateway.api.operations import OPERATIONS, READ, WRITE
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.settings import GatewayConfig

REQUEST_BODY_BYTES_MAX: Final = 1 << 20  # of an operation that produces nothing
CONSOLE_FORM_BYTES_MAX: Final = 2 << 20  # of the console; a test message is typed by hand
LOGIN_FORM_BYTES_MAX: Final = 16 << 10  # of a form by nobody knows whom: the login
COOKIE: Final = "myq_token"  # by which the console knows who is logged in


class HeaderFields:
    """Headers of a head, asked for by a name in any case."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def get(self, name: str, /) -> str | None:
        return self._headers.get(name.lower())


class Admission:
    """Judges heads. Raises what the sender is told."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._guard: Guard = app.extensions["myqueue-guard"]
        config: GatewayConfig = app.extensions["myqueue-config"]
        self._most = config.body_bytes_max
        self._table = {(row.method, row.path): row for row in OPERATIONS if "<" not in row.path}

    def check(self, head: Head) -> None:
        row = self._table.get((head.method, head.path))
        if row is not None:
            self._guard.check(row.role, row.changes, HeaderFields(head.headers))
            most = self._most if row.role == WRITE else REQUEST_BODY_BYTES_MAX
        else:
            most = self._check_by_pattern(head)
        if head.length > most:
            raise BodyTooLarge(
                f"a body of {head.length} bytes; this gateway takes {min(most, self._most)} for"
                f" {head.method} {head.path[:100]}"
            )

    def _check_by_pattern(self, head: Head) -> int:
        """Of a path with variables, a page, or none that there is: how large a body may be."""
        path = head.path.encode("latin-1").decode("utf-8", "replace")
        try:
            endpoint = str(self._app.url_map.bind("").match(path, head.method)[0])
        except Exception:  # no such path, or not with this method: the application says so
            endpoint = ""
        view = self._app.view_functions.get(endpoint)
        role = None if view is None else getattr(view, "role", READ)
        changes = head.method not in SAFE or getattr(view, "changes", False)
        self._guard.check(role, changes, HeaderFields(head.headers))
        if not endpoint.startswith("console."):
            return LOGIN_FORM_BYTES_MAX if view is None else REQUEST_BODY_BYTES_MAX
        if head.length > LOGIN_FORM_BYTES_MAX:
            self._guard.who(head.headers.get("authorization") or _by_cookie(head))
        return CONSOLE_FORM_BYTES_MAX


def _by_cookie(head: Head) -> str:
    try:
        cookie = SimpleCookie(head.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    return "" if cookie is None else f"Bearer {cookie.value}"
