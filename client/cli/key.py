"""`myq key`: make, list and revoke the keys of a cluster and of its clients.

A cluster that listens on more than loopback needs them.
"""

from __future__ import annotations

from pathlib import Path

import click

from myqueue.cli.shared import output
from myqueue.cluster.connection import new_keypair
from myqueue.wire import keyfiles

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def key() -> None:
    """Make, list and revoke the keys of a cluster and of its clients.

    All hosts of a cluster have the same folder of keys (--keys DIR of its daemons). A client needs
    one key file, named by MYQ_KEY. With keys, connections are encrypted, and only admitted clients
    can connect. Revoke a client's key on every host.
    """


@key.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--client", metavar="NAME", help="Also make a key for a client of this name, and admit it."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for the client's key. [default: NAME.key]",
)
def generate(folder: Path, client: str | None, out: Path | None) -> None:
    """Make the cluster keys that FOLDER lacks; with --client, also a client's key."""
    if out is not None and client is None:
        raise click.UsageError("--out is where a client's key goes: give --client NAME too.")
    made_files = keyfiles.make_cluster(folder, new_keypair)
    for path in made_files:
        click.echo(f"Made {path}")
    if client is not None:
        target = out or Path(f"{client}.key")
        keyfiles.make_client(folder, client, target, new_keypair)
        click.echo(f"Made {target}; {client} is admitted.")
        click.echo(f"Next: copy {folder} to all hosts; the client needs MYQ_KEY={target}")
    elif made_files:
        click.echo(f"Next: start every daemon with --keys {folder}; admit a client with --client")
    else:
        click.echo(f"{folder} has its keys already; --client NAME admits a client.")


@key.command("list")
@click.argument("folder", type=FOLDER)
@output.json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the clients that FOLDER admits."""
    names = keyfiles.clients(folder)
    if as_json:
        output.write_json("myq.key.list/1", {"clients": names})
    else:
        output.write_table(["client"], [[name] for name in names])


@key.command()
@click.argument("folder", type=FOLDER)
@click.argument("client")
def revoke(folder: Path, client: str) -> None:
    """Revoke the key of CLIENT. Connections that it has open stay until they end."""
    keyfiles.revoke(folder, client)
    click.echo(f"{client} is not admitted any more by this folder; do the same on all hosts.")
