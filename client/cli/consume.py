"""`myq consume`: print messages from a chosen start, to the present end or until Ctrl-C."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from myqueue.cli.shared import options
from myqueue.cli.shared.start_point import From, Range, ranges, read_from
from myqueue.cli.shared.streams import printable, quiet_pipe
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message
from myqueue.errors import BatchUnreadable, Fenced, NotReady, UnknownPartition
from myqueue.settings import DAMAGED

POLL_S = 0.5
ASSIGNED_S = 5.0
IDLE_S = 3.0
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\0": "\0", r"\\": "\\"}
FIELDS: dict[str, Callable[[Message], bytes]] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "k": lambda message: message.key or b"",
    "v": lambda message: message.value,
    "d": lambda message: b"%d" % message.timestamp,
    "h": lambda message: json.dumps(bytes_map(message.headers)).encode(),
    "%": lambda message: b"%",
}
Render = Callable[[Message], bytes]


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "begin",
    default="earliest",
    show_default=True,
    callback=read_from,
    help="earliest, latest, an offset, -N (N before the end), @-10m, @MS or @2026-01-31T12:00.",
)
@click.option("--partition", type=int, help="Read only this partition. [default: all]")
@click.option(
    "--group",
    metavar="NAME",
    help="Join this consumer group: share its partitions, continue at its positions, commit what"
    " is printed. Without --follow, end after 3 s without a message.",
)
@click.option(
    "--on-damaged",
    type=click.Choice(DAMAGED),
    default="raise",
    show_default=True,
    help="On a batch that cannot be unpacked: fail and show its place, or skip it with a warning.",
)
@click.option("--follow", is_flag=True, help="Wait for new messages at the end, until Ctrl-C.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "-f",
    "--format",
    "form",
    default=r"%v\n",
    show_default=True,
    help="%t topic, %p partition, %o offset, %k key, %v value, %d time in ms, %h headers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each message as a JSON object.")
@click.option(
    "--raw",
    is_flag=True,
    help="Print control characters of messages unchanged on a terminal. [default: escaped on a"
    " terminal, unchanged in files and pipes]",
)
@options.options
def consume(
    topic: str,
    begin: From,
    partition: int | None,
    group: str | None,
    on_damaged: str,
    follow: bool,
    count: int | None,
    form: str,
    as_json: bool,
    raw: bool,
    cluster: str | None,
    data: str | None,
) -> None:
    """Print the messages of TOPIC, up to its present end.

    Without --group it stores no position and takes no message from other consumers. If --from names
    an offset that retention has deleted, it begins at the first message and says so on stderr.
    """
    where = options.find(cluster, data)
    is_shown = sys.stdout.isatty() and not raw
    render = as_line if as_json else compiled(form, shown if is_shown else bytes)
    with Session(where, name="myq consume") as session, way_past_damage():
        if group is not None:
            if partition is not None or begin.kind not in ("earliest", "latest"):
                raise click.UsageError(
                    "--group goes on where the group is; without a position"
                    " --from earliest or latest, never with --partition."
                )
            with (
                warnings_told() as warnings,
                Consumer(
                    session,
                    [topic],
                    group=group,
                    start=begin.kind,
                    on_out_of_range=begin.kind,
                    on_damaged=on_damaged,
                ) as member,
                quiet_pipe(),
            ):
                write_shared(member, follow, count, render, warnings)
            return
        known = ranges(session, topic, begin.number if begin.kind == "time" else None)
        if partition is not None:
            if partition not in known:
                raise UnknownPartition(f"{topic} has no partition {partition}; it has {len(known)}")
            known = {partition: known[partition]}
        starts = {number: begin.offset(row) for number, row in known.items()}
        for number, text in begin.missed(known).items():
            click.echo(f"{topic}/{number}: {text}; going on from {starts[number]}", err=True)
        left = {number for number, row in known.items() if starts[number] < row.end}
        if not left and not follow:
            return
        with (
            warnings_told(),
            Consumer(session, [topic], start="earliest", on_damaged=on_damaged) as consumer,
            quiet_pipe(),
        ):
            place(consumer, topic, starts, partition is None)
            write(consumer, known, None if follow else left, count, render)


def place(consumer: Consumer, topic: str, starts: dict[int, int], is_all: bool) -> None:
    """Seek each partition to its start; pause partitions that are not read."""
    end = time.monotonic() + ASSIGNED_S
    while not starts.keys() <= {name.partition for name in consumer.assignment()}:
        if time.monotonic() > end:
            raise NotReady(f"not all partitions of {topic} are known")
        time.sleep(0.01)
    for name in consumer.assignment():
        if name.partition in starts:
            consumer.seek(name, starts[name.partition])
        elif not is_all:
            consumer.pause([name])


def write(
    consumer: Consumer,
    known: dict[int, Range],
    left: set[int] | None,
    count: int | None,
    render: Render,
) -> None:
    """Write messages until `count`, or until all partitions in `left` were read to their end."""
    out, written = sys.stdout.buffer, 0
    while left is None or left:
        for message in consumer.poll(1000, POLL_S):
            end = known[message.partition].end if message.partition in known else 0
            if left is not None and message.offset + 1 >= end:
                left.discard(message.partition)
            if left is not None and message.offset >= end:
                continue  # produced after we began
            out.write(render(message))
            written += 1
            if written == count:
                return
        out.flush()
        if left and consumer.skipped():
            for name in consumer.assignment():  # the batches after its last message were skipped
                number = name.partition
                if number in left and consumer.position(name) >= known[number].end:
                    left.discard(number)


@contextmanager
def way_past_damage() -> Iterator[None]:
    """Replace the error's hint, which names Python calls, by one that names options."""
    try:
        yield
    except BatchUnreadable as error:
        error.hint = (
            "To leave it out: --on-damaged skip; to begin behind it:"
            f" --partition {error.partition} --from {error.next_offset}."
        )
        raise


class Told(logging.Handler):
    """Print the client library's warnings on stderr, and remember the last one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
        click.echo(f"myq: {self.last}", err=True)


@contextmanager
def warnings_told() -> Iterator[Told]:
    handler, log = Told(), logging.getLogger("myqueue")
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)


def write_shared(
    member: Consumer, follow: bool, count: int | None, render: Render, warnings: Told
) -> None:
    """Write messages as a member of a group, and commit those that were written."""
    out, written = sys.stdout.buffer, 0
    end = time.monotonic() + ASSIGNED_S

    is_in, skipped = False, member.skipped()

    def is_over() -> bool:
        return not follow and (is_in or bool(warnings.last)) and time.monotonic() >= end

    while not is_over() and (count is None or written < count):
        if member.is_member and not is_in:
            is_in, end = True, time.monotonic() + ASSIGNED_S
        messages = member.poll(min(1000, count - written) if count else 1000, POLL_S)
        for message in messages:
            out.write(render(message))
        out.flush()
        if messages or member.skipped() != skipped:
            skipped = member.skipped()
            with suppress(Fenced):  # the partition's new member writes them again
                member.commit()
            written += len(messages)
            end = time.monotonic() + IDLE_S
    if not written and warnings.last and not member.assignment():
        raise NotReady(f"no partition was given to this member: {warnings.last}")


def shown(text: bytes) -> bytes:
    """Escape a field of a message for a terminal: only newlines and tabs move the cursor."""
    return printable(text.decode("utf-8", "backslashreplace"), kept="\n\t").encode()


def compiled(form: str, rendered: Callable[[bytes], bytes] = bytes) -> Render:
    """Return a function that renders a message by the format, and each field by `rendered`."""
    parts: list[Render | bytes] = []
    for text in re.findall(r"%.|\\.|[^%\\]+|[%\\]$", form, re.DOTALL):
        if text[0] == "%" and text[1:] in FIELDS:
            parts.append(FIELDS[text[1:]])
        elif text[0] == "%":
            raise click.UsageError(f"--format: {text!r} is not one of %{' %'.join(FIELDS)}.")
        else:
            parts.append(os.fsencode(ESCAPES.get(text, text)))
    return lambda message: b"".join(
        part if isinstance(part, bytes) else rendered(part(message)) for part in parts
    )


def as_line(message: Message) -> bytes:
    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        **texts(message),
        "timestamp": message.timestamp,
    }
    line = json.dumps({"schema": "myq.message/1", **fields}, ensure_ascii=False)
    if not line.isprintable():  # only strings have such characters; JSON can escape them
        line = re.sub(r"[^\x20-\x7e]", _unless_printable, line)
    return line.encode() + b"\n"


def _unless_printable(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def texts(message: Message) -> dict[str, Any]:
    """Return key, value and headers as text; all of them in base64 if any is not UTF-8."""
    try:
        key = None if message.key is None else message.key.decode()
        headers = {name: item.decode() for name, item in (message.headers or {}).items()}
        return {"key": key, "value": message.value.decode(), "headers": headers}
    except UnicodeDecodeError:
        return {
            "key": None if message.key is None else based(message.key),
            "value": based(message.value),
            "headers": {name: based(item) for name, item in (message.headers or {}).items()},
            "encoding": "base64",
        }


def bytes_map(headers: dict[str, bytes] | None) -> dict[str, str]:
    return {
        name: item.decode("utf-8", "backslashreplace") for name, item in (headers or {}).items()
    }


def based(value: bytes) -> str:
    return base64.b64encode(value).decode()
