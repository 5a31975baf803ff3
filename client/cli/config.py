"""`myq config show`: every setting with its default, its unit, and what it does."""

from __future__ import annotations

import click

from myqueue.cli import output
from myqueue.config import ConsumerSettings, ProducerSettings, SessionSettings, rows
from myqueue.daemons.arguments import CLUSTER_SETTINGS, TOPIC_SETTINGS
from myqueue.daemons.config import SETTINGS
from myqueue.gateway.config import SETTINGS as GATEWAY_SETTINGS

CLIENTS = {
    "session": SessionSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
}


@click.group()
def config() -> None:
    """Settings of daemons, topics, producers and consumers."""


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
