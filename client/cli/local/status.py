"""`myq status`: list the daemons that run on this machine, and the cluster's problems."""

from __future__ import annotations

import click

from myqueue.cli import UNREACHABLE
from myqueue.cli.shared import cluster_health, options, output
from myqueue.daemons.agent import supervisor
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalCluster

TIMEOUT_S = 3.0


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    default=options.DATA,
    show_default=True,
    help="The cluster's data folder.",
)
@output.json_option
def status(data: str, as_json: bool) -> None:
    """Show the daemons of the cluster on this machine, and whether it is healthy.

    Healthy: all daemons run and send heartbeats, the managers have a leader, brokers have room on
    their disks, and every partition has a leader and all its replicas. The exit code is 3 if no
    cluster is running here. 'myq health' also asks clusters elsewhere, and its exit code tells
    whether the cluster is healthy.
    """
    folder = ClusterFolder(data)
    running = folder.holder() is not None
    cluster = folder.load()
    if cluster is None or not running:
        if as_json:
            output.write_json(
                "myq.status/1", {"healthy": False, "daemons": [], "gateway": None, "problems": []}
            )
        else:
            known = f" It was {cluster.cluster}: 'myq up' goes on with it." if cluster else ""
            click.echo(f"No cluster is running on {data}.{known}", err=True)
        click.get_current_context().exit(UNREACHABLE)
    problems = look(cluster)
    if as_json:
        write_json(cluster, problems)
    else:
        write(cluster, problems)


def look(cluster: LocalCluster) -> list[str]:
    down = [
        f"{daemon.name} is {daemon.state}"
        for daemon in cluster.daemons
        if daemon.state != supervisor.RUNNING
    ]
    found = cluster_health.problems(cluster.address, cluster, TIMEOUT_S)
    return down + [problem.advice for problem in found]


def write_json(cluster: LocalCluster, problems: list[str]) -> None:
    daemons = [
        {
            "kind": daemon.kind,
            "id": daemon.id,
            "state": daemon.state,
            "address": daemon.url,
            "pid": daemon.pid,
        }
        for daemon in cluster.daemons
    ]
    answer = {
        "healthy": not problems,
        "daemons": daemons,
        "gateway": cluster.gateway,
        "problems": problems,
    }
    output.write_json("myq.status/1", answer)


def write(cluster: LocalCluster, problems: list[str]) -> None:
    click.echo(f"{cluster.cluster}: {'healthy' if not problems else 'NOT healthy'}")
    for problem in problems:
        click.echo(f"  {problem}")
    output.write_table(
        ["kind", "id", "state", "address", "pid", "restarts"],
        [
            [row.kind, row.id, row.state, row.address, str(row.pid or "-"), row.restarts]
            for row in cluster.daemons
        ],
    )
