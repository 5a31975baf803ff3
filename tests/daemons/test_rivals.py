"""Two processes under one number, at the door of a real loop: sockets greet as daemons do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.engine_rig import EngineNet
from support.processes import free_ports

from myqueue import errors
from myqueue.daemons.network.loop import Loop
from myqueue.daemons.network.rivals import HOLD_MS, PROBE_MS, RIVAL_MS
from myqueue.daemons.network.sockets import Transport
from myqueue.wal.config import JournalConfig
from myqueue.wire import protocol

CONFIG = JournalConfig(segment_bytes=1 << 20, soft_limit_bytes=0, reserve_bytes=0)
REAL, COPY = 11, 22  # incarnations
NUMBER = ("broker", 2)


class Door:
    """A daemon's loop, turned by hand; its clock stands between turns."""

    def __init__(self, net: EngineNet) -> None:
        client, self.port = free_ports(2)
        self.net, self.engine = net, net.nodes[1].engine
        greeting = self.greeting(1, 1)
        self.transport = Transport(
            f"127.0.0.1:{client}", f"127.0.0.1:{self.port}", greeting, now=net.nodes[1].engine.now
        )
        self.loop = Loop(
            self.engine, net.nodes[1].owner, self.transport, "test", lambda *_, **__: None
        )
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []

    def greeting(self, node: int, incarnation: int) -> bytes:
        at = f"127.0.0.1:{incarnation}"
        return protocol.encode(
            protocol.GREET, 0, "test", "broker", node, "disk", incarnation, at, "0"
        )

    def close(self) -> None:
        self.transport.close()
        for socket in self.sockets:
            socket.close(0)
        self.context.term()

    def connect(self) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        self.sockets.append(socket)
        socket.connect(f"tcp://127.0.0.1:{self.port}")
        return socket

    def ask(self, socket: zmq.Socket[bytes], incarnation: int, passed_ms: int = 1) -> int:
        """The code of the refusal; 0: greeted."""
        while socket.poll(0):  # looks whether it is there
            socket.recv_multipart()
        socket.send(self.greeting(2, incarnation))
        for _ in range(2000):
            self.turn(passed_ms)
            passed_ms = 0
            if socket.poll(5):
                answer: Any = protocol.decode(socket.recv_multipart()[0])
                return 0 if answer[protocol.KIND] == protocol.GREETED else answer[3]
        raise AssertionError("no answer")

    def turn(self, passed_ms: int) -> None:
        self.net.clock.now += passed_ms
        self.loop._has_more_work = True  # do not wait
        self.loop.turn()

    def hang_up(self, socket: zmq.Socket[bytes]) -> None:
        """Its link breaks, and the door's end knows."""
        identity = self.loop._identity_by_daemon[NUMBER]
        socket.close(0)
        for _ in range(1000):
            if not self.transport.check_connected(identity):
                return
            self.transport.wait(1)
        raise AssertionError("it stands")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with EngineNet(tmp_path, 1, CONFIG) as net:
        made = Door(net)
        yield made
        made.close()


def test_rivals_that_fell_silent_are_forgotten(door: Door) -> None:
    real, copy = door.connect(), door.connect()
    assert door.ask(real, REAL) == 0
    assert door.ask(copy, COPY) == errors.IdentityMismatch.code
    assert door.engine.rivals[NUMBER].address == f"127.0.0.1:{COPY}"
    door.turn(RIVAL_MS)
    assert NUMBER in door.engine.rivals
    door.turn(RIVAL_MS)
    assert not door.engine.rivals


def test_a_daemon_whose_link_broke_while_a_rival_knocked_is_heard_at_once(door: Door) -> None:
    real, copy = door.connect(), door.connect()
    assert door.ask(real, REAL) == 0
    assert door.ask(copy, COPY) == errors.IdentityMismatch.code
    door.hang_up(real)
    again = door.connect()
    assert door.ask(again, REAL, PROBE_MS // 10) == 0  # no copy of itself
    assert door.ask(copy, COPY) == errors.IdentityMismatch.code


def test_a_link_that_breaks_for_a_moment_does_not_give_the_number_to_the_rival(door: Door) -> None:
    real, copy = door.connect(), door.connect()
    assert door.ask(real, REAL) == 0
    assert door.ask(copy, COPY) == errors.IdentityMismatch.code
    door.hang_up(real)
    for _ in range(3):
        assert door.ask(copy, COPY, PROBE_MS) == errors.Busy.code
    again = door.connect()
    assert door.ask(again, REAL, PROBE_MS) == 0
    assert door.ask(copy, COPY, PROBE_MS) == errors.IdentityMismatch.code
    door.hang_up(again)
    assert door.ask(copy, COPY, PROBE_MS) == errors.Busy.code
    assert door.ask(copy, COPY, HOLD_MS) == 0  # it never came back


def test_a_link_that_looks_whole_is_no_rival_of_its_own(door: Door) -> None:
    first, again, copy = door.connect(), door.connect(), door.connect()
    assert door.ask(first, REAL) == 0
    assert door.ask(copy, COPY) == errors.IdentityMismatch.code
    for _ in range(3):
        assert door.ask(again, REAL, PROBE_MS // 3) == errors.Busy.code


def test_a_daemon_that_is_started_again_is_heard_at_once_without_a_rival(door: Door) -> None:
    real = door.connect()
    assert door.ask(real, REAL) == 0
    door.hang_up(real)
    assert door.ask(door.connect(), REAL + 1) == 0
