"""Brokers and managers: state, leaders, what each of them holds; and the cluster's settings."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import flask
from flask import Blueprint, Response

from myqueue.admin.broker_moves import replicas_left, when_to_stop
from myqueue.errors import MyQueueError, NotFound
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.gateway.console.live.poller import Watch
from myqueue.gateway.console.page import (
    Crumb,
    admin,
    console,
    draw,
    find,
    link,
    number_of,
    one_line,
    pages,
)
from myqueue.gateway.console.view import format, settings
from myqueue.gateway.console.view.format import BAD, OFF, OK, WARN, Cell, Column, Table, Tile

BROKER_COLUMNS: Final = (
    Column("broker", "Number of the broker"),
    Column("state", "Whether the managers receive its heartbeats"),
    Column("written", "Messages per second stored in partitions that it leads", True),
    Column("leads", "Partitions that it leads now, and how many it should lead", True),
    Column("holds", "Replicas assigned to it", True),
    Column("moving out", "Replicas that are being moved to other brokers", True),
    Column("data", "Bytes of its log and its store", True),
    Column("disk free", "Free space on its disk", True),
    Column("last seen", "Its last heartbeat to the managers"),
    Column("address", "Where clients reach it"),
)
MOVE_COLUMNS: Final = (
    Column("partition", "Topic and number"),
    Column("from", "Brokers whose replica is being moved away"),
    Column("to", "Brokers that hold the partition afterwards, the preferred leader first"),
    Column("size", "Bytes of the batches that each replica keeps", True),
)
MOVES_MAX: Final = 50
PARTITIONS_MAX: Final = 2_000  # in larger clusters moves are not listed
REPAIR_COLUMNS: Final = (
    Column("daemon", "Daemon with the damaged disk"),
    Column("found", "When"),
    Column("by", "A start, a read, or the scrubber, which reads all logs regularly"),
    Column("segment", "File of its log"),
    Column("position", "Byte of the file", True),
    Column("what", "What was found"),
    Column("state", "State of the repair: lost entries are copied from other replicas"),
)
MANAGER_COLUMNS: Final = (
    Column("manager", "Number of the manager"),
    Column("state", "Whether the manager that answered receives its heartbeats"),
    Column("role", "The leader makes changes; all managers answer reads"),
    Column("applied", "Index of the last metadata change that it applied", True),
    Column("last seen", "Its last heartbeat"),
    Column("address", "Where clients reach it"),
)


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/nodes", "nodes", page)
    blueprint.add_url_rule("/nodes/broker/<int:node>", "broker", broker_page)
    blueprint.add_url_rule("/nodes/manager/<int:node>", "manager", manager_page)


def page() -> Response:
    look = console().watch.latest()
    moves, note = moves_table(look)
    now = look.cluster.get("settings", {})
    return draw(
        "console/nodes.html",
        "nodes",
        "Nodes",
        brokers=brokers_table(console().watch),
        managers=managers_table(look),
        moves=moves,
        repairs=repairs_table(look),
        trouble=note,
        done=_done(),
        settings=settings.of_cluster(now),
    )


def _done() -> str:
    """Return a sentence about what a form did a moment ago."""
    args = flask.request.args
    added, removed = args.get("added", ""), args.get("removed", "")
    if format.is_digits(added):
        return f"Broker {added[:9]} is starting; it gets its share of the partitions in a moment."
    if not format.is_digits(removed):
        return ""
    text = f"Broker {removed[:9]} was removed"
    if args.get("stopped") == "1":
        text += ", and its process stopped."
    else:
        counting = args.get("counting", "0")
        text += f"; {when_to_stop(int(counting[:9]) if format.is_digits(counting) else 0)}."
    for name, consequence in (
        ("lost", "had no other copy"),
        ("stranded", "have too few replicas alive: start their other brokers"),
    ):
        count = args.get(name, "0")
        if format.is_digits(count) and int(count[:9]) > 0:
            text += f" {format.plural(int(count[:9]), 'partition')} {consequence}."
    return text


def moves_table(look: ClusterSnapshot) -> tuple[Table | None, str]:
    """Return the partitions with a replica that is being moved; None if nothing moves."""
    if not any(row.get("leaving") for row in look.brokers):
        return None, ""
    if look.cluster.get("counts", {}).get("partitions", 0) > PARTITIONS_MAX:
        return None, ""
    table = Table("Moving partitions", MOVE_COLUMNS, "Nothing moves any more.")
    try:
        topics: list[Facts] = admin().topics(detail=True)
    except MyQueueError as error:
        return None, one_line(error)
    rows = [(one["topic"], part) for one in topics for part in one["partitions"] if part["leaving"]]
    for topic, part in rows[:MOVES_MAX]:
        table.add(
            Cell(f"{topic}/{part['partition']}", link("topic", name=topic), is_code=True),
            ", ".join(map(str, part["leaving"])),
            ", ".join(map(str, part["replicas"])),
            format.bytes_(part["bytes"]),
        )
    if len(rows) > MOVES_MAX:
        table.note = f"And {len(rows) - MOVES_MAX:,} more."
    return table, ""


def repairs_table(look: ClusterSnapshot) -> Table | None:
    """Return what was found damaged and the state of its repair; None if nothing was. Only daemons
    that counted damage are asked.
    """
    asked = [
        {name: row[name] for name in ("daemon", "node", "address")}
        for row in look.stats
        if row.get("counters", {}).get("damage_found_total")
    ]
    if not asked:
        return None
    try:
        rows = admin().repairs(asked)["repairs"]
    except MyQueueError:
        return None
    table = Table("Damage and its repair", REPAIR_COLUMNS, "")
    for row in sorted(rows, key=lambda one: -int(one["since_ms"])):
        is_done = row["state"].startswith("repaired")
        place = f"{row['segment']} at position {row['position']}: "
        at = ", ".join(row.get("partitions", ()))
        table.add(
            row["daemon"],
            format.age(row["since_ms"], look.now_ms),
            row["found"],
            Cell(row["segment"], is_code=True),
            format.count(row["position"]),
            row["what"].removeprefix(place) + (f" ({at})" if at else ""),
            Cell(row["state"], state=OK if is_done else WARN),
        )
    return table if rows else None


def state_of(row: Facts) -> Cell:
    if not row["alive"]:
        return Cell("silent", state=BAD, about="No heartbeats arrive from it")
    if row.get("disk_low"):
        return Cell("disk full", state=BAD, about="It refuses writes until there is space")
    state = row.get("state") or "active"
    if state == "draining":
        left = format.plural(replicas_left(row), "replica")
        return Cell("draining", state=WARN, about=f"Its partitions are moving out; {left} left")
    if state == "drained":
        return Cell(
            "drained", state=OFF, about="It holds no partitions; it may be stopped or removed"
        )
    if state != "active":
        return Cell(str(state), state=WARN)
    return Cell("alive", state=OK)


def brokers_table(watch: Watch) -> Table:
    look = watch.latest()
    table = Table(
        "Brokers",
        BROKER_COLUMNS,
        "No brokers are registered. Start some: myq up, or myq-broker with --managers.",
    )
    for row in look.brokers:
        table.add(
            Cell(f"broker {row['node']}", link("broker", node=row["node"])),
            state_of(row),
            format.per_second(watch.written.get(row["node"]) if row["alive"] else None),
            f"{row['leads']:,} (should: {row['should_lead']:,})"
            if row["alive"]
            else format.NOTHING,
            format.count(row["replicas"]),
            format.count(row.get("leaving")),
            format.bytes_(row.get("used_bytes") if row["alive"] else None),
            format.bytes_(row["free_bytes"] if row["alive"] else None),
            format.age(row["last_seen_ms"], look.now_ms),
            Cell(row["address"], is_code=True),
        )
    return table


def managers_table(look: ClusterSnapshot) -> Table:
    table = Table("Managers", MANAGER_COLUMNS, "No manager answers. Start one: myq up.")
    for row in look.managers:
        table.add(
            Cell(f"manager {row['node']}", link("manager", node=row["node"])),
            state_of(row),
            "leader" if row["leader"] else "follower",
            format.count(row["applied"]),
            format.age(row["last_seen_ms"], look.now_ms),
            Cell(row["address"], is_code=True),
        )
    return table


# -- one of them ----------------------------------------------------------------------------------


def broker_page(node: int) -> Response:
    look = console().watch.latest()
    row = find(_newest(look), "node", node)
    if row is None:
        raise NotFound(f"there is no broker {node}")
    stats = _stats(look, "broker", node)
    counters, gauges = stats.get("counters", {}), stats.get("gauges", {})
    held, note = partitions_on(node)
    rows, pager = pages(len(held.rows))
    held.rows = held.rows[rows]
    tiles = [
        _state_tile(row),
        Tile("Leads", f"{row['leads']:,}", "Partitions that it leads now",
             note=f"should lead {row['should_lead']:,}"),
        Tile("Holds", format.count(row["replicas"]), "Replicas assigned to it",
             note=f"and {row['leaving']:,} moving out" if row["leaving"] else ""),
        Tile("Written", format.per_second(console().watch.written.get(node)),
             "Messages per second stored in partitions that it leads"),
        Tile("Stored since start", format.count(counters.get("messages_stored_total")),
             "Messages that became durable in partitions that it led, since its start"),
        Tile("Sent since start", format.count(counters.get("fetched_messages_total")),
             "Messages that it sent to consumers, since its start"),
        Tile("In flight", format.bytes_(gauges.get("produce_inflight_bytes")),
             "Bytes of batches that it has not answered yet"),
        Tile("Consumers waiting", format.count(gauges.get("fetches_waiting")),
             "Requests of consumers that wait for new messages"),
        Tile("Data", format.bytes_(row.get("used_bytes")), "Bytes of its log and its store"),
        Tile("Disk free", format.bytes_(row["free_bytes"]), "Free space on its disk"),
        *_process_tiles(stats),
    ]  # fmt: skip
    return draw(
        "console/node.html",
        "nodes",
        f"Broker {node}",
        crumbs=(Crumb("Nodes", link("nodes")),),
        node=node,
        draining=row["draining"],
        progress=progress_of(row),
        tiles=tiles,
        facts=_facts(row, look),
        table=held,
        pager=pager,
        trouble=note or stats.get("error", ""),
    )


def _newest(look: ClusterSnapshot) -> list[Facts]:
    """Return the brokers as they are now: a form may have changed one after the last look."""
    try:
        return admin().brokers()
    except MyQueueError:
        return look.brokers


class Progress(NamedTuple):
    """How far a broker is with draining. `total` is 0 where it is not known how many replicas it
    had.
    """

    done: int
    total: int
    text: str


def progress_of(row: Facts) -> Progress | None:
    """Return the progress of draining; the address has the total, put there by the form that began
    it.
    """
    if not row["draining"]:
        return None
    left = replicas_left(row)
    total = number_of("of", 0, 0, 1_000_000)
    total = max(total, left) if total else 0
    if not left:
        return Progress(1, 1, "Drained: it holds nothing any more.")
    of = f" of {total:,}" if total else ""
    return Progress(total - left if total else 0, total, f"{left:,}{of} replicas are left.")


def manager_page(node: int) -> Response:
    look = console().watch.latest()
    row = find(look.managers, "node", node)
    if row is None:
        raise NotFound(f"there is no manager {node}")
    stats = _stats(look, "manager", node)
    counters, gauges = stats.get("counters", {}), stats.get("gauges", {})
    tiles = [
        _state_tile(row),
        Tile("Role", "leader" if row["leader"] else "follower",
             "The leader makes changes of metadata; all managers answer reads"),
        Tile("Term", format.count(look.term), "Raft term of the leader"),
        Tile("Applied", format.count(row["applied"]), "Index of the last change that it applied"),
        Tile("Updates waiting", format.count(gauges.get("updates_waiting")),
             "Changes that wait for a majority of the managers"),
        Tile("Requests since start", format.count(counters.get("requests_total")),
             "Requests of clients and brokers since its start"),
        *_process_tiles(stats),
    ]  # fmt: skip
    return draw(
        "console/node.html",
        "nodes",
        f"Manager {node}",
        crumbs=(Crumb("Nodes", link("nodes")),),
        tiles=tiles,
        facts=_facts(row, look),
        table=None,
        pager=None,
        trouble=stats.get("error", ""),
    )


def _state_tile(row: Facts) -> Tile:
    cell = state_of(row)
    return Tile("State", cell.text, "Whether the managers receive its heartbeats", cell.state)


def _process_tiles(stats: Facts) -> list[Tile]:
    process = stats.get("process", {})
    cpu_s = process.get("cpu_seconds")
    return [
        Tile("Memory", format.bytes_(process.get("resident_bytes")), "Memory that it uses"),
        Tile(
            "Processor time",
            format.NOTHING if cpu_s is None else format.duration(cpu_s * 1000),
            "Processor time used since its start",
        ),
    ]


def _facts(row: Facts, look: ClusterSnapshot) -> list[tuple[str, str, str]]:
    """Return rows of name, value, explanation."""
    rows: list[tuple[str, Any, str]] = [
        ("Clients reach it at", row["address"], "Its listener for clients"),
        ("Daemons reach it at", row["peer"], "Its listener for other daemons"),
        ("Machine", row["host"], "Label of the machine; replicas are spread over labels"),
        (
            "Disk",
            row["disk"],
            "Identity of its data; a broker with another disk is a different broker",
        ),
        ("Last seen", format.age(row["last_seen_ms"], look.now_ms), "Its last heartbeat"),
    ]
    return [(name, str(value), about) for name, value, about in rows if value]


def _stats(look: ClusterSnapshot, kind: str, node: int) -> Facts:
    for row in look.stats:
        if row["daemon"] == kind and row["node"] == node:
            return row
    return {"error": "it has not answered"}


def partitions_on(node: int) -> tuple[Table, str]:
    """Return the replicas assigned to this broker; and why they are not known, if so."""
    table = Table(
        "Partitions",
        [
            Column("partition", "Topic and number"),
            Column("role", "Whether this broker leads it"),
            Column("messages", "Messages that are kept", True),
            Column("size", "Bytes of the batches that are kept", True),
            Column("replicas", "All brokers that have a replica, the preferred leader first"),
        ],
        "It holds no partition.",
    )
    try:
        topics: list[Facts] = admin().topics(detail=True)
    except MyQueueError as error:
        return table, one_line(error)
    for topic in topics:
        for part in topic["partitions"]:
            is_leaving = node in part["leaving"]
            if node not in part["replicas"] and not is_leaving:
                continue
            name, number = topic["topic"], part["partition"]
            table.add(
                Cell(f"{name}/{number}", link("topic", name=name), is_code=True),
                _role(part["leader"] == node, is_leaving),
                format.count(part["end"] - part["start"]),
                format.bytes_(part["bytes"]),
                ", ".join(map(str, part["replicas"])),
            )
    return table, ""


def _role(is_leader: bool, is_leaving: bool) -> Cell:
    if is_leaving:
        return Cell("moving out", state=WARN, about="Another broker is about to hold it instead")
    return Cell("leader", state=OK) if is_leader else Cell("follower")
