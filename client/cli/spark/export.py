"""`myq spark export`: write messages as Parquet, all at once or incrementally."""

from __future__ import annotations

import time

import click

from myqueue.cli.shared import output
from myqueue.cli.spark.commands import given, options, session_on, skip_unknown_option


@click.command()
@options
@click.option("--to", "target", required=True, metavar="DIR", help="Folder or URI to write to.")
@click.option("--topic", "topics", multiple=True, help="Only these topics; may be repeated.")
@click.option("--restart", is_flag=True, help="Replace an existing export from the beginning.")
@skip_unknown_option
@output.json_option
def export(
    paths: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    target: str,
    topics: tuple[str, ...],
    restart: bool,
    skip_unknown: bool,
    as_json: bool,
) -> None:
    """Write committed messages of the logs at PATHS to DIR as Parquet.

    Each topic and partition has its folder (topic=…/partition=…); the columns are offset,
    timestamp, key, value, headers, stored. The next run with the same DIR adds the messages since
    then, each once: DIR/_progress has the position, as the checkpoint of a Spark stream.
    """
    from myqueue.analytics.export import export as exported
    from myqueue.analytics.spark.job import progress

    with session_on(master, conf, "myq spark export") as session:
        begin, left_out = time.monotonic(), list[str]()
        with progress(session, "Exporting"):
            rows = exported(
                session,
                given(paths),
                target,
                topics,
                restart=restart,
                skip_unknown=skip_unknown,
                note=left_out.append,
            )
        took_s = time.monotonic() - begin
    facts = {"to": target, "messages": rows, "notes": left_out, "took_s": round(took_s, 3)}
    if as_json:
        output.write_json("myq.spark.export/1", facts)
        return
    for text in left_out:
        click.echo(f"note: {text}", err=True)
    speed = rows / max(took_s, 1e-9)
    click.echo(f"{rows:,} messages written to {target} in {took_s:.1f} s ({speed:,.0f}/s)")
