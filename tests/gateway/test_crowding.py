"""Those who send slowly, or take no answers, give way to others; nobody makes the gateway swell."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support.processes import wait_for
from support.sites import VAST, BareConnection, FastApplication, SampleSite, serving

from myqueue.gateway import drop_reasons
from myqueue.gateway.app import create_app
from myqueue.gateway.dispatch.head_check import HeadCheck
from myqueue.gateway.http import body_budget, deadlines, eviction, listener, pace
from myqueue.gateway.http.connection import Connection, State
from myqueue.gateway.http.open_connections import OpenConnections
from myqueue.gateway.http.server import Server
from myqueue.gateway.settings import DEFAULTS

MB = 1_000_000
Connect = Callable[[int], BareConnection]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as lines:

        def made(port: int) -> BareConnection:
            line = BareConnection(port)
            lines.callback(line.close)
            return line

        yield made


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is slow is known after a shorter time."""
    monkeypatch.setattr(pace, "FRESH_S", 0.2)
    monkeypatch.setattr(eviction, "YOUNG_S", 0.1)
    monkeypatch.setattr("myqueue.gateway.http.server.SWEEP_S", 0.05)


def begin(line: BareConnection, path: str, length: int, sent: int) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    line.sock.sendall(head.encode() + b"x" * sent)


def counts(counted: Counter[str]) -> Callable[[str], None]:
    return lambda reason: counted.update([reason])


def held(server: Server) -> int:
    return sum(len(one.received) for one in server._connections)


def test_nobody_without_a_token_has_a_body_read(connect: Connect, tmp_path: Path) -> None:
    """It is answered by its head, while none of its body was sent."""
    file = tmp_path / "tokens"
    file.write_text("write writer-token-0123 writer")
    file.chmod(0o600)
    config = replace(DEFAULTS, cluster="127.0.0.1:9", tokens=str(file), request_timeout_ms=100)
    app = create_app(config)
    fast_path = app.extensions["myqueue-fast-path"]
    with serving(app, fast_path, check_head=HeadCheck(app).check) as (port, _):
        for path, token, status in (
            ("/producer/produce", "", 401),
            ("/producer/produce", "wrong-token-012345", 401),
            ("/topics/t/settings", "", 401),
            ("/topics", "writer-token-0123", 403),
            ("/console/create-topic", "", 401),
            ("/none", "", 413),
            ("/livez", "", 413),
        ):
            line = connect(port)
            more = f"Authorization: Bearer {token}\r\n" if token else ""
            head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 1500000\r\n{more}"
            line.sock.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert line.answer()[0] == status, path
            assert line.file.read() == b""
        line = connect(port)
        more = "Authorization: Bearer writer-token-0123\r\nExpect: 100-continue\r\n"
        head = f"POST /producer/produce HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n{more}\r\n"
        line.sock.sendall(head.encode())
        assert b" 100 " in line.file.readline() and line.file.readline() == b"\r\n"
        line.sock.sendall(b"no object")
        assert line.answer()[0] == 400
    app.extensions["myqueue"].close()


def test_slow_bodies_give_way_to_who_comes(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """All places are taken by bodies that do not end: others are served all the same, connections
    between two requests stay, and it is counted and in the log.
    """
    counted: Counter[str] = Counter()
    with serving(
        SampleSite(), FastApplication(), connections_max=20, count_dropped=counts(counted)
    ) as (port, server):
        honest = connect(port)
        honest.send("/quick", b"1")
        assert honest.answer() == (200, b"1")
        for _ in range(6):
            for _ in range(10):
                begin(connect(port), "/quick", 100, 1)
            newest = connect(port)
            newest.send("/quick", b"2")
            assert newest.answer() == (200, b"2")
            newest.close()
            wait_for("bodies to be slow", lambda: sum(not x.is_slow for x in all_of(server)) == 1)
        honest.send("/quick", b"3")
        assert honest.answer() == (200, b"3")
        wait_for("a line in the log", lambda: "connections_max is reached" in caplog.text)
    assert counted[drop_reasons.PLACES] >= 40


def test_who_comes_gets_the_place_of_who_is_idle_longest(connect: Connect) -> None:
    """All places are taken by idle connections, and those that come do not evict each other."""
    with serving(SampleSite(), FastApplication(), connections_max=40) as (port, server):
        idle = [connect(port) for _ in range(40)]
        for line in idle:
            line.send("/quick", b"1")
            assert line.answer() == (200, b"1")
        wait_for("them to be old", lambda: are_old(server))
        newest = [connect(port) for _ in range(20)]
        for line in newest:
            begin(line, "/quick", 2, 1)
        for line in newest:
            line.sock.sendall(b"y")
            assert line.answer() == (200, b"xy")
        for line in idle[20:]:
            line.send("/quick", b"2")
            assert line.answer() == (200, b"2")
        assert [line.file.read() for line in idle[:20]] == [b""] * 20


def are_old(server: Server) -> bool:
    now = monotonic() - eviction.YOUNG_S
    return all(connection.accepted_s < now for connection in all_of(server))


def test_arrivals_choose_once_who_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the docstring of `eviction`. Whoever is young or gets an answer stays."""
    choices: list[list[str]] = []
    choose = eviction.choose_for_places

    def watched(connections: Iterable[Connection], now: float) -> list[Connection]:
        chosen = choose(connections, now)
        choices.append([connection.address for connection in chosen])
        return chosen

    monkeypatch.setattr(eviction, "choose_for_places", watched)
    config = replace(DEFAULTS, listen="127.0.0.1:0", connections_max=8)
    counted: Counter[str] = Counter()
    with select.epoll() as epoll, ExitStack() as clean:
        connections = OpenConnections(epoll)
        dropped = drop_reasons.DropCounter(counts(counted))
        accepting = listener.Listener(config, epoll, connections, dropped)
        clean.callback(accepting.close)
        for name, state, had_request, pace_now, age_s in (
            ("answered", State.ANSWERING, True, 0.0, 9),
            ("half", State.HEAD, True, math.inf, 9),
            ("waits", State.WAITS_FOR_ROOM, True, math.inf, 8),
            ("idle", State.IDLE, True, math.inf, 2),
            ("idle longest", State.IDLE, True, math.inf, 3),
            ("slow", State.BODY, True, 9.0, 2),
            ("slowest", State.IDLE, False, 0.0, 1),
            ("young", State.BODY, False, 0.0, 0),
        ):
            connection = Connection(socket.socket(), name)
            connection.state, connection.had_request = state, had_request
            connection.pace.bytes_per_s = pace_now
            for field in ("accepted_s", "deadline"):
                setattr(connection, field, monotonic() - age_s)
            connection.pace.begin_s = connection.accepted_s
            connections.add(connection)
            clean.callback(connections.close, connection)
        address = accepting._socket.getsockname()
        for _ in range(8):
            clean.enter_context(socket.create_connection(address))
        accepting.accept()
        assert accepting._paused_until > 0  # only young ones are left: the last two wait
        assert counted == {drop_reasons.PLACES: 6}
        left = [connection.address for connection in connections]
        for connection in connections:
            connection.state = State.ANSWERING
        accepting.accept()
        for connection in connections:
            connections.close(connection)
    assert choices.pop() == []
    assert choices == [["slowest", "slow", "idle longest", "idle", "half", "waits"]]
    assert left == ["answered", "young", *["127.0.0.1"] * 6]
    assert counted == {drop_reasons.PLACES: 6, drop_reasons.REFUSED: 2}


def test_without_free_files_accepting_pauses_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections wait; every pause is counted, the log has one line with the remedy.

    Only this listener meets the limit: the real one would end libzmq in other threads.
    """
    counted: Counter[str] = Counter()
    accept = socket.socket.accept
    with (
        serving(SampleSite(), FastApplication(), count_dropped=counts(counted)) as (port, _),
        socket.socket() as newest,
    ):

        def accept_without_files(listener: socket.socket) -> Any:
            if listener.getsockname()[1] == port:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return accept(listener)

        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", accept_without_files)
            newest.connect(("127.0.0.1", port))
            wait_for("three pauses", lambda: counted[drop_reasons.FILES] >= 3)
        newest.sendall(b"POST /quick HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok")
        assert newest.recv(4096).endswith(b"\r\n\r\nok")
    lines = [line for line in caplog.messages if "accepting paused" in line]
    assert len(lines) == 1 and "raise ulimit -n or lower connections_max" in lines[0]
    assert not counted[drop_reasons.PLACES]


def test_large_bodies_have_one_budget(connect: Connect) -> None:
    """Bodies that it has no room for wait outside, in order; slow ones give way to them."""
    counted: Counter[str] = Counter()
    limits = {"body_bytes_max": 2 * MB, "bodies_bytes_max": 4 * MB}
    with serving(SampleSite(), None, count_dropped=counts(counted), **limits) as (
        port,
        server,
    ):
        lines = [connect(port) for _ in range(8)]
        pool = ThreadPoolExecutor(12)
        sending = [pool.submit(begin, line, "/slow", 2 * MB, 2 * MB - 1) for line in lines]
        wait_for("bodies to come", lambda: held(server) > MB)
        honest = connect(port)
        most = 0
        answer = pool.submit(lambda: (honest.send("/ok", b"y" * MB), honest.answer())[1])
        while not answer.done():
            most = max(most, held(server))
        assert answer.result() == (200, b"/ok" + b"y" * MB)
        # What one read brings comes on top, for each connection.
        assert most < 4 * MB + 9 * 2 * body_budget.SMALL_BYTES_MAX
        assert counted[drop_reasons.BYTES] > 0
        for line in lines:
            line.sock.shutdown(socket.SHUT_RDWR)
        for one in sending:
            one.exception(20)
        pool.shutdown()


def test_who_gave_way_is_told_so(connect: Connect) -> None:
    """And small bodies have bytes of their own, which large ones can't take."""
    limits = {"body_bytes_max": 1 << 17, "bodies_bytes_max": 1 << 19}  # small ones: two of 64 KiB
    with serving(SampleSite(), None, **limits) as (port, _):
        lines = [connect(port) for _ in range(3)]
        for line in lines:
            begin(line, "/slow", 60_000, 10)
        told = b"".join(line.sock.recv(4096) for line in lines[:1])
        assert b" 429 " in told and b"BUSY" in told and b"bodies" in told
        for line in lines[1:]:
            line.sock.sendall(b"x" * 59_990)
            assert line.answer()[0] == 200


def test_honest_large_bodies_all_come_through(connect: Connect) -> None:
    limits = {"body_bytes_max": 2 * MB, "bodies_bytes_max": 3 * MB}
    with serving(SampleSite(), None, **limits) as (port, _), ThreadPoolExecutor(12) as pool:

        def send(number: int) -> bool:
            line = connect(port)
            body = b"%d" % number * MB
            line.send("/ok", body)
            return line.answer() == (200, b"/ok" + body)

        assert all(pool.map(send, range(10, 22)))


def test_who_takes_no_answers_is_closed_when_they_are_too_much(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "SLOW_ANSWERS_BYTES_MAX", 40 * MB)
    counted: Counter[str] = Counter()
    with serving(SampleSite(), FastApplication(), count_dropped=counts(counted)) as (
        port,
        server,
    ):
        reader = connect(port)
        for _ in range(6):
            connect(port).send("/vast")
        reader.send("/vast")
        for _ in range(3):
            assert reader.answer() == (200, VAST)
            reader.send("/vast")
        wait_for("others to give way", lambda: counted[drop_reasons.ANSWERS] >= 2)
        untaken = sum(one.unsent_bytes for one in server._connections)
        assert untaken <= 56 * MB
        assert reader.answer() == (200, VAST)


def test_an_answer_has_one_deadline(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking a little of it now and then does not put it off."""
    monkeypatch.setattr(deadlines, "SEND_TIMEOUT_S", 0.5)
    monkeypatch.setattr(pace, "SLOW_BYTES_PER_S", 1 << 30)
    with serving(SampleSite(), FastApplication()) as (port, server):
        line = connect(port)
        line.send("/vast")
        wait_for("it to be sent", lambda: any(one.unsent_bytes for one in all_of(server)))

        def has_ended() -> bool:
            line.sock.recv(1000)
            return not all_of(server)

        wait_for("its end", has_ended, 10)


def test_who_takes_nothing_of_an_answer_is_not_waited_for(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it is: a large one has more time only as long as it is taken."""
    monkeypatch.setattr(deadlines, "SEND_TIMEOUT_S", 0.5)
    with serving(SampleSite(), FastApplication()) as (port, server):
        line = connect(port)
        line.send("/vast")
        wait_for("it to be sent", lambda: any(one.unsent_bytes for one in all_of(server)))
        wait_for("its end", lambda: not all_of(server), 10)


def all_of(server: Server) -> list[Any]:
    return list(server._connections)


def test_two_heavy_bodies_are_worked_on_at_once(connect: Connect) -> None:
    """Others of them wait; what is not heavy goes on."""
    site = SampleSite()
    with serving(site, FastApplication(), threads=8, body_bytes_max=8 << 20) as (port, _):
        lines = [connect(port) for _ in range(5)]
        for line in lines:
            line.send("/wait", b"z" * (5 << 20))
        wait_for("two of them", lambda: len(site.seen) == 2)
        other = connect(port)
        other.send("/a", b"z" * 100_000)
        assert other.answer()[0] == 200
        assert site.seen == ["/wait", "/wait", "/a"]
        site.gate.set()
        assert [line.answer()[0] for line in lines] == [200] * 5


def test_expect_continue_never_waits_for_its_client(connect: Connect) -> None:
    """Its own answers are not taken, so there is no room even for that line: others go on."""
    with serving(SampleSite(), FastApplication()) as (port, _):
        line = connect(port)
        line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stop = threading.Event()

        def flood() -> None:
            one = (
                b"POST /quick HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue\r\n"
            )
            try:
                while not stop.is_set():
                    line.sock.sendall(one + b"\r\n")
                    stop.wait(0.0005)
                    line.sock.sendall(b"x")
            except OSError:
                pass

        thread = threading.Thread(target=flood)
        thread.start()
        other = connect(port)
        for number in range(200):
            other.send("/quick", b"%d" % number)
            assert other.answer() == (200, b"%d" % number)
        stop.set()
        line.sock.shutdown(socket.SHUT_RDWR)
        thread.join(10)
