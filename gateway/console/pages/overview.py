"""The first page: is the cluster healthy, how much is moving, which daemons are there."""

from __future__ import annotations

from typing import Final

import flask
from flask import Blueprint, Response

from myqueue.gateway.cluster_snapshot import ClusterSnapshot
from myqueue.gateway.console.live.rates import Point
from myqueue.gateway.console.page import console, draw, health_of, link, number_of
from myqueue.gateway.console.pages import nodes
from myqueue.gateway.console.view import format
from myqueue.gateway.console.view.format import BAD, OFF, OK, WARN, Cell, Column, Table, Tile
from myqueue.problems import partitions_of

EVENTS_SHOWN: Final = 12
MINUTES_SHOWN: Final = 15
LOW_BYTES: Final = 1 << 30  # a disk with less free space is marked

# The charts: title, unit, and lines.
CHARTS: Final = (
    (
        "messages", "Messages per second", "rate",
        (("messages_in", "written", "Messages that became durable, each second."),
         ("messages_out", "read", "Messages that were sent to consumers, each second.")),
    ),
    (
        "bytes", "Bytes per second", "bytes",
        (("bytes_in", "written", "Bytes of batches acknowledged to producers, each second."),
         ("bytes_out", "read", "Bytes of batches that were sent to consumers, each second.")),
    ),
    (
        "sync", "Log sync, 99th percentile", "ms",
        (("sync_ms", "sync", "One write and sync of a broker's log, over the last ten seconds."),),
    ),
)  # fmt: skip


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/", "overview", page)
    blueprint.add_url_rule("/series", "series", series)


def page() -> Response:
    watch = console().watch
    look = watch.latest()
    return draw(
        "console/overview.html",
        "overview",
        "Overview",
        health=health_of(look),
        tiles=tiles(look, watch.newest),
        charts=CHARTS,
        minutes=minutes(watch.points()),
        brokers=nodes.brokers_table(watch),
        managers=nodes.managers_table(look),
        events=watch.events()[:EVENTS_SHOWN],
        look=look,
    )


def series() -> Response:
    """Return the points of the charts that are newer than `since`, column by column."""
    watch = console().watch
    watch.latest()
    points = watch.points(number_of("since", 0, 0, 1 << 53))
    columns = {name: [_short(getattr(one, name)) for one in points] for name in Point._fields}
    return flask.jsonify(now_ms=format.wall_ms(), **columns)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def tiles(look: ClusterSnapshot, point: Point) -> list[Tile]:
    counts = look.cluster.get("counts", {})
    alive = sum(bool(row["alive"]) for row in look.brokers)
    has_leader = look.problems is not None
    leaderless = partitions_of(look.problems, "leaderless")
    under = partitions_of(look.problems, "under-replicated")
    return [
        Tile("Written", format.per_second(point.messages_in),
             "Messages that became durable on a majority, per second, in all topics"),
        Tile("Read", format.per_second(point.messages_out),
             "Messages that brokers sent to consumers, per second"),
        Tile("Topics", format.count(counts.get("topics")), "Topics that exist now",
             link=link("topics")),
        Tile("Partitions", format.count(counts.get("partitions")), "Partitions of all topics",
             link=link("topics")),
        Tile("No leader", format.count(len(leaderless)) if has_leader else format.NOTHING,
             "Partitions that can't be written or read now, because none of their replicas leads",
             BAD if leaderless else OK if has_leader else OFF),
        Tile("Replicas missing", format.count(len(under)) if has_leader else format.NOTHING,
             "Partitions with a replica on a broker that is silent, or with too few replicas",
             WARN if under else OK if has_leader else OFF),
        Tile("Brokers", f"{alive} of {len(look.brokers)}", "Brokers alive, of all registered",
             OK if look.brokers and alive == len(look.brokers) else BAD, link("nodes")),
        disk_tile(look),
    ]  # fmt: skip


def disk_tile(look: ClusterSnapshot) -> Tile:
    rows = [row for row in look.brokers if row["alive"]]
    about = "Free space on the fullest disk of a broker"
    if not rows:
        return Tile("Disk free", format.NOTHING, about, OFF)
    least = min(rows, key=lambda row: int(row["free_bytes"]))
    low = any(row["disk_low"] for row in rows)
    state = BAD if low else WARN if least["free_bytes"] < LOW_BYTES else OK
    return Tile(
        "Disk free",
        format.bytes_(least["free_bytes"]),
        about,
        state,
        link("broker", node=least["node"]),
        f"broker {least['node']}",
    )


def minutes(points: list[Point]) -> Table:
    """Return the charts as a table, minute by minute: for readers without script, and screen
    readers.
    """
    table = Table(
        "Averages by minute",
        [
            Column("minute", "Start of the minute, UTC"),
            Column("written", "Messages per second that became durable", True),
            Column("read", "Messages per second that were sent to consumers", True),
            Column("bytes written", "Bytes per second acknowledged to producers", True),
            Column("bytes read", "Bytes per second sent to consumers", True),
            Column("sync", "Highest 99th percentile of a log sync", True),
        ],
        "The first minute has just begun.",
    )
    grouped: dict[int, list[Point]] = {}
    for one in points:
        if one.messages_in is None:
            continue  # no broker answered, or it is the first look
        grouped.setdefault(one.at_ms // 60_000, []).append(one)
    for minute, rows in sorted(grouped.items(), reverse=True)[:MINUTES_SHOWN]:
        table.add(
            format.clock(minute * 60_000)[:5],
            format.per_second(_mean(rows, "messages_in")),
            format.per_second(_mean(rows, "messages_out")),
            format.bytes_per_second(_mean(rows, "bytes_in")),
            format.bytes_per_second(_mean(rows, "bytes_out")),
            Cell(
                format.millis(max((r.sync_ms for r in rows if r.sync_ms is not None), default=None))
            ),
        )
    return table


def _mean(rows: list[Point], name: str) -> float | None:
    values = [value for one in rows if (value := getattr(one, name)) is not None]
    return sum(values) / len(values) if values else None
