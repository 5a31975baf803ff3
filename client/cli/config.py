"""`myq config`: list every setting; show or change the settings of a running cluster."""

from __future__ import annotations

from typing import Any

import click

from myqueue.cli.shared import connect, options, output
from myqueue.cli.topic import read_settings
from myqueue.daemons.config import SETTINGS
from myqueue.gateway.settings import SETTINGS as GATEWAY_SETTINGS
from myqueue.settings import ConsumerSettings, ProducerSettings, SessionSettings, rows
from myqueue.wire.metadata_settings import CLUSTER_SETTINGS, TOPIC_SETTINGS

CLIENTS = {
    "session": SessionSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
}


@click.group()
def config() -> None:
    """List all settings; show or change those of a running cluster."""


@config.command()
@click.argument(
    "part", required=False, type=click.Choice(["daemon", "gateway", "topic", "cluster", *CLIENTS])
)
@output.json_option
def show(part: str | None, as_json: bool) -> None:
    """List every setting with its default, its unit and its effect."""
    selected = [row for row in settings() if part in (None, row["of"])]
    if as_json:
        output.write_json("myq.config.show/1", {"settings": selected})
    else:
        heads = ["of", "setting", "default", "unit", "what it does"]
        output.write_table(
            heads,
            [
                [row["of"], row["name"], text(row["default"]), row["unit"], row["text"]]
                for row in selected
            ],
        )


def settings() -> list[dict[str, output.Cell]]:
    all_rows = [("daemon", *setting[:4]) for setting in SETTINGS]
    all_rows += [("gateway", *setting[:4]) for setting in GATEWAY_SETTINGS]
    for of, table in (("topic", TOPIC_SETTINGS), ("cluster", CLUSTER_SETTINGS)):
        # The names of these settings and their meanings give the unit.
        all_rows += [(of, name, row.default, "", row.meaning) for name, row in table.items()]
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
    """Format a default without separators, so that it can be copied into a file."""
    if isinstance(default, bool):
        return str(default).lower()
    return None if default is None else str(default)


@config.command()
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=read_settings,
    help="Change a setting; NAME= restores its default. List: 'myq config show cluster'.",
)
@options.options
@output.json_option
def cluster(settings: dict[str, Any], cluster: str | None, data: str | None, as_json: bool) -> None:
    """Show or change the settings of the running cluster.

    For example replace_after_ms: a broker's replicas are rebuilt on other brokers after it sent no
    heartbeat for this long. To change a topic's settings use 'myq topic alter'; to change a
    daemon's, edit its --config file and restart it.
    """
    with connect.admin(cluster, data) as admin:
        changed = admin.alter_cluster(settings) if settings else admin.cluster()
    now = changed["settings"]
    if as_json:
        output.write_json("myq.config.cluster/1", {"settings": now})
    else:
        output.write_table(["setting", "value"], [[key, str(value)] for key, value in now.items()])
