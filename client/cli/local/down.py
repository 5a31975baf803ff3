"""`myq down`: stop the cluster that runs on a data folder."""

from __future__ import annotations

import os
import signal
import time

import click

from myqueue.cli.shared import options
from myqueue.cli.shared.status_line import Line
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import TimedOut, TroubleError

STOP_S = 20.0


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    default=options.DATA,
    show_default=True,
    help="The cluster's data folder.",
)
def down(data: str) -> None:
    """Stop the cluster on this machine: brokers first, then managers. The data stays."""
    folder = ClusterFolder(data)
    pid = folder.holder()
    if pid is None:
        click.echo(f"No cluster is running on {data}.", err=True)
        return
    if pid <= 0:
        raise TroubleError(
            "it runs where its processes can't be seen from here", hint="Stop it in its container."
        )
    ask_to_stop(folder, pid)
    line, end = Line(), time.monotonic() + STOP_S
    while folder.holder() == pid:
        if time.monotonic() > end:
            raise TimedOut(f"pid {pid} still runs", hint=f"See {folder.node / 'node.log'}.")
        cluster = folder.load()
        left = [daemon.name for daemon in cluster.daemons if daemon.pid] if cluster else []
        line.show(f"Stopping: {', '.join(left)}")
        time.sleep(0.1)
    line.clear()
    click.echo(f"Stopped; the data stays in {data}.")


def ask_to_stop(folder: ClusterFolder, pid: int) -> None:
    """Send SIGTERM to the process that holds the lock, never to another with its old number."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if folder.holder() == pid:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
