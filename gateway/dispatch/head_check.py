"""Check a request by its head alone, before its body is read.

A client without a token can't make a gateway hold bodies. Role and origin are checked here as
`gateway/api/auth.py` checks them again for the complete request, so nothing is refused that would
be answered otherwise. How large a body may be depends on the operation and is checked only here:
only producing messages needs all of `body_bytes_max`.
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
from myqueue.gateway.dispatch.api_forms import HeaderFields
from myqueue.gateway.dispatch.routes import Route, Routes
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.settings import GatewayConfig

REQUEST_BODY_BYTES_MAX: Final = 1 << 20  # for an operation that produces nothing
# Without a known token: the login form, and a body for a path that leads nowhere.
UNKNOWN_SENDER_BYTES_MAX: Final = 16 << 10


class HeadCheck:
    """Refuses requests that must not send their body."""

    def __init__(self, app: Flask) -> None:
        self._routes = Routes(app)
        self._guard: Guard = app.extensions["myqueue-guard"]
        config: GatewayConfig = app.extensions["myqueue-config"]
        self._body_bytes_max = config.body_bytes_max

    def check(self, head: Head) -> None:
        """Raise Unauthorized, Forbidden or BodyTooLarge if the body must not be read."""
        route, headers = self._routes.find(head.method, head.path), HeaderFields(head.headers)
        operation = route.operation
        if operation is not None:
            self._guard.check(operation.role, operation.changes, headers)
        else:
            self._guard.check(*access_to_page(route.page, head.method), headers)
        if route.is_console and head.body_bytes > UNKNOWN_SENDER_BYTES_MAX:
            # The console checks its logins itself. A large form needs a known token.
            cookie = cookie_authorization(head.headers.get("cookie", ""))
            self._guard.authenticate(head.headers.get("authorization") or cookie)
        body_bytes_max = self._limit(route)
        if head.body_bytes > body_bytes_max:
            raise BodyTooLarge(
                f"a body of {head.body_bytes} bytes; this gateway takes"
                f" {min(body_bytes_max, self._body_bytes_max)} for {head.method} {head.path[:100]}"
            )

    def _limit(self, route: Route) -> int:
        if route.operation is not None:
            is_write = route.operation.role == WRITE
            return self._body_bytes_max if is_write else REQUEST_BODY_BYTES_MAX
        if route.is_console:
            return CONSOLE_FORM_BYTES_MAX
        return UNKNOWN_SENDER_BYTES_MAX if route.page is None else REQUEST_BODY_BYTES_MAX
