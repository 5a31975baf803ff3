"""`myq broker`: the daemons that hold the messages."""

from __future__ import annotations

import click

from myqueue.cli import address, asking, output

COLUMNS = (
    "node",
    "address",
    "host",
    "state",
    "alive",
    "last_seen_ms",
    "replicas",
    "leads",
    "load",
    "used_bytes",
    "free_bytes",
)


@click.group()
def broker() -> None:
    """Brokers: the daemons that hold the messages."""


@broker.command("list")
@address.options
@output.json_option
def list_(cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the brokers: state, when they were heard last, what they lead and hold."""
    with asking.admin(cluster, data) as admin:
        rows = asking.facts_of(admin.brokers())
    if as_json:
        output.write_json("myq.broker.list/1", {"brokers": rows})
    else:
        asking.write_rows(rows, COLUMNS)
