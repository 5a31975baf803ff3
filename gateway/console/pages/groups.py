"""Consumer groups: the list; and one group with its members, partitions and positions."""

from __future__ import annotations

from typing import Any, Final

import flask
from flask import Blueprint, Response

from myqueue.errors import MyQueueError
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts, SnapshotReader
from myqueue.gateway.console.page import (
    UNKNOWN,
    Crumb,
    act_if_typed,
    admin,
    console,
    draw,
    link,
    one_line,
    pages,
    text_of,
)
from myqueue.gateway.console.view import format
from myqueue.gateway.console.view.format import OFF, OK, WARN, Cell, Column, Table, Tile

COLUMNS: Final = (
    Column("group", "Its name"),
    Column("state", "Whether its partitions are assigned"),
    Column("members", "Consumers in the group now", True),
    Column("partitions", "Partitions assigned to its members", True),
    Column("lag", "Messages of its topics that it has not committed yet", True),
    Column("topics", "Topics that it reads, or read last"),
)
MEMBER_COLUMNS: Final = (
    Column("member", "Number of the member; new with each join"),
    Column("name", "The name that its program gave it"),
    Column("machine", "Where it runs"),
    Column("has", "Partitions assigned to it"),
    Column("last seen", "Its last heartbeat"),
    Column("joined", "When it joined"),
    Column("session", "It is removed after this long without a heartbeat"),
)
PARTITION_COLUMNS: Final = (
    Column("partition", "Topic and number"),
    Column("member", "Member that reads it now"),
    Column("position", "Offset of the next message, as the group committed it", True),
    Column("first offset", "Offset of the first message that is kept", True),
    Column("next offset", "Offset that the next message will get", True),
    Column("lag", "Messages from its position on", True),
)
READER_COLUMNS: Final = (
    *COLUMNS[:3],
    Column("lag", "Messages of this topic that it has not committed yet", True),
)
STATES: Final = {
    "stable": Cell("stable", state=OK, about="Every partition is assigned to a member"),
    "moving": Cell("moving", state=WARN, about="Partitions move from one member to another"),
    "empty": Cell("empty", state=OFF, about="It has no members, so nothing is read"),
    "resetting": Cell(
        "resetting", state=WARN, about="Its positions are being reset; its members wait"
    ),
}
NO_GROUPS: Final = (
    "No groups yet. Consumers of a group share its partitions: Consumer(cluster, topics, group=…),"
    " or myq consume TOPIC --group NAME."
)
DONE: Final = "Its positions were reset. Members continue from there."
READERS_MAX: Final = 50  # groups on the page of a topic
NAMED_MAX: Final = 12  # partitions in one cell


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/groups", "groups", page)
    blueprint.add_url_rule("/groups/<name>", "group", one_page)
    blueprint.add_url_rule("/groups/<name>/delete", "delete_group", delete_page)
    blueprint.add_url_rule("/groups/<name>/delete", "delete_group_now", delete, methods=["POST"])


def crumb() -> Crumb:
    return Crumb("Groups", link("groups"))


def page() -> Response:
    """List the groups. Lags are requested only for the groups that are shown, all at once, with a
    deadline.
    """
    wanted = text_of("filter")
    look = console().watch.latest()
    table, note = Table("Groups", COLUMNS, NO_GROUPS), ""
    groups: list[Facts] = []
    try:
        groups = [row for row in admin().groups() if _fits(row, wanted.lower())]
    except MyQueueError as error:
        note = one_line(error)
        table.empty = UNKNOWN
    rows, pager = pages(len(groups))
    shown = groups[rows]
    lags = SnapshotReader(console().session).group_lags(shown) if look.problems is not None else {}
    for row in shown:
        of = lags.get(row["group"])
        table.add(
            Cell(row["group"], link("group", name=row["group"]), is_code=True),
            state_of(row),
            format.count(row["members"]),
            format.count(row["partitions"]),
            _lag(None if of is None else sum(of.values()), row["members"]),
            Cell(_some(row["topics"]), is_code=True),
        )
    if wanted and not note:
        table.empty = f"No group has {wanted!r} in its name, or reads such a topic."
    return draw(
        "console/groups.html",
        "groups",
        "Groups",
        table=table,
        pager=pager,
        trouble=note,
        wanted=wanted,
        deleted=text_of("deleted"),
    )


def readers(look: ClusterSnapshot, topic: str) -> tuple[Table, str]:
    """Return the groups that read a topic, or read it last; and why they are not known, if so."""
    table = Table("Groups", READER_COLUMNS, "No group reads this topic.")
    try:
        groups = [row for row in admin().groups() if topic in row["topics"]]
    except MyQueueError as error:
        table.empty = UNKNOWN
        return table, one_line(error)
    groups.sort(key=lambda row: (-row["members"], row["group"]))
    shown = groups[:READERS_MAX]
    lags = SnapshotReader(console().session).group_lags(shown) if look.problems is not None else {}
    for row in shown:
        lag = lags.get(row["group"], {}).get(topic)
        table.add(
            Cell(row["group"], link("group", name=row["group"]), is_code=True),
            state_of(row),
            format.count(row["members"]),
            _lag(lag, row["members"]),
        )
    if len(groups) > len(shown):
        table.note = f"{len(groups) - len(shown):,} more groups read it, or read it last."
    return table, ""


def _fits(row: Facts, wanted: str) -> bool:
    return any(wanted in one.lower() for one in (row["group"], *row["topics"]))


def state_of(row: Facts) -> Cell:
    cell = STATES.get(row["state"])
    return cell or Cell(str(row["state"]), about="A state of a newer version")


def _lag(lag: int | None, members: int) -> Cell:
    if lag is None:
        return Cell(format.NOTHING, about="Not known in time; it is requested again")
    return Cell(format.count(lag), state=WARN if lag and not members else "")


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


# -- one of them ----------------------------------------------------------------------------------


def one_page(name: str) -> Response:
    by_lag = flask.request.args.get("sort") == "lag"
    group = admin().describe_group(name)
    parts = list(group["partitions"])
    if by_lag:
        parts.sort(key=lambda part: -(part["lag"] or 0))
    rows, pager = pages(len(parts))
    return draw(
        "console/group.html",
        "groups",
        name,
        crumbs=(crumb(),),
        name=name,
        tiles=tiles(group),
        members=members_of(group),
        table=partitions_of(group, parts[rows]),
        pager=pager,
        by_lag=by_lag,
        done=DONE if flask.request.args.get("done") == "reset" else "",
    )


def tiles(group: Facts) -> list[Tile]:
    state = state_of(group)
    idle = sum(not part["member"] for part in group["partitions"])
    lag = _lag(group["lag"], len(group["members"]))
    return [
        Tile("State", state.text, state.about, state.state),
        Tile("Members", format.count(len(group["members"])), "Consumers in the group now"),
        Tile("Partitions", format.count(len(group["partitions"])), "Partitions of its topics"),
        Tile(
            "Not assigned",
            format.count(idle),
            "Partitions without a member",
            WARN if idle and group["members"] else "",
        ),
        Tile("Lag", lag.text, "Messages of its topics that it has not committed yet", lag.state),
        Tile("Topics", format.count(len(group["topics"])), "Topics that it reads, or read last"),
    ]


def members_of(group: Facts) -> Table:
    table = Table("Members", MEMBER_COLUMNS, "No members: nothing is read for this group now.")
    now_ms = console().watch.latest().now_ms
    owned: dict[int, list[str]] = {}
    for part in group["partitions"]:
        owned.setdefault(part["member"], []).append(f"{part['topic']}/{part['partition']}")
    for row in group["members"]:
        has = owned.get(row["member"], [])
        table.add(
            Cell(str(row["member"])),
            Cell(row["name"] or format.NOTHING, is_code=True),
            Cell(row["host"] or format.NOTHING, is_code=True),
            Cell(
                _some(has) if has else format.NOTHING,
                is_code=True,
                about=f"{format.plural(len(has), 'partition')} assigned to it",
            ),
            _last_seen(row["last_seen_ms"], now_ms),
            Cell(format.age(row["joined_ms"], now_ms), about=format.moment(row["joined_ms"])),
            format.duration(row["session_ms"]),
        )
    return table


def _last_seen(last_seen_ms: int | None, now_ms: int) -> Cell:
    if last_seen_ms is None:
        return Cell(format.NOTHING, about="Only the managers' leader knows, and it did not answer")
    return Cell(format.age(last_seen_ms, now_ms), about=format.moment(last_seen_ms))


def partitions_of(group: Facts, parts: list[Facts]) -> Table:
    table = Table("Partitions", PARTITION_COLUMNS, "The topics that it read were deleted.")
    names = {row["member"]: row["name"] for row in group["members"]}
    for part in parts:
        name, number, member = part["topic"], part["partition"], part["member"]
        table.add(
            Cell(f"{name}/{number}", link("messages", name=name, partition=number), is_code=True),
            Cell(_member(member, names)) if member else _nobody(part, names),
            format.count(part["position"]),
            format.count(part["start"]),
            format.count(part["end"]),
            format.count(part["lag"]),
        )
    return table


def _member(member: int, names: dict[int, Any]) -> str:
    return f"{names[member]} ({member})" if names.get(member) else str(member)


def _nobody(part: Facts, names: dict[int, Any]) -> Cell:
    if part["wanted"]:
        about = f"It is about to be assigned to {_member(part['wanted'], names)}"
        return Cell("none yet", state=WARN, about=about)
    return Cell("none", state=OFF)


# -- deleting -------------------------------------------------------------------------------------


def delete_page(name: str, error: str = "", status: int = 200) -> Response:
    group = admin().describe_group(name)
    return draw(
        "console/delete_group.html",
        "groups",
        f"Delete {name}",
        crumbs=(crumb(), Crumb(name, link("group", name=name))),
        name=name,
        group=group,
        trouble=error,
        status=status,
    )


def delete(name: str) -> Response:
    return act_if_typed(name, admin().delete_group, delete_page, link("groups", deleted=name))
