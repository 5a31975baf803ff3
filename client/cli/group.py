"""`myq group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from typing import Any

import click

from myqueue.admin.client import Admin
from myqueue.cli.shared import connect, options, output
from myqueue.cli.shared.start_point import read_from
from myqueue.consumer.message import TopicPartition
from myqueue.errors import UnknownGroup


@click.group()
def group() -> None:
    """Consumer groups: consumers that share the partitions of topics."""


@group.command("list")
@click.option(
    "--lag", is_flag=True, help="Also show how many messages each group has not yet read."
)
@options.options
@output.json_option
def list_(lag: bool, cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the consumer groups.

    --lag asks the leaders of their partitions; a group's lag is unknown if one does not answer.
    """
    with connect.admin(cluster, data) as admin:
        rows = [
            {**row, "lag": lag_of(admin, row["group"])} if lag else row for row in admin.groups()
        ]
    if as_json:
        output.write_json("myq.group.list/1", {"groups": rows})
        return
    heads = ["group", "state", "members", "partitions", *["lag"] * lag, "topics"]
    texts = [{**row, "topics": " ".join(row["topics"])} for row in rows]
    output.write_table(heads, [[row[head] for head in heads] for row in texts])


def lag_of(admin: Admin, name: str) -> int | None:
    try:
        lag: int | None = admin.describe_group(name)["lag"]
    except UnknownGroup:  # deleted just now
        return None
    return lag


@group.command()
@click.argument("name")
@click.option("--members", is_flag=True, help="Show the members instead of the partitions.")
@options.options
@output.json_option
def describe(
    name: str, members: bool, cluster: str | None, data: str | None, as_json: bool
) -> None:
    """Show the partitions of the group NAME: member, position and lag."""
    with connect.admin(cluster, data) as admin:
        answer = admin.describe_group(name)
    if as_json:
        output.write_json("myq.group.describe/1", connect.facts_of(answer))
        return
    count = len(answer["members"])
    lag = "not known: no leader answers" if answer["lag"] is None else f"{answer['lag']:,}"
    click.echo(f"{name}  {answer['state']}  {count} member{'s' * (count != 1)}  lag {lag}")
    if members:
        heads = (
            "member",
            "name",
            "host",
            "partitions",
            "last_seen_ms",
            "session_ms",
            "joined_ms",
            "topics",
        )
        rows = [{**row, "session_ms": f"{row['session_ms']:,} ms"} for row in answer["members"]]
        connect.write_rows(rows, heads)
        return
    names = {row["member"]: row["name"] for row in answer["members"]}
    output.write_table(
        ["topic", "partition", "member", "name", "position", "start", "end", "lag"],
        [
            [
                row["topic"],
                row["partition"],
                str(row["member"] or "-"),
                names.get(row["member"]) or "-",
                row["position"],
                row["start"],
                row["end"],
                row["lag"],
            ]
            for row in answer["partitions"]
        ],
    )


def read_topics(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[str, list[int]]]:
    """Parse --topic (a click callback): NAME, or NAME:0,1,2."""
    topics = []
    for value in values:
        name, colon, numbers = value.partition(":")
        parts = numbers.split(",") if colon else []
        if not name or not all(part.isascii() and part.isdigit() for part in parts):
            raise click.BadParameter(f"{value!r} is not TOPIC or TOPIC:0,1,…")
        topics.append((name, [int(part) for part in parts]))
    return topics


@group.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.options
def delete(names: tuple[str, ...], yes: bool, cluster: str | None, data: str | None) -> None:
    """Delete the groups NAMES and their positions. They must have no members."""
    listed = ", ".join(names)
    connect.confirm(f"Delete {listed} and all positions of it?", yes=yes)
    with connect.admin(cluster, data) as admin:
        for name in names:
            admin.delete_group(name)
    click.echo(f"Deleted {listed}.")


@group.command()
@click.argument("name")
@click.option(
    "--to",
    metavar="WHERE",
    callback=lambda c, p, value: None if value is None else read_from(c, p, value),
    help="earliest, latest, an offset, or a time: @-10m, @MS, @ISO-TIME.",
)
@click.option(
    "--shift",
    type=int,
    help="Move each position by this many messages; a negative number goes back.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=read_topics,
    metavar="TOPIC[:0,1,…]",
    help="Only this topic, or these partitions of it; repeatable. [default: all it reads]",
)
@click.option("--execute", is_flag=True, help="Apply the plan; without this it is only printed.")
@click.option(
    "--force", is_flag=True, help="Even if it has members; they continue at the new positions."
)
@options.options
@output.json_option
def reset(
    name: str,
    to: Any,
    shift: int | None,
    topics: list[tuple[str, list[int]]],
    execute: bool,
    force: bool,
    cluster: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Set the positions of the group NAME. Prints the plan; --execute applies it."""
    if (to is None) == (shift is None):
        raise click.UsageError("Say where: either --to WHERE or --shift N.")
    where: dict[str, Any] = {"shift": shift}
    if to is not None:
        if to.kind == "before_end":
            raise click.UsageError("--to takes no number before the end; --shift goes back.")
        kinds = {"offset": "offset", "time": "time_ms"}
        where = {kinds[to.kind]: to.number} if to.kind in kinds else {"to": to.kind}
    with connect.admin(cluster, data) as admin:
        chosen: dict[str, Any] = {}
        if topics and not any(numbers for _, numbers in topics):
            chosen["topics"] = [topic for topic, _ in topics]
        elif topics:
            chosen["partitions"] = [
                TopicPartition(topic, number)
                for topic, numbers in topics
                for number in numbers or range(len(admin.describe_topic(topic)["partitions"]))
            ]
        rows = admin.reset_group(name, **where, **chosen, force=force, execute=execute)
    if as_json:
        output.write_json(
            "myq.group.reset/1", {"group": name, "executed": execute, "partitions": rows}
        )
        return
    output.write_table(
        ["topic", "partition", "position", "new"],
        [[row["topic"], row["partition"], row["position"], row["new"]] for row in rows],
    )
    click.echo("Done." if execute else "Nothing was changed; add --execute to do it.")
