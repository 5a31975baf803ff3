"""The commands in bin/ can be run by whoever reads the README, and the README names real ones."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tidy.tree import ROOT, files, read

SCRIPTS = [name for name in files() if name.startswith(("bin/", ".ci/"))]
COMMANDS = [n for n in SCRIPTS if n.startswith("bin/") and not n.startswith("bin/_")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_correct_shell(name: str) -> None:
    is_part = "/_" in name  # read by the others, never run
    assert os.access(ROOT / name, os.X_OK) != is_part
    text = read(name)
    assert is_part or text.startswith(("#!/usr/bin/env bash\n", "#!/bin/sh\n"))
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_help(name: str) -> None:
    command = [str(ROOT / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    "words",
    [
        ["bin/test", "unitt"],
        ["bin/test", "unit", "nothing"],
        ["bin/test", "-q", "tests/tidy"],
        ["bin/check", "--fixx"],
    ],
)
def test_wrong_words_get_the_usage(words: list[str]) -> None:
    command = [str(ROOT / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Usage: " in done.stderr


def test_a_part_without_tests_is_a_failure(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bin", tmp_path / "bin")
    command = [str(tmp_path / "bin/test"), "browser"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "browser" in done.stderr


def commands_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w/.])bin/[a-z][\w-]*", text))


def test_readme_names_only_commands_that_exist() -> None:
    assert commands_in(read("README.md")) >= {"bin/myq", "bin/test"}
    assert commands_in(read("README.md")) <= set(COMMANDS)
    assert commands_in("run `bin/nothing x`, not .venv/bin/python") == {"bin/nothing"}


def modules_on_the_way(text: str) -> list[str]:
    """The names between arrows in the README's block about the way of one message."""
    _, _, rest = text.partition("way of one message")
    block = rest.partition("```\n")[2].partition("```")[0]
    return re.findall(
        r"(?:→|⇒)\s+(?:daemons/\s+)?([a-z_]+(?:/[a-z_]+)?)(?=\s*(?:→|⇒|:|$))", block, re.M
    )


def missing_modules(names: list[str], paths: list[str]) -> list[str]:
    return [name for name in names if not any(p.endswith(f"/{name}.py") for p in paths)]


def test_the_way_of_one_message_names_modules_that_exist() -> None:
    names = modules_on_the_way(read("README.md"))
    assert len(names) > 20
    assert missing_modules(names, files()) == []
    assert missing_modules(["raft/leader", "raft/king"], files()) == ["raft/king"]
