"""A gateway as a process of its own, and a plain HTTP client that knows nothing of this project."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from support.processes import free_ports, wait_for

Answer = tuple[int, dict[str, Any]]


class Gateway:
    """One `myq-gateway`. A test may kill it, stop it and start it again at the same address."""

    def __init__(self, folder: Path, cluster: str, name: str = "gateway", **settings: Any) -> None:
        self.folder, self.name, self.settings = folder, name, settings
        (self.port,) = free_ports(1)
        self.cluster = cluster
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def start(self, *, ready: bool = True) -> Gateway:
        words = ["--cluster", self.cluster, "--listen", f"127.0.0.1:{self.port}"]
        for key, value in self.settings.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "myqueue.gateway.main", *words],
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        if ready:
            wait_for(f"{self.name} to be ready", self._is_ready, 60)
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log[-3000:]
        try:
            return ask(self.port, "GET", "/readyz")[0] == 200
        except (OSError, HTTPException):
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def stop(self, within_s: float = 15.0) -> float:
        """Send SIGTERM, check exit code 0, return the seconds it took."""
        assert self.process is not None
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(within_s)
        self.process = None
        assert code == 0, self.log[-3000:]
        return time.monotonic() - begin

    def check(self) -> None:
        """Check that the process lives and logged no crash."""
        assert self.process is not None and self.process.poll() is None, self.log[-3000:]
        assert "Traceback" not in self.log, self.log[-5000:]

    def __enter__(self) -> Gateway:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def ask(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout: float = 40.0,
    headers: dict[str, str] | None = None,
    **query: Any,
) -> Answer:
    """Send one request on a new connection; return status and JSON."""
    with Client([port], timeout=timeout) as client:
        return client.ask(method, path, body, headers=headers, **query)


class Client:
    """A keep-alive connection to the first of some gateways, for one thread."""

    def __init__(self, ports: list[int], timeout: float = 40.0) -> None:
        self.ports, self.timeout = list(ports), timeout
        self.headers: dict[str, str] = {}
        self.repeats = 0
        self._connection: HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """`body`: an object, or bytes as they are. A failed connection raises."""
        if query:
            path += "?" + urllib.parse.urlencode(query)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if self._connection is None:
            self._connection = HTTPConnection("127.0.0.1", self.ports[0], timeout=self.timeout)
        try:
            self._connection.request(method, path, data, self.headers | (headers or {}))
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, HTTPException):
            self.close()
            raise
        answer = json.loads(text) if text else {}
        check_form(response.status, answer, method)
        return response.status, answer

    def insist(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str,
        seconds: float = 90.0,
        **query: Any,
    ) -> dict[str, Any]:
        """Repeat with the same Idempotency-Key, at any gateway, until it succeeds."""
        end = time.monotonic() + seconds
        while True:
            try:
                status, answer = self.ask(
                    method, path, body, headers={"Idempotency-Key": key}, **query
                )
                if status == 200:
                    return answer
                last: Any = answer
                assert answer["retriable"], (method, path, body, query, status, answer)
            except (OSError, HTTPException) as error:
                last = error
            assert time.monotonic() < end, f"{method} {path} not within {seconds} s: {last}"
            self.repeats += 1
            self.ports.append(self.ports.pop(0))
            self.close()
            threading.Event().wait(0.1)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FAILURE_KEYS = {"status", "message", "code", "name", "retriable", "outcome", "component", "hint"}
BESIDE = {
    "NOT_READY": {"problems", "omitted"},  # of /healthz
    "BATCH_UNREADABLE": {"topic", "partition", "offset", "next_offset", "messages"},
}


def check_form(status: int, answer: dict[str, Any], method: str = "GET") -> None:
    """Check the fields that every answer of the API has."""
    if method == "HEAD":
        return
    if status == 200:
        is_empty = answer.get("empty") is True  # that nothing is left is told as a failure
        assert answer.get("status", "success") == "success" or is_empty, answer
        return
    beside = BESIDE.get(str(answer.get("name")), set())
    assert answer["status"] == "failure", (status, answer)
    assert set(answer) - beside == FAILURE_KEYS, (status, answer)
    assert isinstance(answer["code"], int) and isinstance(answer["retriable"], bool)
    assert answer["outcome"] in ("none", "unknown") and answer["component"] and answer["message"]
    assert (status == 504) <= (answer["outcome"] == "unknown"), answer


Answer = tuple[int, dict[str, Any]]


def good(answer: Answer) -> dict[str, Any]:
    assert answer[0] == 200, answer
    return answer[1]


def bad(answer: Answer, status: int, name: str) -> dict[str, Any]:
    assert (answer[0], answer[1]["name"]) == (status, name), answer
    return answer[1]
