"""Nobody who can connect can end a daemon, or keep others from it: real processes, every door."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support import zmtp
from support.processes import Cluster, Name, wait_for

from myqueue.consumer.consumer import Consumer
from myqueue.producer.producer import Producer
from myqueue.wire import protocol

CONNECTIONS, REQUESTS, ROUNDS = 30, 6000, 2
# HELLO, and what is no request at all.
_HELLO = zmtp.message(protocol.encode(protocol.HELLO, 1, "x", ""))
_FLOODS = {
    "requests": (_HELLO + zmtp.message(b"tiny")) * (REQUESTS // 2),
    "pings between them": (_HELLO + zmtp.ping(0) + zmtp.message(b"tiny") + zmtp.ping(100))
    * (REQUESTS // 2),
}


def _flood(port: int, data: bytes) -> None:
    """Many connections bring more than is read at once, and hang up."""
    for _ in range(ROUNDS):
        connections = [zmtp.connect(port) for _ in range(CONNECTIONS)]
        for one in connections:
            one.settimeout(1)
            zmtp.send(one, data)
        for one in connections:
            zmtp.hang_up(one)


def _doors(cluster: Cluster) -> list[tuple[Name, int]]:
    return [(name, port) for name in cluster.names for port in cluster.ports[name]]


@pytest.mark.slow
def test_who_floods_and_hangs_up_ends_no_daemon(tmp_path: Path) -> None:
    """Four doors, each with two kinds of floods; then the daemons are the same processes, and
    messages go in and out.
    """
    with Cluster(tmp_path, managers=1, brokers=1) as cluster:
        cluster.admin.create_topic("t", replication=1)
        for data in _FLOODS.values():
            floods = [
                threading.Thread(target=_flood, args=(port, data)) for _, port in _doors(cluster)
            ]
            for one in floods:
                one.start()
            for one in floods:
                one.join(60)
            cluster.check_alive()
            cluster.wait_healthy(60)
        with Producer(cluster.address) as producer:
            producer.send("t", b"still here").result(20)
        with Consumer(cluster.address, ["t"], start="earliest", idle_timeout=10) as consumer:
            assert next(iter(consumer)).value == b"still here"


@pytest.mark.slow
def test_who_is_cut_is_named_in_the_log(tmp_path: Path) -> None:
    """The second connection of one name is never read: all that it brings waits."""
    with Cluster(tmp_path, managers=1, brokers=2, waiting_bytes=24 << 20) as cluster:
        port = cluster.ports["broker", 1][1]
        first, second = zmtp.connect(port, b"same"), zmtp.connect(port, b"same")
        address = "{}:{}".format(*second.getsockname())
        second.settimeout(20)
        data = zmtp.message(b"flood") * 100_000

        def is_cut() -> bool:
            return not zmtp.send(second, data)

        wait_for("the end of it", is_cut, 60)
        wait_for("a line", lambda: f"connection-cut peer={address} " in cluster.log(("broker", 1)))
        lines = [one for one in cluster.log(("broker", 1)).splitlines() if "connection-cut" in one]
        assert [address in one for one in lines] == [True], "links of daemons stay"
        cluster.wait_healthy()
        for one in (first, second):
            one.close()
