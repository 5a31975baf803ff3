"""`myq produce`: send each line of a file, or of standard input, as a message.

No line is dropped in silence: a line that is too large for the topic is not sent but reported with
its number, and the other lines are sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import click

from myqueue.cli.shared import options, output
from myqueue.cli.shared.status_line import Line
from myqueue.cli.shared.streams import Input
from myqueue.errors import DeliveryFailed, MessageTooLarge, MyQueueError
from myqueue.producer.producer import Producer
from myqueue.wire import protocol

SHOW_EVERY = 1000
LINE_BYTES_MAX = protocol.FRAME_BYTES_MAX  # no topic takes more; a longer line is not buffered
TOLD_MAX = 10  # refused lines that are reported one by one
LISTED_MAX = 1000  # refused lines that the JSON answer lists


class Refused(NamedTuple):
    """A line that was not sent, because it is too large for the topic."""

    line: int
    bytes: int
    reason: str


@dataclass
class Tally:
    """Count lines that were sent, refused, or not delivered."""

    sent: int = 0
    refused: int = 0
    failed: int = 0
    list: list[Refused] = field(default_factory=list)

    @property
    def delivered(self) -> int:
        return self.sent - self.failed

    def refuse(self, number: int, size: int, reason: str) -> None:
        self.refused += 1
        if len(self.list) < LISTED_MAX:
            self.list.append(Refused(number, size, reason))
        if self.refused <= TOLD_MAX:
            click.echo(f"myq: line {number:,} is not sent: {reason}", err=True)
        elif self.refused == TOLD_MAX + 1:
            click.echo("myq: more lines are not sent; --json lists them", err=True)


@click.command()
@click.argument("topic")
@click.argument("file", type=Input(), default="-")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="The key is the text before it in a line; a line without it has no key.",
)
@click.option(
    "--partition", type=int, help="Send to this partition. [default: by the key, or in turn]"
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option(
    "--compression",
    type=click.Choice(["none", "zlib"]),
    default="none",
    show_default=True,
    help="Compress batches; consumers unpack them.",
)
@options.options
@output.json_option
def produce(
    topic: str,
    file: BinaryIO,
    key_separator: str | None,
    partition: int | None,
    create: bool,
    compression: str,
    cluster: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Send each line of FILE (or of standard input) to TOPIC.

    Returns when all messages are on the disks of a majority of replicas. A line that is too large
    for the topic is not sent but reported with its number; the other lines are sent. The exit code
    is 1 if any line was not sent or not delivered.
    """
    separator = os.fsencode(key_separator) if key_separator else None
    tally, line, begin = Tally(), Line(), time.monotonic()
    where = options.find(cluster, data)
    producer = Producer(where, compression=compression, create_topics=create)
    stopped: MyQueueError | None = None
    # Checking each delivery would cost more than sending it: `close` reports failures.
    try:
        send_lines(producer, topic, partition, file, separator, tally, line)
        line.show(f"sent {tally.sent:,}; waiting until all are delivered")
    except MyQueueError as error:
        stopped = error
    finally:
        failure = close(producer, tally)
        line.clear()
    seconds = time.monotonic() - begin
    report(topic, tally, seconds, as_json, is_whole=not (stopped or failure))
    if stopped is not None and tally.sent:
        click.echo(
            f"myq: stopped at line {tally.sent + tally.refused + 1:,}: it and those after it were"
            " not sent.",
            err=True,
        )
    problem = stopped or failure
    if problem is not None:
        raise problem
    if tally.refused:
        raise click.ClickException(
            f"{tally.refused:,} of {tally.sent + tally.refused:,} lines were not sent."
            " Make them smaller, or raise message_bytes_max of the topic."
        )


def send_lines(
    producer: Producer,
    topic: str,
    partition: int | None,
    file: BinaryIO,
    separator: bytes | None,
    tally: Tally,
    line: Line,
) -> None:
    for number, (text, size) in enumerate(lines(file), 1):
        if text is None:
            limit = f"a line may have {LINE_BYTES_MAX:,} bytes"
            tally.refuse(number, size, f"{size:,} bytes; {limit}")
            continue
        key, value = split(text, separator)
        try:
            producer.send(topic, value, key=key, partition=partition)
        except MessageTooLarge as error:
            tally.refuse(number, size, str(error))
            continue
        tally.sent += 1
        if tally.sent % SHOW_EVERY == 0:
            waiting = output.human_bytes(producer.buffered_bytes)
            line.show(f"sent {tally.sent:,}; {waiting} are not delivered yet")


def close(producer: Producer, tally: Tally) -> DeliveryFailed | None:
    """Wait for all deliveries; count and return those that failed."""
    try:
        producer.close()
    except DeliveryFailed as error:
        tally.failed = error.messages
        return error
    return None


def report(topic: str, tally: Tally, seconds: float, as_json: bool, *, is_whole: bool) -> None:
    if as_json:
        answer = {
            "topic": topic,
            "sent": tally.sent,
            "delivered": tally.delivered,
            "failed": tally.failed,
            "refused": tally.refused,
            "refused_lines": [row._asdict() for row in tally.list],
            "took_s": seconds,
        }
        output.write_json("myq.produce/1", answer)
    elif is_whole or tally.sent:
        click.echo(f"Delivered {tally.delivered:,} in {seconds:.2f} s.", err=True)


def lines(file: BinaryIO) -> Iterator[tuple[bytes | None, int]]:
    """Yield each line without its newline, and its length; None for a line no topic takes."""
    while line := file.readline(LINE_BYTES_MAX + 1):
        size = len(line)
        if size > LINE_BYTES_MAX and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES_MAX + 1)
                size += len(line)
            yield None, size - line.endswith(b"\n")
            continue
        text = line.removesuffix(b"\n")
        yield text, len(text)


def split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Split a line into key and value."""
    if separator is None:
        return None, line
    key, matched, value = line.partition(separator)
    return (key, value) if matched else (None, line)
