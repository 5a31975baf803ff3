"""One connection from its requests to its end: what is read, what is still sent, and what fails."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_for
from support.sites import VAST, BareConnection, FastApplication, SampleSite, serving

from myqueue.errors import InvalidSetting
from myqueue.gateway.app import create_app
from myqueue.gateway.dispatch.head_check import HeadCheck
from myqueue.gateway.http import listener, open_connections
from myqueue.gateway.http.answer import Answer, OnAnswer
from myqueue.gateway.http.body_budget import BodyBudget
from myqueue.gateway.http.connection import Connection, State
from myqueue.gateway.http.open_connections import IN, OUT, wanted_events
from myqueue.gateway.http.request_head import Head
from myqueue.gateway.http.server import Server
from myqueue.gateway.settings import DEFAULTS, SETTINGS, check

MB = 1_000_000
# Large bodies have three quarters of these, so one of 2 MB leaves no room for another.
ONE_LARGE_BODY: dict[str, Any] = {"body_bytes_max": 2 * MB, "bodies_bytes_max": 2_700_000}


class HoldingApplication(FastApplication):
    """Answers /hold when the test calls `release`; /unsendable from another thread, with a header
    that no answer can have.
    """

    def __init__(self) -> None:
        self.held: list[OnAnswer] = []

    def begin(self, head: Head, body: bytes, on_answer: OnAnswer) -> bool:
        if head.path == "/hold":
            self.held.append(on_answer)
        elif head.path == "/unsendable":
            answer = Answer("200 OK", [("X-Price", "1 €")], b"", False)
            threading.Thread(target=lambda: _call(on_answer, answer)).start()
        else:
            return super().begin(head, body, on_answer)
        return True

    def release(self) -> None:
        self.held.pop()(Answer("200 OK", [("Content-Length", "4")], b"held", False))


def _call(on_answer: OnAnswer, answer: Answer) -> None:
    try:
        on_answer(answer)
    except Exception:
        pass  # as a future does with what its callbacks raise


@pytest.fixture
def site() -> SampleSite:
    return SampleSite()


@pytest.fixture
def holding() -> HoldingApplication:
    return HoldingApplication()


@pytest.fixture
def started(site: SampleSite, holding: HoldingApplication) -> Iterator[tuple[int, Server]]:
    with serving(site, holding, **ONE_LARGE_BODY) as found:
        yield found


def held(server: Server) -> int:
    return max((len(one.received) for one in server._connections), default=0)


def is_served(port: int) -> None:
    line = BareConnection(port)
    line.send("/quick", b"other")
    assert line.answer() == (200, b"other")
    line.close()


def request(path: str, body: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(), len(body), body,
    )  # fmt: skip


# -- bodies that wait for room --------------------------------------------------------------------


def fill_budget(port: int, site: SampleSite) -> BareConnection:
    line = BareConnection(port)
    line.send("/wait", b"x" * 2 * MB)
    wait_for("the budget to be full", lambda: "/wait" in site.seen)
    return line


def test_a_body_that_waits_for_room_is_not_read(
    started: tuple[int, Server], site: SampleSite
) -> None:
    """Also if a quick request came together with its head."""
    port, server = started
    first, second = fill_budget(port, site), BareConnection(port)
    second.sock.sendall(request("/quick", b"1") + request("/ok", b"y" * 2 * MB)[:1000])
    assert second.answer() == (200, b"1")
    second.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
    sender = threading.Thread(
        target=second.sock.sendall, args=(request("/ok", b"y" * 2 * MB)[1000:],)
    )
    sender.start()
    for _ in range(20):  # in each of these turns the server would read some of it
        is_served(port)
        assert held(server) < 200_000
    site.gate.set()
    assert first.answer()[0] == 200
    assert second.answer() == (200, b"/ok" + b"y" * 2 * MB)
    sender.join(10)
    first.close()
    second.close()


def test_a_body_that_was_received_whole_is_answered_when_it_has_room(
    started: tuple[int, Server], site: SampleSite, holding: HoldingApplication
) -> None:
    """Its client sends nothing more that could wake up the server."""
    port, server = started
    first, second = fill_budget(port, site), BareConnection(port)
    second.send("/hold")
    wait_for("a request under way", lambda: bool(holding.held))
    body = b"y" * 70_000
    second.sock.sendall(request("/ok", body))
    wait_for("the whole of the next one", lambda: held(server) > len(body))
    holding.release()
    assert second.answer() == (200, b"held")
    is_served(port)
    assert "/ok" not in site.seen  # it counts, though it is here already
    site.gate.set()
    assert first.answer()[0] == 200
    assert second.answer() == (200, b"/ok" + body)
    first.close()
    second.close()


def test_released_room_is_given_to_the_next_body_at_once(
    site: SampleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread releases it: no sweep comes, and no client sends anything."""
    monkeypatch.setattr("myqueue.gateway.http.server.SWEEP_S", 60.0)
    with serving(site, **ONE_LARGE_BODY) as (port, server):
        first, second = fill_budget(port, site), BareConnection(port)
        second.sock.settimeout(10)
        body = b"y" * 70_000
        second.sock.sendall(request("/ok", body))
        wait_for("its head", lambda: any(x.state == State.WAITS_FOR_ROOM for x in all_of(server)))
        site.gate.set()
        assert second.answer() == (200, b"/ok" + body)
        first.close()
        second.close()


def all_of(server: Server) -> list[Connection]:
    return list(server._connections)


def test_no_body_is_larger_than_the_bytes_of_all_large_ones() -> None:
    values = {setting.name: setting.default for setting in SETTINGS}
    with pytest.raises(InvalidSetting, match="three quarters of bodies_bytes_max"):
        check(values | {"body_bytes_max": 16 << 20, "bodies_bytes_max": 20 << 20})
    config = check(values | {"body_bytes_max": 15 << 20, "bodies_bytes_max": 20 << 20})
    assert config.small_bodies_bytes_max + config.large_bodies_bytes_max == 20 << 20
    assert config.large_bodies_bytes_max == config.body_bytes_max


# -- clients that end their side ------------------------------------------------------------------


def test_a_client_that_sends_no_more_gets_all_of_a_large_answer(
    started: tuple[int, Server],
) -> None:
    line = BareConnection(started[0])
    line.send("/vast")
    line.sock.shutdown(socket.SHUT_WR)
    assert line.answer() == (200, VAST)
    assert line.file.read() == b""
    line.close()


def test_a_client_that_sends_no_more_gets_the_answers_to_all_it_sent(
    started: tuple[int, Server], holding: HoldingApplication
) -> None:
    port, server = started
    line = BareConnection(port)
    line.sock.sendall(b"".join(request(path) for path in ("/hold", "/later", "/ok", "/quick")))
    line.sock.sendall(b"POST /half HTTP")  # and nothing for the one that never becomes whole
    line.sock.shutdown(socket.SHUT_WR)
    wait_for("its end to be received", lambda: any(one.input_ended for one in server._connections))
    holding.release()
    assert [line.answer()[1] for _ in range(4)] == [b"held", b"", b"/ok", b""]
    assert line.file.read() == b""
    line.close()


@pytest.mark.parametrize("sends_end_first", [False, True])
def test_a_client_that_is_gone_frees_its_answer_at_once(
    started: tuple[int, Server], sends_end_first: bool
) -> None:
    port, server = started
    line = BareConnection(port)
    line.send("/vast")
    wait_for("it to be sent", lambda: any(one.unsent_bytes for one in server._connections))
    if sends_end_first:
        line.sock.shutdown(socket.SHUT_WR)
        wait_for("it to be received", lambda: any(x.input_ended for x in server._connections))
    line.close()
    wait_for("its end", lambda: not list(server._connections), 5)


def test_a_client_that_is_gone_wakes_up_nobody_while_its_answer_is_made(
    started: tuple[int, Server], holding: HoldingApplication
) -> None:
    """Its end would be reported again and again."""
    port, server = started
    line = BareConnection(port)
    line.send("/hold")
    line.sock.shutdown(socket.SHUT_WR)
    wait_for("its end to be received", lambda: any(x.input_ended for x in server._connections))
    line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()
    (connection,) = server._connections
    wait_for("it not to be watched", lambda: connection.watched_events is None, 5)
    holding.release()
    wait_for("its end", lambda: not list(server._connections), 5)


# -- what was refused or not, depending on how its bytes arrived ----------------------------------


@pytest.mark.parametrize("is_split", [False, True])
def test_a_body_is_checked_however_it_arrives(tmp_path: Path, is_split: bool) -> None:
    file = tmp_path / "tokens"
    file.write_text("write writer-token-0123 writer")
    file.chmod(0o600)
    config = replace(DEFAULTS, cluster="127.0.0.1:9", tokens=str(file), request_timeout_ms=100)
    app = create_app(config)
    with serving(app, app.extensions["myqueue-fast-path"], HeadCheck(app).check) as (port, _):
        for path, status in (("/none", 413), ("/console/login", 401), ("/producer/produce", 401)):
            line = BareConnection(port)
            text = request(path, b"x" * 20_000)
            line.sock.sendall(text[:500] if is_split else text)
            assert line.answer()[0] == status, path
            line.close()
    app.extensions["myqueue"].close()


# -- defects of this program ----------------------------------------------------------------------


def test_an_answer_that_cannot_be_sent_ends_its_connection(
    started: tuple[int, Server], caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever thread has it: nothing else would end the connection for two minutes."""
    line = BareConnection(started[0])
    line.sock.settimeout(10)
    line.send("/unsendable")
    assert line.file.read() == b""
    assert "POST '/unsendable' from 127.0.0.1 was not answered: a defect" in caplog.text
    line.close()
    is_served(started[0])


def test_a_connection_that_cannot_be_opened_is_its_own_matter(
    started: tuple[int, Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(listener, "Connection", fail)
        line = BareConnection(started[0])
        assert line.file.read() == b""
        line.close()
    is_served(started[0])
    assert "a defect of this program" in caplog.text


def test_a_failure_of_making_room_ends_nobody(
    started: tuple[int, Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    choose = BodyBudget.choose_to_drop

    def fail_once(budget: BodyBudget) -> Any:
        if failed.is_set():
            return choose(budget)
        failed.set()
        raise RuntimeError("on purpose")

    monkeypatch.setattr(BodyBudget, "choose_to_drop", fail_once)
    line = BareConnection(started[0])
    line.send("/ok", b"x" * MB)
    assert line.answer()[0] == 200
    wait_for("the failure", failed.is_set)
    line.send("/ok", b"y" * 2 * MB)  # the first one's bytes are free again
    assert line.answer()[0] == 200
    assert "a defect of this program" in caplog.text
    line.close()


def test_the_reading_thread_does_not_wake_itself_up(
    started: tuple[int, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vast answer takes hundreds of writes, and all but the first are its own."""
    woken: list[int] = []
    write = os.eventfd_write

    def count(fd: int, value: int) -> None:
        woken.append(fd)
        write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", count)
    line = BareConnection(started[0])
    line.send("/vast")
    assert line.answer() == (200, VAST)
    for number in range(100):
        line.send("/quick", b"%d" % number)
        line.send("/quick", b"ahead")
        assert line.answer() == (200, b"%d" % number)
        assert line.answer() == (200, b"ahead")
    assert 1 <= len(woken) <= 3
    line.close()


def test_what_is_watched_follows_from_state_and_buffers() -> None:
    """Every row is one connection; `ahead` bytes were received and not yet taken out."""
    much = open_connections.PIPELINED_BYTES_MAX + 1
    for state, ahead, ended, wants_write, events in (
        (State.IDLE, 0, False, False, IN),
        (State.IDLE, 0, True, False, 0),
        (State.HEAD, 9, False, True, IN | OUT),  # TLS has to write before it can read
        (State.BODY, much, False, False, IN),
        (State.WAITS_FOR_ROOM, 9, False, True, 0),
        (State.ANSWERING, 0, False, False, IN),
        (State.ANSWERING, much, False, False, 0),
        (State.WRITING, 0, False, False, IN | OUT),
        (State.WRITING, much, False, False, OUT),
        (State.WRITING, 0, True, False, OUT),
        (State.LINGERING, 0, False, False, IN),
    ):
        connection = Connection(socket.socket(), "here")
        connection.state, connection.received = state, bytearray(ahead)
        connection.input_ended, connection.wants_write = ended, wants_write
        assert wanted_events(connection) == events, (state, ahead, ended, wants_write)
        connection.is_failed = True
        assert wanted_events(connection) is None
        connection.sock.close()
