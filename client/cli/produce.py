"""`myq produce`: each line of a file, or of what is piped in, becomes a message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import BinaryIO

import click

from myqueue.cli import address, output
from myqueue.cli.waiting import Line
from myqueue.errors import DeliveryFailed
from myqueue.producer import Producer

SHOW_EVERY = 1000


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--key-separator", metavar="TEXT",
    help="What is before it in a line is the key; a line without it has none.",
)  # fmt: skip
@click.option("--partition", type=int, help="[default: by the key, or in turn]")
@click.option("--create", is_flag=True, help="Create the topic if there is none.")
@click.option(
    "--compression", type=click.Choice(["none", "zlib"]), default="none", show_default=True,
    help="Of the batches, from here to the consumers.",
)  # fmt: skip
@address.options
@output.json_option
def produce(
    topic: str, file: BinaryIO, key_separator: str | None, partition: int | None, create: bool,
    compression: str, cluster: str | None, data: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Send each line of FILE (or of standard input) to TOPIC.

    Returns when all are on the disks of a majority. The exit code is 1 if any was not delivered.
    """
    separator = key_separator.encode() if key_separator else None
    sent, line, begin = 0, Line(), time.monotonic()
    failed: tuple[object, ...] = ()
    where = address.find(cluster, data)
    producer = Producer(where, compression=compression, create_topics=create)
    problem: DeliveryFailed | None = None
    try:
        # Looking at each delivery would cost more than sending it: `close` knows of failures.
        with producer:
            for key, value in messages(file, separator):
                producer.send(topic, value, key=key, partition=partition)
                sent += 1
                if sent % SHOW_EVERY == 0:
                    waiting = output.human_bytes(producer.buffered_bytes)
                    line.show(f"sent {sent:,}; {waiting} are not delivered yet")
            line.show(f"sent {sent:,}; waiting until all are delivered")
    except DeliveryFailed as error:
        problem, failed = error, error.failed
    line.clear()
    seconds = time.monotonic() - begin
    if as_json:
        answer = {"topic": topic, "sent": sent, "delivered": sent - len(failed)}
        output.write_json("myq.produce/1", {**answer, "failed": len(failed), "took_s": seconds})
    elif problem is None:
        click.echo(f"Delivered {sent:,} in {seconds:.2f} s.", err=True)
    if problem is not None:
        raise problem


def messages(file: BinaryIO, separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    for line in file:
        line = line.removesuffix(b"\n")
        key, found, value = line.partition(separator) if separator else (b"", b"", line)
        yield (key, value) if found else (None, line)
