"""A cluster on several hosts: daemons with settings in files, keys, and links that break one way.

P13, R13, W17: what loopback cannot show. A leader that nobody hears any more is replaced while it
still hears everybody; it learns that it was, and nothing that clients were told of is lost.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import CLIENTS, Hosts, Network, filter_against, host_of, what_is_missing
from support.processes import Name, wait_for
from support.traffic import Reader, Writer, judge, wait_until_read

from myqueue.cluster.connection import new_keypair
from myqueue.errors import MyQueueError
from myqueue.wire import keyfiles

needs_hosts = pytest.mark.usefixtures("hosts_are_possible")
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 5000), 0.5) as asked:
        sys.exit(asked.recv(1) != b"y")
except OSError:
    sys.exit(1)
"""
BULK = 40_000
TAKE = f"""
import socket, sys, time
begin, got = time.monotonic(), 0
with socket.create_connection((sys.argv[1], 5000), 20) as asked:
    asked.sendall(b"x" * {BULK})  # both ways: the answer comes when all of it is there
    while some := asked.recv(65536):
        got += len(some)
assert got == 1 + {BULK}, got
print(time.monotonic() - begin)
"""
ANSWER = f"""
import socket
with socket.create_server(("", 5000)) as door:
    print("open", flush=True)
    while True:
        with door.accept()[0] as asked:
            asked.send(b"y")
            got = 0
            while got < {BULK} and (some := asked.recv(65536)):
                got += len(some)
            if got == {BULK}:
                asked.sendall(b"x" * {BULK})
"""


@pytest.fixture
def hosts_are_possible() -> None:
    if lack := what_is_missing():
        pytest.skip(lack)


def test_the_filter_is_the_program_that_the_kernel_is_given() -> None:
    assert filter_against([]) == "5,40 0 0 12,21 0 1 2048,32 0 0 30,6 0 0 0,6 0 0 2"
    one = "6,40 0 0 12,21 0 2 2048,32 0 0 30,21 1 0 3323070209,6 0 0 0,6 0 0 2"
    assert filter_against(["198.18.7.1"]) == one


@needs_hosts
def test_links_break_one_way_and_heal() -> None:
    with Network(["a", "b"]) as network:
        answerer = subprocess.Popen(
            network.within("a", [sys.executable, "-c", ANSWER]), stdout=subprocess.PIPE
        )
        try:
            assert answerer.stdout is not None
            assert answerer.stdout.readline() == b"open\n"

            def reaches(host: str) -> bool:
                command = [sys.executable, "-c", ASK, network.addresses["a"]]
                within = command if host == CLIENTS else network.within(host, command)
                return subprocess.run(within, check=False).returncode == 0

            assert reaches("b") and reaches(CLIENTS)
            network.cut([("a", "b")])
            assert not reaches("b") and reaches(CLIENTS)
            network.cut([(CLIENTS, "a")])
            network.heal([("a", "b")])
            assert reaches("b") and not reaches(CLIENTS)
            network.heal()

            def seconds(host: str) -> float:
                command = [sys.executable, "-c", TAKE, network.addresses["a"]]
                within = command if host == CLIENTS else network.within(host, command)
                done = subprocess.run(within, capture_output=True, text=True, check=True)
                return float(done.stdout)

            least = 2 * BULK * 8 / 256_000 - 0.5  # there and back, but for what a bucket lets by
            quick = seconds("b")
            network.slow("a", 256)
            assert seconds("b") > least > 4 * quick
            assert seconds(CLIENTS) > least
            network.speed_up("a")
            assert seconds("b") < least / 2
        finally:
            answerer.kill()
            answerer.communicate()


def leader_now(cluster: Hosts) -> Name | None:
    """As the managers know it at this moment."""
    try:
        found = cluster.session.read("topic", {"topic": "t"}, timeout_ms=1000).result()
    except MyQueueError:
        return None
    node = int(found["partitions"][0]["leader"])
    return ("broker", node) if node else None


@needs_hosts
@pytest.mark.slow
def test_p13_a_leader_that_nobody_hears_is_replaced_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyfiles.make_cluster(tmp_path / "keys", new_keypair)
    keyfiles.make_client(tmp_path / "keys", "test", tmp_path / "test.key", new_keypair)
    monkeypatch.setenv("MYQ_KEY", str(tmp_path / "test.key"))
    with Hosts(tmp_path, keys=str(tmp_path / "keys")) as cluster:
        network = cluster.network
        cluster.admin.create_topic("t")
        cluster.wait_healthy()
        writer, reader = Writer(cluster.address, "t", "w", 100), Reader(cluster.address, "t", "r")
        writer.start()
        reader.start()
        wait_for("acknowledgements", lambda: len(writer.acked) > 20)

        old = cluster.leader_of("t")
        others = [host for host in (*network.hosts, CLIENTS) if host != host_of(old)]
        network.cut((host_of(old), other) for other in others)
        wait_for("a new leader", lambda: leader_now(cluster) not in (None, old), 30)
        goes_on(writer)
        network.heal()
        cluster.wait_healthy()

        manager = host_of(cluster.managers_leader())
        others = [host for host in (*network.hosts, CLIENTS) if host != manager]
        network.cut((other, manager) for other in others)  # it talks, and hears nothing
        goes_on(writer)
        wait_for("managers who answer", lambda: leader_now(cluster), 30)
        cluster.admin.create_topic("made-without-it")
        network.heal()
        cluster.wait_healthy()

        follower = next(one for one in cluster.running("broker") if one != cluster.leader_of("t"))
        network.slow(host_of(follower), 128)
        goes_on(writer)
        network.speed_up(host_of(follower))
        cluster.wait_healthy()

        writer.finish(30)
        wait_until_read([reader], [writer], 30)
        reader.finish()
        counted = judge([reader], [writer])
        assert counted["failed"] == 0, counted
        cluster.stop(*list(cluster.processes))


def goes_on(writer: Writer) -> None:
    """What is sent from now on is acknowledged."""
    known = set(writer.acked)
    sent = writer.sent
    wait_for(
        "what is sent to be acknowledged",
        lambda: sum(int(text.split(":")[1]) >= sent for text in writer.acked.keys() - known) > 50,
        30,
    )
