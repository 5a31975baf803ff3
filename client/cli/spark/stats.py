"""`myq spark stats`: count messages by topic, partition, producer and minute; with plots."""

from __future__ import annotations

import time
from typing import Any

import click

from myqueue.cli.shared import output
from myqueue.cli.spark.commands import given, options, session_on, skip_unknown_option, write_html


@click.command()
@options
@click.option("--topic", "topics", multiple=True, help="Only these topics; may be repeated.")
@click.option(
    "--parquet", metavar="FILE", help="Write sums by partition, producer and minute as Parquet."
)
@click.option("--html", metavar="FILE", help="Also write the report as a page with plots.")
@skip_unknown_option
@output.json_option
def stats(
    paths: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    topics: tuple[str, ...],
    parquet: str | None,
    html: str | None,
    skip_unknown: bool,
    as_json: bool,
) -> None:
    """Count the committed messages in the logs at PATHS, each once.

    Sizes are of values; "stored" is the size of batches after compression. Times are the stamps of
    partitions' leaders. Skew is the size of the largest partition divided by the mean.
    """
    from myqueue.analytics.spark.job import SparkSpreader, progress
    from myqueue.analytics.stats.page import stats_page
    from myqueue.analytics.stats.parquet import count_writer
    from myqueue.analytics.stats.stats import stats as counted

    where = given(paths)
    with (
        session_on(master, conf, "myq spark stats", quick=True) as session,
        count_writer(parquet) as sink,
    ):
        begin = time.monotonic()
        facts = counted(
            where,
            SparkSpreader(session),
            topics=topics or None,
            skip_unknown=skip_unknown,
            sink=sink,
            progress=lambda label: progress(session, label),
        )
        facts["took_s"] = round(time.monotonic() - begin, 3)
    if html is not None:
        write_html(html, stats_page(facts))
    if as_json:
        output.write_json("myq.spark.stats/1", facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    from myqueue.analytics.stats.topic_columns import TOPIC_COLUMNS

    keys = [column.key for column in TOPIC_COLUMNS]
    output.write_table(keys, [[topic[key] for key in keys] for topic in facts["topics"]])
    for text in facts["notes"]:
        click.echo(f"note: {text}", err=True)
    seconds = max(facts["took_s"], 1e-9)
    click.echo(
        f"{facts['messages']:,} messages in {facts['entries']:,} batches "
        f"({facts['messages_per_batch']:,.1f} each), {output.human_bytes(facts['bytes'])} stored, "
        f"{facts['overhead_per_message']:,.1f} B a message beside its value; "
        f"{len(facts['elections']):,} elections"
    )
    click.echo(
        f"{output.human_bytes(facts['bytes_read'])} read in {seconds:.1f} s "
        f"({facts['bytes_read'] / seconds / 1e6:,.0f} MB/s)"
    )
