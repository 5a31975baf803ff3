"""Two processes with one number: the one that is connected stays, the other one is named."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.joining import wait_for_event_line
from support.processes import Cluster, Name, free_ports, wait_for

from myqueue import errors
from myqueue.producer.producer import Producer
from myqueue.wire import protocol

pytestmark = pytest.mark.slow

REAL: Name = ("broker", 2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("rivals"), managers=1) as made:
        made.admin.create_topic("t", partitions=3)
        made.wait_healthy()
        yield made


def door(cluster: Cluster) -> list[str]:
    """Where the managers say that broker 2 is, and the life that they know."""
    (row,) = [one for one in cluster.admin.brokers() if one["node"] == 2]
    return [row["address"].removeprefix("tcp://"), row["state"]]


def check_it_works(cluster: Cluster) -> None:
    assert door(cluster)[0] == cluster.door(REAL)
    with Producer(cluster.address) as producer:
        for sent in [producer.send("t", b"x", partition=number) for number in range(3)]:
            sent.result(20)


def test_a_copy_of_a_folder_is_refused_and_named(cluster: Cluster, tmp_path: Path) -> None:
    """The copy has the disk and the number, and another address; the original restarted well."""
    cluster.kill(REAL)
    shutil.copytree(cluster.data(REAL), tmp_path / "copy")
    cluster.start(REAL)
    wait_for("it joined again", lambda: cluster.log(REAL).count(" ready") == 2)
    cluster.wait_healthy()
    client, peer = free_ports(2)
    words = cluster.command(REAL)
    words[words.index("--data") + 1] = str(tmp_path / "copy")
    words[words.index("--listen") + 1] = f"127.0.0.1:{client}"
    words[words.index("--peer-listen") + 1] = f"127.0.0.1:{peer}"
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(words, stderr=log) as copy:
        try:
            told, *more = wait_for("the copy is named", cluster.problems)
            assert not more, (told, more)
            real = f"127.0.0.1:{cluster.ports[REAL][1]}"
            assert told == {
                "problem": "rival",
                "kind": "broker",
                "node": 2,
                "address": f"127.0.0.1:{peer}",
                "connected": real,
            }
            said = wait_for_event_line(tmp_path / "log", "not-joined")
            assert f"broker 2 is connected already, from {real}" in said and "Stop one" in said
            assert "peer-refused" in cluster.log(("manager", 1))
            check_it_works(cluster)
            assert " ready" not in (tmp_path / "log").read_text()
        finally:
            copy.kill()
    wait_for("nobody speaks of it", lambda: cluster.problems() == [])
    assert cluster.log(REAL).count("rejected-by-managers") == 0


class Impostor:
    """It read from the wire what broker 2 is, and says the same."""

    def __init__(self, context: zmq.Context[Any], port: int, greeting: bytes) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.greeting = greeting

    def ask(self, frame: bytes) -> Any:
        self.socket.send(frame)
        assert self.socket.poll(10_000)
        return protocol.decode(self.socket.recv_multipart()[0])


def test_who_repeats_what_a_broker_says_is_not_heard(cluster: Cluster) -> None:
    """At a manager it would take the broker's place, at a broker its voice in the group."""
    port = cluster.ports[REAL][1]
    with zmq.Context() as context:
        stranger = Impostor(context, port, b"")
        hello = (protocol.GREET, 0, "test", "broker", 77, "a disk", 5, "127.0.0.1:1", "0")
        _, kind, *_, disk, incarnation = stranger.ask(protocol.encode(*hello))
        assert kind == protocol.GREETED
        before = [cluster.leader_of("t", number) for number in range(3)]
        state = {
            "disk": disk,
            "incarnation": incarnation + 1,
            "address": "127.0.0.1:1",
            "peer": "127.0.0.1:2",
            "host": "",
            "version": 0,
            "full": True,
            "groups": [],
            "held": [],
            "lost": [],
            "producers": [],
            "consumers": [],
            "disk_low": False,
            "free_bytes": 0,
            "load": 0,
            "damaged": [],
            "used_bytes": 0,
        }
        beat = protocol.encode(protocol.BEAT, 1, state)
        packet = protocol.encode(protocol.PACKET, 1, [], [])
        others: list[Name] = [("manager", 1), ("broker", 1), ("broker", 3)]
        for name in others:
            for life in (incarnation, incarnation + 1):
                greeting = protocol.encode(
                    protocol.GREET, 0, "test", "broker", 2, disk, life, "127.0.0.1:2", "0"
                )
                one = Impostor(context, cluster.ports[name][1], greeting)
                refused = one.ask(greeting)
                assert refused[1] == protocol.ERROR, (name, refused)
                code = errors.Busy.code if life == incarnation else errors.IdentityMismatch.code
                assert refused[3] == code, (name, refused)
                assert one.ask(beat if name[0] == "manager" else packet)[3] == (
                    errors.GreetFirst.code
                )
                one.socket.close(0)
        stranger.socket.close(0)
        assert [cluster.leader_of("t", number) for number in range(3)] == before
        check_it_works(cluster)
