"""The HTTP server with small applications and no cluster: order, lengths, slow readers, ends."""

from __future__ import annotations

import gc
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.processes import wait_for
from support.sites import BIG, VAST, BareConnection, FastApplication, SampleSite, serving

from myqueue.errors import Internal, Malformed
from myqueue.gateway import thread_stacks
from myqueue.gateway.dispatch.api_forms import refusal
from myqueue.gateway.http import deadlines
from myqueue.gateway.http.answer import Answer
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.connection import Connection, State
from myqueue.gateway.settings import DEFAULTS


@pytest.fixture
def site() -> SampleSite:
    return SampleSite()


@pytest.fixture
def port(site: SampleSite) -> Iterator[int]:
    with serving(site, FastApplication()) as (number, _):
        yield number


@pytest.fixture
def line(port: int) -> Iterator[BareConnection]:
    made = BareConnection(port)
    yield made
    made.close()


def test_requests_that_come_together_are_answered_in_order(
    line: BareConnection, site: SampleSite
) -> None:
    paths = ["/a", "/quick", "/later", "/b", "/after-all", "/quick", "/later", "/later", "/c"]
    for number, path in enumerate(paths):
        line.send(path, b"%d" % number)
    for number, path in enumerate(paths):
        status, body = line.answer()
        plain = path in ("/quick", "/later", "/after-all")
        assert (status, body) == (200, b"%d" % number if plain else path.encode() + b"%d" % number)
    assert site.seen == ["/a", "/b", "/c"]


def test_bytes_one_by_one_are_a_request_too(line: BareConnection) -> None:
    for byte in b"\r\nPOST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc":
        line.sock.sendall(bytes((byte,)))
    assert line.answer() == (200, b"/xabc")


def test_much_that_comes_ahead_waits_its_turn(line: BareConnection, site: SampleSite) -> None:
    """More than is read while an answer is being made; nothing of it is lost."""
    line.send("/wait")
    sender = threading.Thread(
        target=lambda: [line.send("/quick", b"y" * 10_000) for _ in range(300)]
    )
    sender.start()
    wait_for("the first request to be worked on", lambda: site.seen == ["/wait"])
    site.gate.set()
    assert line.answer() == (200, b"/wait")
    for _ in range(300):
        assert line.answer() == (200, b"y" * 10_000)
    sender.join(10)


def test_an_answer_larger_than_any_buffer(line: BareConnection, port: int) -> None:
    line.send("/big")
    line.send("/quick", b"next")
    other = BareConnection(port)  # while nobody reads the big one
    other.send("/quick", b"other")
    assert other.answer() == (200, b"other")
    other.close()
    assert line.answer() == (200, BIG) and line.answer() == (200, b"next")


def test_a_body_without_a_length_gets_one(line: BareConnection, site: SampleSite) -> None:
    """Its parts are joined, those passed to `write` first; HEAD gets the head alone."""
    line.send("/parts")
    assert line.answer() == (200, b"written;part 0;part 1;part 2;")
    assert site.closed.is_set()
    line.send("/parts", method="HEAD")
    status, fields = line.head()
    assert status == 200 and "transfer-encoding" not in fields
    line.send("/quick", b"still here")
    assert line.answer() == (200, b"still here")


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/fails%0a", "failed, and is closed"),
        ("/fails-later", "was not answered"),
    ],
)
def test_the_log_names_the_request_that_failed(
    line: BareConnection, caplog: pytest.LogCaptureFixture, path: str, event: str
) -> None:
    line.send(path)
    assert line.file.read() == b""
    shown = path.replace("%0a", r"\n")
    assert f"POST '{shown}' from 127.0.0.1 {event}: a defect of this program" in caplog.text


def test_mistakes_of_the_application_are_an_answer(line: BareConnection) -> None:
    line.send("/broken")
    status, body = line.answer()
    assert status == 500 and b"INTERNAL" in body and b"on purpose" not in body
    assert line.file.read() == b""  # and the connection ends
    assert refusal(Internal("x")).close


def test_who_asks_to_close_or_has_closed_already(port: int, site: SampleSite) -> None:
    closes = BareConnection(port)
    closes.send("/quick", b"1", more="Connection: close\r\n")
    assert closes.answer() == (200, b"1") and closes.file.read() == b""
    closes.close()
    half = BareConnection(port)
    half.send("/wait")
    half.sock.shutdown(socket.SHUT_WR)  # it only listens from now on
    wait_for("the request to be worked on", lambda: "/wait" in site.seen)
    site.gate.set()
    assert half.answer() == (200, b"/wait")
    half.close()
    gone = BareConnection(port)
    gone.send("/later", b"x")
    gone.close()
    last = BareConnection(port)
    last.send("/quick", b"2")
    assert last.answer() == (200, b"2")
    last.close()


def test_a_refusal_ends_the_connection_even_if_its_handler_forgets_that() -> None:
    """The rest of the refused request would be taken for the next one."""
    kept = Answer("400 Bad Request", [("Content-Length", "0")], b"", close=False)
    sender = AnswerSender(DEFAULTS, lambda error: kept, lambda: None)
    ours, client = socket.socketpair()
    with ours, client:
        connection = Connection(ours, "here")
        sender.refuse(connection, Malformed("on purpose"))
        assert connection.close_after_answer
        assert b"\r\nConnection: close\r\n" in client.recv(4096)


def test_http_1_0_is_told_that_its_connection_stays(line: BareConnection) -> None:
    for _ in range(2):
        line.sock.sendall(b"GET /quick HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert line.head()[1]["connection"] == "keep-alive"
    line.send("/quick")
    assert "connection" not in line.head()[1]
    line.sock.sendall(b"GET /quick HTTP/1.0\r\n\r\n")
    assert line.head()[1]["connection"] == "close"
    assert line.file.read() == b""


def test_states_change_as_their_table_says(
    monkeypatch: pytest.MonkeyPatch, site: SampleSite
) -> None:
    """Every row is taken by these requests, and no change of the state is missing in the table."""
    rows = re.findall(r"^ {8}([a-z_]+) +([A-Z_, ]+?)  +([A-Z_]+)  ", State.__doc__ or "", re.M)
    assert len(rows) == 7
    taken: set[str] = set()
    others: list[str] = []

    def watch(name: str, before: list[str], after: str) -> None:
        change: Callable[..., Any] = getattr(Connection, name)

        def watched(connection: Connection, *timeout: float) -> Any:
            state = connection.state.name
            taken.add(name)
            if state not in before:
                others.append(f"{name} in {state}")
            return change(connection, *timeout)

        monkeypatch.setattr(Connection, name, watched)

    for name, before, after in rows:
        watch(name, before.split(", "), after)
    limits = {"body_bytes_max": 1 << 20, "bodies_bytes_max": 1_400_000}
    with serving(site, FastApplication(), **limits) as (port, _):
        reader, first, second = (BareConnection(port) for _ in range(3))
        reader.sock.sendall(b"\r\nGET")
        wait_for("a head to begin", lambda: "begin_head" in taken)
        reader.sock.sendall(b" /vast HTTP/1.1\r\nHost: h\r\n\r\n")
        wait_for("an answer to fill its socket", lambda: "begin_writing" in taken)
        assert reader.answer() == (200, VAST)
        first.send("/wait", b"x" * 900_000)
        wait_for("the first body to be held", lambda: "/wait" in site.seen)
        second.sock.sendall(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n")
        wait_for("the second one to wait for room", lambda: "await_room" in taken)
        site.gate.set()
        second.sock.sendall(b"x" * 900_000)
        assert (first.answer()[0], second.answer()[0]) == (200, 200)
        second.sock.sendall(b"BAD\r\n\r\n")
        assert second.answer()[0] == 400 and second.file.read() == b""
        for line in (reader, first, second):
            line.close()
    assert (taken, others) == ({name for name, _, _ in rows}, [])


def test_empty_lines_do_not_put_off_the_deadline() -> None:
    """Not even if each of them comes as two bytes: the first could be the begin of a head."""
    with serving(SampleSite(), FastApplication()) as (port, server):
        line = BareConnection(port)
        wait_for("the connection", lambda: bool(list(server._connections)))
        (connection,) = server._connections
        deadline = connection.deadline
        for _ in range(3):
            line.sock.sendall(b"\r")
            wait_for("half an empty line", lambda: connection.received == b"\r")
            line.sock.sendall(b"\n")
            wait_for("its other half", lambda: not connection.received)
            assert connection.deadline == deadline
        line.send("/quick", b"a request all the same")
        assert line.answer() == (200, b"a request all the same")
        line.close()


def test_expect_continue(line: BareConnection) -> None:
    line.sock.sendall(
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    assert line.file.readline() == b"HTTP/1.1 100 Continue\r\n" and line.file.readline() == b"\r\n"
    line.sock.sendall(b"ok")
    assert line.answer() == (200, b"/xok")


def test_a_request_that_is_never_answered_ends_all_the_same(
    port: int,
    line: BareConnection,
    site: SampleSite,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection is closed, the log says where every thread stood, and others go on; what its
    thread says later goes nowhere, even if another connection has its number by then.
    """
    monkeypatch.setattr(deadlines, "making_s_max", lambda config: 0.2)
    line.send("/wait")
    assert line.file.read() == b""
    assert "POST '/wait' from 127.0.0.1 is overdue after 0 s" in caplog.text
    (record,) = [record for record in caplog.records if "is overdue" in record.message]
    assert "self.gate.wait(30)" in vars(record)["facts"]["trace"]
    monkeypatch.undo()
    others = [BareConnection(port) for _ in range(4)]
    site.gate.set()
    for number, other in enumerate(others):
        other.send("/later", b"%d" % number)
        assert other.answer() == (200, b"%d" % number)
        other.close()


def test_garbage_is_not_collected_while_threads_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python holds a lock then: a finalizer that let another thread run stopped the process."""
    seen = []
    frames = sys._current_frames

    def look() -> dict[int, Any]:
        seen.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", look)
    assert "MainThread" in thread_stacks.describe_threads()
    assert seen == [False] and gc.isenabled()
