"""A broker that can't join its cluster says so, and why; the managers say whom they refuse."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.joining import managers_options, run_foreign_broker, wait_for_event_line
from support.processes import Cluster, free_ports, wait_for

from myqueue.wire import protocol
from myqueue.wire.keyfiles import Keypair, make_cluster

pytestmark = pytest.mark.slow

MANAGERS = 2
SILENT = {"problem": "broker-silent", "node": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("joining"), managers=MANAGERS, brokers=1) as made:
        yield made


@pytest.fixture(scope="module")
def logs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Of brokers that can't join, by what is wrong with them; all at once, as each takes 5 s."""
    folder = tmp_path_factory.mktemp("brokers")
    make_cluster(folder / "keys", lambda: Keypair(*zmq.curve_keypair()))
    follower = 3 - cluster.managers_leader()[1]
    nobody = f"1@127.0.0.1:{free_ports(1)[0]}"
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(run_foreign_broker(folder / name, 5 + at, *words))
            for at, (name, words) in enumerate((
                ("foreign", ("--cluster", "other", *managers_options(cluster, 1, 2))),
                ("with keys", ("--keys", str(folder / "keys"), *managers_options(cluster, 1, 2))),
                ("unnamed", managers_options(cluster, follower)),
                ("alone", ("--managers", nobody)),
            ))
        }  # fmt: skip


def counted(cluster: Cluster, name: str) -> int:
    """Over all managers."""
    total = 0
    for number in range(1, MANAGERS + 1):
        door = f"tcp://{cluster.door(('manager', number))}"
        told = cluster.session.call(door, protocol.STATS, ()).result().envelope[3]
        total += int(told["counters"].get(name, 0))
    return total


def test_a_broker_of_another_cluster(cluster: Cluster, logs: dict[str, Path]) -> None:
    said = wait_for_event_line(logs["foreign"], "not-joined")
    address = f"127.0.0.1:{cluster.ports['manager', 1][1]}"
    assert f"manager 1 at {address}: it refuses this broker" in said
    assert "this is cluster 'test', not 'other'" in said and "--cluster" in said
    assert " ready" not in logs["foreign"].read_text()
    assert " listening " in logs["foreign"].read_text()
    assert counted(cluster, "greetings_refused_total") > 10
    for number in (1, 2):  # said once, however often it comes
        lines = cluster.log(("manager", number)).splitlines()
        refused = [one for one in lines if "peer-refused" in one and "broker 5" in one]
        assert len(refused) == 1 and "not 'other'" in refused[0]


def test_a_broker_with_keys_among_managers_without(cluster: Cluster, logs: dict[str, Path]) -> None:
    assert "it has no keys, we do" in wait_for_event_line(logs["with keys"], "not-joined")
    names = ("handshakes_refused_total", "handshakes_unfinished_total")
    assert sum(counted(cluster, name) for name in names) >= 2
    # It sees that itself, and half of the times it hangs up before the manager can see it.
    wait_for("refusals", lambda: counted(cluster, "handshakes_refused_total") >= 2, 60)

    def is_logged() -> bool:
        told = [cluster.log(("manager", number)) for number in (1, 2)]
        return any("handshake-refused door=peers" in log for log in told)

    wait_for("handshake-refused", is_logged)


def test_a_broker_that_does_not_name_all_managers(cluster: Cluster, logs: dict[str, Path]) -> None:
    leader = cluster.managers_leader()[1]
    assert f"managers={leader} " in wait_for_event_line(logs["unnamed"], "managers-unnamed")
    assert "no leader of the managers has let this broker join" in wait_for_event_line(
        logs["unnamed"], "not-joined"
    )


def test_a_broker_that_nobody_answers(logs: dict[str, Path]) -> None:
    assert "nothing listens there" in wait_for_event_line(logs["alone"], "not-joined")


def test_a_broker_that_is_taken_in_says_ready(cluster: Cluster) -> None:
    log = cluster.log(("broker", 1))
    assert " listening " in log and " ready" in log and "not-joined" not in log


def test_a_broker_that_was_killed_is_told_at_once(cluster: Cluster) -> None:
    """By the end of its connection; its silence alone is told after 1.2 s."""
    cluster.wait_healthy()
    cluster.kill(("broker", 1))
    wait_for(
        "it is told", lambda: {"problem": "broker-silent", "node": 1} in problems(cluster), 0.5
    )
    cluster.start(("broker", 1))
    cluster.wait_healthy()


def test_a_broker_whose_folder_was_removed_ends(cluster: Cluster) -> None:
    """What it would write from then on, and acknowledge, would be gone at its next start."""
    cluster.wait_healthy()
    process = cluster.processes["broker", 1]
    begin = time.monotonic()
    while cluster.data(("broker", 1)).exists():  # it makes files while they are being removed
        shutil.rmtree(cluster.data(("broker", 1)), ignore_errors=True)
    assert process.wait(3) == 4, cluster.log(("broker", 1))[-3000:]
    assert time.monotonic() - begin < 3
    del cluster.processes["broker", 1]
    assert "the data folder was removed" in cluster.log(("broker", 1))
    wait_for(
        "it is told", lambda: {"problem": "broker-silent", "node": 1} in problems(cluster), 0.5
    )


def problems(cluster: Cluster) -> list[Any]:
    return cluster.problems() or []
