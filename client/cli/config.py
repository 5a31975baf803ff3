"""`myq config`: every setting with its default, its unit, and what it does; those of a cluster."""

from __future__ import annotations

from typing import Any

import click

from myqueue.cli.shared import connect, options, output
from myqueue.cli.topic import read_settings
from myqueue.daemons.config import SETTINGS
from myqueue.daemons.metadata.arguments import CLUSTER_SETTINGS, TOPIC_SETTINGS
from myqueue.gateway.settings import SETTINGS as GATEWAY_SETTINGS
from myqueue.settings import ConsumerSettings, ProducerSettings, SessionSettings, rows

CLIENTS = {
    "session": SessionSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
}


@click.group()
def config() -> None:
    """Settings of daemons, topics, clusters, producers and consumers: show, cluster."""


@config.command()
@click.argument(
    "part", required=False, type=click.Choice(["daemon", "gateway", "topic", "cluster", *CLIENTS])
)
@output.json_option
def show(part: str | None, as_json: bool) -> None:
    """Show every setting, its default, its unit, and what it does."""
    found = [row for row in settings() if part in (None, row["of"])]
    if as_json:
        output.write_json("myq.config.show/1", {"settings": found})
    else:
        heads = ["of", "setting", "default", "unit", "what it does"]
        output.write_table(
            heads,
            [
                [row["of"], row["name"], text(row["default"]), row["unit"], row["text"]]
                for row in found
            ],
        )


def settings() -> list[dict[str, output.Cell]]:
    all_rows = [("daemon", *setting[:4]) for setting in SETTINGS]
    all_rows += [("gateway", *setting[:4]) for setting in GATEWAY_SETTINGS]
    for of, known in (("topic", TOPIC_SETTINGS), ("cluster", CLUSTER_SETTINGS)):
        # Their units are in their names, and said in the text.
        all_rows += [(of, name, row.default, "", row.what) for name, row in known.items()]
    for of, kind in CLIENTS.items():
        all_rows += [(of, *row) for row in rows(kind)]
    return [
        {
            "of": of,
            "name": name,
            "default": None if default in (None, "", ()) else default,
            "unit": unit,
            "text": text,
        }
        for of, name, default, unit, text in all_rows
    ]


def text(default: output.Cell) -> str | None:
    """Without separators, so that it can be copied into a file."""
    if isinstance(default, bool):
        return str(default).lower()
    return None if default is None else str(default)


@config.command()
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", callback=read_settings,
    help="Change one; NAME= brings its default back. 'myq config show cluster' explains them.",
)  # fmt: skip
@options.options
@output.json_option
def cluster(settings: dict[str, Any], cluster: str | None, data: str | None, as_json: bool) -> None:
    """Show the settings that hold for the cluster now, or change them, while it runs.

    As replace_after_ms: what a broker had that is silent for so long is made anew on others. Those
    of a topic: 'myq topic alter'; those of a daemon: its --config file, and a new start.
    """
    with connect.admin(cluster, data) as admin:
        changed = admin.alter_cluster(settings) if settings else admin.cluster()
    now = changed["settings"]
    if as_json:
        output.write_json("myq.config.cluster/1", {"settings": now})
    else:
        output.write_table(["setting", "value"], [[key, str(value)] for key, value in now.items()])
