"""Doors and links with real sockets: Z1 to Z5, Z7 to Z11, Z13, Z14, each as it can go wrong."""

from __future__ import annotations

import socket as plain
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import zmq
from support import zmtp
from support.processes import free_ports

from myqueue.daemons.interfaces import Client
from myqueue.daemons.network import flood_limit as floods_module
from myqueue.daemons.network import sockets as module
from myqueue.daemons.network.flood_limit import FloodGuard, memory_bytes
from myqueue.daemons.network.sockets import Transport
from myqueue.errors import DirectoryUnusable
from myqueue.wire import protocol

GREETING = protocol.encode(protocol.GREET, 0, "c", "broker", 1, "disk", 7, "127.0.0.1:1", "0")
BEAT = protocol.encode(protocol.BEAT, 1, {})


class Rig:
    """A daemon's sockets, turned by hand, and the strangers that talk to it."""

    def __init__(self) -> None:
        self.client, self.peer = free_ports(2)
        doors = f"127.0.0.1:{self.client}", f"127.0.0.1:{self.peer}"
        self.transport = Transport(*doors, GREETING, now=0)
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.now = 0
        self.heard: list[Any] = []
        self.broken: list[Any] = []

    def turn(self, wait_ms: int = 20) -> None:
        self.now += 50
        self.transport.wait(wait_ms)
        self.heard += self.transport.from_peers(100, 1 << 20)
        self.heard += self.transport.from_peer_connections()
        self.heard += self.transport.from_clients(100, 1 << 20)
        self.broken += self.transport.take_broken_connections()
        self.transport.tick(self.now)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, self.heard
            self.turn()
        return found

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        self.sockets.append(socket)
        return socket

    def dealer(self, port: int | None = None) -> zmq.Socket[bytes]:
        socket = self._socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{port or self.client}")
        return socket

    def router(self, port: int) -> zmq.Socket[bytes]:
        """A peer's door."""
        socket = self._socket(zmq.ROUTER)
        socket.bind(f"tcp://127.0.0.1:{port}")
        return socket

    def close(self) -> None:
        self.transport.close()
        for socket in self.sockets:
            socket.close(0)
        self.context.term()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_an_answer_to_somebody_who_left_is_counted_and_nothing_waits(rig: Rig) -> None:
    """Z1: an unknown identity is an error of the send, not silence."""
    rig.transport.reply(Client(b"nobody", "nobody"), [b"answer"])
    rig.transport.reply_to_identity(b"nobody", b"answer")
    assert rig.transport.counts["replies_dropped_total"] == 1
    assert rig.transport.counts["peer_replies_dropped_total"] == 1


def test_a_client_that_does_not_read_never_stops_the_loop(rig: Rig) -> None:
    """Z1, Z5: its queue fills up; what is beyond it is dropped and counted, at once."""
    stranger = rig.dealer()
    stranger.setsockopt(zmq.RCVHWM, 1)
    stranger.send(b"hello")
    rig.until(lambda: rig.heard)
    client = rig.transport.client(rig.heard[0][0])
    begin = time.monotonic()
    for _ in range(3 * module.SEND_QUEUE_MESSAGES):
        rig.transport.reply(client, [b"x" * 20_000])
        if rig.transport.counts["replies_dropped_total"]:
            break
    else:
        pytest.fail("nothing was dropped")
    assert time.monotonic() - begin < 20


def test_each_connection_has_an_identity_of_its_own(rig: Rig) -> None:
    """Z2: who comes again, or says the same name, takes nobody's place."""
    first, second = rig.dealer(), rig.dealer()
    for socket in (first, second):
        socket.send(b"x")
    rig.until(lambda: len(rig.heard) == 2)
    assert len({identity for identity, *_ in rig.heard}) == 2
    for identity, *_ in rig.heard:
        rig.transport.reply(rig.transport.client(identity), [identity])
    got = {socket.recv() for socket in (first, second) if socket.poll(10_000)}
    assert got == {identity for identity, *_ in rig.heard}


def test_nothing_queues_for_a_peer_that_is_not_there(rig: Rig) -> None:
    """Z3, Z4, Z14: a link of its own for each peer, silent until its greeting was answered."""
    port = free_ports(1)[0]
    peer = ("broker", 2)
    rig.transport.set_peer_address(peer, f"127.0.0.1:{port}")
    for _ in range(20):
        assert not rig.transport.send_to_peer(peer, [BEAT])
        rig.turn(5)
    door = rig.router(port)

    def greeted() -> bytes | None:
        return door.recv_multipart()[0] if door.poll(0) else None

    identity = rig.until(greeted)
    while door.poll(50):  # it may have greeted twice; nothing else was kept for it
        assert door.recv_multipart()[1] == GREETING
    assert not rig.transport.send_to_peer(peer, [BEAT]), "the greeting is not answered yet"
    door.send_multipart([identity, b"greeted"])
    assert rig.until(lambda: rig.heard)[0] == (peer, b"greeted")
    rig.transport.greeted(peer)
    assert rig.transport.send_to_peer(peer, [BEAT])
    assert rig.until(lambda: door.poll(0)) and door.recv_multipart()[1:] == [BEAT]


def test_a_link_that_breaks_is_told_and_has_to_greet_again(rig: Rig) -> None:
    """Z13, Z14: the monitor is sooner than any silence; what it says decides nothing but that."""
    port, peer = free_ports(1)[0], ("broker", 2)
    door = rig.router(port)
    rig.transport.set_peer_address(peer, f"127.0.0.1:{port}")
    rig.until(lambda: door.poll(0))
    rig.transport.greeted(peer)
    assert rig.transport.send_to_peer(peer, [BEAT])
    door.close(0)
    rig.until(lambda: rig.broken)
    assert rig.broken[0] == peer
    assert not rig.transport.send_to_peer(peer, [BEAT])


def test_a_link_that_was_refused_tries_again(rig: Rig) -> None:
    """libzmq gives up for good where keys do not fit; somebody may mend that."""
    port, peer = free_ports(1)[0], ("broker", 2)
    door = rig._socket(zmq.ROUTER)
    door.curve_server = True
    door.curve_publickey, door.curve_secretkey = zmq.curve_keypair()
    door.bind(f"tcp://127.0.0.1:{port}")
    rig.transport.set_peer_address(peer, f"127.0.0.1:{port}")
    rig.until(lambda: "it has keys" in rig.transport.peer_problem(peer))
    door.close(0)

    def bound() -> Any:
        with suppress(zmq.ZMQError):  # libzmq closes in its own time
            return rig.router(port)

    door = rig.until(bound)
    rig.until(lambda: door.poll(0))
    rig.until(lambda: rig.transport.peer_problem(peer) == "it does not answer our greeting")
    rig.transport.greeted(peer)
    assert not rig.transport.peer_problem(peer)


def test_a_link_that_was_made_before_the_first_turn_is_not_made_anew_by_it() -> None:
    """The clock says hours by then: the other side would see handshakes that end half-way."""
    now, (client, peer, other) = 3_600_000, free_ports(3)
    transport = Transport(f"127.0.0.1:{client}", f"127.0.0.1:{peer}", GREETING, now=now)
    transport.set_peer_address(("manager", 1), f"127.0.0.1:{other}")
    made = transport._peer_connections["manager", 1].socket
    transport.tick(now + 50)
    assert transport._peer_connections["manager", 1].socket is made
    transport.tick(now + module.REMAKE_MS)
    assert transport._peer_connections["manager", 1].socket is not made
    transport.close()


def test_a_connection_that_ends_in_its_handshake_was_not_refused(rig: Rig) -> None:
    """Silent probes of ports are no alarm; a client whose handshake does not fit is one."""
    counts = rig.transport.counts
    plain.create_connection(("127.0.0.1", rig.client)).close()
    rig.until(lambda: counts["handshakes_unfinished_total"])
    assert rig.transport.take_handshakes_refused() == (0, 0)
    with zmtp.greet(rig.peer, b"CURVE"):
        rig.until(lambda: counts["handshakes_refused_total"])
    assert rig.transport.take_handshakes_refused() == (0, 1)
    assert counts["handshakes_unfinished_total"] == counts["handshakes_refused_total"] == 1


def test_another_address_is_another_link(rig: Rig) -> None:
    """Z3: and a wrong one is counted, not raised: it came from somebody else."""
    one, two = free_ports(2)
    doors = [rig.router(one), rig.router(two)]
    for port, door in zip((one, two), doors, strict=True):
        rig.transport.set_peer_address(("broker", 2), f"127.0.0.1:{port}")
        rig.until(lambda at=door: at.poll(0))
    rig.transport.set_peer_address(("broker", 3), "no address")
    assert rig.transport.counts["peer_addresses_invalid_total"] == 1


def test_limits_of_sockets_are_ours_and_not_the_defaults(rig: Rig) -> None:
    """Z5, Z6, Z7, Z8: queues, frames, heartbeats, handshakes, lingering. A queue of what comes in
    is never full, and doors never beat: else a stranger ends the process (`test_strangers`).
    """
    rig.transport.set_peer_address(("broker", 2), "127.0.0.1:1")
    link = next(iter(rig.transport._peer_connections.values())).socket
    for socket in (rig.transport._client_listener, rig.transport._peer_listener, link):
        options = (zmq.LINGER, zmq.RCVHWM, zmq.HANDSHAKE_IVL, zmq.TCP_KEEPALIVE, zmq.TCP_MAXRT)
        assert [socket.getsockopt(option) for option in options] == [0, 0, 5000, 1, 5000]
        assert socket.getsockopt(zmq.MAXMSGSIZE) == protocol.FRAME_BYTES_MAX
        assert 0 < socket.getsockopt(zmq.SNDHWM) <= module.SEND_QUEUE_MESSAGES
        beats = 0 if socket is not link else 1000
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == beats
    assert link.getsockopt(zmq.HEARTBEAT_TIMEOUT) == link.getsockopt(zmq.HEARTBEAT_TTL) == 3000
    assert link.getsockopt(zmq.IMMEDIATE) == 1


def test_all_that_waits_is_taken_in_one_turn_however_it_came(rig: Rig) -> None:
    """Z11: a door is drained until it is empty; nothing waits for the next arrival."""
    stranger = rig.dealer()
    for number in range(90):
        stranger.send(b"%d" % number)
    rig.until(lambda: len(rig.heard) == 90)
    assert [envelope for _, envelope, _ in rig.heard] == [b"%d" % n for n in range(90)]


def test_one_turn_takes_only_so_much_and_the_rest_later(rig: Rig) -> None:
    """S1, Z5: by messages and by bytes; a flood at one door leaves room for the other."""
    stranger = rig.dealer()
    for messages_max, bytes_max, most in ((10, 1 << 20, 10), (100, 25_000, 3)):
        for _ in range(30):
            stranger.send_multipart([b"x", b"y" * 10_000])
        counts: list[int] = []
        while sum(counts) < 30:
            rig.transport.wait(10_000)
            counts.append(len(list(rig.transport.from_clients(messages_max, bytes_max))))
            assert 0 < counts[-1] <= most, counts


def test_a_connection_that_never_speaks_zeromq_costs_a_few_seconds_of_a_socket(rig: Rig) -> None:
    """Z7: HANDSHAKE_IVL ends it; meanwhile everybody else is heard."""
    with plain.create_connection(("127.0.0.1", rig.client)) as silent:
        stranger = rig.dealer()
        stranger.send(b"x")
        rig.until(lambda: rig.heard)
        silent.settimeout(15)
        received = b"."
        while received:
            received = silent.recv(1000)


@pytest.mark.serial  # the guard measures the memory of the whole process
@pytest.mark.parametrize("is_read", [True, False])
def test_who_floods_a_door_is_cut_and_others_are_not(rig: Rig, is_read: bool) -> None:
    """The first of two connections of one name is read, more slowly than it sends; the second one
    is never read. Either would take all memory.
    """
    rig.transport.floods = floods = FloodGuard(room_bytes=24 << 20, more_bytes=4 << 20)
    honest = rig.dealer()
    honest.send(b"here")
    rig.until(lambda: rig.heard)
    base, most = memory_bytes(), 0
    first = zmtp.connect(rig.client, b"same")
    zmtp.send(first, zmtp.message(b"first"))
    rig.until(lambda: len(rig.heard) == 2)
    second = zmtp.connect(rig.client, b"same")
    flooder = first if is_read else second
    ended: list[bool] = []
    data = zmtp.message(b"flood") * 100_000

    def flood() -> None:
        while zmtp.send(flooder, data):
            pass
        ended.append(True)

    thread = threading.Thread(target=flood)
    thread.start()
    end = time.monotonic() + 30
    while not ended:
        assert time.monotonic() < end
        rig.transport.now += floods_module.LOOK_MS
        rig.transport.wait(1)
        rig.heard += rig.transport.from_clients(10, 1 << 20)
        most = max(most, memory_bytes() - base)
    thread.join()
    assert rig.transport.counts["connections_cut_total"] == len(rig.transport.cuts) >= 1
    assert rig.transport.cuts[0].address.startswith("127.0.0.1:")
    assert rig.transport.cuts[0].received_bytes > 1 << 20
    assert most < 20 * floods._room
    honest.send(b"still here")
    rig.until(lambda: rig.heard[-1][1] == b"still here" or rig.heard.pop())
    for one in (first, second):
        one.close()


def test_a_door_that_is_taken_says_which(rig: Rig) -> None:
    with pytest.raises(DirectoryUnusable, match=rf"can't listen on 127\.0\.0\.1:{rig.client}"):
        Transport(f"127.0.0.1:{rig.client}", f"127.0.0.1:{rig.peer}", GREETING, now=0)


def test_a_reason_is_not_forgotten_because_the_other_end_hung_up_first() -> None:
    context = zmq.Context()
    link = module._PeerConnection(context.socket(zmq.DEALER), "127.0.0.1:1", 0)
    try:
        unfinished = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        link.hear(unfinished, 0, False)
        assert link.trouble == module.HANGS_UP
        mismatch = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        link.hear(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, mismatch, False)
        for event in (zmq.EVENT_DISCONNECTED, unfinished):
            link.hear(event, 0, False)
            assert link.trouble == "handshake refused: it has keys, we have none"
        link.hear(zmq.EVENT_CLOSED, 0, False)
        assert link.trouble == "nothing listens there"
    finally:
        context.destroy(linger=0)
