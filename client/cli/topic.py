"""`myq topic`: create, list, describe, alter, grow and delete topics."""

from __future__ import annotations

from typing import Any

import click

from myqueue.cli import FAILED
from myqueue.cli.shared import connect, options, output


@click.group()
def topic() -> None:
    """Topics and their partitions: create, list, describe, alter, grow, delete."""


def settings_option(function: Any) -> Any:
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=read_settings,
        help="Change a topic setting; 'myq config show topic' lists them.",
    )(function)


def read_settings(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int | None]:
    """Parse --set (a click callback): NAME=NUMBER; NAME= restores the default."""
    settings: dict[str, int | None] = {}
    for value in values:
        name, equals, number = value.partition("=")
        try:
            settings[name] = int(number.replace("_", "")) if number else None
        except ValueError:
            equals = ""
        if not equals:
            raise click.BadParameter(f"{value!r} is not NAME=NUMBER.")
    return settings


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--partitions", default=1, show_default=True, help="Partitions of each topic.")
@click.option(
    "--replication", type=int, help="Replicas of each partition. [default: 3, or all brokers]"
)
@settings_option
@options.options
@output.json_option
def create(
    names: tuple[str, ...],
    partitions: int,
    replication: int | None,
    settings: dict[str, Any],
    cluster: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Create the topics NAMES, all alike.

    Of several topics each is created or refused by itself; the exit code is 1 if one was refused.

    The number of partitions is fixed unless automatic growth is on: --set partition_growth=1000
    adds one whenever the topic has received 1,000 messages for each of its partitions. 'myq topic
    grow' adds partitions at once. After either, a key may belong to another partition.
    """
    how: dict[str, Any] = {
        "partitions": partitions,
        "replication": replication or 0,
        "settings": settings,
    }
    with connect.admin(cluster, data) as admin:
        if len(names) == 1:
            rows = [{"topic": names[0], **admin.create_topic(names[0], **how)}]
        else:
            rows = admin.create_topics(names, **how)
    done, refused = _split(rows)
    if as_json:
        facts = [connect.facts_of(_created(row)) for row in done] + refused
        if len(names) == 1:
            output.write_json("myq.topic.create/1", facts[0])
        else:
            output.write_json("myq.topic.create-many/1", {"topics": facts})
    elif done:
        listed = ", ".join(row["topic"] for row in done)
        click.echo(f"Created {listed} with {partitions} partition{'s' * (partitions != 1)}.")
    _fail_if(refused)


def _created(row: dict[str, Any]) -> dict[str, Any]:
    groups = [{"group": group} for group in row["partitions"]]
    return {"topic": row["topic"], "topic_uid": row["topic_uid"], "partitions": groups}


def _split(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Divide rows of many updates into those that were done, and the others."""
    refused = [row for row in rows if "error" in row]
    return [row for row in rows if "error" not in row], refused


def _fail_if(refused: list[dict[str, Any]]) -> None:
    for row in refused:
        click.echo(f"{row['topic']}: {row['error']} ({row['code']})", err=True)
    if refused:
        click.get_current_context().exit(FAILED)


@topic.command("list")
@options.options
@output.json_option
def list_(cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the topics."""
    with connect.admin(cluster, data) as admin:
        rows = connect.facts_of(admin.topics(detail=True))
    if as_json:
        output.write_json("myq.topic.list/1", {"topics": rows})
        return
    output.write_table(
        ["topic", "partitions", "replication", "messages", "bytes", "leaderless"],
        [
            [
                row["topic"],
                len(row["partitions"]),
                row["replication"],
                row["messages"],
                row["bytes"],
                sum(not part["leader"] for part in row["partitions"]),
            ]
            for row in rows
        ],
    )


@topic.command()
@click.argument("name")
@options.options
@output.json_option
def describe(name: str, cluster: str | None, data: str | None, as_json: bool) -> None:
    """Show the settings and the partitions of the topic NAME.

    `leaving` lists brokers whose replica is moving to another broker, `silent` brokers that send no
    heartbeat; an empty column is left out. 'myq raft status NAME PARTITION' shows the progress of
    the copy.
    """
    with connect.admin(cluster, data) as admin:
        facts = connect.facts_of(admin.describe_topic(name))
    if as_json:
        output.write_json("myq.topic.describe/1", facts)
        return
    settings = " ".join(f"{key}={value}" for key, value in facts["settings"].items())
    click.echo(f"{facts['topic']}  {settings}")
    output.write_table(*partitions_table(facts["partitions"]))


def partitions_table(parts: list[dict[str, Any]]) -> tuple[list[str], list[list[output.Cell]]]:
    shown = [head for head in ("leaving", "silent") if any(part.get(head) for part in parts)]
    heads = ["partition", "leader", "replicas", *shown, "term", "start", "end", "bytes"]
    rows: list[list[output.Cell]] = [
        [
            part["partition"],
            part["leader"] or None,
            _nodes(part["replicas"]),
            *(_nodes(part[head]) for head in shown),
            part.get("term"),
            part.get("start"),
            part.get("end"),
            part.get("bytes"),
        ]
        for part in parts
    ]
    return heads, rows


def _nodes(numbers: list[int]) -> str | None:
    return " ".join(map(str, numbers)) or None


@topic.command()
@click.argument("name")
@settings_option
@options.options
@output.json_option
def alter(
    name: str, settings: dict[str, Any], cluster: str | None, data: str | None, as_json: bool
) -> None:
    """Change settings of the topic NAME.

    `--set NAME=` restores a default.
    """
    if not settings:
        raise click.UsageError("Say what to change: --set NAME=VALUE.")
    with connect.admin(cluster, data) as admin:
        after = admin.alter_topic(name, settings)["settings"]
    if as_json:
        output.write_json("myq.topic.alter/1", {"topic": name, "settings": after})
    else:
        output.write_table(
            ["setting", "value"], [[key, str(value)] for key, value in after.items()]
        )


@topic.command()
@click.argument("name")
@click.option("--count", type=int, help="Partitions to add. [default: 1]")
@click.option("--to", type=int, help="Partitions in all, instead of --count.")
@options.options
@output.json_option
def grow(
    name: str,
    count: int | None,
    to: int | None,
    cluster: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Add partitions to the topic NAME. Afterwards a key may belong to another partition."""
    if count is not None and to is not None:
        raise click.UsageError("Give --count or --to, not both.")
    with connect.admin(cluster, data) as admin:
        numbers = admin.grow_topic(name, to=to) if to else admin.grow_topic(name, count or 1)
    if as_json:
        output.write_json("myq.topic.grow/1", {"topic": name, "partitions": numbers})
    else:
        click.echo(f"Added to {name}: {', '.join(map(str, numbers)) or 'nothing'}.")


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.options
def delete(names: tuple[str, ...], yes: bool, cluster: str | None, data: str | None) -> None:
    """Delete the topics NAMES with all their messages."""
    listed = ", ".join(names)
    connect.confirm(f"Delete {listed} and all messages in it?", yes=yes)
    with connect.admin(cluster, data) as admin:
        if len(names) == 1:
            admin.delete_topic(names[0])
            rows = [{"topic": names[0]}]
        else:
            rows = admin.delete_topics(names)
    done, refused = _split(rows)
    if done:
        click.echo(f"Deleted {', '.join(row['topic'] for row in done)}.")
    _fail_if(refused)
