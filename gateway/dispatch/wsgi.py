"""Call a WSGI application with a request, and turn its result into an answer (PEP 3333)."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from myqueue.errors import Internal
from myqueue.gateway.dispatch.api_forms import refusal
from myqueue.gateway.http.answer import Answer, Headers
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
_BODILESS: Final = ("1", "204", "304")


def run_application(
    application: Application,
    config: GatewayConfig,
    address: str,
    head: Head,
    body: bytes,
) -> Answer:
    """Call the application; whatever it raises, return an answer."""
    response = _Response()
    try:
        chunks = application(_environment(config, address, head, body), response.start)
        return _answer(head, response, chunks)
    except Exception:
        log.exception("the application failed at %s %r from %s", head.method, head.path, address)
        return refusal(Internal("the gateway failed; its log says where"))


class _Response:
    """What the application gives to `start_response`, and to the `write` that this returns."""

    __slots__ = ("headers", "status", "written")

    def __init__(self) -> None:
        self.status = ""
        self.headers: Headers = []
        self.written: list[bytes] = []

    def start(self, status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], None]:
        self.status, self.headers = status, headers
        return self.written.append


def _answer(head: Head, response: _Response, chunks: Iterable[bytes]) -> Answer:
    """Join the parts of the body, so that every answer has a length."""
    try:
        # A generator calls `start_response` only when its first chunk is taken.
        parts = list(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    body = b"".join(response.written + parts)
    status, headers = response.status, response.headers
    if not status:
        raise RuntimeError("the application did not call start_response")
    if status.startswith(_BODILESS) or head.method == "HEAD":
        body = b""  # no Content-Length is added: the application may have left out HEAD's body
    elif not any(name.lower() == "content-length" for name, _ in headers):
        headers = [*headers, ("Content-Length", str(len(body)))]
    return Answer(status, headers, body, not head.keep_alive)


def _environment(config: GatewayConfig, address: str, head: Head, body: bytes) -> dict[str, Any]:
    host, _, port = config.listen.rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": head.method, "SCRIPT_NAME": "", "PATH_INFO": head.path,
        "QUERY_STRING": head.query, "SERVER_NAME": host, "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/1.{head.minor}", "REMOTE_ADDR": address,
        "wsgi.version": (1, 0), "wsgi.url_scheme": "https" if config.tls_certificate else "http",
        "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
        "myqueue.body": body,  # for `fast_path.py`
    }  # fmt: skip
    for name, value in head.headers.items():
        if "_" in name:
            continue  # X_Y and X-Y would become the same variable
        key = name.upper().replace("-", "_")
        if key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            environ[key] = value
        else:
            environ[f"HTTP_{key}"] = value
    return environ
