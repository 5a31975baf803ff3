"""Messages: a page of them, one message with the place where it is stored, and a test message."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import flask
from flask import Blueprint, Response

from myqueue import Message
from myqueue.errors import InvalidRequest, MyQueueError, OffsetOutOfRange, TimedOut
from myqueue.gateway.cluster_snapshot import Facts
from myqueue.gateway.console import message_reader
from myqueue.gateway.console.message_reader import Range
from myqueue.gateway.console.page import (
    Crumb,
    admin,
    console,
    draw,
    link,
    moment_of,
    number_of,
    one_line,
    see,
    wants_json,
    whole,
)
from myqueue.gateway.console.pages import topics
from myqueue.gateway.console.view import format, payload
from myqueue.gateway.console.view.format import OFF, OK, Cell, Column, Table

SHOWN, SHOWN_MAX = 50, 200
OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = 10_000
WHOLE_MAX: Final = 20  # of at most so many partitions each gives up to the limit; of more, a share
FROM: Final = ("latest", "earliest", "offset", "time")
COLUMNS: Final = (
    Column("partition", "Partition of the message", True),
    Column("offset", "Its number in the partition, from 0; links to the message", True),
    Column("time", "When its producer sent it, UTC, by the producer's clock"),
    Column("key", "Messages with the same key are in the same partition, in order"),
    Column("value", "The beginning of the value"),
    Column("size", "Bytes of the value", True),
)


def add_to(blueprint: Blueprint) -> None:
    at = "/topics/<name>/messages"
    blueprint.add_url_rule(at, "messages", page)
    blueprint.add_url_rule(at, "send", send, methods=["POST"])
    blueprint.add_url_rule(f"{at}/<int:partition>/<int:offset>", "message", one_page)
    blueprint.add_url_rule(f"{at}/<int:partition>/<int:offset>/value", "value", value)


class MessageQuery(NamedTuple):
    """Which messages a page shows."""

    partition: int | None  # None: all of them
    begin: str  # one of FROM
    offset: int
    time_ms: int
    limit: int


def asked() -> MessageQuery:
    args = flask.request.args
    begin = args.get("from") or ("offset" if args.get("offset", "").strip() else "latest")
    if begin not in FROM:
        raise InvalidRequest(f"from is one of {', '.join(FROM)}, not {begin[:40]!r}")
    text = args.get("partition", "").strip()
    return MessageQuery(
        None if not text else whole("partition", text, 0, PARTITION_MAX),
        begin,
        number_of("offset", 0, 0, OFFSET_MAX),
        moment_of(args.get("time", "")) if begin == "time" else 0,
        number_of("limit", SHOWN, 1, SHOWN_MAX),
    )


def page(name: str) -> Response:
    ask, ranges, note = asked(), {}, ""
    table = Table("Messages", COLUMNS, "")
    messages: list[Message] = []
    try:
        ranges = message_reader.ranges(admin(), name)
        if ask.partition is not None and ask.partition not in ranges:
            raise InvalidRequest(f"{name} has no partition {ask.partition}")
        messages, error = _find(name, ask, ranges)
        note = one_line(error) if error else ""
    except TimedOut as error:  # a partition has no leader: the page says so
        note = one_line(error)
    for message in messages:
        table.add(*_row(message))
    table.empty = _why_empty(ask, ranges)
    return draw(
        "console/messages.html",
        "topics",
        name,
        crumbs=(topics.crumb(),),
        name=name,
        tab="messages",
        table=table,
        ask=ask,
        known=ranges,
        trouble=note,
        sent=_sent(),
        time=flask.request.args.get("time", "")[:40],
        older=_older(name, ask, messages, ranges),
        newer=_newer(name, ask, messages, ranges),
        given={},
    )


def _find(name: str, ask: MessageQuery, known: dict[int, Range]) -> message_reader.ReadResult:
    chosen = known if ask.partition is None else {ask.partition: known[ask.partition]}
    share = ask.limit if len(chosen) <= WHOLE_MAX else max(1, ask.limit * WHOLE_MAX // len(chosen))
    if ask.begin == "latest":
        at = {number: max(one.start, one.end - share) for number, one in chosen.items()}
    elif ask.begin == "time":
        rows = admin().offsets(name, time_ms=ask.time_ms)
        times = {place.partition: row.at_time for place, row in rows.items()}
        at = {n: one.end if times.get(n) is None else times[n] or 0 for n, one in chosen.items()}
    else:
        first = ask.offset if ask.begin == "offset" else 0
        at = message_reader.clamp(dict.fromkeys(chosen, first), chosen)
    upto = {number: min(one.end, at[number] + share) for number, one in chosen.items()}
    result = message_reader.read(console().session, name, at, upto)
    newest_first = ask.begin == "latest"
    rows_ = sorted(
        result.messages, key=lambda m: (m.timestamp, m.partition, m.offset), reverse=newest_first
    )
    if ask.partition is not None:  # times may go back within a partition, offsets do not
        rows_.sort(key=lambda message: message.offset, reverse=newest_first)
    return message_reader.ReadResult(rows_[: ask.limit], result.error)


def _row(message: Message) -> list[Cell]:
    name, partition, offset = message.topic, message.partition, message.offset
    key = message.key
    return [
        Cell(format.count(partition)),
        Cell(format.count(offset), link("message", name=name, partition=partition, offset=offset)),
        Cell(format.moment(message.timestamp).removesuffix(" UTC")),
        Cell("", about="It has no key")
        if key is None
        else Cell(payload.preview(key), is_code=True),
        Cell(payload.preview(message.value), is_code=True),
        Cell(format.bytes_(len(message.value))),
    ]


def _why_empty(ask: MessageQuery, known: dict[int, Range]) -> str:
    if all(one.start == one.end for one in known.values()):
        return "No messages yet. Send one below, or from a program."
    return "No messages from there onwards." if ask.begin != "latest" else "No messages here."


def _older(name: str, ask: MessageQuery, found: list[Message], known: dict[int, Range]) -> str:
    if ask.partition is None or not found:
        return ""
    first = min(message.offset for message in found)
    start = known[ask.partition].start
    return "" if first <= start else _at(name, ask, max(start, first - ask.limit))


def _newer(name: str, ask: MessageQuery, found: list[Message], known: dict[int, Range]) -> str:
    if ask.partition is None or not found or ask.begin == "latest":
        return ""
    following = max(message.offset for message in found) + 1
    return "" if following >= known[ask.partition].end else _at(name, ask, following)


def _at(name: str, ask: MessageQuery, offset: int) -> str:
    where: dict[str, Any] = {"partition": ask.partition, "from": "offset", "offset": offset}
    return link("messages", name=name, **where, limit=ask.limit)


# -- one message ----------------------------------------------------------------------------------


def one_page(name: str, partition: int, offset: int) -> Response:
    message, known = fetch(name, partition, offset)
    shown = payload.show(message.value, flask.request.args.get("as", ""))
    table, note = _where(name, partition, offset)
    here = {"name": name, "partition": partition}
    return draw(
        "console/message.html",
        "topics",
        f"Message {offset:,}",
        crumbs=(
            topics.crumb(),
            Crumb(name, link("topic", name=name)),
            Crumb("Messages", link("messages", name=name, partition=partition)),
        ),
        name=name,
        message=message,
        shown=shown,
        table=table,
        trouble=note,
        key=None if message.key is None else payload.preview(message.key),
        headers=[(key, payload.preview(value)) for key, value in (message.headers or {}).items()],
        before=link("message", **here, offset=offset - 1) if offset > known.start else "",
        after=link("message", **here, offset=offset + 1) if offset + 1 < known.end else "",
    )


def fetch(name: str, partition: int, offset: int) -> tuple[Message, Range]:
    ranges = message_reader.ranges(admin(), name)
    one = ranges.get(partition)
    if one is None:
        raise InvalidRequest(f"{name} has no partition {partition}")
    if not one.start <= offset < one.end:
        kept = (
            f"it keeps {one.start:,} to {one.end - 1:,}" if one.end > one.start else "it is empty"
        )
        raise OffsetOutOfRange(f"{name}/{partition} has no message {offset:,}: {kept}")
    found = message_reader.read(
        console().session, name, {partition: offset}, {partition: offset + 1}
    )
    for message in found.messages:
        if message.offset == offset:
            return message, one
    raise found.error or TimedOut(f"{name}/{partition} did not give message {offset:,} in time")


def _where(name: str, partition: int, offset: int) -> tuple[Table, str]:
    """Return where a message is stored, as `myq where` shows it; and an error, if there is one."""
    table = Table(
        "Where it is",
        [
            Column("broker", "Number of the broker"),
            Column("state", "Whether the broker reports that it has the message"),
            Column("segment", "File of its log that holds the message"),
            Column("position", "First byte of the entry in that file", True),
            Column("size", "Bytes of the entry", True),
            Column("index", "Number of the entry in the Raft log of the partition", True),
            Column("term", "Raft term of the leader that stored it", True),
        ],
        "No broker answered.",
    )
    try:
        location = admin().where(name, partition, offset)
    except MyQueueError as error:
        return table, one_line(error)
    for row in location["replicas"]:
        node = Cell(f"broker {row['node']}", link("broker", node=row["node"]))
        if "error" in row:
            table.add(node, Cell(row["code"], state=OFF, about=row["error"]), *("",) * 5)
            continue
        role = "leader" if row["node"] == location["leader"] else "has it"
        table.add(node, Cell(role, state=OK), *_place(row))
        if row["node"] == location["leader"]:
            past = ", ".join(map(str, row.get("past", ()))) or "none yet"
            table.note = f"Consumers whose committed position is after it: {past}."
    return table, ""


def _place(row: Facts) -> list[Cell]:
    def number(key: str, unit: str = "") -> Cell:
        return Cell(format.NOTHING if row.get(key) is None else f"{row[key]:,}{unit}")

    segment = Cell(str(row.get("segment") or format.NOTHING), is_code=True)
    return [segment, number("position"), number("length", " B"), number("index"), number("term")]


def value(name: str, partition: int, offset: int) -> Response:
    """Return the bytes unchanged, as a download that no browser displays."""
    message, _ = fetch(name, partition, offset)
    response = Response(message.value, content_type="application/octet-stream")
    file = f"{name}-{partition}-{offset}.bin"
    response.headers["Content-Disposition"] = f'attachment; filename="{file}"'
    return response


# -- sending --------------------------------------------------------------------------------------


def send(name: str) -> Response:
    form = flask.request.form
    partition = form.get("partition", "").strip()
    # Browsers send line ends as CR LF, whatever was typed.
    text = form.get("value", "").replace("\r\n", "\n")
    key = form.get("key", "")
    number = whole("partition", partition, 0, PARTITION_MAX) if partition else None
    sdk = flask.current_app.extensions["myqueue"]
    at, offset = sdk.producer.store(name, text.encode(), key.encode() if key else None, number)
    if wants_json():
        return flask.jsonify(partition=at, offset=offset)
    return see(link("messages", name=name, sent=f"{at}-{offset}"))


def _sent() -> tuple[int, int] | None:
    """Return where the test message was stored, from the address that `send` redirected to."""
    left, _, right = flask.request.args.get("sent", "").partition("-")
    if format.is_digits(left) and format.is_digits(right) and len(left + right) < 30:
        return int(left), int(right)
    return None
