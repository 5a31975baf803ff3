"""Reset the positions of a consumer group: a form, a plan, and only then the change.

The first form says where to, and is an ordinary address; its page shows the position of each
partition before and after, and a second form does exactly that. If the group has members, a box
must be ticked too, because they stop and continue from the new positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import flask
from flask import Blueprint, Response

from myqueue import TopicPartition
from myqueue.errors import InvalidRequest, MyQueueError, UnknownGroup
from myqueue.gateway.cluster_snapshot import Facts
from myqueue.gateway.console.page import (
    Crumb,
    admin,
    draw,
    link,
    moment_of,
    one_line,
    see,
    whole,
    with_hint,
)
from myqueue.gateway.console.pages import groups
from myqueue.gateway.console.view import format
from myqueue.gateway.console.view.format import Cell, Column, Table

OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = 10_000
TO: Final = (
    ("earliest", "the first message that is kept"),
    ("latest", "after the last message"),
    ("offset", "an offset"),
    ("time", "a time"),
    ("back", "back by a number of messages"),
    ("on", "forward by a number of messages"),
)
FIELDS: Final = ("from", "offset", "time", "count", "topic", "partition")
COLUMNS: Final = (
    Column("partition", "Topic and number"),
    Column("position", "Offset of the next message that the group wants now", True),
    Column("new position", "Offset where the group would continue", True),
    Column("step", "Messages back (-) or forward (+)", True),
)
SHOWN_MAX: Final = 200  # partitions in the plan; all of them are set


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/groups/<name>/reset", "reset", page)
    blueprint.add_url_rule("/groups/<name>/reset", "reset_now", reset, methods=["POST"])


def page(name: str) -> Response:
    return _draw(name, flask.request.args)


def _draw(name: str, given: Mapping[str, str], trouble: str = "", status: int = 200) -> Response:
    """Draw the form; and the plan, if the form was filled in."""
    group, plan = _group(name), None
    if given.get("from") and not trouble:
        try:
            plan = _plan_table(admin().reset_group(name, **_wanted(given), execute=False))
        except InvalidRequest as error:
            trouble, status = one_line(error), error.http_status
    kept = {field: given.get(field, "").strip()[:200] for field in FIELDS}
    return draw(
        "console/reset.html",
        "groups",
        f"Reset positions of {name}",
        crumbs=(groups.crumb(), Crumb(name, link("group", name=name))),
        name=name,
        group=group,
        given=kept,
        choices=TO,
        plan=plan,
        trouble=trouble,
        members=format.plural(len(group["members"]), "member"),
        status=status,
    )


def _group(name: str) -> Facts:
    """Return the group. One that has never had members may be given positions in a named topic."""
    try:
        return admin().describe_group(name)
    except UnknownGroup:
        return {"group": name, "members": [], "topics": [], "state": "empty"}


def _wanted(given: Mapping[str, str]) -> dict[str, Any]:
    """Read the arguments of `Admin.reset_group` from the form. Raises InvalidRequest."""
    out: dict[str, Any] = {}
    kind = given.get("from", "")
    if kind in ("earliest", "latest"):
        out["to"] = kind
    elif kind == "offset":
        out["offset"] = whole("offset", given.get("offset", ""), 0, OFFSET_MAX)
    elif kind == "time":
        out["time_ms"] = moment_of(given.get("time", ""))
    elif kind in ("back", "on"):
        count = whole("messages", given.get("count", ""), 1, OFFSET_MAX)
        out["shift"] = count if kind == "on" else -count
    else:
        raise InvalidRequest(f"choose where to: one of {', '.join(one for one, _ in TO)}")
    topic, partition = given.get("topic", "").strip(), given.get("partition", "").strip()
    if partition and not topic:
        raise InvalidRequest("a partition needs its topic")
    if partition:
        number = whole("partition", partition, 0, PARTITION_MAX)
        out["partitions"] = [TopicPartition(topic, number)]
    elif topic:
        out["topics"] = [topic]
    return out


def _plan_table(rows: list[Facts]) -> Table:
    table = Table("What the reset would do", COLUMNS, "The group reads nothing: name a topic.")
    for row in rows[:SHOWN_MAX]:
        before, new = row["position"], row["new"]
        table.add(
            Cell(f"{row['topic']}/{row['partition']}", is_code=True),
            format.count(before),
            format.count(new),
            format.NOTHING if before is None else f"{new - before:+,}",
        )
    if len(rows) > SHOWN_MAX:
        table.note = f"And {len(rows) - SHOWN_MAX:,} more partitions."
    return table


def reset(name: str) -> Response:
    form = flask.request.form
    try:
        wanted = _wanted(form)
        admin().reset_group(name, **wanted, force=form.get("force") == "yes")
    except MyQueueError as error:
        return _draw(name, form, with_hint(error), error.http_status)
    return see(link("group", name=name, done="reset"))
