"""Answers to READ and ROUTE: the cluster, from applied tables and soft state.

Every query is a function of a `QueryContext`. It changes nothing and waits for nothing; `manager`
makes sure of `at_least` and `linearizable` before it calls. Lists are ordered by name or number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from myqueue.daemons.interfaces import RIVAL_MS, DuplicateDaemon
from myqueue.daemons.manager.broker_orders import stray_groups
from myqueue.daemons.manager.cluster_view import ClientActivity, ClusterView
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
from myqueue.daemons.raft.health import NOT_OPEN
from myqueue.errors import InvalidRequest, UnknownClient, UnknownTopic

CLIENTS_SHOWN_MAX: Final = 1000  # of each kind in one answer
PROBLEMS_MAX: Final = 500
CLOSED_MAX: Final = 100  # closed replicas listed before leaderless partitions; the others come last
QueryResult = dict[str, Any]


@dataclass(slots=True)
class QueryContext:
    """The cluster as this manager sees it at this moment."""

    cluster: str
    software: str
    node: int  # this manager
    leader: int  # among the managers; 0: not known
    term: int
    voters: list[int]
    applied: int
    tables: Tables
    cluster_view: ClusterView
    activity: ClientActivity
    now: int
    wall_ms: int
    damaged: list[dict[str, Any]]  # segments of this manager that are being repaired
    members_last_seen: Mapping[int, int] = field(
        default_factory=dict
    )  # member -> time, while this manager leads
    unreachable_brokers: Set[int] = frozenset()  # brokers that group leaders do not reach
    closed: Sequence[dict[str, Any]] = ()  # closed replicas of this manager
    rivals: Mapping[tuple[str, int], DuplicateDaemon] = field(
        default_factory=dict
    )  # processes refused here
    check_disconnected: Callable[[str, int], bool] = lambda kind, node: (
        False
    )  # whether its connection has ended

    def topic(self, name: str) -> Topic:
        topic = self.tables.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic

    def is_manager_alive(self, node: int) -> bool:
        return node == self.node or self.cluster_view.is_manager_alive(node, self.now)


# -- ROUTE ----------------------------------------------------------------------------------------


def routes(context: QueryContext, names: list[str]) -> list[Any]:
    """The fields of ROUTES."""
    tables, alive = context.tables, context.cluster_view.is_broker_alive
    wanted = names or sorted(tables.topics)
    known = [tables.topics[name] for name in wanted if name in tables.topics]
    brokers = [
        [one.node, one.address, one.host, alive(one.node, context.now)]
        for _, one in sorted(tables.brokers.items())
    ]
    topics = [[one.name, one.uid, one.settings, _topic_routes(context, one)] for one in known]
    return [
        context.applied,
        brokers,
        topics,
        [name for name in wanted if name not in tables.topics],
    ]


def _topic_routes(context: QueryContext, topic: Topic) -> list[list[Any]]:
    rows = []
    for number, partition in enumerate(topic.partitions):
        leader, term = context.cluster_view.leader_of(partition.group, context.now)
        rows.append([number, partition.group, leader, term, partition.nodes])
    return rows


# -- READ -----------------------------------------------------------------------------------------


def topics(context: QueryContext, args: Arguments) -> QueryResult:
    detail = args.flag("detail", False)
    args.done()
    known = [topic for _, topic in sorted(context.tables.topics.items())]
    if not detail:
        return {"topics": [topic.name for topic in known]}
    return {"topics": [_topic_details(context, topic) for topic in known]}


def topic(context: QueryContext, args: Arguments) -> QueryResult:
    name = args.name("topic")
    args.done()
    return _topic_details(context, context.topic(name))


def _topic_details(context: QueryContext, topic: Topic) -> QueryResult:
    partitions: list[QueryResult] = []
    for number, partition in enumerate(topic.partitions):
        leader, term = context.cluster_view.leader_of(partition.group, context.now)
        report = context.cluster_view.best_report(partition.group)
        start, end, size = (report.start, report.end, report.bytes) if report else (0, 0, 0)
        partitions.append(
            {
                "partition": number,
                "group": partition.group,
                "leader": leader,
                "term": term,
                "replicas": partition.nodes,
                "preferred": partition.nodes[0],
                "leaving": sorted({node for node, _ in partition.leaving}),
                "silent": context.cluster_view.silent_brokers(partition.nodes, context.now),
                "start": start,
                "end": end,
                "bytes": size,
            }
        )
    return {
        "topic": topic.name,
        "topic_uid": topic.uid,
        "replication": topic.replication,
        "created_ms": topic.created_ms,
        "settings": topic.settings,
        "partitions": partitions,
        "messages": sum(one["end"] - one["start"] for one in partitions),
        "bytes": sum(one["bytes"] for one in partitions),
    }


def brokers(context: QueryContext, args: Arguments) -> QueryResult:
    args.done()
    tables, cluster_view = context.tables, context.cluster_view
    rows = []
    for node, row in sorted(tables.brokers.items()):
        life = cluster_view.brokers.get(node)
        led = [
            one
            for one in cluster_view.groups_led_by(node)
            if cluster_view.leader_of(one, context.now)[0] == node
        ]
        rows.append(
            {
                "node": node,
                "address": row.address,
                "peer": row.peer,
                "host": row.host,
                "disk": row.disk,
                "state": _broker_state(context, row),
                "alive": cluster_view.is_broker_alive(node, context.now),
                "draining": row.state == DRAINING,
                "leaving": len(tables.left.get(node, ())),
                "last_seen_ms": life.beat_wall_ms if life else 0,
                "since_ms": row.since_ms,
                "replicas": len(tables.held.get(node, ())),
                "leads": len(led),
                "should_lead": tables.led.get(node, 0),
                "load": life.load if life else 0,
                "free_bytes": life.free_bytes if life else 0,
                "used_bytes": life.used_bytes if life else 0,
                "disk_low": life.disk_low if life else False,
            }
        )
    return {"brokers": rows}


def _broker_state(context: QueryContext, row: BrokerRow) -> str:
    """active, draining, drained (it no longer holds anything), or dead."""
    if not context.cluster_view.is_broker_alive(row.node, context.now):
        return "dead"
    tables, node = context.tables, row.node
    if row.state != DRAINING or tables.held.get(node) or tables.left.get(node):
        return row.state
    if any(node in gone.nodes for gone in tables.gone.values()):
        return row.state
    return "drained"


def managers(context: QueryContext, args: Arguments) -> QueryResult:
    args.done()
    rows = []
    for node in sorted({*context.voters, *context.tables.managers}):
        row, life = context.tables.managers.get(node), context.cluster_view.managers.get(node)
        here = node == context.node
        rows.append(
            {
                "node": node,
                "address": row.address if row else "",
                "peer": row.peer if row else "",
                "host": row.host if row else "",
                "disk": row.disk if row else "",
                "leader": node == context.leader,
                "alive": context.is_manager_alive(node),
                "last_seen_ms": context.wall_ms if here else life.beat_wall_ms if life else 0,
                "applied": context.applied if here else life.applied if life else 0,
            }
        )
    return {"managers": rows, "leader": context.leader, "term": context.term}


def health(context: QueryContext, args: Arguments) -> QueryResult:
    """Every daemon and client with its last sign of life; of many clients the last ones seen."""
    most = args.number("limit", CLIENTS_SHOWN_MAX, 1, CLIENTS_SHOWN_MAX)
    args.done()
    tables, inactive_ms = context.tables, context.tables.settings["inactive_ms"]
    out: QueryResult = {"inactive_ms": inactive_ms, "omitted": 0}
    for kind, name, table in (
        (0, "producers", list(tables.producers.values())),
        (1, "consumers", list(tables.consumers.values())),
    ):
        clients: list[Any] = list(table)
        rows = []
        for one in clients:
            last = max(one.seen_ms, context.activity.last_seen_wall_ms(kind, one.id))
            rows.append([one.id, _topic_name(context, one.topic_uid), last])
        if len(rows) > most:
            out["omitted"] += len(rows) - most
            rows = sorted(sorted(rows, key=lambda row: (-row[2], row[0]))[:most])
        out[name] = [
            {
                "id": number,
                "topic": of,
                "last_seen_ms": last,
                "active": context.wall_ms - last <= inactive_ms,
            }
            for number, of, last in rows
        ]
    for name, daemons in (("brokers", brokers), ("managers", managers)):
        out[name] = [
            {
                "id": one["node"],
                "address": one["address"],
                "last_seen_ms": one["last_seen_ms"],
                "active": one["alive"],
                **{key: one[key] for key in ("used_bytes", "free_bytes") if key in one},
            }
            for one in daemons(context, Arguments("health", {}))[name]
        ]
    return out


def _topic_name(context: QueryContext, uid: int) -> str:
    topic = context.tables.by_uid.get(uid)
    return topic.name if topic else ""


def producer(context: QueryContext, args: Arguments) -> QueryResult:
    number = args.number("producer_id")
    args.done()
    row = context.tables.producers.get(number)
    if row is None:
        raise UnknownClient(f"there is no producer {number}")
    last = max(row.seen_ms, context.activity.last_seen_wall_ms(0, number))
    return {
        "producer_id": number,
        "name": row.name,
        "epoch": row.epoch,
        "topic": _topic_name(context, row.topic_uid),
        "topic_uid": row.topic_uid,
        "partition": _registered_partition(row),
        "last_seen_ms": last,
        "active": context.wall_ms - last <= context.tables.settings["inactive_ms"],
    }


def _registered_partition(client: Producer | Consumer) -> int | None:
    return None if client.partition == NO_PARTITION else client.partition


def consumer(context: QueryContext, args: Arguments) -> QueryResult:
    number = args.number("consumer_id")
    args.done()
    row = context.tables.consumers.get(number)
    if row is None:
        raise UnknownClient(f"there is no consumer {number}")
    last = max(row.seen_ms, context.activity.last_seen_wall_ms(1, number))
    of = context.tables.by_uid.get(row.topic_uid)
    return {
        "consumer_id": number,
        "topic": of.name if of else "",
        "topic_uid": row.topic_uid,
        "partition": _registered_partition(row),
        "partitions": list(range(len(of.partitions) if of else 0)),
        "last_seen_ms": last,
        "active": context.wall_ms - last <= context.tables.settings["inactive_ms"],
    }


def cluster(context: QueryContext, args: Arguments) -> QueryResult:
    args.done()
    tables = context.tables
    return {
        "cluster": context.cluster,
        "version": context.software,
        "applied": context.applied,
        "leader": context.leader,
        "term": context.term,
        "settings": tables.settings,
        "counts": {
            "topics": len(tables.topics),
            "partitions": len(tables.groups),
            "brokers": len(tables.brokers),
            "managers": len(context.voters),
            "producers": len(tables.producers),
            "consumers": len(tables.consumers),
            "groups_to_remove": len(tables.gone),
        },
    }


def problems(context: QueryContext, args: Arguments) -> QueryResult:
    """All problems of the cluster, the worst first, for `myq health`, gateway and people.

    A daemon that was killed is reported as silent at once: its connection has ended, though its
    last heartbeat came a moment ago.
    """
    args.done()
    tables, cluster_view, now = context.tables, context.cluster_view, context.now
    rows: list[QueryResult] = []
    if not context.leader:
        rows.append({"problem": "managers-leaderless"})
    for node in context.voters:
        if not context.is_manager_alive(node) or context.check_disconnected("manager", node):
            rows.append({"problem": "manager-silent", "node": node})
    cut_off = {node for node in tables.brokers if context.check_disconnected("broker", node)}
    for node in sorted(tables.brokers):
        life = cluster_view.brokers.get(node)
        if node in cut_off or not cluster_view.is_broker_alive(node, now):
            rows.append({"problem": "broker-silent", "node": node})
        elif life is not None and life.disk_low:
            rows.append({"problem": "disk-low", "node": node, "free_bytes": life.free_bytes})
        if node in context.unreachable_brokers:
            rows.append({"problem": "unreached", "node": node})
    closed = _closed_problems(context)
    rows += _duplicate_problems(context) + _damage_problems(context) + closed[:CLOSED_MAX]
    leaderless: list[QueryResult] = []
    thin: list[QueryResult] = []
    for name, topic in sorted(tables.topics.items()):
        for number, partition in enumerate(topic.partitions):
            health = cluster_view.health_of(partition.all_node_ids, partition.group, now)
            at = {
                "topic": name,
                "partition": number,
                "group": partition.group,
                "health": {str(node): word for node, word in health.items()},
            }
            if cluster_view.leader_of(partition.group, now)[0] in (0, *cut_off):
                # A word of a newer broker counts as open, without a vote.
                voteless = [node for node, word in health.items() if word not in NOT_OPEN]
                leaderless.append({"problem": "leaderless", **at, "voteless": voteless})
            missing, lacking = _missing_replicas(context, topic, partition, cut_off)
            if lacking:
                at |= {"missing": missing, "lacking": lacking}
                thin.append({"problem": "under-replicated", **at})
    rows += leaderless + thin
    for node in sorted(tables.brokers):  # removed brokers report nothing any more
        strays = stray_groups(tables, cluster_view.brokers.get(node))
        rows += [{"problem": "stray-group", "node": node, "group": uid} for uid in strays]
    rows += closed[CLOSED_MAX:]
    omitted = max(0, len(rows) - PROBLEMS_MAX)
    return {"problems": rows[:PROBLEMS_MAX], "omitted": omitted}


def _duplicate_problems(context: QueryContext) -> list[QueryResult]:
    """Processes that were refused a moment ago, because another process has their number."""
    return [
        {
            "problem": "rival",
            "kind": kind,
            "node": node,
            "address": rival.address,
            "connected": rival.connected,
        }
        for (kind, node), rival in sorted(context.rivals.items())
        if context.now - rival.seen_at <= RIVAL_MS
    ]


def _damage_problems(context: QueryContext) -> list[QueryResult]:
    """Segments that live daemons cannot read, and the partitions in them."""
    damaged = [("manager", context.node, one) for one in context.damaged]
    for node, manager in sorted(context.cluster_view.managers.items()):
        if context.is_manager_alive(node):
            damaged += [("manager", node, one) for one in manager.damaged]
    for node, broker in sorted(context.cluster_view.brokers.items()):
        if context.cluster_view.is_broker_alive(node, context.now):
            damaged += [("broker", node, one) for one in broker.damaged]
    names = ("segment", "position", "found", "what", "state", "since_ms")
    return [
        {
            "problem": "damaged",
            "kind": kind,
            "node": node,
            **{name: one[name] for name in names},
            "partitions": [_partition_name(context, group) for group in one["groups"]],
        }
        for kind, node, one in damaged
    ]


def _closed_problems(context: QueryContext) -> list[QueryResult]:
    """Closed replicas, which contradict others of their group, and kept logs of replaced ones."""
    closed = [("manager", context.node, one) for one in context.closed]
    for node, manager in sorted(context.cluster_view.managers.items()):
        if context.is_manager_alive(node) and node != context.node:
            closed += [("manager", node, one) for one in manager.closed]
    for node, broker in sorted(context.cluster_view.brokers.items()):
        if context.cluster_view.is_broker_alive(node, context.now):
            closed += [("broker", node, one) for one in broker.closed]
    names = ("group", "partition", "why", "since_ms", "kept")
    return [
        {"problem": "closed", "kind": kind, "node": node, **{name: one[name] for name in names}}
        for kind, node, one in closed
    ]


def _partition_name(context: QueryContext, group: int) -> str:
    topic, number = context.tables.groups.get(group, (None, 0))
    return f"{topic.name}/{number}" if topic else f"group {group:x}"


def _missing_replicas(
    context: QueryContext, topic: Topic, partition: PartitionRow, cut_off: Set[int]
) -> tuple[list[int], int]:
    """Brokers whose replica is missing, and how many copies are lacking: one may have no broker.

    While a replica moves, the one that it replaces counts like itself.
    """
    group, promised = partition.group, max(topic.replication, len(partition.replicas))

    def has(node: int, incarnation: int = 0) -> bool:
        return node not in cut_off and context.cluster_view.has_active_replica(
            node, group, context.now, incarnation
        )

    members = context.cluster_view.members_of(group)
    if members is None:
        missing = [node for node in partition.nodes if not has(node)]
        return missing, promised - len(partition.replicas) + len(missing)
    there = {
        node for (node, incarnation), votes in members.items() if votes and has(node, incarnation)
    }
    if len(there) >= promised:
        return [], 0
    return [node for node in partition.nodes if node not in there], promised - len(there)


_QUERY_FUNCTIONS: Final[tuple[Callable[[QueryContext, Arguments], QueryResult], ...]] = (
    topics,
    topic,
    brokers,
    managers,
    health,
    producer,
    consumer,
    groups,
    group,
    cluster,
    problems,
)
QUERIES: Final = {one.__name__: one for one in _QUERY_FUNCTIONS}


def run_query(context: QueryContext, query: str, arguments: dict[str, Any]) -> QueryResult:
    """Answer a READ; raises InvalidRequest if there is no such query."""
    function = QUERIES.get(query)
    if function is None:
        raise InvalidRequest(f"there is no query {query!r}; there are {', '.join(QUERIES)}")
    return function(context, Arguments(query, arguments))
