"""Topics: the list; creating, growing, retention and deleting.

Each change is a form on its own page, which says what will happen; that is the confirmation, and it
needs no script.
"""

from __future__ import annotations

import re
from typing import Final

import flask
from flask import Blueprint, Response

from myqueue.errors import InvalidName, InvalidRequest, MyQueueError
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.gateway.console.live.growth import GrowthRates
from myqueue.gateway.console.page import (
    UNKNOWN,
    Crumb,
    act_if_typed,
    admin,
    console,
    draw,
    link,
    number_of,
    one_line,
    pages,
    see,
    text_of,
    whole,
    with_hint,
)
from myqueue.gateway.console.view import format, retention
from myqueue.gateway.console.view.format import BAD, OK, WARN, Cell, Column, Table

PARTITIONS_MAX, REPLICATION_MAX = 1000, 9
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
DETAIL_PARTITIONS_MAX: Final = 2000  # up to so many are read in one answer; more, topic by topic
COLUMNS: Final = (
    Column("topic", "Its name"),
    Column("state", "Whether all of its partitions have a leader and all replicas"),
    Column("partitions", "Number of partitions", True),
    Column("copies", "Number of brokers that should hold each partition", True),
    Column("messages", "Messages that are kept, in all partitions", True),
    Column("written", "Messages per second that became durable, measured by this page", True),
    Column("size", "Bytes of the batches that are kept; copies are not counted", True),
)

_paces = GrowthRates()


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/topics", "topics", page)
    blueprint.add_url_rule("/create-topic", "create_topic", create_page)
    blueprint.add_url_rule("/create-topic", "create_topic_now", create, methods=["POST"])
    blueprint.add_url_rule("/topics/<name>/grow", "grow", grow_page)
    blueprint.add_url_rule("/topics/<name>/grow", "grow_now", grow, methods=["POST"])
    blueprint.add_url_rule("/topics/<name>/retention", "retention", retention_page)
    blueprint.add_url_rule("/topics/<name>/retention", "retention_now", retain, methods=["POST"])
    blueprint.add_url_rule("/topics/<name>/delete", "delete", delete_page)
    blueprint.add_url_rule("/topics/<name>/delete", "delete_now", delete, methods=["POST"])


def crumb() -> Crumb:
    return Crumb("Topics", link("topics"))


def page() -> Response:
    """List the topics. Filter, cut to one page, and only then request details: that works for
    thousands of topics.
    """
    wanted = text_of("filter")
    look = console().watch.latest()
    note, table = "", Table("Topics", COLUMNS, "No topics yet. Create one.")
    names: list[str] = []
    try:
        names = [one for one in admin().topics() if wanted.lower() in one.lower()]
        rows, pager = pages(len(names))
        for topic in _details(names[rows], look):
            _row(table, topic, look)
    except InvalidRequest:
        raise
    except MyQueueError as error:
        note = one_line(error)
        rows, pager = pages(len(names))
    if note:
        table.empty = UNKNOWN
    elif wanted:
        table.empty = f"No topic has {wanted!r} in its name."
    return draw(
        "console/topics.html",
        "topics",
        "Topics",
        table=table,
        pager=pager,
        wanted=wanted,
        trouble=note,
        deleted=text_of("deleted"),
    )


def _details(names: list[str], look: ClusterSnapshot) -> list[Facts]:
    wanted = set(names)
    if look.cluster.get("counts", {}).get("partitions", 0) <= DETAIL_PARTITIONS_MAX:
        return [one for one in admin().topics(detail=True) if one["topic"] in wanted]
    return [admin().describe_topic(name) for name in names]


def _row(table: Table, topic: Facts, look: ClusterSnapshot) -> None:
    name, parts = topic["topic"], topic["partitions"]
    ends = sum(part["end"] for part in parts)
    table.add(
        Cell(name, link("topic", name=name), is_code=True),
        state_of(topic, look),
        format.count(len(parts)),
        format.count(topic["replication"]),
        format.count(topic["messages"]),
        format.per_second(_paces.seen(topic["topic_uid"], ends, format.wall_ms())),
        format.bytes_(topic["bytes"]),
    )


def state_of(topic: Facts, look: ClusterSnapshot) -> Cell:
    """Return the worst state of its partitions. Without a leader of the managers, missing replicas
    are not known.
    """
    leaderless = sum(not part["leader"] for part in topic["partitions"])
    if leaderless:
        return Cell("no leader", state=BAD, about=f"{leaderless:,} partitions have no leader")
    missing = [
        row
        for row in look.problems or ()
        if row["problem"] == "under-replicated" and row["topic"] == topic["topic"]
    ]
    silent = sum(bool(part.get("silent")) for part in topic["partitions"])
    if missing or silent:
        count = max(len(missing), silent)
        return Cell("replicas missing", state=WARN, about=f"of {format.plural(count, 'partition')}")
    return Cell("healthy", state=OK)


# -- create ---------------------------------------------------------------------------------------


def create_page(error: str = "", status: int = 200) -> Response:
    form = flask.request.form
    given = {
        "name": form.get("name", ""),
        "partitions": form.get("partitions", "3"),
        "replication": form.get("replication", ""),
        **retention.given(form),
    }
    return draw(
        "console/create.html",
        "topics",
        "Create a topic",
        crumbs=(crumb(),),
        given=given,
        trouble=error,
        status=status,
    )


def create() -> Response:
    form = flask.request.form
    try:
        name = form.get("name", "").strip()
        if not NAME.fullmatch(name):
            raise InvalidName("a topic's name is 1 to 200 of A-Z a-z 0-9 . _ -")
        partitions = whole("partitions", form.get("partitions", ""), 1, PARTITIONS_MAX)
        copies = form.get("replication", "").strip()
        replication = whole("copies", copies, 1, REPLICATION_MAX) if copies else 0
        kept = {setting: value for setting, value in retention.read(form).items() if value}
        admin().create_topic(name, partitions=partitions, replication=replication, settings=kept)
    except MyQueueError as error:
        return create_page(with_hint(error), error.http_status)
    return see(link("topic", name=name, done="created"))


# -- grow -----------------------------------------------------------------------------------------


def grow_page(name: str, error: str = "", status: int = 200) -> Response:
    topic = admin().describe_topic(name)
    return draw(
        "console/grow.html",
        "topics",
        f"Grow {name}",
        crumbs=(crumb(), Crumb(name, link("topic", name=name))),
        name=name,
        partitions=len(topic["partitions"]),
        most=PARTITIONS_MAX,
        count=flask.request.form.get("count") or str(number_of("count", 1, 1, PARTITIONS_MAX)),
        trouble=error,
        status=status,
    )


def grow(name: str) -> Response:
    form = flask.request.form
    try:
        count = whole("partitions to add", form.get("count", ""), 1, PARTITIONS_MAX)
        # Names the total that the form showed, so sending it twice adds once.
        had = whole("partitions before", form.get("had", ""), 1, PARTITIONS_MAX)
        admin().grow_topic(name, to=had + count)
    except MyQueueError as error:
        return grow_page(name, with_hint(error), error.http_status)
    return see(link("topic", name=name, done="grown"))


# -- retention ------------------------------------------------------------------------------------


def retention_page(name: str, error: str = "", status: int = 200) -> Response:
    settings = admin().describe_topic(name)["settings"]
    given = retention.given(flask.request.form) if error else retention.written(settings)
    return draw(
        "console/retention.html",
        "topics",
        f"Retention of {name}",
        crumbs=(crumb(), Crumb(name, link("topic", name=name))),
        name=name,
        given=given,
        trouble=error,
        status=status,
    )


def retain(name: str) -> Response:
    try:
        admin().alter_topic(name, retention.read(flask.request.form))
    except MyQueueError as error:
        return retention_page(name, with_hint(error), error.http_status)
    return see(link("topic", name=name, done="kept"))


# -- delete ---------------------------------------------------------------------------------------


def delete_page(name: str, error: str = "", status: int = 200) -> Response:
    topic = admin().describe_topic(name)
    return draw(
        "console/delete.html",
        "topics",
        f"Delete {name}",
        crumbs=(crumb(), Crumb(name, link("topic", name=name))),
        name=name,
        topic=topic,
        trouble=error,
        status=status,
    )


def delete(name: str) -> Response:
    return act_if_typed(name, admin().delete_topic, delete_page, link("topics", deleted=name))
