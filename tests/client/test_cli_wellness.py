"""What counts as not well, and what commands say when nobody answers."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from myqueue import cli
from myqueue.cli.local import up
from myqueue.cli.shared import cluster_health
from myqueue.errors import TroubleError

SILENT = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MYQ_CLUSTER", raising=False)


def test_status_and_down_without_a_cluster(capsys) -> None:
    assert cli.main(["status", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], found["daemons"], found["gateway"]) == (False, [], None)
    assert cli.main(["status"]) == 3
    assert cli.main(["down"]) == 0
    assert list(Path().iterdir()) == [], "a question left something behind"


def test_nobody_answers() -> None:
    [problem] = cluster_health.problems(SILENT, None, 0.3)
    assert problem.critical and "no manager leads" in problem.text


def test_up_refuses_at_once(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        assert cli.main(["up", "--port-base", str(port)]) == 1
        err = capsys.readouterr().err
        assert f"port {port}, the client listener of manager-1" in err
        assert "--port-base" in err
    assert cli.main(["up", "--brokers", "0"]) == 2
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("usable", [True, False])
def test_up_keeps_a_cluster_of_which_one_partition_is_lost(
    monkeypatch: pytest.MonkeyPatch, usable: bool
) -> None:
    """W21: a partition that nobody can read stops, others go on, after a new start as well."""
    cluster: Any = SimpleNamespace(pid=7, cluster="c", daemons=[])
    folder: Any = SimpleNamespace(load=lambda: cluster, node="node")
    agent: Any = SimpleNamespace(pid=7, poll=lambda: None)
    monkeypatch.setattr(up, "what_is_missing", lambda *_: "no leader: t/0")
    monkeypatch.setattr(up, "can_be_used", lambda _: usable)
    if usable:
        assert up.wait_until_healthy(folder, agent, 0) == (cluster, "no leader: t/0")
    else:
        with pytest.raises(TroubleError, match="not healthy in time: no leader: t/0"):
            up.wait_until_healthy(folder, agent, 0)
