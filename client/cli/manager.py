"""`myq manager`: list the managers, the daemons that keep the cluster's metadata."""

from __future__ import annotations

import click

from myqueue.cli.shared import connect, options, output

COLUMNS = ("node", "address", "host", "leader", "alive", "last_seen_ms", "applied")


@click.group()
def manager() -> None:
    """Managers: the daemons that keep the cluster's metadata."""


@manager.command("list")
@options.options
@output.json_option
def list_(cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the managers, and show which one leads."""
    with connect.admin(cluster, data) as admin:
        rows = connect.facts_of(admin.managers())
    if as_json:
        output.write_json("myq.manager.list/1", {"managers": rows})
    else:
        connect.write_rows(rows, COLUMNS)
