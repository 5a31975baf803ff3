"""The README's quick start as it stands there, then the requests over HTTP of client/GUIDE.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.gateways import Gateway
from support.processes import Cluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
README, GUIDE = ROOT / "README.md", ROOT / "client" / "GUIDE.md"
MANAGER, GATEWAY = "127.0.0.1:9092", "http://127.0.0.1:8080"


def blocks(section: str, language: str) -> list[str]:
    """The code of a section, by its heading."""
    _, _, rest = GUIDE.read_text("utf-8").partition(f"## {section}\n")
    text = rest.partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def quick_start() -> str:
    """The program that the first section gives to Python."""
    (program,) = re.findall(r"<<'END'\n(.*?)^END$", README.read_text("utf-8"), re.DOTALL | re.M)
    return str(program)


def shell_lines() -> list[tuple[str, str]]:
    """Each command of the block, and what is shown below it."""
    (block,) = blocks("Over HTTP", "console")
    rows: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            rows.append((line[2:], ""))
        else:
            rows[-1] = (rows[-1][0], rows[-1][1] + line)
    return rows


def run_program(program: str, cluster: Cluster) -> str:
    text = program.replace(MANAGER, cluster.address)
    return subprocess.run(
        [sys.executable, "-P", "-c", text], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_the_requests_work_after_the_quick_start(tmp_path: Path) -> None:
    """In its order, on a new cluster, twice the first program, by the same shell."""
    with (
        Cluster(tmp_path, managers=1) as cluster,
        Gateway(tmp_path, cluster.address) as gateway,
    ):
        for _ in range(2):
            assert run_program(quick_start(), cluster) == "b'world'\n"
        rows = shell_lines()
        assert rows[0][0] == f"G={GATEWAY}" and len(rows) > 5
        script = "\n".join(f"{line}\nprintf '\\n==\\n'" for line, _ in rows)
        done = subprocess.run(
            ["bash", "-e", "-c", script.replace(GATEWAY, gateway.url)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        gateway.check()
    answers = [part.strip() for part in done.stdout.split("==\n")][:-1]
    for (line, shown), answer in zip(rows, answers, strict=True):
        pattern = ".*".join(map(re.escape, shown.split("…")))
        assert re.fullmatch(pattern, answer), (line, shown, answer)
