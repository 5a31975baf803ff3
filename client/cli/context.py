"""`myq context`: name clusters, so that commands need no address."""

from __future__ import annotations

import click

from myqueue.cli.shared import output
from myqueue.cli.shared.options import Contexts
from myqueue.settings import addresses


@click.group()
def context() -> None:
    """Name clusters, and choose the one that commands use.

    Names are kept in $XDG_CONFIG_HOME/myqueue/contexts.json (default: ~/.config). --cluster, --data
    and MYQ_CLUSTER take precedence over the context in use.
    """


@context.command()
@click.argument("name")
@click.argument("cluster")
@click.option("--use", is_flag=True, help="Also make it the context in use.")
def add(name: str, cluster: str, use: bool) -> None:
    """Give the cluster at tcp://host:port[,…] the name NAME.

    If NAME exists, its address is replaced.
    """
    contexts = Contexts()
    contexts.clusters[name] = ",".join(addresses(cluster))
    if use:
        contexts.current = name
    contexts.save()


@context.command("list")
@output.json_option
def list_(as_json: bool) -> None:
    """List all contexts."""
    contexts = Contexts()
    rows: list[dict[str, output.Cell]] = [
        {"name": name, "cluster": cluster, "in_use": name == contexts.current}
        for name, cluster in sorted(contexts.clusters.items())
    ]
    if as_json:
        output.write_json("myq.context.list/1", {"contexts": rows})
    else:
        output.write_table(["name", "cluster", "in use"], [list(row.values()) for row in rows])


@context.command()
@click.argument("name", required=False)
@click.option("--none", "no_name", is_flag=True, help="Use no context from now on.")
def use(name: str | None, no_name: bool) -> None:
    """Make NAME the context in use."""
    if (name is None) != no_name:
        raise click.UsageError("Give a name, or --none.")
    contexts = Contexts()
    if name is not None:
        check(contexts, name)
    contexts.current = name
    contexts.save()


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Delete the context NAME. The cluster itself is not changed."""
    contexts = Contexts()
    check(contexts, name)
    del contexts.clusters[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()


def check(contexts: Contexts, name: str) -> None:
    if name not in contexts.clusters:
        raise click.ClickException(
            f"there is no context {name!r}: see 'myq context list', or add it."
        )
