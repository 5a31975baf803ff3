"""A cluster with keys: encrypted, and closed to whoever has none (S1, S2, S5, Z12)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from support.joining import managers_options, run_foreign_broker, wait_for_event_line
from support.processes import Cluster, wait_for

from myqueue import errors
from myqueue.cluster.connection import new_keypair
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.producer.producer import Producer
from myqueue.wire import keyfiles, protocol

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    keyfiles.make_cluster(folder, new_keypair)
    for name in ("app", "guest"):
        keyfiles.make_client(folder, name, folder / f"{name}.key", new_keypair)
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    os.environ["MYQ_KEY"] = str(folder / "app.key")
    try:
        with Cluster(tmp_path_factory.mktemp("cluster"), keys=folder) as cluster:
            yield cluster
    finally:
        del os.environ["MYQ_KEY"]


def ask(cluster: Cluster, key_file: Path | str, within_ms: int = 10_000) -> list[str]:
    with Session(cluster.address, key_file=str(key_file)) as session:
        return list(session.read("topics", timeout_ms=within_ms).result()["topics"])


def test_who_has_a_key_works_as_ever(cluster: Cluster) -> None:
    cluster.admin.create_topic("t", partitions=2)
    with Producer(cluster.address) as producer:
        producer.send_many("t", [b"%d" % n for n in range(100)]).result(20)
    with Consumer(cluster.address, ["t"], idle_timeout=2) as consumer:
        assert {int(m.value) for m in consumer} == set(range(100))


def test_who_has_none_or_a_foreign_one_is_kept_out(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(errors.Unreachable, match="MYQ_KEY"):
        ask(cluster, "", 2_000)
    keyfiles.make_cluster(tmp_path / "other", new_keypair)
    keyfiles.make_client(tmp_path / "other", "app", tmp_path / "app.key", new_keypair)
    with pytest.raises(errors.Unreachable):
        ask(cluster, tmp_path / "app.key", 2_000)
    foreign, door = (
        keyfiles.read_client_key(tmp_path / "app.key"),
        keyfiles.DoorKeys(folder).clients,
    )
    text = f'public="{foreign[0].decode()}"\nsecret="{foreign[1].decode()}"\n'
    (tmp_path / "app.key").write_text(f'{text}door="{door.public.decode()}"\n')
    with pytest.raises(errors.Unreachable, match="does not accept our key"):
        ask(cluster, tmp_path / "app.key", 2_000)
    assert ask(cluster, folder / "app.key") == ["t"]


def test_a_key_that_was_revoked_opens_no_door(cluster: Cluster, folder: Path) -> None:
    assert ask(cluster, folder / "guest.key") == ["t"]
    keyfiles.revoke(folder, "guest")
    with pytest.raises(errors.Unreachable, match="does not accept our key"):
        ask(cluster, folder / "guest.key", 2_000)


@pytest.mark.parametrize("with_key", [False, True])
def test_a_client_never_speaks_with_peers(cluster: Cluster, folder: Path, with_key: bool) -> None:
    """S1: not even the handshake, whatever it says afterwards."""
    client, doors = keyfiles.read_client_key(folder / "app.key"), keyfiles.DoorKeys(folder)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        if with_key:
            socket.curve_publickey, socket.curve_secretkey = client.public, client.secret
            socket.curve_serverkey = doors.peers.public
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
        )
        socket.connect(f"tcp://127.0.0.1:{cluster.ports['broker', 1][1]}")
        assert monitor.poll(10_000)
        event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
        assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
        with pytest.raises(zmq.Again):
            socket.send(protocol.encode(protocol.GREET, 0), zmq.DONTWAIT)
        socket.disable_monitor()
        monitor.close(0)


def test_a_broker_without_the_keys_of_its_cluster_says_so(cluster: Cluster, tmp_path: Path) -> None:
    keyfiles.make_cluster(tmp_path / "others", new_keypair)
    managers = managers_options(cluster, 1, 2, 3)
    with (
        run_foreign_broker(tmp_path / "none", 8, *managers) as none,
        run_foreign_broker(
            tmp_path / "other", 9, "--keys", str(tmp_path / "others"), *managers
        ) as other,
    ):
        assert "handshake refused: it has keys, we have none" in wait_for_event_line(
            none, "not-joined"
        )
        assert "handshake refused: its keys are not ours" in wait_for_event_line(
            other, "not-joined"
        )
    wait_for_event_line(cluster.folder / "manager-1.log", "handshake-refused")


def test_refused_handshakes_are_counted(cluster: Cluster) -> None:
    def refused() -> int:
        address = f"tcp://127.0.0.1:{cluster.ports['broker', 1][0]}"
        told = cluster.session.call(address, protocol.STATS, ()).result().envelope[3]
        return int(told["counters"].get("handshakes_refused_total", 0))

    wait_for("refused handshakes", refused)


def test_replicas_find_each_other_again_after_a_crash(cluster: Cluster) -> None:
    victim = cluster.leader_of("t")
    cluster.kill(victim)
    with Producer(cluster.address) as producer:
        producer.send("t", b"while it is away", partition=0).result(30)
    cluster.start(victim)
    cluster.wait_healthy()
