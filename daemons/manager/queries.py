"""READ and ROUTE: what managers tell about the cluster, from applied tables and soft state.

Every query is a function of a `View`; it changes nothing and waits for nothing (`manager.py` sees
to `at_least` and `linearizable` before). Lists are in the order of names or numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from myqueue.daemons.interfaces import RIVAL_MS, Rival
from myqueue.daemons.manager.broker_orders import unknown_groups
from myqueue.daemons.manager.cluster_view import Activity, Liveness
from myqueue.daemons.manager.group_queries import group, groups
from myqueue.daemons.metadata.arguments import Arguments
from myqueue.daemons.metadata.records import (
    DRAINING,
    NO_PARTITION,
    BrokerRow,
    Consumer,
    PartitionRow,
    Producer,
    Topic,
)
from myqueue.daemons.metadata.tables import Tables
from myqueue.errors import InvalidRequest, UnknownClient, UnknownTopic

CLIENTS_MAX: Final = 1000  # of each kind in one answer
PROBLEMS_MAX: Final = 500
CLOSED_MAX: Final = 100  # of them before what is leaderless; the others come last
Answer = dict[str, Any]


@dataclass(slots=True)
class View:
    """The cluster as this manager sees it at this moment."""

    cluster: str
    software: str
    node: int  # this manager
    leader: int  # among the managers; 0: not known
    term: int
    voters: list[int]
    applied: int
    tables: Tables
    liveness: Liveness
    activity: Activity
    now: int
    wall_ms: int
    damaged: list[dict[str, Any]]  # segments of this manager that are being repaired
    heard: Mapping[int, int] = field(default_factory=dict)  # members, while this manager leads
    unreached: Set[int] = frozenset()  # brokers that leaders of groups do not reach
    closed: Sequence[dict[str, Any]] = ()  # of this manager: what contradicts the others
    rivals: Mapping[tuple[str, int], Rival] = field(default_factory=dict)  # refused here
    is_cut_off: Callable[[str, int], bool] = lambda kind, node: False  # its connection ended

    def topic(self, name: str) -> Topic:
        topic = self.tables.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic

    def manager_alive(self, node: int) -> bool:
        return node == self.node or self.liveness.manager_alive(node, self.now)


# -- ROUTE ----------------------------------------------------------------------------------------


def routes(view: View, names: list[str]) -> list[Any]:
    """The fields of ROUTES."""
    tables, alive = view.tables, view.liveness.alive
    wanted = names or sorted(tables.topics)
    known = [tables.topics[name] for name in wanted if name in tables.topics]
    brokers = [
        [one.node, one.address, one.host, alive(one.node, view.now)]
        for _, one in sorted(tables.brokers.items())
    ]
    topics = [[one.name, one.uid, one.settings, _routes_of(view, one)] for one in known]
    return [view.applied, brokers, topics, [name for name in wanted if name not in tables.topics]]


def _routes_of(view: View, topic: Topic) -> list[list[Any]]:
    rows = []
    for number, partition in enumerate(topic.partitions):
        leader, term = view.liveness.leader(partition.group, view.now)
        rows.append([number, partition.group, leader, term, partition.nodes])
    return rows


# -- READ -----------------------------------------------------------------------------------------


def topics(view: View, args: Arguments) -> Answer:
    detail = args.flag("detail", False)
    args.done()
    found = [topic for _, topic in sorted(view.tables.topics.items())]
    if not detail:
        return {"topics": [topic.name for topic in found]}
    return {"topics": [_describe(view, topic) for topic in found]}


def topic(view: View, args: Arguments) -> Answer:
    name = args.name("topic")
    args.done()
    return _describe(view, view.topic(name))


def _describe(view: View, topic: Topic) -> Answer:
    partitions: list[Answer] = []
    for number, partition in enumerate(topic.partitions):
        leader, term = view.liveness.leader(partition.group, view.now)
        report = view.liveness.report(partition.group)
        start, end, size = (report.start, report.end, report.bytes) if report else (0, 0, 0)
        partitions.append({
            "partition": number, "group": partition.group, "leader": leader, "term": term,
            "replicas": partition.nodes, "preferred": partition.nodes[0],
            "leaving": sorted({node for node, _ in partition.leaving}),
            "silent": view.liveness.silent(partition.nodes, view.now),
            "start": start, "end": end, "bytes": size,
        })  # fmt: skip
    return {
        "topic": topic.name, "topic_uid": topic.uid, "replication": topic.replication,
        "created_ms": topic.created_ms, "settings": topic.settings, "partitions": partitions,
        "messages": sum(one["end"] - one["start"] for one in partitions),
        "bytes": sum(one["bytes"] for one in partitions),
    }  # fmt: skip


def brokers(view: View, args: Arguments) -> Answer:
    args.done()
    tables, liveness = view.tables, view.liveness
    rows = []
    for node, row in sorted(tables.brokers.items()):
        life = liveness.brokers.get(node)
        led = [one for one in liveness.led_by(node) if liveness.leader(one, view.now)[0] == node]
        rows.append({
            "node": node, "address": row.address, "peer": row.peer, "host": row.host,
            "disk": row.disk, "state": _state(view, row), "alive": liveness.alive(node, view.now),
            "draining": row.state == DRAINING, "leaving": len(tables.left.get(node, ())),
            "last_seen_ms": life.beat_wall_ms if life else 0, "since_ms": row.since_ms,
            "replicas": len(tables.held.get(node, ())), "leads": len(led),
            "should_lead": tables.led.get(node, 0), "load": life.load if life else 0,
            "free_bytes": life.free_bytes if life else 0,
            "used_bytes": life.used_bytes if life else 0,
            "disk_low": life.disk_low if life else False,
        })  # fmt: skip
    return {"brokers": rows}


def _state(view: View, row: BrokerRow) -> str:
    """active, draining, drained (it holds nothing any more), or dead."""
    if not view.liveness.alive(row.node, view.now):
        return "dead"
    tables, node = view.tables, row.node
    if row.state != DRAINING or tables.held.get(node) or tables.left.get(node):
        return row.state
    if any(node in gone.nodes for gone in tables.gone.values()):
        return row.state
    return "drained"


def managers(view: View, args: Arguments) -> Answer:
    args.done()
    rows = []
    for node in sorted({*view.voters, *view.tables.managers}):
        row, life = view.tables.managers.get(node), view.liveness.managers.get(node)
        here = node == view.node
        rows.append({
            "node": node, "address": row.address if row else "", "peer": row.peer if row else "",
            "host": row.host if row else "", "disk": row.disk if row else "",
            "leader": node == view.leader, "alive": view.manager_alive(node),
            "last_seen_ms": view.wall_ms if here else life.beat_wall_ms if life else 0,
            "applied": view.applied if here else life.applied if life else 0,
        })  # fmt: skip
    return {"managers": rows, "leader": view.leader, "term": view.term}


def health(view: View, args: Arguments) -> Answer:
    """P5, R7: every actor with its last sign of life. Of many clients the last ones heard of."""
    most = args.number("limit", CLIENTS_MAX, 1, CLIENTS_MAX)
    args.done()
    tables, inactive_ms = view.tables, view.tables.settings["inactive_ms"]
    out: Answer = {"inactive_ms": inactive_ms, "omitted": 0}
    for kind, name, table in (
        (0, "producers", list(tables.producers.values())),
        (1, "consumers", list(tables.consumers.values())),
    ):  # fmt: skip
        clients: list[Any] = list(table)
        rows = []
        for one in clients:
            last = max(one.seen_ms, view.activity.last(kind, one.id))
            rows.append([one.id, _topic_name(view, one.topic_uid), last])
        if len(rows) > most:
            out["omitted"] += len(rows) - most
            rows = sorted(sorted(rows, key=lambda row: (-row[2], row[0]))[:most])
        out[name] = [
            {"id": number, "topic": of, "last_seen_ms": last,
             "active": view.wall_ms - last <= inactive_ms}
            for number, of, last in rows
        ]  # fmt: skip
    for name, daemons in (("brokers", brokers), ("managers", managers)):
        out[name] = [
            {
                "id": one["node"], "address": one["address"], "last_seen_ms": one["last_seen_ms"],
                "active": one["alive"],
                **{key: one[key] for key in ("used_bytes", "free_bytes") if key in one},
            }
            for one in daemons(view, Arguments("health", {}))[name]
        ]  # fmt: skip
    return out


def _topic_name(view: View, uid: int) -> str:
    topic = view.tables.by_uid.get(uid)
    return topic.name if topic else ""


def producer(view: View, args: Arguments) -> Answer:
    number = args.number("producer_id")
    args.done()
    found = view.tables.producers.get(number)
    if found is None:
        raise UnknownClient(f"there is no producer {number}")
    last = max(found.seen_ms, view.activity.last(0, number))
    return {
        "producer_id": number, "name": found.name, "epoch": found.epoch,
        "topic": _topic_name(view, found.topic_uid), "topic_uid": found.topic_uid,
        "partition": _own_partition(found), "last_seen_ms": last,
        "active": view.wall_ms - last <= view.tables.settings["inactive_ms"],
    }  # fmt: skip


def _own_partition(client: Producer | Consumer) -> int | None:
    return None if client.partition == NO_PARTITION else client.partition


def consumer(view: View, args: Arguments) -> Answer:
    number = args.number("consumer_id")
    args.done()
    found = view.tables.consumers.get(number)
    if found is None:
        raise UnknownClient(f"there is no consumer {number}")
    last = max(found.seen_ms, view.activity.last(1, number))
    of = view.tables.by_uid.get(found.topic_uid)
    return {
        "consumer_id": number, "topic": of.name if of else "", "topic_uid": found.topic_uid,
        "partition": _own_partition(found),
        "partitions": list(range(len(of.partitions) if of else 0)), "last_seen_ms": last,
        "active": view.wall_ms - last <= view.tables.settings["inactive_ms"],
    }  # fmt: skip


def cluster(view: View, args: Arguments) -> Answer:
    args.done()
    tables = view.tables
    return {
        "cluster": view.cluster, "version": view.software, "applied": view.applied,
        "leader": view.leader, "term": view.term, "settings": tables.settings,
        "counts": {
            "topics": len(tables.topics), "partitions": len(tables.groups),
            "brokers": len(tables.brokers), "managers": len(view.voters),
            "producers": len(tables.producers), "consumers": len(tables.consumers),
            "groups_to_remove": len(tables.gone),
        },
    }  # fmt: skip


def problems(view: View, args: Arguments) -> Answer:
    """What is not well, the worst first; people and `myq status` read it. Who was killed is silent
    here at once: its connection ended, though its last beat was a moment ago.
    """
    args.done()
    tables, liveness, now = view.tables, view.liveness, view.now
    found: list[Answer] = []
    if not view.leader:
        found.append({"problem": "managers-leaderless"})
    for node in view.voters:
        if not view.manager_alive(node) or view.is_cut_off("manager", node):
            found.append({"problem": "manager-silent", "node": node})
    cut_off = {node for node in tables.brokers if view.is_cut_off("broker", node)}
    for node in sorted(tables.brokers):
        life = liveness.brokers.get(node)
        if node in cut_off or not liveness.alive(node, now):
            found.append({"problem": "broker-silent", "node": node})
        elif life is not None and life.disk_low:
            found.append({"problem": "disk-low", "node": node, "free_bytes": life.free_bytes})
        if node in view.unreached:
            found.append({"problem": "unreached", "node": node})
    closed = _closed(view)
    found += _rivals(view) + _damage(view) + closed[:CLOSED_MAX]
    leaderless: list[Answer] = []
    thin: list[Answer] = []
    for name, topic in sorted(tables.topics.items()):
        for number, partition in enumerate(topic.partitions):
            at = {"topic": name, "partition": number, "group": partition.group}
            if liveness.leader(partition.group, now)[0] in (0, *cut_off):
                voteless = liveness.voteless(partition.all_node_ids, partition.group, now)
                leaderless.append({"problem": "leaderless", **at, "voteless": voteless})
            missing, lacking = _missing(view, topic, partition, cut_off)
            if lacking:
                row = {"problem": "under-replicated", **at, "missing": missing, "lacking": lacking}
                thin.append(row)
    found += leaderless + thin
    for node in sorted(tables.brokers):  # who was removed tells nothing any more
        strays = unknown_groups(tables, liveness.brokers.get(node))
        found += [{"problem": "stray-group", "node": node, "group": one} for one in strays]
    found += closed[CLOSED_MAX:]
    omitted = max(0, len(found) - PROBLEMS_MAX)
    return {"problems": found[:PROBLEMS_MAX], "omitted": omitted}


def _rivals(view: View) -> list[Answer]:
    """Processes that were refused a moment ago, because another one has their number."""
    return [
        {"problem": "rival", "kind": kind, "node": node, "address": rival.address,
         "connected": rival.connected}
        for (kind, node), rival in sorted(view.rivals.items())
        if view.now - rival.seen_at <= RIVAL_MS
    ]  # fmt: skip


def _damage(view: View) -> list[Answer]:
    """What daemons that are heard can't read on their disks, and whose it is."""
    damaged = [("manager", view.node, one) for one in view.damaged]
    for node, manager in sorted(view.liveness.managers.items()):
        if view.manager_alive(node):
            damaged += [("manager", node, one) for one in manager.damaged]
    for node, broker in sorted(view.liveness.brokers.items()):
        if view.liveness.alive(node, view.now):
            damaged += [("broker", node, one) for one in broker.damaged]
    names = ("segment", "position", "found", "what", "state", "since_ms")
    return [
        {"problem": "damaged", "kind": kind, "node": node, **{name: one[name] for name in names},
         "partitions": [_name_of(view, group) for group in one["groups"]]}
        for kind, node, one in damaged
    ]  # fmt: skip


def _closed(view: View) -> list[Answer]:
    """Replicas that contradict the others of their group, and what is kept of replaced ones."""
    closed = [("manager", view.node, one) for one in view.closed]
    for node, manager in sorted(view.liveness.managers.items()):
        if view.manager_alive(node) and node != view.node:
            closed += [("manager", node, one) for one in manager.closed]
    for node, broker in sorted(view.liveness.brokers.items()):
        if view.liveness.alive(node, view.now):
            closed += [("broker", node, one) for one in broker.closed]
    names = ("group", "partition", "why", "since_ms", "kept")
    return [
        {"problem": "closed", "kind": kind, "node": node, **{name: one[name] for name in names}}
        for kind, node, one in closed
    ]


def _name_of(view: View, group: int) -> str:
    topic, number = view.tables.groups.get(group, (None, 0))
    return f"{topic.name}/{number}" if topic else f"group {group:x}"


def _missing(
    view: View, topic: Topic, partition: PartitionRow, cut_off: Set[int]
) -> tuple[list[int], int]:
    """Where a copy should be and is not, and how many are lacking: there may be no broker for one.

    While a replica moves, the one that it replaces is as good as itself.
    """
    group, promised = partition.group, max(topic.replication, len(partition.replicas))

    def has(node: int, incarnation: int = 0) -> bool:
        return node not in cut_off and view.liveness.has(node, group, view.now, incarnation)

    members = view.liveness.members(group)
    if members is None:
        missing = [node for node in partition.nodes if not has(node)]
        return missing, promised - len(partition.replicas) + len(missing)
    there = {
        node for (node, incarnation), votes in members.items() if votes and has(node, incarnation)
    }
    if len(there) >= promised:
        return [], 0
    return [node for node in partition.nodes if node not in there], promised - len(there)


_ALL: Final[tuple[Callable[[View, Arguments], Answer], ...]] = (
    topics, topic, brokers, managers, health, producer, consumer, groups, group, cluster, problems,
)  # fmt: skip
QUERIES: Final = {one.__name__: one for one in _ALL}


def answer(view: View, query: str, arguments: dict[str, Any]) -> Answer:
    found = QUERIES.get(query)
    if found is None:
        raise InvalidRequest(f"there is no query {query!r}; there are {', '.join(QUERIES)}")
    return found(view, Arguments(query, arguments))
