"""Commands that need no cluster: explain, context, config, doctor, completion; and finding one."""

import json
from pathlib import Path
from typing import Any

import pytest

from myqueue import cli, errors
from myqueue.cli.local import doctor
from myqueue.cli.shared import options, output


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No context, no address in the environment, no ./myq-data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MYQ_CLUSTER", raising=False)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_explain_knows_every_error_by_code_and_by_name(capsys) -> None:
    listed = answer(capsys, "explain")["errors"]
    assert [row["code"] for row in listed] == sorted(errors.TABLE)
    for row in listed:
        assert row["text"] and row["hint"]
    for word in ("1220", "NOT_LEADER", "not-leader", "NotLeader"):
        found = answer(capsys, "explain", word)
        assert (found["code"], found["retriable"], found["outcome"]) == (1220, True, "none")
    assert cli.main(["explain", "1220"]) == 0
    assert "certainly nothing was done" in capsys.readouterr().out
    assert cli.main(["explain", "9999"]) == 1


def test_contexts(capsys, tmp_path: Path) -> None:
    assert cli.main(["context", "add", "a", "h1:1,h2:2"]) == 0
    assert cli.main(["context", "add", "b", "tcp://h3", "--use"]) == 0
    assert answer(capsys, "context", "list")["contexts"] == [
        {"name": "a", "cluster": "tcp://h1:1,tcp://h2:2", "in_use": False},
        {"name": "b", "cluster": "tcp://h3:9092", "in_use": True},
    ]
    assert options.find(None, None) == "tcp://h3:9092"
    assert cli.main(["context", "use", "a"]) == 0
    assert options.find(None, None) == "tcp://h1:1,tcp://h2:2"
    assert cli.main(["context", "use", "c"]) == 1
    assert cli.main(["context", "use"]) == 2
    assert cli.main(["context", "remove", "a"]) == 0
    with pytest.raises(errors.Unreachable, match="none is named"):
        options.find(None, None)
    assert cli.main(["context", "use", "b"]) == 0
    assert cli.main(["context", "use", "--none"]) == 0
    with pytest.raises(errors.Unreachable):
        options.find(None, None)
    (tmp_path / "config/myqueue/contexts.json").write_text("{}")
    assert cli.main(["context", "list"]) == 1
    assert "contexts.json is damaged" in capsys.readouterr().err


def test_what_is_said_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cli.main(["context", "add", "a", "h1:1", "--use"])
    assert options.find("h9:9", "somewhere") == "h9:9"
    monkeypatch.setenv("MYQ_CLUSTER", "h5:5")
    assert options.find(None, None) == "h5:5"
    with pytest.raises(errors.Unreachable, match="no cluster is running on somewhere") as caught:
        options.find(None, "somewhere")
    assert "myq up --data somewhere" in caught.value.hint


def test_config_names_settings_of_all_parts(capsys) -> None:
    rows = answer(capsys, "config", "show")["settings"]
    assert {row["of"] for row in rows} == {
        *("daemon", "gateway", "topic", "cluster", "session", "producer", "consumer"),
    }
    assert all(row["text"] for row in rows)
    linger = next(row for row in rows if row["name"] == "linger_ms")
    assert (linger["unit"], isinstance(linger["default"], int)) == ("ms", True)
    assert cli.main(["config", "show", "topic"]) == 0
    assert "retention_ms" in capsys.readouterr().out


def test_doctor_says_how_to_mend(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (doctor.python, doctor.disk, doctor.limits))
    found = answer(capsys, "doctor")
    assert found["ok"]
    assert {"Python", "disk sync", "open files"} <= {row["check"] for row in found["checks"]}
    assert list(Path().iterdir()) == [], "the probe of the disk leaves something behind"

    def broken(data: str) -> Any:
        yield doctor.Found("disk", doctor.BAD, "gone", "Buy one.")

    monkeypatch.setattr(doctor, "CHECKS", (broken,))
    assert cli.main(["doctor"]) == 1
    assert "disk: Buy one." in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, shell: str) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "_MYQ_COMPLETE" in capsys.readouterr().out


def test_completion_reaches_into_groups(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MYQ_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "myq context ")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        cli.main([])
    assert "plain,list" in capsys.readouterr().out


def test_plain_values() -> None:
    found = output.plain({1: (doctor.Found("a", "b", "c"), b"\xff", {2})})
    assert found == {"1": [{"check": "a", "verdict": "b", "found": "c", "mend": ""}, "\\xff", [2]]}
