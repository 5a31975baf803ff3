"""TLS: a handshake that fails is a matter of its own connection, and others never wait for one."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import wait_for
from support.sites import VAST, BareConnection, FastApplication, SampleSite, serving

from myqueue.gateway.http.server import Server

CERTIFICATE = Path(__file__).parents[1] / "http" / "certificate.pem"
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


@pytest.fixture
def port() -> Iterator[tuple[int, Server]]:
    pem = str(CERTIFICATE)
    with serving(
        SampleSite(), FastApplication(), tls_certificate=pem, tls_key=pem, connections_max=40
    ) as found:
        yield found


def test_resets_during_the_handshake_shut_no_door(
    port: tuple[int, Server], tls: ssl.SSLContext
) -> None:
    """Nobody else loses a connection by them, and who comes after them is served at once."""
    number, _ = port
    innocent = BareConnection(number, tls)
    innocent.send("/quick", b"1")
    assert innocent.answer() == (200, b"1")
    for hello in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
        for _ in range(40):
            sock = socket.create_connection(("127.0.0.1", number), 30)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.sendall(hello)
            sock.close()
    begin = time.monotonic()
    other = BareConnection(number, tls)
    other.send("/quick", b"2")
    assert other.answer() == (200, b"2")
    assert time.monotonic() - begin < 3  # each of them once cost half a second
    innocent.send("/quick", b"3")
    assert innocent.answer() == (200, b"3")
    innocent.close()
    other.close()


def test_handshakes_that_do_not_go_on_hold_up_nobody(
    port: tuple[int, Server], tls: ssl.SSLContext
) -> None:
    """More of them than there are places: they give way."""
    number, server = port
    innocent = BareConnection(number, tls)
    innocent.send("/quick", b"1")
    assert innocent.answer() == (200, b"1")
    silent = [socket.create_connection(("127.0.0.1", number), 30) for _ in range(39)]
    wait_for("them to be slow", lambda: sum(x.is_slow for x in list(server._connections)) == 39)
    silent += [socket.create_connection(("127.0.0.1", number), 30) for _ in range(20)]
    other = BareConnection(number, tls)
    other.send("/quick", b"2")
    assert other.answer() == (200, b"2")
    innocent.send("/quick", b"3")
    assert innocent.answer() == (200, b"3")
    for line in (innocent, other):
        line.close()
    for sock in silent:
        sock.close()


def test_what_comes_while_an_answer_goes(port: tuple[int, Server], tls: ssl.SSLContext) -> None:
    """One thread of the server reads of a connection while another one sends."""
    number, _ = port
    line = BareConnection(number, tls)
    count, ahead = 30, 6
    for turn in range(count + ahead):
        if turn < count:
            line.send("/vast" if turn % 10 == 0 else "/later", b"%d" % turn * 500)
        if turn >= ahead:
            wanted = VAST if (turn - ahead) % 10 == 0 else b"%d" % (turn - ahead) * 500
            assert line.answer() == (200, wanted)
    line.close()
