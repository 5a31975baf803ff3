"""`myq where`: the whereabouts of one message."""

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
    """Tell where the message at OFFSET of a partition is.

    Which brokers hold it, in which segment and bytes of it, under which index and term of the
    partition's log, and which consumers and groups are past it. A message is stored in its batch:
    the bytes are those of the batch.
    """
    with connect.admin(cluster, data) as admin:
        found = connect.facts_of(admin.where(topic, partition, offset))
    connect.somebody_answered(found["replicas"])
    if as_json:
        output.write_json("myq.where/1", found)
    else:
        connect.write_facts(found, COLUMNS)
