"""`myq health` and `myq check`: list the problems of a cluster, for people and for monitoring."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from myqueue.admin.client import Admin
from myqueue.cli import FAILED
from myqueue.cli.shared import cluster_health, connect, options, output
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalCluster
from myqueue.errors import MyQueueError
from myqueue.problems import Problem

TIMEOUT_S = 5.0
WATCH_S = 1.0
# Exit codes that Nagios and similar tools expect.
OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
NAMES = {OK: "OK", WARNING: "WARNING", CRITICAL: "CRITICAL", UNKNOWN: "UNKNOWN"}


@click.command()
@click.option("--watch", is_flag=True, help="Look every second; print when something changed.")
@click.option("--exit-when-healthy", is_flag=True, help="Wait until the cluster is healthy.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Stop waiting after this time."
)
@options.options
@output.json_option
def health(
    watch: bool,
    exit_when_healthy: bool,
    timeout_s: float | None,
    cluster: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Show problems, and every broker, producer and consumer with the time of its last heartbeat.

    Healthy: the managers have a leader, all managers and brokers send heartbeats and have room on
    their disks, every partition has a leader and all its replicas, no disk is damaged, and no
    broker keeps replicas that no topic has. The exit code is 1 if the cluster is not healthy at the
    end.
    """
    where, known = options.find(cluster, data), expected(cluster, data)
    end = None if timeout_s is None else time.monotonic() + timeout_s
    shown: Any = None
    for problems in looks(where, known, end, forever=watch or exit_when_healthy):
        if shown != problems:
            shown = problems
            tell(problems, actors(where), as_json)
        if exit_when_healthy and not problems:
            break
    if shown:
        click.get_current_context().exit(FAILED)


def expected(cluster: str | None, data: str | None) -> LocalCluster | None:
    """Return the daemons that should run, if `myq up` runs this cluster here."""
    folder = ClusterFolder(data or options.DATA)
    found = folder.load() if folder.holder() else None
    return found if found and found.address == options.find(cluster, data) else None


def looks(
    where: str, known: LocalCluster | None, end: float | None, forever: bool
) -> Iterator[list[Problem]]:
    while True:
        begin = time.monotonic()
        yield cluster_health.problems(where, known, TIMEOUT_S)
        if not forever or (end is not None and time.monotonic() >= end):
            return
        time.sleep(max(0.0, begin + WATCH_S - time.monotonic()))


def actors(where: str) -> dict[str, Any]:
    """Return daemons and clients with their last heartbeats; nothing if no manager answers."""
    try:
        with Admin(where) as admin:
            answer: dict[str, Any] = connect.facts_of(admin.health())
    except MyQueueError:
        return {}
    return answer


def tell(problems: list[Problem], found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        rows = [problem._asdict() for problem in problems]
        output.write_json("myq.health/1", {"healthy": not problems, "problems": rows, **found})
        return
    click.echo("healthy" if not problems else "NOT healthy")
    for problem in problems:
        click.echo(f"  {problem.advice}")
    for name, rows in found.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            click.echo(f"\n{name}:")
            connect.write_rows(rows)


@click.command()
@click.option(
    "--timeout",
    "timeout_s",
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the managers may take to answer.",
)
@options.options
@output.json_option
def check(timeout_s: float, cluster: str | None, data: str | None, as_json: bool) -> None:
    """Check health for Nagios and similar tools: print one line, and set the exit code.

    0 OK; 1 WARNING: all works, but something is missing; 2 CRITICAL: something can't be read or
    written now, or no manager leads; 3 UNKNOWN: no cluster was named or found.
    """
    begin = time.monotonic()
    try:
        where = options.find(cluster, data)
        problems = cluster_health.problems(where, expected(cluster, data), timeout_s)
    except MyQueueError as error:
        code, text = UNKNOWN, f"{error}. {error.hint}"
    else:
        critical = any(problem.critical for problem in problems)
        code = CRITICAL if critical else WARNING if problems else OK
        text = "; ".join(problem.text for problem in problems) or f"{where} is healthy"
    took_s = time.monotonic() - begin
    if as_json:
        output.write_json("myq.check/1", {"state": NAMES[code], "text": text, "took_s": took_s})
    else:
        click.echo(f"MYQ {NAMES[code]} - {text} | time={took_s:.3f}s")
    click.get_current_context().exit(code)
