"""Other brokers and myqueue, measured in turns on the same machine, and the ratios.

    .venv/bin/python tests/bench/compare.py --peers FOLDER redis-always rabbit-quorum --rounds 3

FOLDER is the peers' benchmark: its `bench.py NAME --size N --json` starts that broker, measures it
once and prints one JSON object. `--python` names the interpreter that has the peers' clients. Ours
is `myq up` on a new folder and `myq bench all --json`, which uses the same keys.

The machine is shared and noisy, so figures are compared within a round only: each round measures
everyone once, and what is printed is the median over the rounds of ours divided by theirs. For
throughput more is better, for latency and CPU less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MYQ = [sys.executable, "-P", "-m", "myqueue.cli"]
KEYS = (
    ("produce_msgs_s", "more"), ("produce_mb_s", "more"), ("consume_msgs_s", "more"),
    ("ack_p50_us", "less"), ("ack_p99_us", "less"), ("e2e_p50_us", "less"), ("e2e_p99_us", "less"),
    ("server_cpu_s_per_m", "less"), ("client_cpu_s_per_m", "less"), ("server_rss_mb", "less"),
)  # fmt: skip
LIMIT_S = 400


def ours(size: int, seconds: float) -> dict[str, Any]:
    """A cluster of its own, measured and removed."""
    with tempfile.TemporaryDirectory(prefix="myq-compare-", dir=ROOT / "build") as data:
        subprocess.run(
            [*MYQ, "up", "--detach", "--data", data, "--port-base", "0"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )
        try:
            found = subprocess.run(
                [
                    *MYQ,
                    "bench",
                    "all",
                    "--json",
                    "--data",
                    data,
                    "--size",
                    str(size),
                    "--seconds",
                    str(seconds),
                ],
                check=True,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            return dict(json.loads(found.stdout))
        finally:
            subprocess.run(
                [*MYQ, "down", "--data", data], check=False, timeout=60, stdout=subprocess.DEVNULL
            )


def theirs(folder: Path, python: str, name: str, size: int) -> dict[str, Any]:
    found = subprocess.run(
        [python, str(folder / "bench.py"), name, "--size", str(size), "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if found.returncode or not found.stdout.strip():
        return {"errors": [found.stderr.strip()[-500:] or "it printed nothing"]}
    return dict(json.loads(found.stdout.strip().splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="peers to measure beside us")
    parser.add_argument("--peers", type=Path, required=True, help="folder of the peers' benchmark")
    parser.add_argument("--python", default=sys.executable, help="interpreter for the peers")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of our produce and consume")
    parser.add_argument("--json", action="store_true", help="raw results, one line each")
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(options.rounds):
        found = {"myqueue": ours(options.size, options.seconds)}
        for name in options.names:
            found[name] = theirs(options.peers, options.python, name, options.size)
        rounds.append(found)
        for name, result in found.items():
            for error in result.get("errors") or ():
                sys.stderr.write(f"round {number + 1}, {name}: {error}\n")
            if options.json:
                sys.stdout.write(json.dumps({**result, "peer": name, "round": number + 1}) + "\n")
    if not options.json:
        report(rounds, options.names)
    return 0


def report(rounds: list[dict[str, dict[str, Any]]], names: list[str]) -> None:
    sys.stdout.write(f"{'':20}{'':6}{'myqueue':>14}")
    for name in names:
        sys.stdout.write(f"{name:>18}{'ratio':>8}")
    sys.stdout.write("\n")
    for key, better in KEYS:
        sys.stdout.write(f"{key:20}{better:6}{_median(rounds, 'myqueue', key):>14}")
        for name in names:
            ratios = [
                one["myqueue"][key] / one[name][key]
                for one in rounds
                if one["myqueue"].get(key) and one[name].get(key)
            ]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else "–"
            sys.stdout.write(f"{_median(rounds, name, key):>18}{ratio:>8}")
        sys.stdout.write("\n")


def _median(rounds: list[dict[str, dict[str, Any]]], name: str, key: str) -> str:
    values = [one[name][key] for one in rounds if one[name].get(key) is not None]
    return f"{statistics.median(values):,.6g}" if values else "–"


if __name__ == "__main__":
    sys.exit(main())
