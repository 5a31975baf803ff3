"""What a gateway refuses, and that those who misbehave do not stop those who don't (H2, H3, H5)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.gateways import Client, Gateway, ask, check_form
from support.processes import Cluster, wait_for

pytestmark = pytest.mark.slow
NewTopic = Callable[..., str]


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 30)
    sock.settimeout(30)
    return sock


def raw(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """The answer on a bare socket."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(65536)
        assert chunk, f"closed after {data!r}"
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    while len(body) < length:
        body += sock.recv(65536)
    status, answer = int(head.split()[1]), json.loads(body)
    check_form(status, answer)
    return status, answer


def test_a_large_body_is_refused_before_it_is_sent(gateway: Gateway) -> None:
    """H2: 413 from its announced length; 100 MB are never read."""
    with connect(gateway.port) as sock:
        begin = time.monotonic()
        sock.sendall(b"POST /topics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
        status, answer = raw(sock)
        assert (status, answer["name"]) == (413, "BODY_TOO_LARGE")
        assert time.monotonic() - begin < 10
    big = b"x" * 100_000_000
    with Client([gateway.port]) as client:
        try:
            assert client.ask("POST", "/topics", big)[0] == 413
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was cut off while it sent, which is the other honest outcome
    gateway.check()


@pytest.mark.parametrize(
    "text",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA : y\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_proper_http_is_refused_in_the_same_form(gateway: Gateway, text: bytes) -> None:
    with connect(gateway.port) as sock:
        sock.sendall(text)
        assert raw(sock)[0] == 400
        sock.settimeout(10)
        assert sock.recv(1) == b""  # and that is the end of this connection


def test_idle_and_slow_connections_do_not_stop_honest_ones(
    gateway: Gateway, new_topic: NewTopic
) -> None:
    """H3: 1,000 that say nothing, and 200 that send a header byte by byte."""
    topic = new_topic()
    _, made = ask(gateway.port, "POST", "/producer/register", {"topic": topic})
    body = {"topic": topic, "producer_id": made["producer_id"], "message": "x"}
    idle = [connect(gateway.port) for _ in range(1000)]
    slow = [connect(gateway.port) for _ in range(200)]
    stop = threading.Event()

    def dribble() -> None:
        text = b"POST /producer/produce HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\nX-Slow: "
        at = 0
        while not stop.wait(0.05):
            for sock in slow:
                try:
                    sock.send(text[at : at + 1] or b"z")
                except OSError:
                    pass  # its time was over
            at += 1

    thread = threading.Thread(target=dribble)
    thread.start()
    try:

        def produce(_: int) -> int:
            with Client([gateway.port]) as client:
                answers = [client.ask("POST", "/producer/produce", body)[0] for _ in range(25)]
            return answers.count(200)

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(produce, range(8))) == 200
    finally:
        stop.set()
        thread.join()
        for sock in (*idle, *slow):
            sock.close()
    gateway.check()


@pytest.fixture
def strict(folder: Path, cluster: Cluster) -> Iterator[Gateway]:
    settings = {
        "header_timeout_ms": 500,
        "body_timeout_ms": 500,
        "idle_timeout_ms": 800,
        "connections_max": 40,
        "waiting_max": 3,
        "threads": 8,
    }
    with Gateway(folder, cluster.address, "strict", **settings) as gateway:
        yield gateway
        gateway.check()


def test_deadlines_end_what_does_not_come(strict: Gateway) -> None:
    """H3: a head, a body, a next request: each has its time."""
    begun = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
    for text in (b"", b"GET / HT", begun, begun + b"\r\n{"):
        with connect(strict.port) as sock:
            sock.sendall(text)
            assert sock.recv(1) == b""


def test_more_connections_than_allowed_make_the_idle_ones_go(strict: Gateway) -> None:
    some = [connect(strict.port) for _ in range(100)]
    assert ask(strict.port, "GET", "/livez")[0] == 200
    for sock in some:
        sock.close()


def test_long_polls_are_bounded(strict: Gateway, new_topic: NewTopic) -> None:
    """H5: who waits holds a place; without one 429 at once, and other requests go on."""
    topic = new_topic()
    _, reader = ask(strict.port, "POST", "/consumer/register", {"topic": topic})
    wanted = {"topic": topic, "consumer_id": reader["consumer_id"]}

    def wait(_: int) -> tuple[int, dict[str, Any]]:
        return ask(strict.port, "GET", "/consumer/consume", wait_ms=3000, **wanted)

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(wait, number) for number in range(8)]
        wait_for("refusals", lambda: sum(one.done() for one in found) == 5, 30)
        assert ask(strict.port, "GET", "/consumer/consume", **wanted)[0] == 200
        refused = [one.result() for one in found if one.done()]
        assert {answer["name"] for _, answer in refused} == {"TOO_MANY_WAITING"}
        assert {status for status, _ in refused} == {429}
        waited = [one.result() for one in found]
    assert sum(status == 200 and answer["empty"] for status, answer in waited) == 3


def test_a_long_poll_ends_when_something_comes(http: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    _, made = http.ask("POST", "/producer/register", {"topic": topic})
    _, reader = http.ask("POST", "/consumer/register", {"topic": topic})
    wanted = {"topic": topic, "consumer_id": reader["consumer_id"], "wait_ms": 30_000}
    body = {"topic": topic, "producer_id": made["producer_id"], "message": "late"}
    with ThreadPoolExecutor(2) as pool:
        for headers in ({}, {"Idempotency-Key": "one"}):
            one = pool.submit(
                ask, http.ports[0], "GET", "/consumer/consume", headers=headers, **wanted
            )
            time.sleep(0.3)  # it waits by now, or finds the message at once: both are right
            http.ask("POST", "/producer/produce", body)
            assert one.result(25)[1]["message"] == "late"


def test_sigterm_lets_requests_finish_and_ends_soon(
    folder: Path, cluster: Cluster, new_topic: NewTopic
) -> None:
    """It is not ready any more, answers what is under way, and is gone within five seconds."""
    topic = new_topic()
    gateway = Gateway(folder, cluster.address, "stopped").start()
    _, made = ask(gateway.port, "POST", "/producer/register", {"topic": topic})
    _, reader = ask(gateway.port, "POST", "/consumer/register", {"topic": topic})
    wanted = {"topic": topic, "consumer_id": reader["consumer_id"], "wait_ms": 30_000}
    body = {"topic": topic, "producer_id": made["producer_id"], "message": "x"}
    idle = connect(gateway.port)
    sent = threading.Event()

    def produce() -> list[int]:
        answers = []
        with Client([gateway.port]) as client:
            while True:
                try:
                    answers.append(client.ask("POST", "/producer/produce", body)[0])
                except OSError:
                    return answers
                sent.set()

    with ThreadPoolExecutor(4) as pool:
        waiting = pool.submit(
            ask, gateway.port, "GET", "/consumer/consume", **wanted | {"partition": 0}
        )
        producing = [pool.submit(produce) for _ in range(3)]
        assert sent.wait(30)
        took = gateway.stop()
        assert waiting.result(5)[0] in (200, 503)
        answers = [status for one in producing for status in one.result(30)]
    assert took < 10 and set(answers) <= {200, 503}, (took, set(answers))
    assert "Traceback" not in gateway.log
    idle.close()
    # Every message that was acknowledged is there, and not one more than was asked for.
    other = Gateway(folder, cluster.address, "after").start()
    query = {"topic": topic, "consumer_id": reader["consumer_id"]}
    _, size = ask(other.port, "GET", "/size", **query)
    assert answers.count(200) <= size["size"] + 1 <= answers.count(200) + 4
    other.kill()
