"""The agent: what it finds in its folder, ports, the lock, and a whole life with real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from myqueue import errors
from myqueue.daemons.agent import agent as node
from myqueue.daemons.agent import cluster_folder
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalCluster

TINY = str(Path(__file__).with_name("tiny.py"))

# The agent as it is, with the program of the tests in the place of the daemons.
AGENT = """
import sys
from myqueue.daemons.agent import cluster_folder as local, agent as node
folder = local.ClusterFolder(sys.argv[1])
with folder.hold_lock():
    cluster = local.plan_cluster(folder.load(), 1, 2, 0)
    node.Agent(folder, cluster, [sys.executable, "-I", *sys.argv[2:]]).run()
"""


def ports(cluster: LocalCluster) -> list[int]:
    doors = [(daemon.address, daemon.peer_address) for daemon in cluster.daemons]
    return [int(address.rpartition(":")[2]) for pair in doors for address in pair]


def test_a_new_cluster_has_the_documented_ports() -> None:
    cluster = cluster_folder.plan_cluster(None, None, None, None)
    assert ports(cluster) == [
        *(9092, 9192, 9093, 9193, 9094, 9194),
        *(9292, 9392, 9293, 9393, 9294, 9394),
    ]
    assert [daemon.name for daemon in cluster.daemons[::2]] == [
        "manager-1",
        "manager-3",
        "broker-2",
    ]
    assert cluster.address == "tcp://127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert cluster.cluster != cluster_folder.plan_cluster(None, None, None, None).cluster


def test_an_old_cluster_goes_on_as_it_was_and_may_grow() -> None:
    old = cluster_folder.plan_cluster(None, 1, 2, 20_000)
    again = cluster_folder.plan_cluster(old, None, None, None)
    assert (again.cluster, ports(again)) == (old.cluster, ports(old))
    more = cluster_folder.plan_cluster(old, 1, 4, None)
    assert ports(more) == [*ports(old), 20_202, 20_302, 20_203, 20_303]
    moved = cluster_folder.plan_cluster(old, None, None, 21_000)
    assert (moved.cluster, ports(moved)[0]) == (old.cluster, 21_000)


@pytest.mark.parametrize(
    ("managers", "brokers", "base", "said"),
    [
        (2, None, None, "3 managers; their group is fixed"),
        (None, 2, None, "3 brokers; with 2"),
        (0, None, None, "0 managers are not possible"),
        (None, None, 65_300, "there is no port 65600"),
    ],
)
def test_what_can_not_be_is_refused(
    managers: int | None, brokers: int | None, base: int | None, said: str
) -> None:
    old = cluster_folder.plan_cluster(None, 3, 3, None)
    with pytest.raises(errors.InvalidSetting, match=said):
        cluster_folder.plan_cluster(old, managers, brokers, base)


def test_chosen_ports_are_free_and_kept() -> None:
    cluster = cluster_folder.plan_cluster(None, 3, 3, 0)
    assert len(set(ports(cluster))) == 12
    assert all(port in cluster_folder.RANDOM_PORTS for port in ports(cluster))
    cluster_folder.check_ports(cluster)
    more = cluster_folder.plan_cluster(cluster, None, 4, None)
    assert ports(more)[:12] == ports(cluster)
    assert len(set(ports(more))) == 14
    assert ports(cluster_folder.plan_cluster(cluster, None, None, 0)) != ports(cluster)


def test_a_port_that_is_taken_is_named_with_the_flag() -> None:
    cluster = cluster_folder.plan_cluster(None, 1, 1, 0)
    with socket.create_server(("127.0.0.1", ports(cluster)[3])) as door:
        with pytest.raises(errors.TroubleError, match="the peer listener of broker-1") as caught:
            cluster_folder.check_ports(cluster)
        assert str(door.getsockname()[1]) in str(caught.value)
    assert "--port-base" in caught.value.hint
    cluster_folder.check_ports(cluster)


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "data")
    assert folder.load() is None
    assert folder.holder() is None
    cluster = cluster_folder.plan_cluster(None, 1, 1, 0)
    with folder.hold_lock():
        (folder.node / "cluster.json.new").write_text("what a crash left")
        folder.save(cluster)
        folder.save(cluster)
    assert folder.load() == cluster
    (folder.node / "cluster.json").write_text('{"cluster": 1}')
    with pytest.raises(errors.FormatUnknown, match=r"cluster\.json"):
        folder.load()


def test_settings_of_a_daemon(tmp_path: Path) -> None:
    folder, cluster = (
        ClusterFolder(tmp_path / 'a "b" é'),
        cluster_folder.plan_cluster(None, 2, 1, 20_000),
    )
    settings = tomllib.loads(node.daemon_toml(cluster.daemons[2], cluster, folder))
    assert settings == {
        "id": 1,
        "cluster": cluster.cluster,
        "data": str(folder.data / "broker-1"),
        "listen": "127.0.0.1:20200",
        "peer_listen": "127.0.0.1:20300",
        "managers": ["1@127.0.0.1:20100", "2@127.0.0.1:20101"],
        "log": "json",
    }


class Agent:
    def __init__(self, folder: Path) -> None:
        self.folder = ClusterFolder(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(folder), TINY],
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, condition: Callable[[LocalCluster], object]) -> LocalCluster:
        end = time.monotonic() + 10
        while True:
            cluster = self.folder.load()
            if cluster is not None and condition(cluster):
                return cluster
            assert time.monotonic() < end, cluster
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        self.process.wait(20)
        self.process.stderr.close()
        return said


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGKILL)


def are_gone(cluster: LocalCluster) -> bool:
    pids = [daemon.pid for daemon in cluster.daemons]
    return not any(pid and Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_whole_life(agent: Agent, tmp_path: Path) -> None:
    running = agent.until(lambda cluster: cluster.state == "running")
    assert running.pid == agent.process.pid == agent.folder.holder()
    assert [daemon.name for daemon in running.daemons] == ["manager-1", "broker-1", "broker-2"]
    with (
        pytest.raises(errors.DirectoryLocked, match=rf"pid {agent.process.pid}\)"),
        agent.folder.hold_lock(),
    ):
        pass

    victim = running.daemons[1].pid
    assert victim
    os.kill(victim, signal.SIGKILL)
    mended = agent.until(
        lambda cluster: cluster.daemons[1].restarts == 1 and cluster.daemons[1].state == "running"
    )
    assert mended.daemons[1].pid != victim

    said = agent.end()
    assert agent.process.returncode == 0
    assert "broker-1 was ended by SIGKILL; again in 0.5 s" in said
    assert said in (agent.folder.node / "node.log").read_text()
    stopped = agent.folder.load()
    assert stopped is not None
    assert (stopped.state, stopped.pid) == ("stopped", None)
    assert {(daemon.state, daemon.pid) for daemon in stopped.daemons} == {("stopped", None)}
    assert are_gone(mended)
    assert agent.folder.holder() is None
    assert (tmp_path / "stopped").read_text().split() == ["broker", "broker", "manager"]


def test_an_agent_that_was_killed_leaves_nothing_running(agent: Agent) -> None:
    running = agent.until(lambda cluster: cluster.state == "running")
    agent.end(signal.SIGKILL)
    end = time.monotonic() + 5
    while not are_gone(running):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert agent.folder.holder() is None


def test_the_command_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    command = [sys.executable, "-m", "myqueue.daemons.agent.agent", "--config", str(config)]
    for text, said in (("brokersss = 3\n", "brokersss: no such setting"), ("x", "node.toml: ")):
        config.write_text(text)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    config.write_text(f"data = {json.dumps(str(tmp_path / 'd'))}\nbrokers = 0\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "0 brokers are not possible" in done.stderr) == (2, True)
