"""An HTTP server in this process, with a small application and no cluster; and bare connections."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from support.processes import free_ports

from myqueue.gateway.dispatch.api_forms import refusal
from myqueue.gateway.dispatch.wsgi import run_application
from myqueue.gateway.http.answer import Answer, OnAnswer, RequestHandlers
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.http.server import Server
from myqueue.gateway.settings import DEFAULTS

Start = Callable[..., Any]
BIG = b"x" * 3_000_000
VAST = b"x" * 16_000_000  # more than kernels keep for a connection


class SampleSite:
    """An application with a page for each thing that can happen; `gate` holds /wait."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.closed = threading.Event()  # the generator of /parts was
        self.seen: list[str] = []

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.seen.append(path)
        body = environ["wsgi.input"].read()
        if path == "/parts":
            return self.parts(start)
        if path == "/broken":
            raise RuntimeError("on purpose")
        if path == "/wait":
            assert self.gate.wait(30)
        text = {"/big": BIG, "/vast": VAST}.get(path, path.encode() + body)
        start("200 OK", [("Content-Length", str(len(text)))])
        return [text]

    def parts(self, start: Start) -> Iterator[bytes]:
        """A body of unknown length, written and then yielded."""
        try:
            start("200 OK", [("Content-Type", "text/plain")])(b"written;")
            for number in range(3):
                yield b"part %d;" % number
        finally:
            self.closed.set()


class FastApplication:
    """Answers /quick at once, /later from another thread, /after-all in the pool; others not.

    /fails%0a and /fails-later raise: at once, and in the pool.
    """

    def begin(self, head: Head, body: bytes, on_answer: OnAnswer) -> bool:
        answer = Answer("200 OK", [("Content-Length", str(len(body)))], body, not head.keep_alive)
        if head.path == "/quick":
            on_answer(answer)
        elif head.path == "/later":
            threading.Thread(target=on_answer, args=(answer,)).start()
        elif head.path == "/after-all":
            on_answer(lambda: answer)
        elif head.path == "/fails\n":
            raise RuntimeError("on purpose")
        elif head.path == "/fails-later":
            on_answer(lambda: {}["on purpose"])
        else:
            return False
        return True


class BareConnection:
    """A TCP connection that sends bytes as they are given."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self.file = self.sock.makefile("rb")

    def send(self, path: str, body: bytes = b"", *, more: str = "", method: str = "POST") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.sock.sendall(head.encode() + body)

    def head(self) -> tuple[int, dict[str, str]]:
        status = int(self.file.readline().split()[1])
        fields = {}
        while (line := self.file.readline().decode().strip()) != "":
            name, _, value = line.partition(": ")
            fields[name.lower()] = value
        return status, fields

    def answer(self) -> tuple[int, bytes]:
        status, fields = self.head()
        return status, self.file.read(int(fields["content-length"]))

    def close(self) -> None:
        self.file.close()
        self.sock.close()


@contextmanager
def serving(
    application: Any,
    fast: Any = None,
    check_head: Any = None,
    count_dropped: Callable[[str], None] | None = None,
    **more: Any,
) -> Iterator[tuple[int, Server]]:
    """A server in a thread: its port, and itself. `more` are settings."""
    begin = None if fast is None else fast.begin
    settings: dict[str, Any] = {"threads": 4, "stop_within_ms": 500, **more}
    for attempt in range(5):
        (number,) = free_ports(1)
        config = replace(DEFAULTS, listen=f"127.0.0.1:{number}", **settings)
        try:
            answer = partial(run_application, application, config)
            server = Server(
                config, RequestHandlers(answer, refusal, begin, check_head), count_dropped
            )
            break
        except OSError:  # somebody else was quicker
            assert attempt < 4
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield number, server
    finally:
        getattr(application, "gate", threading.Event()).set()
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
