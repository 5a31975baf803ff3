"""Producers and consumers: when each was last seen, which are inactive, how far consumers lag.

Lags are requested only for the consumers that a page shows, all at once, with a deadline; a lag
that was not known in time is a dash, and the next second asks again.
"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from myqueue.errors import MyQueueError
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts, SnapshotReader
from myqueue.gateway.console.page import (
    UNKNOWN,
    Pager,
    admin,
    console,
    draw,
    link,
    one_line,
    pages,
    text_of,
)
from myqueue.gateway.console.view import format
from myqueue.gateway.console.view.format import OFF, OK, WARN, Cell, Column, Table

STATE = Column("state", "Active: seen within the cluster's setting inactive_ms; else inactive")
LAST_SEEN = Column("last activity", "Its last request or heartbeat")
TOPIC = Column("topic", "The topic that it was registered for")
CONSUMER_COLUMNS: Final = (
    Column("consumer", "Id assigned by the managers"),
    TOPIC,
    STATE,
    LAST_SEEN,
    Column("lag", "Messages of its topic that it has not yet taken or committed", True),
)
PRODUCER_COLUMNS: Final = (
    Column("producer", "Id assigned by the managers"),
    TOPIC,
    STATE,
    LAST_SEEN,
)
NO_CONSUMERS: Final = (
    "No consumers yet. MyConsumer(topics, broker) and POST /consumers register one; a plain"
    " Consumer does not. Group members are listed with their group."
)
DELETED: Final = Cell("deleted", about="Its topic was deleted")
NO_TOPIC: Final = Cell("any", about="It may write to any topic, or its topic was deleted")
NO_PRODUCERS: Final = (
    "No producers yet. MyProducer(topics, broker) and POST /producers register one."
)


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/consumers", "consumers", consumers_page)
    blueprint.add_url_rule("/producers", "producers", producers_page)


def consumers_page() -> Response:
    table, pager, note = consumers(console().watch.latest())
    return draw(
        "console/clients.html",
        "consumers",
        "Consumers",
        table=table,
        pager=pager,
        trouble=note,
        wanted=text_of("filter"),
    )


def producers_page() -> Response:
    look = console().watch.latest()
    table = Table("Producers", PRODUCER_COLUMNS, NO_PRODUCERS)
    producers, note = _health("producers", "")
    rows, pager = pages(len(producers))
    for row in producers[rows]:
        table.add(*_common(row, look, NO_TOPIC))
    if note and not producers:
        table.empty = UNKNOWN
    return draw(
        "console/clients.html",
        "producers",
        "Producers",
        table=table,
        pager=pager,
        trouble=note,
        wanted=text_of("filter"),
    )


def consumers(look: ClusterSnapshot, only: str = "") -> tuple[Table, Pager, str]:
    """Return a page of consumers with their lags, of one topic or all; and why some are missing, if
    so.
    """
    table = Table("Consumers", CONSUMER_COLUMNS, NO_CONSUMERS)
    clients, note = _health("consumers", only)
    rows, pager = pages(len(clients))
    shown = clients[rows]
    lags = SnapshotReader(console().session).lags(shown) if look.problems is not None else {}
    for row in shown:
        lag = lags.get(row["id"])
        if isinstance(lag, MyQueueError):
            cell = Cell(format.NOTHING, about=one_line(lag))
        else:
            cell = Cell(format.count(lag), state=WARN if lag and not row["active"] else "")
        table.add(*_common(row, look, DELETED), cell)
    if note and not clients:
        table.empty = UNKNOWN
    return table, pager, note


def _health(kind: str, only: str) -> tuple[list[Facts], str]:
    """Return the clients to show, those seen last first; and why some are missing, if so."""
    wanted = text_of("filter").lower()
    try:
        health = admin().health()
    except MyQueueError as error:
        return [], one_line(error)
    rows = [
        row
        for row in health[kind]
        if (row["topic"] == only if only else wanted in f"{row['id']} {row['topic']}".lower())
    ]
    rows.sort(key=lambda row: (-row["last_seen_ms"], row["id"]))
    left_out = health["omitted"]
    return (
        rows,
        f"{left_out:,} clients that were seen longer ago are not listed" if left_out else "",
    )


def _common(row: Facts, look: ClusterSnapshot, without: Cell) -> list[Cell]:
    topic = Cell(row["topic"], link("topic", name=row["topic"]), is_code=True)
    return [
        Cell(str(row["id"])),
        topic if row["topic"] else without,
        Cell("active", state=OK) if row["active"] else Cell("inactive", state=OFF),
        Cell(
            format.age(row["last_seen_ms"], look.now_ms), about=format.moment(row["last_seen_ms"])
        ),
    ]
