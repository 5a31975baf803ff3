"""`bin/test` with several files: first all that may run in parallel, then what is marked `serial`.

The project here is that of `test_environment`: pytest is real where a test looks at what ran where,
and says what the test wants where only its exit code counts.
"""

import os
import shutil
from pathlib import Path

import pytest
from tidy.test_environment import Project
from tidy.tree import ROOT

ONE = """
import os
import pytest

def note(name):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{name} {os.environ.get('PYTEST_XDIST_WORKER', 'alone')}\\n")

def test_one():
    note("one")

@pytest.mark.MARK
def test_quiet():
    note("quiet")
""".replace("MARK", "serial")  # else this file would be taken for one that has such tests
TWO = """
import os
import pytest
from one.test_one import note

def test_two():
    note("two")

def test_more():
    note("more")
    if os.environ["LAME"]:
        pytest.skip("no leg")
"""
# Exit codes of pytest: 0 and 1, 2 interrupted, 3 broken itself, 4 wrong words, 5 nothing selected.
SAYS = 'case "$*" in *parallel*) exit {} ;; *) exit {} ;; esac'


class Suite(Project):
    """Three tests in two files, and a serial one. Each writes down where it ran."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.notes = folder / "notes"
        (self.root / "tests").mkdir()
        shutil.copy(ROOT / "tests/conftest.py", self.root / "tests")
        for name, text in (("one", ONE), ("two", TWO)):
            (self.root / "tests" / name).mkdir()
            (self.root / "tests" / name / f"test_{name}.py").write_text(text)
        # nproc obeys the second: one core has two workers.
        self.settings |= {"NOTES": str(self.notes), "OMP_NUM_THREADS": "1", "LAME": ""}

    def test(self, *words: str, **settings: str) -> tuple[int, str]:
        """Exit code and all output of `bin/test`."""
        code, out, err = self.run(str(self.root / "bin/test"), *words, **settings)
        return code, out + err

    def phases(self) -> list[str]:
        """How often pytest ran, and which tests it was to take."""
        runs = [line for line in self.calls() if "-m pytest" in line]
        return [line.partition("--phase ")[2].partition(" ")[0] for line in runs]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_what_is_serial_runs_after_the_rest_and_alone(suite: Suite) -> None:
    code, out = suite.test("tests", "-q")
    assert code == 0, out
    assert "3 passed" in out and "1 passed" in out
    *parallel, last = [line.split() for line in suite.notes.read_text().splitlines()]
    assert last == ["quiet", "alone"]
    workers = dict(parallel)
    assert workers.keys() == {"one", "two", "more"} and "alone" not in workers.values()
    assert workers["two"] == workers["more"] != workers["one"], "a file stays in one worker"


def test_a_skip_in_a_worker_is_a_failure_in_ci(suite: Suite) -> None:
    code, out = suite.test("tests", CI="true", LAME="yes")
    assert code == 1
    assert "SKIPPED tests: 1, which is a failure in CI" in out and "no leg" in out
    assert "1 passed" in out and "in parallel, some failed" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 5, 1), (5, 1, 1), (0, 5, 0), (5, 0, 0), (5, 5, 1)],
)
def test_a_failure_of_either_phase_is_one(suite: Suite, first: int, second: int, both: int) -> None:
    code, out = suite.test("tests", FAKE_PYTEST=SAYS.format(first, second))
    assert code == both, out
    assert suite.phases() == ["parallel", "serial"]


@pytest.mark.parametrize(("first", "words", "code"), [(2, "", 2), (3, "", 3), (2, "-x", 1)])
def test_a_run_that_ended_early_has_one_phase(
    suite: Suite, first: int, words: str, code: int
) -> None:
    assert suite.test("tests", *words.split(), FAKE_PYTEST=SAYS.format(first, 0))[0] == code
    assert suite.phases() == ["parallel"]


@pytest.mark.parametrize(
    "words", ["one", ". -s", ". -n 0", ". --seed 3", ". --pdb", ". --full", ". --co -q"]
)
def test_one_file_and_some_options_run_in_one_process(suite: Suite, words: str) -> None:
    assert suite.test(*f"tests/{words}".split(), FAKE_PYTEST="exit 0")[0] == 0
    assert suite.phases() == [""]


def test_only_root_installs_what_is_missing(suite: Suite, tmp_path: Path) -> None:
    """Anybody else is told, and `sudo` is not asked."""
    tools, asked = tmp_path / "tools", tmp_path / "asked"
    tools.mkdir()
    for name, does in (("id", "echo 1000"), ("sudo", f"echo sudo >>{asked}")):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    for folder in os.environ["PATH"].split(":"):
        for tool in Path(folder).glob("*"):
            if tool.name != "chromium" and not os.path.lexists(tools / tool.name):
                (tools / tool.name).symlink_to(tool)
    (suite.root / "tests/browser").mkdir()
    (suite.root / "tests/browser/test_page.py").touch()
    code, out = suite.test("browser", PATH=str(tools), FAKE_PYTEST="exit 0")
    assert code == 0
    assert "will be skipped: chromium (as root: apt install chromium)" in out
    assert not asked.exists()
