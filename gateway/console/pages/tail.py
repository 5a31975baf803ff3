"""The live tail: messages as they arrive, for a script that asks again and again.

A request names the offset of each partition that it continues from. It is answered at once if there
are messages, else as soon as some arrive. Few requests may wait at a time, because each occupies a
thread of the server; the others get their answer at once and ask again a little later. A page that
can't keep up is told how many messages were skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import flask
from flask import Blueprint, Response

from myqueue import Message
from myqueue.errors import InvalidRequest, MyQueueError
from myqueue.gateway.console import message_reader
from myqueue.gateway.console.page import admin, console, draw, link, one_line
from myqueue.gateway.console.pages import topics
from myqueue.gateway.console.view import format, payload

WAIT_S: Final = 2.0
WAITERS_MAX: Final = 4
ROWS_MAX: Final = 200  # of one answer, over all partitions
_waiters = threading.BoundedSemaphore(WAITERS_MAX)


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/topics/<name>/tail", "tail", page)
    blueprint.add_url_rule("/topics/<name>/tail/more", "more", more)


def page(name: str) -> Response:
    ranges = message_reader.ranges(admin(), name)
    return draw(
        "console/tail.html",
        "topics",
        name,
        crumbs=(topics.crumb(),),
        name=name,
        tab="tail",
        at=spell({number: one.end for number, one in ranges.items()}),
        known=ranges,
        given={},
        more=link("more", name=name),
    )


def more(name: str) -> Response:
    ranges = message_reader.ranges(admin(), name)
    at = message_reader.clamp(positions(flask.request.args.get("at", "")), ranges)
    share = max(1, ROWS_MAX // max(1, len(ranges)))
    begin = {number: max(at[number], one.end - share) for number, one in ranges.items()}
    skipped = sum(begin[number] - at[number] for number in ranges)
    has_some = any(begin[number] < one.end for number, one in ranges.items())
    ends = {number: one.end for number, one in ranges.items()}
    with _waiting(not has_some) as wait_s:
        result = message_reader.read(console().session, name, begin, ends, wait_s)
    following = dict(begin)
    for message in result.messages:
        following[message.partition] = max(following[message.partition], message.offset + 1)
    rows = sorted(result.messages, key=lambda m: (m.timestamp, m.partition, m.offset))
    return flask.jsonify(
        at=spell(following),
        rows=[row(one) for one in rows],
        skipped=skipped,
        waited=wait_s > 0,
        error=one_line(result.error) if result.error else "",
    )


@contextmanager
def _waiting(wanted: bool) -> Iterator[float]:
    """Yield how long this request may wait in a slot of the gateway; 0 if too many wait."""
    with ExitStack() as held:
        if not wanted or not _waiters.acquire(blocking=False):
            yield 0.0
            return
        held.callback(_waiters.release)
        wait_slots = getattr(flask.current_app.extensions["myqueue"], "wait_slots", None)
        try:
            if wait_slots is not None:
                held.enter_context(wait_slots.hold())
        except MyQueueError:
            yield 0.0
            return
        yield WAIT_S


def row(message: Message) -> dict[str, Any]:
    """Return a message as texts; the script shows them as texts."""
    return {
        "partition": format.count(message.partition),
        "offset": format.count(message.offset),
        "time": format.clock(message.timestamp) if 0 <= message.timestamp < 1 << 41 else "",
        "key": None if message.key is None else payload.preview(message.key),
        "value": payload.preview(message.value),
        "size": format.bytes_(len(message.value)),
        "link": link(
            "message", name=message.topic, partition=message.partition, offset=message.offset
        ),
    }


def spell(at: dict[int, int]) -> str:
    return ",".join(f"{number}:{offset}" for number, offset in sorted(at.items()))


def positions(text: str) -> dict[int, int]:
    """Read what `spell` wrote; a browser may send anything."""
    out = {}
    for part in text.split(",") if text else ():
        number, colon, offset = part.partition(":")
        numbers = format.is_digits(number) and format.is_digits(offset)
        if not (colon and numbers and len(part) < 40):
            raise InvalidRequest(f"at is PARTITION:OFFSET,…, not {part[:40]!r}")
        out[int(number)] = int(offset)
    return out
