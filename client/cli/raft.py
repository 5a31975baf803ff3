"""`myq raft status`: show role, term and progress of each replica of a Raft group."""

from __future__ import annotations

import click

from myqueue.cli.shared import connect, options, output

COLUMNS = ("node", "address", "role", "term", "leader", "commit", "applied", "log", "ready")


@click.group()
def raft() -> None:
    """Raft groups: the managers' group, and one group for each partition."""


@raft.command()
@click.argument("topic", required=False)
@click.argument("partition", type=int, required=False)
@options.options
@output.json_option
def status(
    topic: str | None, partition: int | None, cluster: str | None, data: str | None, as_json: bool
) -> None:
    """Show leader, term, members, commit and applied index of a Raft group.

    Without arguments: the managers' group; otherwise the group of PARTITION of TOPIC.
    """
    if topic is not None and partition is None:
        raise click.UsageError("Name the partition as well.")
    with connect.admin(cluster, data) as admin:
        answer = connect.facts_of(admin.raft_status(topic, partition or 0))
    connect.somebody_answered(answer["members"])
    if as_json:
        output.write_json("myq.raft.status/1", answer)
    else:
        connect.write_facts(answer, COLUMNS)
