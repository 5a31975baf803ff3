"""`myq bench http`: measure a gateway over keep-alive connections, as applications use it.

One thread and one epoll make all the load, with requests built beforehand: a client that needed as
much CPU as the gateway would measure itself. Each connection has one request in flight and sends
the next one after the answer (a closed loop: the rate is the gateway's, and the latency is that
under full load). Only successes count.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from myqueue.cli.bench.parts import percentiles
from myqueue.errors import InvalidSetting, TroubleError, Unreachable

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
SUCCESS = b'{"status":"success"'
RECEIVE_BYTES = 1 << 18
WAIT_S = 10.0


class Target(NamedTuple):
    """The address of a gateway, and the token it requires."""

    host: str
    port: int
    token: str

    def ask(self, method: str, path: str, **values: Any) -> dict[str, Any]:
        """Send one request outside of the measurement; raise an error unless it succeeds."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, json.dumps(values), self._headers())
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except OSError as error:
            raise Unreachable(f"http://{self.host}:{self.port}: {error}") from None
        finally:
            connection.close()
        if answer.get("status") != "success":
            raise TroubleError(f"{method} {path}: {answer.get('message')}")
        return answer

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def request(self, method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self._headers().items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if key:
            lines.append(f"Idempotency-Key: {key}")
        return "\r\n".join([*lines, "", ""]).encode() + body


def target_of(url: str, token: str = "") -> Target:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidSetting(f"not a gateway's address: {url!r}; write http://host:port")
    return Target(parts.hostname, parts.port or 80, token)


class _Line:
    """One connection, with at most one request in flight."""

    __slots__ = ("began_ns", "data", "sock", "wanted")

    def __init__(self, target: Target) -> None:
        self.sock = socket.create_connection((target.host, target.port), WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = bytearray()
        self.wanted = self.began_ns = 0

    def send(self, request: bytes) -> None:
        self.began_ns = time.perf_counter_ns()
        self.sock.sendall(request)

    def receive(self) -> bytes | None:
        """Read from the socket; return the answer's body once it is complete, else None."""
        chunk = self.sock.recv(RECEIVE_BYTES)
        if not chunk:
            raise TroubleError("the gateway closed a connection")
        self.data += chunk
        if not self.wanted:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return None
            length = _LENGTH.search(self.data, 0, end + 2)
            self.wanted = end + 4 + int(length[1] if length else 0)
        if len(self.data) < self.wanted:
            return None
        body = bytes(self.data[self.data.find(b"\r\n\r\n") + 4 : self.wanted])
        self.data.clear()
        self.wanted = 0
        return body


class Outcome(NamedTuple):
    """The result of one measurement."""

    done: int  # successes
    seconds: float
    ns: list[int]  # duration of each success
    failures: int
    first_failure: str


def drive(
    target: Target,
    requests: Callable[[], Iterator[bytes]],
    connections: int,
    seconds: float,
    done: Callable[[bytes], bool] = lambda body: False,
) -> Outcome:
    """Send as many requests as possible; end early if `done(body)` of an answer is true."""
    lines = [_Line(target) for _ in range(connections)]
    epoll = select.epoll()
    try:
        by_number = {line.sock.fileno(): line for line in lines}
        streams = {number: requests() for number in by_number}
        for number, line in by_number.items():
            epoll.register(number, select.EPOLLIN)
            line.send(next(streams[number]))
        return _loop(epoll, by_number, streams, seconds, done)
    finally:
        epoll.close()
        for line in lines:
            line.sock.close()


def _loop(
    epoll: select.epoll,
    lines: dict[int, _Line],
    streams: dict[int, Iterator[bytes]],
    seconds: float,
    done: Callable[[bytes], bool],
) -> Outcome:
    begin = time.perf_counter()
    ns: list[int] = []
    failures, first, is_over = 0, "", False
    while not is_over:
        events = epoll.poll(WAIT_S)
        if not events:
            raise TroubleError(f"no answer within {WAIT_S} s")
        for number, _ in events:
            line = lines[number]
            body = line.receive()
            if body is None:
                continue
            now = time.perf_counter_ns()
            if body.startswith(SUCCESS):
                ns.append(now - line.began_ns)
            else:
                failures += 1
                first = first or body.decode("utf-8", "replace")[:300]
            is_over = is_over or done(body)
            line.send(next(streams[number]))
        is_over = is_over or time.perf_counter() - begin > seconds
    return Outcome(len(ns), time.perf_counter() - begin, ns, failures, first)


def measure(
    url: str,
    *,
    token: str,
    connections: int,
    batch: int,
    size: int,
    partitions: int,
    seconds: float,
    keys: bool,
    as_json: bool,
) -> dict[str, Any]:
    """Measure single produces, consumes (a consumer per connection) and batches, on a new topic."""
    target = target_of(url, token)
    topic = f"bench-{token_hex(5)}"
    target.ask("POST", "/topics", topic=topic, partitions=partitions)
    try:
        number = target.ask("POST", "/producer/register", topic=topic)["producer_id"]
        producer = {"topic": topic, "producer_id": number}
        single_body = json.dumps({**producer, "message": "x" * size}).encode()
        batch_body = json.dumps({**producer, "messages": ["x" * size] * batch}).encode()

        def produce(body: bytes) -> Callable[[], Iterator[bytes]]:
            return lambda: _repeat(target, "POST", "/producer/produce", body, keys)

        def consume() -> Iterator[bytes]:
            consumer_id = target.ask("POST", "/consumer/register", topic=topic)["consumer_id"]
            path = f"/consumer/consume?topic={topic}&consumer_id={consumer_id}&empty=success"
            return _repeat(target, "GET", path, b"", keys)

        figures: dict[str, Any] = {"connections": connections, "keys": keys, "errors": []}
        for name, requests, each in (
            ("http_produce", produce(single_body), 1),
            ("http_consume", consume, 1),
            ("http_batch", produce(batch_body), batch),
        ):
            drive(target, requests, connections, min(1.0, seconds / 5))  # warm-up
            outcome = drive(target, requests, connections, seconds)
            figures[f"{name}_msgs_s"] = round(outcome.done * each / outcome.seconds)
            figures |= percentiles(outcome.ns, name)
            if outcome.failures:
                figures["errors"].append(f"{name}: {outcome.failures}: {outcome.first_failure}")
        return figures
    finally:
        target.ask("DELETE", f"/topics/{topic}")


def _repeat(target: Target, method: str, path: str, body: bytes, keys: bool) -> Iterator[bytes]:
    if not keys:
        yield from repeat(target.request(method, path, body))
    while True:
        yield target.request(method, path, body, token_hex(8))
