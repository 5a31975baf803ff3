"""`myq key`: keys of a cluster that listens on more than loopback, and of its clients."""

from __future__ import annotations

from pathlib import Path

import click

from myqueue.cli.shared import output
from myqueue.cluster.connection import new_keypair
from myqueue.wire import keyfiles

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def key() -> None:
    """Keys of a cluster and of its clients: generate, list, revoke.

    The folder of keys is the same on all hosts of a cluster (--keys DIR of its daemons). A client
    needs one file, named by MYQ_KEY. Connections are encrypted then, and only who is admitted is
    let in. Removing a client from the folder on every host revokes its key.
    """


@key.command()
@click.argument("folder", type=FOLDER)
@click.option("--client", metavar="NAME", help="Admit a client of this name, and make its key.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Where the client's key goes. [default: NAME.key]",
)  # fmt: skip
def generate(folder: Path, client: str | None, out: Path | None) -> None:
    """Make the keys in FOLDER as far as they are missing; with --client, a client's key."""
    if out is not None and client is None:
        raise click.UsageError("--out is where a client's key goes: give --client NAME too.")
    made = keyfiles.make_cluster(folder, new_keypair)
    for path in made:
        click.echo(f"Made {path}")
    if client is not None:
        target = out or Path(f"{client}.key")
        keyfiles.make_client(folder, client, target, new_keypair)
        click.echo(f"Made {target}; {client} is admitted.")
        click.echo(f"Next: copy {folder} to all hosts; the client needs MYQ_KEY={target}")
    elif made:
        click.echo(f"Next: start every daemon with --keys {folder}; admit a client with --client")
    else:
        click.echo(f"{folder} has its keys already; --client NAME admits a client.")


@key.command("list")
@click.argument("folder", type=FOLDER)
@output.json_option
def list_(folder: Path, as_json: bool) -> None:
    """Show which clients FOLDER admits."""
    names = keyfiles.clients(folder)
    if as_json:
        output.write_json("myq.key.list/1", {"clients": names})
    else:
        output.write_table(["client"], [[name] for name in names])


@key.command()
@click.argument("folder", type=FOLDER)
@click.argument("client")
def revoke(folder: Path, client: str) -> None:
    """Admit CLIENT no longer. What is connected stays so until its connection ends."""
    keyfiles.revoke(folder, client)
    click.echo(f"{client} is not admitted any more by this folder; do the same on all hosts.")
