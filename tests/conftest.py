"""What all tests share: how much work they do, and that a skipped test is never overlooked.

`--states` and `--seeds` are given to tests as fixtures of the same name; None leaves the number to
the test. With CI=true in the environment a skip is a failure: there, everything can be installed.

`bin/test` runs pytest twice, with `--phase parallel` and then with `--phase serial`, which has the
tests that are marked `serial`. In the first, a file runs in one worker, and so does a folder whose
tests share a cluster, a browser or a Spark session.
"""

import argparse
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Their fixtures of the whole session take many seconds and much memory: one worker makes them.
SHARED = ("tests/browser", "tests/http", "tests/spark")


def positive(text: str) -> int:
    """A test that looks at nothing passes, and proves nothing."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return number


def some_minutes(text: str) -> float:
    number = float(text)
    if not 0 < number < 10_000:
        raise argparse.ArgumentTypeError(f"{text} is no number of minutes")
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("myqueue")
    group.addoption("--full", action="store_true", help="the long versions as well (hours)")
    group.addoption(
        "--states", type=positive, metavar="N", help="crash states that a test looks at"
    )
    group.addoption("--seeds", type=positive, metavar="N", help="seeds that a simulation runs")
    group.addoption("--seed", type=int, metavar="S", help="the first of them; alone: that one")
    group.addoption(
        "--minutes", type=some_minutes, metavar="M", help="how long the nemesis hurts a cluster"
    )
    group.addoption(
        "--go-on", type=Path, metavar="FOLDER", help="of a nemesis that ended early: hurt it again"
    )
    group.addoption("--mutations", action="store_true", help="have the simulator find known bugs")
    group.addoption(
        "--phase", choices=("parallel", "serial"), help="only what may run in parallel, or the rest"
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background jobs ignore Ctrl-C, and so would every process that a test starts. And
    on a busy machine an example may take long: that says nothing about what it shows.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("ours", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("ours")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """True if the long version of a test was asked for."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def states(request: pytest.FixtureRequest) -> int | None:
    return request.config.getoption("--states")


@pytest.fixture(scope="session")
def seeds(request: pytest.FixtureRequest) -> int | None:
    return request.config.getoption("--seeds")


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int | None:
    return request.config.getoption("--seed")


@pytest.fixture(scope="session")
def minutes(request: pytest.FixtureRequest) -> float | None:
    return request.config.getoption("--minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --full (--mutations) the long tests are not part of the run; that is no skip."""
    for option in ("full", "mutations"):
        if config.getoption(f"--{option}"):
            continue
        long = [item for item in items if item.get_closest_marker(option)]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]
    if phase := config.getoption("--phase"):  # the other phase has the rest: nothing is deselected
        serial = phase == "serial"
        items[:] = [item for item in items if bool(item.get_closest_marker("serial")) is serial]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The second phase imports only the few files that have tests for it."""
    if config.getoption("--phase") != "serial" or collection_path.suffix != ".py":
        return None
    return "mark.serial" not in collection_path.read_text("utf-8") or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: what shares a fixture of the session stays together as well."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            folder = path.rpartition("/")[0]
            return folder if folder in SHARED else path

    return Scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def skip_reasons(config: pytest.Config) -> Iterator[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for report in reporter.stats.get("skipped", []) if reporter else []:
        yield str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "no reason given"


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if in_ci() and exitstatus == pytest.ExitCode.OK and any(skip_reasons(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = Counter(skip_reasons(config))
    if not counts:
        return
    verdict = "which is a failure in CI" if in_ci() else "so what they guard was NOT tested"
    title = f"SKIPPED tests: {counts.total()}, {verdict}"
    terminalreporter.section(title, sep="!", red=in_ci(), yellow=not in_ci(), bold=True)
    for reason, count in counts.most_common():
        terminalreporter.line(f"{count:5} x {reason}")
