"""Check a request by its head alone, before its body is read.

A request that is refused here would also be refused with its body, by the same check
(`gateway/api/auth.py`). So a client without a token can't make a gateway hold bodies. How large a
body may be depends on the operation: only producing messages needs all of `body_bytes_max`.
"""

from __future__ import annotations

from typing import Final

from flask import Flask

from myqueue.errors import BodyTooLarge
from myqueue.gateway.api.auth import (
    CONSOLE_FORM_BYTES_MAX,
    Guard,
    access_to_page,
    cookie_authorization,
)
from myqueue.gateway.api.operations import WRITE
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.http.routes import Routes
from myqueue.gateway.settings import GatewayConfig

REQUEST_BODY_BYTES_MAX: Final = 1 << 20  # for an operation that produces nothing
LOGIN_FORM_BYTES_MAX: Final = 16 << 10  # for a form sent without a known token: the login


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
        self._routes = Routes(app)
        self._guard: Guard = app.extensions["myqueue-guard"]
        config: GatewayConfig = app.extensions["myqueue-config"]
        self._most = config.body_bytes_max

    def check(self, head: Head) -> None:
        """Raise Unauthorized, Forbidden or BodyTooLarge if the body must not be read."""
        route, headers = self._routes.find(head.method, head.path), HeaderFields(head.headers)
        operation = route.operation
        if operation is not None:
            self._guard.check(operation.role, operation.changes, headers)
            body_bytes_max = self._most if operation.role == WRITE else REQUEST_BODY_BYTES_MAX
        else:
            self._guard.check(*access_to_page(route.page, head.method), headers)
            body_bytes_max = LOGIN_FORM_BYTES_MAX if route.page is None else REQUEST_BODY_BYTES_MAX
            if route.endpoint.startswith("console."):
                if head.length > LOGIN_FORM_BYTES_MAX:
                    cookie = cookie_authorization(head.headers.get("cookie", ""))
                    self._guard.authenticate(head.headers.get("authorization") or cookie)
                body_bytes_max = CONSOLE_FORM_BYTES_MAX
        if head.length > body_bytes_max:
            raise BodyTooLarge(
                f"a body of {head.length} bytes; this gateway takes"
                f" {min(body_bytes_max, self._most)} for {head.method} {head.path[:100]}"
            )
