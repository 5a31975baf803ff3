"""bin/_env.sh makes the environment once, and mends it whatever happened to it.

The project here is a copy of bin/ with a stand-in for Python: `-m venv` and `-m pip` write down
that they were called and make what the scripts look for, all else goes to the real one. So these
tests need no network and take milliseconds where the real set-up takes many seconds.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tidy.tree import ROOT

FAKE_PYTHON = f"""#!/bin/sh
# -m pip does what $FAKE_PIP says, and -m pytest what $FAKE_PYTEST says, if it says anything;
# $FAKE_OLD and $FAKE_BARE make it old or without venv.
for last; do :; done
case "$*" in
*"version_info < (3, 11)"*) [ -z "$FAKE_OLD" ] ;;
*"version_info[:2]"*) [ -n "$FAKE_OLD" ] && echo 3.9 || echo 3.12 ;;
*"import venv, ensurepip"*) [ -z "$FAKE_BARE" ] ;;
*"-m venv "*) echo venv >>"$FAKE_LOG" && mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
*"-m pip "*)
    echo "pip ${{last##*/}}" >>"$FAKE_LOG"
    eval "${{FAKE_PIP:-:}}" || exit 1
    cp "$FAKE_MYQ" "${{0%/*}}/myq" ;;
*"-m pytest "*)
    echo "$*" >>"$FAKE_LOG"
    eval "${{FAKE_PYTEST:-:}}"
    exec {sys.executable} "$@" ;;
*) exec {sys.executable} "$@" ;;
esac
"""
# A command that still had the lock would keep all others waiting as long as it runs.
FAKE_MYQ = """#!/bin/sh
[ ! -e /proc/$$/fd/9 ] || echo holds the lock
echo ran "$@"
"""


class Project:
    """A copy of the project on which the scripts can be let loose."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        shutil.copytree(ROOT / "bin", self.root / "bin")
        for name in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        self.log, self.python = folder / "log", folder / "python"
        myq = folder / "myq"
        for path, text in ((self.python, FAKE_PYTHON), (myq, FAKE_MYQ)):
            path.write_text(text)
            path.chmod(0o755)
        self.settings = {
            "PATH": os.environ["PATH"],
            "PYTHON": str(self.python),
            "FAKE_LOG": str(self.log),
            "FAKE_MYQ": str(myq),
        }

    def start(self, *command: str, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command or (str(self.root / "bin/myq"), "a", "b c"),
            env=self.settings | settings,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, **settings: str) -> tuple[int, str, str]:
        process = self.start(*command, **settings)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def calls(self) -> list[str]:
        """What was done since the last question."""
        done = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return done


NEW = ["venv", "pip project[gateway,server]"]
RAN = (0, "ran a b c\n", "")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def ready(project: Project) -> Project:
    assert project.run()[0] == 0
    assert project.calls() == NEW
    return project


def test_first_use_says_what_it_does_and_the_second_is_silent(project: Project) -> None:
    code, out, err = project.run()
    assert (code, out) == (0, "ran a b c\n")
    assert "first use" in err
    assert "packages for [gateway server]: done" in err
    assert project.calls() == NEW
    assert project.run() == RAN
    assert project.calls() == []


def test_through_a_link_and_without_a_home(ready: Project, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(ready.root / "bin/myq")
    command = (str(tmp_path / "elsewhere"), "a", "b c")
    assert ready.run(*command) == RAN
    assert ready.run(*command, HOME="") == RAN
    assert ready.calls() == []


@pytest.mark.parametrize("name", ["setup.cfg", "pyproject.toml"])
def test_a_change_of_the_packaging_installs_again(ready: Project, name: str) -> None:
    with (ready.root / name).open("a") as file:
        file.write("\n# changed\n")
    assert ready.run()[:2] == RAN[:2]
    assert ready.calls() == ["pip project[gateway,server]"]
    assert ready.run() == RAN


def test_extras_add_up(ready: Project) -> None:
    more = ("bash", "-euc", f". {ready.root}/bin/_env.sh; env_ready test server")
    assert ready.run(*more)[0] == 0
    assert ready.calls() == ["pip project[gateway,server,test]"]
    assert ready.run(*more) == (0, "", "")
    assert ready.run() == RAN
    assert ready.calls() == []


@pytest.mark.parametrize("signal", ["INT", "TERM", "KILL"])
def test_an_interrupted_set_up_is_done_again(project: Project, signal: str) -> None:
    assert project.run(FAKE_PIP=f"kill -{signal} $PPID $$")[0] != 0
    assert project.calls() == NEW
    assert project.run()[:2] == RAN[:2]
    assert project.calls() == NEW


def test_an_interrupted_update_is_done_again(ready: Project) -> None:
    with (ready.root / "setup.cfg").open("a") as file:
        file.write("\n# changed\n")
    assert ready.run(FAKE_PIP="kill -KILL $PPID $$")[0] != 0
    assert ready.calls() == ["pip project[gateway,server]"]
    assert ready.run()[:2] == RAN[:2]
    assert ready.calls() == NEW


def test_a_failure_is_shown_with_advice_and_mended(project: Project) -> None:
    code, out, err = project.run(FAKE_PIP="echo no such host; false")
    assert (code, out) == (1, "")
    assert "no such host" in err
    assert "PIP_FIND_LINKS=DIR" in err.splitlines()[-1]
    project.calls()
    assert project.run()[:2] == RAN[:2]
    assert project.calls() == NEW


def test_a_moved_project_gets_a_new_environment(ready: Project) -> None:
    ready.root = ready.root.rename(ready.root.with_name("moved"))
    code, out, err = ready.run()
    assert (code, out) == RAN[:2]
    assert "was moved" in err
    assert ready.calls() == ["venv", "pip moved[gateway,server]"]


def test_an_environment_whose_python_is_gone_is_made_anew(ready: Project) -> None:
    (ready.root / ".venv/bin/python").unlink()
    assert ready.run()[:2] == RAN[:2]
    assert ready.calls() == NEW


def test_two_at_once_make_one_environment(project: Project) -> None:
    both = [project.start(FAKE_PIP="sleep 0.3") for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [out for out, _ in said] == [RAN[1], RAN[1]]
    assert project.calls() == NEW


def test_an_environment_of_somebody_else_is_left_alone(project: Project) -> None:
    (project.root / ".venv/bin").mkdir(parents=True)
    code, _, err = project.run()
    assert code == 1
    assert "was not made by this command" in err
    assert (project.root / ".venv/bin").is_dir()


@pytest.mark.parametrize(
    ("lack", "advice"),
    [("FAKE_OLD", "needs Python 3.11"), ("FAKE_BARE", "install python3.12-venv")],
)
def test_an_unfit_python_is_named_with_the_remedy(project: Project, lack: str, advice: str) -> None:
    code, _, err = project.run(**{lack: "1"})
    assert code == 1
    assert advice in err
    assert project.calls() == []
