"""tests/conftest.py makes skipped tests loud, and a failure in CI; long tests need --full."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tidy.tree import ROOT

TESTS = """
import pytest

def test_runs(states): assert states == 7

def test_skipped(): pytest.skip("strace is missing")

@pytest.mark.full
def test_long(full): assert full
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs pytest with our conftest on the tests above; gives the exit code and the output."""
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)

    def run_pytest(*options: str, ci: str = "") -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", "pytest", "--states=7"]
        done = subprocess.run(
            [*command, "--rootdir", str(tmp_path), *options, "test_some.py"],
            cwd=tmp_path,
            env=os.environ | {"CI": ci},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run_pytest


def test_a_skip_is_loud_and_the_summary_is_last(run) -> None:
    code, out = run()
    assert code == 0
    assert re.search(r"!!! SKIPPED tests: 1, so .*\n +1 x Skipped: strace is missing", out)
    assert "1 passed, 1 skipped, 1 deselected" in out.splitlines()[-1]


def test_a_skip_is_a_failure_in_ci(run) -> None:
    code, out = run(ci="true")
    assert code == 1
    assert "SKIPPED tests: 1, which is a failure in CI" in out
    assert run("-k", "runs", ci="true")[0] == 0


def test_full_takes_the_long_tests_too(run) -> None:
    code, out = run("--full")
    assert code == 0
    assert "2 passed, 1 skipped" in out.splitlines()[-1]
