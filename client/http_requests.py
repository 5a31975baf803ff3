"""Requests over HTTP to one of several gateways, repeated until answered or out of time.

It uses only the standard library's HTTP, with kept connections. A repeat carries the first
attempt's `Idempotency-Key`, so nothing is done twice, even if an answer is lost or another gateway
takes over. `cluster/repeats.py` decides which errors are repeated, and when.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from secrets import token_hex
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from myqueue.cluster.repeats import GATEWAYS, Attempts
from myqueue.errors import (
    NONE,
    BatchUnreadable,
    Closed,
    InvalidSetting,
    MyQueueError,
    OutcomeUnknown,
    TimedOut,
    TroubleError,
    Unreachable,
    error_of,
)

REQUEST_S: Final = 20.0  # for one attempt, added to the wait that it asks for
TRY_S: Final = 120.0  # for one request with all its repeats
REFUSED_S: Final = 2.0  # a daemon that restarts refuses connections for less than this
TIMEOUT_S_MIN: Final = 0.02
PARTITIONS_S: Final = 5.0  # the number of partitions is asked for again after this


class Gateways:
    """A connection to one of several gateways, or to the next one if it fails. For one thread."""

    def __init__(self, addresses: str, token: str = "") -> None:
        """`addresses` is `http://host:port[,…]`; later ones may leave out http://."""
        found = [part.strip().rstrip("/") for part in addresses.split(",") if part.strip()]
        scheme = "https" if found and found[0].startswith("https://") else "http"
        self._urls = [part if "://" in part else f"{scheme}://{part}" for part in found]
        for url in self._urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path:
                raise InvalidSetting(f"not a gateway's address: {url!r}; write http://host:port")
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._at = 0
        self._connection: HTTPConnection | None = None
        self.ends_at = math.inf  # no request begins or is repeated after this
        self._refused: dict[str, float] = {}  # url -> refuses connections since then

    def ask(
        self,
        method: str,
        path: str,
        values: Mapping[str, Any],
        *,
        key: str = "",
        try_s: float = TRY_S,
        refused_s: float = math.inf,
        stopped: threading.Event | None = None,
    ) -> dict[str, Any]:
        """Send a request; return the answer of a success, or raise its error.

        Retriable errors are repeated for `try_s` seconds: always with a key or GET, else only if
        the request was certainly not done. Raises Unreachable earlier if all addresses refuse
        connections for `refused_s`.
        """
        end = time.monotonic() + try_s
        attempts = Attempts(GATEWAYS, is_safe=bool(key) or method == "GET")
        while True:
            try:
                return self._once(method, path, values, key)
            except MyQueueError as error:
                self._check_refused(refused_s)
                is_repeated, pause_s = attempts.failed(error), attempts.pause_ms() / 1000
                if not is_repeated or time.monotonic() + pause_s > min(end, self.ends_at):
                    if attempts.is_unknown and error.outcome == NONE:
                        raise TimedOut(f"{method} {path}: {error}") from None
                    raise
                if stopped is not None and stopped.is_set():
                    raise Closed("it was stopped") from None
            self._drop()
            self._at = (self._at + 1) % len(self._urls)
            (stopped or threading.Event()).wait(pause_s)

    def _check_refused(self, limit_s: float) -> None:
        if len(self._refused) < len(self._urls):
            return
        refused_s = time.monotonic() - max(self._refused.values())
        if refused_s >= limit_s:
            reasons = "; ".join(f"{url}: connection refused" for url in self._urls)
            raise Unreachable(f"every gateway refused connections for {refused_s:.1f} s: {reasons}")

    def _once(self, method: str, path: str, values: Mapping[str, Any], key: str) -> dict[str, Any]:
        url = self._urls[self._at]
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        body = None
        if method == "GET":
            path += "?" + urlencode(values)
        else:
            body = json.dumps(values)
        was_sent = False
        try:
            connection = self._connect(url, values)
            was_sent = True
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, HTTPException) as error:
            self._drop()
            if isinstance(error, ConnectionRefusedError):
                self._refused.setdefault(url, time.monotonic())
            else:
                self._refused.pop(url, None)
            text = f"{url}: {type(error).__name__} {error}"
            kind = OutcomeUnknown if was_sent else Unreachable
            raise kind(text, component=url) from None
        self._refused.pop(url, None)
        if response.will_close:
            self._drop()
        return _open(url, response.status, data)

    def _connect(self, url: str, values: Mapping[str, Any]) -> HTTPConnection:
        timeout = REQUEST_S + int(values.get("wait_ms", 0)) / 1000
        timeout = max(TIMEOUT_S_MIN, min(timeout, self.ends_at - time.monotonic()))
        if self._connection is None:
            parts = urlsplit(url)
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            connection = kind(parts.hostname or "", parts.port, timeout=timeout)
            connection.connect()
            self._connection = connection
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._drop()


def _open(url: str, status: int, data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
        if answer["status"] == "success" or answer.get("empty") is True:
            return dict(answer)  # "nothing left to consume" is not an error
        code, text = int(answer["code"]), str(answer["message"])
    except (ValueError, TypeError, KeyError):
        raise TroubleError(f"{url}: status {status}, and no answer of a gateway") from None
    error = error_of(code, text, str(answer.get("component", "")))
    error.retriable = bool(answer.get("retriable"))
    error.outcome = str(answer.get("outcome"))
    if isinstance(error, BatchUnreadable) and "next_offset" in answer:
        error.topic, error.partition = str(answer["topic"]), int(answer["partition"])
        error.offset, error.next_offset = int(answer["offset"]), int(answer["next_offset"])
    raise error


def register(gateways: Gateways, kind: str, topic: str, limit_s: float) -> dict[str, Any]:
    """Register within this time, whatever happens: a constructor waits for it."""
    before, gateways.ends_at = gateways.ends_at, time.monotonic() + limit_s
    try:
        return gateways.ask(
            "POST",
            f"/{kind}/register",
            {"topic": topic},
            key=token_hex(16),
            try_s=limit_s,
            refused_s=REFUSED_S,
        )
    except OutcomeUnknown as error:
        raise TimedOut(f"no id for {topic} within {limit_s:.1f} s: {error}") from None
    finally:
        gateways.ends_at = before


def partition_count(gateways: Gateways, topic: str, known: dict[str, tuple[int, float]]) -> int:
    count, until = known.get(topic, (0, 0.0))
    now = time.monotonic()
    if now >= until:
        count = len(gateways.ask("GET", "/partitions", {"topic": topic})["partitions"])
        known[topic] = count, now + PARTITIONS_S
    return count
