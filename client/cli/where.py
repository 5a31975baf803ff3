"""`myq where`: show where one message is stored, and which consumers have passed it."""

from __future__ import annotations

import click

from myqueue.cli.shared import connect, options, output

COLUMNS = (
    *("node", "address", "segment", "position", "length", "index", "term"),
    *("batch_offset", "batch_count", "time_ms", "committed", "past"),
)


@click.command()
@click.argument("topic")
@click.argument("partition", type=int)
@click.argument("offset", type=int)
@options.options
@output.json_option
def where(
    topic: str, partition: int, offset: int, cluster: str | None, data: str | None, as_json: bool
) -> None:
    """Show where the message at OFFSET of a partition is stored.

    Shows the brokers that hold it, its segment and bytes there, its index and term in the
    partition's Raft log, and the consumers and groups whose position is past it. A message is
    stored in its batch: the bytes are those of the batch.
    """
    with connect.admin(cluster, data) as admin:
        answer = connect.facts_of(admin.where(topic, partition, offset))
    connect.somebody_answered(answer["replicas"])
    if as_json:
        output.write_json("myq.where/1", answer)
    else:
        connect.write_facts(answer, COLUMNS)
