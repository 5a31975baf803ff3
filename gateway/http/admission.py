"""Check a request by its head alone, before its body is read.

A request that is refused here would also be refused with its body, by the same check
(`gateway/api/auth.py`). So a client without a token can't make a gateway hold bodies. How large a
body may be depends on the operation: only producing messages needs all of `body_bytes_max`.
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

REQUEST_BODY_BYTES_MAX: Final = 1 << 20  # for an operation that produces nothing
CONSOLE_FORM_BYTES_MAX: Final = 2 << 20  # a console form: typed by hand
LOGIN_FORM_BYTES_MAX: Final = 16 << 10  # for a form sent without a known token: the login
COOKIE: Final = "myq_token"  # holds the token of a person who logged in to the console


class HeaderFields:
    """The headers of a head, by name in any case."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def get(self, name: str, /) -> str | None:
        return self._headers.get(name.lower())


class Admission:
    """Checks heads; raises the error that the client gets."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._guard: Guard = app.extensions["myqueue-guard"]
        config: GatewayConfig = app.extensions["myqueue-config"]
        self._most = config.body_bytes_max
        self._table = {(row.method, row.path): row for row in OPERATIONS if "<" not in row.path}

    def check(self, head: Head) -> None:
        """Raise Unauthorized, Forbidden or BodyTooLarge if the body must not be read."""
        operation = self._table.get((head.method, head.path))
        if operation is not None:
            self._guard.check(operation.role, operation.changes, HeaderFields(head.headers))
            body_bytes_max = self._most if operation.role == WRITE else REQUEST_BODY_BYTES_MAX
        else:
            body_bytes_max = self._check_by_pattern(head)
        if head.length > body_bytes_max:
            raise BodyTooLarge(
                f"a body of {head.length} bytes; this gateway takes"
                f" {min(body_bytes_max, self._most)} for {head.method} {head.path[:100]}"
            )

    def _check_by_pattern(self, head: Head) -> int:
        """Check a path that is not in the table (with variables, a page, or unknown); return how
        large its body may be.
        """
        path = head.path.encode("latin-1").decode("utf-8", "replace")
        try:
            endpoint = str(self._app.url_map.bind("").match(path, head.method)[0])
        except Exception:  # no such path, or not with this method: Flask answers that
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
