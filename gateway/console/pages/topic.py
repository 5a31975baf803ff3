"""One topic: its partitions, its settings, and its consumers."""

from __future__ import annotations

from typing import Final

import flask
from flask import Blueprint, Response

from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.gateway.console.page import admin, console, draw, link, pages
from myqueue.gateway.console.pages import clients, groups, topics
from myqueue.gateway.console.view import format, settings
from myqueue.gateway.console.view.format import BAD, OK, WARN, Cell, Column, Table, Tile

COLUMNS: Final = (
    Column("partition", "Number of the partition; links to its messages"),
    Column("state", "Whether it has a leader and all replicas"),
    Column("leader", "Broker that stores and serves its messages now"),
    Column("replicas", "Brokers that keep a copy, the preferred leader first"),
    Column("term", "Raft term of the leader; grows with each election", True),
    Column("first offset", "Offset of the first message that is kept", True),
    Column("next offset", "Offset that the next message will get", True),
    Column("messages", "Messages that are kept", True),
    Column("size", "Bytes of the batches that are kept", True),
)
DONE: Final = {
    "created": "Created. Its partitions get their leaders within a second or two.",
    "kept": "Retention was changed. Messages over the limits are deleted within seconds.",
    "grown": "Partitions were added. From now on keys are spread over all partitions.",
}

NO_CONSUMERS: Final = (
    "No consumer is registered for this topic. MyConsumer(topics, broker) and POST /consumers"
    " register one; a plain Consumer does not. Group members are listed with their group."
)


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/topics/<name>", "topic", page)
    blueprint.add_url_rule("/topics/<name>/consumers", "topic_consumers", consumers_page)


def page(name: str) -> Response:
    look = console().watch.latest()
    topic = admin().describe_topic(name)
    rows, pager = pages(len(topic["partitions"]))
    return draw(
        "console/topic.html",
        "topics",
        name,
        crumbs=(topics.crumb(),),
        name=name,
        tab="topic",
        table=table_of(topic, topic["partitions"][rows], look),
        pager=pager,
        tiles=tiles(topic, look),
        settings=settings.of_topic(topic["settings"]),
        done=DONE.get(flask.request.args.get("done", ""), ""),
    )


def tiles(topic: Facts, look: ClusterSnapshot) -> list[Tile]:
    state = topics.state_of(topic, look)
    return [
        Tile("State", state.text, "The worst of its partitions", state.state),
        Tile("Partitions", format.count(len(topic["partitions"])), "How many partitions it has"),
        Tile("Copies", format.count(topic["replication"]),
             "Number of brokers that should hold each partition"),
        Tile("Messages", format.count(topic["messages"]), "Messages that are kept"),
        Tile("Size", format.bytes_(topic["bytes"]),
             "Bytes of the batches that are kept; copies are not counted"),
        Tile("Created", format.moment(topic["created_ms"])[:10],
             format.moment(topic["created_ms"])),
    ]  # fmt: skip


def table_of(topic: Facts, parts: list[Facts], look: ClusterSnapshot) -> Table:
    alive = {row["node"]: row["alive"] for row in look.brokers}
    missing = {
        row["partition"]: row["missing"]
        for row in look.problems or ()
        if row["problem"] == "under-replicated" and row["topic"] == topic["topic"]
    }
    table = Table("Partitions", COLUMNS, "It has no partitions.")
    for part in parts:
        number, leader = part["partition"], part["leader"]
        gone = missing.get(number) or [n for n in part["replicas"] if not alive.get(n, True)]
        table.add(
            Cell(str(number), link("messages", name=topic["topic"], partition=number)),
            _state(leader, gone),
            Cell(f"broker {leader}", link("broker", node=leader)) if leader else format.NOTHING,
            ", ".join(
                f"{node} (missing)" if node in gone else str(node) for node in part["replicas"]
            ),
            format.count(part["term"]),
            format.count(part["start"]),
            format.count(part["end"]),
            format.count(part["end"] - part["start"]),
            format.bytes_(part["bytes"]),
        )
    return table


def _state(leader: int, gone: list[int]) -> Cell:
    if not leader:
        return Cell("no leader", state=BAD, about="The partition can't be written or read now")
    if gone:
        return Cell("replicas missing", state=WARN, about=f"on broker {', '.join(map(str, gone))}")
    return Cell("healthy", state=OK)


def consumers_page(name: str) -> Response:
    look = console().watch.latest()
    topic = admin().describe_topic(name)
    table, pager, note = clients.consumers(look, only=topic["topic"])
    table.empty = NO_CONSUMERS
    group_table, why_not = groups.readers(look, topic["topic"])
    return draw(
        "console/topic_consumers.html",
        "topics",
        name,
        crumbs=(topics.crumb(),),
        name=name,
        tab="topic_consumers",
        groups=group_table,
        table=table,
        pager=pager,
        trouble=why_not or note,
    )
