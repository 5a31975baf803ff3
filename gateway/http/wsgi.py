"""Call a WSGI application with a request, and turn its result into an answer (PEP 3333)."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from myqueue.errors import Internal, MyQueueError
from myqueue.gateway.api import responses
from myqueue.gateway.http import request_head
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

Headers = list[tuple[str, str]]
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
_BODILESS: Final = ("1", "204", "304")


class Answer:
    """The answer to one request: a body, or a stream of chunks whose end is not known yet."""

    __slots__ = ("body", "close", "headers", "minor", "status", "stream")

    def __init__(self, status: str, headers: Headers, body: bytes, close: bool) -> None:
        self.status, self.headers, self.body, self.close = status, headers, body, close
        self.stream: Iterable[bytes] | None = None
        self.minor = 1

    def head(self, date: str) -> bytes:
        chunked = self.stream is not None and self.minor == 1
        return request_head.head_of_answer(
            self.status, self.headers, date, close=self.close, chunked=chunked
        )

    def chunk(self, data: bytes) -> bytes:
        """Encode one chunk as it goes over the wire; the empty chunk is the end."""
        if not self.minor:
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)

    def close_stream(self) -> None:
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()


# Gets the answer; or a function that makes it and takes long, to be run in the pool.
Respond = Callable[[Answer | Callable[[], Answer]], None]


def refusal(error: MyQueueError) -> Answer:
    """Make the answer to a request that never reached the application. It closes the connection."""
    reply = responses.failure(error, lambda address: address)
    return Answer(request_head.reason(reply.status), reply.headers, reply.body, True)


def run_application(
    application: Application,
    config: GatewayConfig,
    address: str,
    head: Head,
    body: bytes,
) -> Answer:
    """Call the application; whatever it raises, return an answer."""
    started: list[Any] = []
    written: list[bytes] = []

    def start_response(status: str, headers: Headers, exc_info: Any = None) -> Any:
        started[:] = [status, headers]
        return written.append

    try:
        chunks = application(_environment(config, address, head, body), start_response)
        return _answer(head, started, written, chunks)
    except Exception:
        log.exception("the application failed at %s %s", head.method, head.path)
        return refusal(Internal("the gateway failed; its log says where"))


def _answer(
    head: Head, started: list[Any], written: list[bytes], chunks: Iterable[bytes]
) -> Answer:
    header_names: list[str] = [name.lower() for name, _ in started[1]] if started else []
    if started and "content-length" not in header_names and not started[0].startswith(_BODILESS):
        answer = Answer(started[0], started[1], b"", not head.keep_alive or not head.minor)
        answer.stream, answer.minor = chunks, head.minor
        return answer
    try:
        body = b"".join([*written, *chunks])
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    status, headers = started
    if head.method == "HEAD" or status.startswith(_BODILESS):
        body = b""
    return Answer(status, headers, body, not head.keep_alive)


def _environment(config: GatewayConfig, address: str, head: Head, body: bytes) -> dict[str, Any]:
    host, _, port = config.listen.rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": head.method, "SCRIPT_NAME": "", "PATH_INFO": head.path,
        "QUERY_STRING": head.query, "SERVER_NAME": host, "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/1.{head.minor}", "REMOTE_ADDR": address,
        "wsgi.version": (1, 0), "wsgi.url_scheme": "https" if config.tls_key else "http",
        "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
        "myqueue.body": body,
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
