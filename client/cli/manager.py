"""`myq manager`: the daemons that know what the cluster consists of."""

from __future__ import annotations

import click

from myqueue.cli import address, asking, output

COLUMNS = ("node", "address", "host", "leader", "alive", "last_seen_ms", "applied")


@click.group()
def manager() -> None:
    """Managers: the daemons that know what the cluster consists of."""


@manager.command("list")
@address.options
@output.json_option
def list_(cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the managers, and which of them leads."""
    with asking.admin(cluster, data) as admin:
        rows = asking.facts_of(admin.managers())
    if as_json:
        output.write_json("myq.manager.list/1", {"managers": rows})
    else:
        asking.write_rows(rows, COLUMNS)
