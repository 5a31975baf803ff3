"""Who is cut when memory runs short: strangers alone, and only if messages took it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from support.processes import free_ports, wait_for

from myqueue.daemons.network import flood_limit as module
from myqueue.daemons.network.flood_limit import (
    FloodGuard,
    cut_heaviest_connections,
    machine_bytes,
    received_bytes,
    room_bytes,
)
from myqueue.daemons.network.sockets import Transport

MIB = 1 << 20


def _nobodys(_inode: int, _port: int) -> bool:
    return False


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Connections of this process: who brings, and who gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = []
        for _ in range(3):
            out = socket.create_connection(server.getsockname())
            made.append((out, server.accept()[0]))
        yield made
        for pair in made:
            for one in pair:
                one.close()


def _bring(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    while size > 0:
        part = min(size, 32 << 10)
        pair[0].sendall(bytes(part))
        size -= len(pair[1].recv(part, socket.MSG_WAITALL))


def _address(one: socket.socket) -> str:
    host, port = one.getsockname()
    return f"{host}:{port}"


def test_who_brought_most_is_named_with_its_bytes(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    _bring(pairs[0], 50_000)
    before = received_bytes()
    _bring(pairs[1], 900_000)
    _bring(pairs[2], 1000)
    assert cut_heaviest_connections(before, _nobodys) == [(_address(pairs[1][0]), 900_000)]
    assert pairs[1][1].recv(1) == b""
    _bring(pairs[2], 1000)


def test_a_daemon_of_ours_is_never_cut(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    """Though it brought most; who comes next brought enough to be blamed, or nobody is cut."""
    ours = module.os.fstat(pairs[0][1].fileno()).st_ino

    def is_ours(inode: int, _port: int) -> bool:
        return inode == ours

    before = received_bytes()
    _bring(pairs[0], 900_000)
    _bring(pairs[1], 100_000)
    assert cut_heaviest_connections(before, is_ours, 100_000 * module.MEMORY_A_BYTE + 1) == []
    assert [one.address for one in cut_heaviest_connections(before, is_ours, 1_000_000)] == [
        _address(pairs[1][0])
    ]
    _bring(pairs[0], 1000)


def test_a_daemon_that_is_known_is_told_from_who_only_connected() -> None:
    """By its connection at the peers' door; links that we made are ours by their port."""
    doors = [f"127.0.0.1:{port}" for port in free_ports(2)]
    transport = Transport(*doors, b"greeting", now=0)
    context = zmq.Context()
    peer, stranger = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    heard: dict[bytes, bytes] = {}
    for one, name in ((peer, b"peer"), (stranger, b"stranger")):
        one.connect(f"tcp://{doors[1]}")
        one.send(name)

    def hear() -> bool:
        transport.wait(20)
        heard.update((envelope, identity) for identity, envelope, _ in transport.from_peers(9, 99))
        return len(heard) == 2

    wait_for("both", hear)
    transport.known_peers = lambda: [heard[b"peer"]]
    port = int(doors[1].rsplit(":", 1)[1])
    sources = {name: transport._sources[identity] for name, identity in heard.items()}
    assert set(sources.values()) <= received_bytes().keys() and len(set(sources.values())) == 2
    assert transport._is_ours(sources[b"peer"], port)
    assert not transport._is_ours(sources[b"stranger"], port)
    assert transport._is_ours(sources[b"stranger"], 1), "no port of a door"
    transport.close()
    context.destroy(linger=0)


def test_memory_that_no_message_took_cuts_nobody(
    pairs: list[tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What brought enough to have taken it is cut, by the same numbers."""
    for size, count in ((5000, 0), (10 * MIB, 1)):
        floods, memory = FloodGuard(room_bytes=512 * MIB), iter((100 * MIB, 400 * MIB, 700 * MIB))
        monkeypatch.setattr(module, "memory_bytes", lambda told=memory: next(told))
        cuts = []
        for turn in range(3):
            cuts += floods.look(turn * module.LOOK_MS, _nobodys, is_behind=False)
            if not cuts:
                _bring(pairs[0], size)
        assert len(cuts) == count


def test_the_room_is_a_share_of_the_memory_that_there_is(tmp_path: Path) -> None:
    assert [room_bytes(size << 30) >> 20 for size in (0, 2, 8, 64)] == [128, 256, 1024, 2048]
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (groups / "pod" / "one").mkdir(parents=True)
    (groups / "memory" / "old").mkdir(parents=True)
    all_bytes = machine_bytes(proc, groups)
    assert all_bytes == module.os.sysconf("SC_PHYS_PAGES") * module.os.sysconf("SC_PAGE_SIZE")
    (proc / "self" / "cgroup").write_text("5:cpu:/x\n4:memory:/old\n0::/pod/one\n")
    (groups / "pod" / "one" / "memory.max").write_text("max\n")
    assert machine_bytes(proc, groups) == all_bytes
    (groups / "pod" / "memory.max").write_text(f"{300 * MIB}\n")
    assert machine_bytes(proc, groups) == 300 * MIB
    (groups / "memory" / "old" / "memory.limit_in_bytes").write_text(f"{200 * MIB}\n")
    assert machine_bytes(proc, groups) == 200 * MIB
