"""What counts as not well, and what commands say when nobody answers."""

import json
import socket
from pathlib import Path

import pytest

from myqueue import cli
from myqueue.cli import wellness

SILENT = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MYQ_CLUSTER", raising=False)


def test_brokers() -> None:
    rows = [[1, "a:1", "h", True], [3, "a:3", "h", False]]
    assert wellness.of_brokers(rows, {1, 2, 3}) == [
        wellness.Problem(False, "broker 2 is not registered"),
        wellness.Problem(False, "broker 3 is silent"),
    ]
    assert wellness.of_brokers(rows[:1], set()) == []


def test_partitions() -> None:
    parts = [[number, 100 + number, int(number == 1), 7, [1, 2, 3]] for number in range(6)]
    topics = [["a", 1, {}, parts[1:2]], ["b", 2, {}, parts]]
    assert wellness.of_partitions(topics[:1]) == []
    [problem] = wellness.of_partitions(topics)
    assert problem == (True, "no leader: b/0, b/2, b/3 and 2 more")


def test_status_and_down_without_a_cluster(capsys) -> None:
    assert cli.main(["status", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], found["daemons"], found["gateway"]) == (False, [], None)
    assert cli.main(["status"]) == 3
    assert cli.main(["down"]) == 0
    assert list(Path().iterdir()) == [], "a question left something behind"


def test_nobody_answers() -> None:
    [problem] = wellness.problems(SILENT, None, 0.3)
    assert problem.critical and "no manager leads" in problem.text


def test_up_refuses_at_once(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        assert cli.main(["up", "--port-base", str(port)]) == 1
        err = capsys.readouterr().err
        assert f"port {port}, the clients' door of manager-1" in err
        assert "--port-base" in err
    assert cli.main(["up", "--brokers", "0"]) == 2
    assert list(Path().iterdir()) == []
