"""`myq raft status`: how the replicas of a group stand to each other."""

from __future__ import annotations

import click

from myqueue.cli.shared import connect, options, output

COLUMNS = ("node", "address", "role", "term", "leader", "commit", "applied", "log", "ready")


@click.group()
def raft() -> None:
    """Consensus: the managers' group, and that of each partition."""


@raft.command()
@click.argument("topic", required=False)
@click.argument("partition", type=int, required=False)
@options.options
@output.json_option
def status(
    topic: str | None, partition: int | None, cluster: str | None, data: str | None, as_json: bool
) -> None:
    """Show leader, term, members, commit and applied index of a group.

    It is the managers' group, or that of PARTITION of TOPIC.
    """
    if topic is not None and partition is None:
        raise click.UsageError("Name the partition as well.")
    with connect.admin(cluster, data) as admin:
        found = connect.facts_of(admin.raft_status(topic, partition or 0))
    connect.somebody_answered(found["members"])
    if as_json:
        output.write_json("myq.raft.status/1", found)
    else:
        connect.write_facts(found, COLUMNS)
