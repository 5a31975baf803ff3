"""`myq broker`: on a cluster of `up` one is added, drained, removed; the agent helps (P4)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.agents import myq, one_of_each

from myqueue import Agent
from myqueue.admin.client import Admin
from myqueue.cli import broker
from myqueue.daemons.agent import cluster_folder, requests
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import (
    BrokerInUse,
    InvalidSetting,
    MyQueueError,
    NotLeader,
    UnknownBroker,
    Unreachable,
)


def rows(folder: Path) -> dict[int, dict[str, Any]]:
    found = json.loads(myq(folder, "broker", "list", "--json"))["brokers"]
    return {row["node"]: row for row in found}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with one_of_each(tmp_path) as home:
        yield home


@pytest.mark.slow
def test_p4_a_broker_is_added_drained_and_removed(home: Path) -> None:
    myq(home, "topic", "create", "t", "--partitions", "6", "--replication", "1")
    assert "Nothing was found damaged." in myq(home, "broker", "repairs")
    found = json.loads(myq(home, "broker", "repairs", "--json"))
    assert not found["repairs"]
    assert [one["daemon"] for one in found["scrubbers"]] == ["manager 1", "broker 1"]
    assert "Added broker 2" in myq(home, "broker", "add")
    assert "too few for t" not in myq(home, "broker", "drain", "1", "--wait", "--timeout", "60")
    found = rows(home)
    assert (found[1]["state"], found[1]["replicas"], found[2]["replicas"]) == ("drained", 0, 6)
    assert "too few for t" in myq(home, "broker", "drain", "2", code=1)
    refused = myq(home, "broker", "remove", "2", code=1)
    assert "holds 6 replicas" in refused and "t/0" in refused and "--force" in refused
    assert "say --yes" in myq(home, "broker", "remove", "2", "--force", code=2)
    assert "Stopped it" in myq(home, "broker", "remove", "1")
    assert sorted(rows(home)) == [2]
    cluster = ClusterFolder(home / "myq-data").load()
    assert cluster is not None
    assert [daemon.name for daemon in cluster.of_kind(cluster_folder.BROKER)] == ["broker-2"]
    assert (home / "myq-data" / "broker-1.removed-1").is_dir()
    assert "no broker 7" in myq(home, "broker", "remove", "7", code=1)


@pytest.mark.slow
def test_p4_who_is_removed_by_force_runs_until_its_partitions_can_do_without(home: Path) -> None:
    """Of two voters one can't go on alone, nor cast out the other."""
    myq(home, "broker", "add")
    myq(home, "topic", "create", "t", "--partitions", "6", "--replication", "2")
    myq(home, "topic", "create", "u", "--partitions", "6", "--replication", "2")
    assert "Stopped it" in myq(home, "broker", "remove", "1", "--force", "--yes")
    time.sleep(3)  # who has lost its majority has noticed by then
    cluster = ClusterFolder(home / "myq-data").load()
    assert cluster is not None
    with Admin(cluster.address) as admin:
        parts = admin.describe_topic("t")["partitions"] + admin.describe_topic("u")["partitions"]
    assert [part["leader"] for part in parts] == [2] * 12


class Managers:
    """One of them, which is alone, does not know the newest broker; their leader does, or not."""

    def __init__(self, error: MyQueueError | None) -> None:
        self.error, self.dropped, self.data = error, list[int](), Path("data")

    def __enter__(self) -> Managers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def brokers(self) -> list[Any]:
        if isinstance(self.error, NotLeader):
            raise self.error
        return []

    def undrain_broker(self, _: int) -> None:
        pass

    def counting_on(self, _: int) -> int:
        return 0

    def remove_broker(self, _: int) -> dict[str, Any]:
        if self.error:
            raise self.error
        return {"missed": "", "stranded": 0}

    def drop_broker(self, number: int, _: str) -> bool:
        self.dropped.append(number)
        return True


@pytest.mark.parametrize(
    ("error", "dropped"),
    [
        (BrokerInUse("broker 5 holds 6 replicas"), []),
        (UnknownBroker("no broker 5"), [5]),
        (None, [5]),
    ],
)
def test_p4_only_what_their_leader_does_not_know_is_stopped_without_being_removed(
    monkeypatch: pytest.MonkeyPatch, error: MyQueueError | None, dropped: list[int]
) -> None:
    managers = Managers(error)
    monkeypatch.setattr(broker.connect, "admin", lambda *_: managers)
    monkeypatch.setattr(broker, "agent_of", lambda *_: managers)
    monkeypatch.setattr(broker, "runs_here", lambda *_: True)
    CliRunner().invoke(broker.remove, ["5"])
    assert managers.dropped == dropped


@pytest.mark.parametrize("is_known", [True, False])
def test_p4_when_a_broker_of_another_machine_may_be_stopped_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Nobody stops it here: who is to do so is told when; a repeat goes on with the wait."""
    managers = Managers(None if is_known else UnknownBroker("no broker 5"))
    left = [2, 2, 1, 0]
    monkeypatch.setattr(managers, "counting_on", lambda _: left.pop(0) if left else 0)
    monkeypatch.setattr(broker, "LOOK_S", 0.01)
    monkeypatch.setattr(broker.connect, "admin", lambda *_: managers)
    monkeypatch.setattr(broker, "agent_of", lambda *_: None)
    said = CliRunner().invoke(broker.remove, ["5"])
    assert said.exit_code == 0 and not left and not managers.dropped
    assert said.output.rstrip().endswith("Its process may be stopped.")
    if not is_known:
        assert isinstance(CliRunner().invoke(broker.remove, ["5"]).exception, UnknownBroker)


def test_p4_one_of_its_managers_names_the_cluster_of_this_machine(home: Path) -> None:
    cluster = ClusterFolder(home / "myq-data").load()
    assert cluster is not None
    [manager] = cluster.of_kind(cluster_folder.MANAGER)
    data = str(home / "myq-data")
    assert broker.agent_of(manager.address, data) is not None
    assert broker.agent_of(f"tcp://{manager.address}/", data) is not None
    assert broker.agent_of("127.0.0.1:1", data) is None


def test_who_is_taken_back_while_managers_elect_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker.connect, "admin", lambda *_: Managers(NotLeader("electing")))
    said = CliRunner().invoke(broker.undrain, ["5"]).output
    assert "may hold replicas again" in said and "dead" not in said


def test_without_a_cluster_it_says_how_brokers_are_added_elsewhere(tmp_path: Path) -> None:
    assert "bin/myq-broker" in myq(tmp_path, "broker", "add", code=3)
    with pytest.raises(Unreachable):
        Agent(tmp_path / "data").add_broker()


def test_numbers_of_brokers_that_went_leave_holes() -> None:
    cluster = cluster_folder.plan_cluster(None, 1, 3, 0)
    cluster.daemons = [one for one in cluster.daemons if one.name != "broker-2"]
    again = cluster_folder.plan_cluster(cluster, None, None, None)
    assert [one.id for one in again.of_kind(cluster_folder.BROKER)] == [1, 3]
    more = cluster_folder.plan_cluster(cluster, None, 4, None)
    assert [one.id for one in more.of_kind(cluster_folder.BROKER)] == [1, 3, 4, 5]
    added = cluster_folder.plan_next_broker(again)
    assert (added.name, added.address != "127.0.0.1:0") == ("broker-4", True)
    elsewhere = cluster_folder.plan_next_broker(again, taken_numbers=[1, 3, 4, 5, 9])
    assert elsewhere.name == "broker-6", "numbers that brokers on other machines have are left out"
    again.daemons *= 60
    with pytest.raises(InvalidSetting, match="are not possible"):
        cluster_folder.plan_next_broker(again)


def test_what_is_no_errand_is_taken_away(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.node.mkdir()
    (folder.node / "errand-1.json").write_text("[]")
    (folder.node / "errand-2.json").write_text("{")
    (folder.node / "errand-3.json").write_text('{"errand": "x"}')
    found = list(requests.take_requests(folder))
    assert [(path.name, what) for path, what in found] == [("done-3.json", {"errand": "x"})]
    assert list(folder.node.iterdir()) == []
