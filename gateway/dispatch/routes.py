"""Find the operation or page that a request is for, by its method and path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from flask import Flask

from myqueue.gateway.api.call import NO_VARIABLES
from myqueue.gateway.api.operations import OPERATIONS, Operation


class Route(NamedTuple):
    """What a path leads to: an operation, a page, or nothing."""

    operation: Operation | None
    page: Callable[..., Any] | None = None
    endpoint: str = ""  # Flask's name of either of them; "" for nothing
    variables: Mapping[str, str] = NO_VARIABLES  # those of the path

    @property
    def is_console(self) -> bool:
        """True for a page of the console."""
        return self.endpoint.startswith("console.")  # Flask puts the blueprint's name first


NOTHING: Final = Route(None)


class Routes:
    """The operations, and the pages that Flask serves."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._by_endpoint = {row.endpoint: row for row in OPERATIONS}
        # Operations without variables in their path; most requests are for one of them.
        self.fixed = {(row.method, row.path): row for row in OPERATIONS if "<" not in row.path}

    def find(self, method: str, path: str) -> Route:
        """Return the route of any path; as WSGI has it, its bytes as latin-1."""
        operation = self.fixed.get((method, path))
        if operation is not None:
            return Route(operation, None, operation.endpoint)
        text = path.encode("latin-1").decode("utf-8", "replace")
        try:
            endpoint, variables = self._app.url_map.bind("").match(text, method)
        except Exception:  # no such path, or not with this method: Flask answers that
            return NOTHING
        operation = self._by_endpoint.get(endpoint)
        page = None if operation else self._app.view_functions.get(endpoint)
        return Route(operation, page, endpoint, variables)
