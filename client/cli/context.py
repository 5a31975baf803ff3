"""`myq context`: names for clusters, so that commands need no address."""

from __future__ import annotations

import click

from myqueue.cli.shared import output
from myqueue.cli.shared.options import Contexts
from myqueue.settings import addresses


@click.group()
def context() -> None:
    """Name clusters, and choose the one that commands talk to.

    They are kept in $XDG_CONFIG_HOME/myqueue/contexts.json (~/.config without it). --cluster,
    --data and MYQ_CLUSTER go before the context in use.
    """


@context.command()
@click.argument("name")
@click.argument("cluster")
@click.option("--use", is_flag=True, help="Use it from now on.")
def add(name: str, cluster: str, use: bool) -> None:
    """Call the cluster at tcp://host:port[,…] NAME, or give NAME another address."""
    contexts = Contexts()
    contexts.clusters[name] = ",".join(addresses(cluster))
    if use:
        contexts.current = name
    contexts.save()


@context.command("list")
@output.json_option
def list_(as_json: bool) -> None:
    """Show all contexts."""
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
@click.option("--none", "no_name", is_flag=True, help="Use no context.")
def use(name: str | None, no_name: bool) -> None:
    """Talk to the cluster called NAME from now on."""
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
    """Forget a context; the cluster is not touched."""
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
