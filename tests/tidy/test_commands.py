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
    "words", [["bin/test", "unitt"], ["bin/test", "unit", "nothing"], ["bin/check", "--fixx"]]
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
