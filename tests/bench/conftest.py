"""What a benchmark prints: a table at the end, with the machine's own figure beside each of ours.

Figures are compared within one run, alternating, because the machine is shared and noisy. A goal
that is missed is printed as such and fails nothing: speed is reported, correctness is asserted.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

import pytest
from bench.figures import ROWS, Row


@pytest.fixture
def report() -> list[Row]:
    """Append `Row`s to it."""
    return ROWS


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a real disk: MYQ_BENCH_DIR, or pytest's."""
    base = os.environ.get("MYQ_BENCH_DIR")
    return Path(base) if base else tmp_path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bench-json", metavar="FILE", help="write the figures to a file as well")
    parser.addoption("--seconds", type=float, default=60, help="of load on a starved machine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    write = terminalreporter.line
    terminalreporter.section("figures")
    write(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    width = max(len(row.what) for row in ROWS)
    bare_width = max(len(row.bare) for row in ROWS)
    for row in ROWS:
        value = f"{row.value:,.2f}" if row.value < 100 else f"{row.value:,.0f}"
        line = f"{row.what:<{width}}  {value:>12} {row.unit:<9}  {row.bare:<{bare_width}}"
        write(f"{line}  {row.verdict}".rstrip())
    target = terminalreporter.config.getoption("--bench-json")
    if target:
        Path(target).write_text(json.dumps([asdict(row) for row in ROWS], indent=1) + "\n")
