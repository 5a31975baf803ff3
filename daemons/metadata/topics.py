"""Operations on topics: create, delete, alter, grow; and the context that every operation gets.

`operations.py` says how an operation is made. Brokers learn of a change by themselves: each
broker's row has the index of the last entry that changed something for it
(`Tables.bump_orders_version`), and its orders are made from the tables.

The leader adds the argument `avoid`: brokers that are silent right now. They get no new replicas as
long as the others suffice.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from myqueue.daemons.metadata import placement
from myqueue.daemons.metadata.arguments import (
    PARTITIONS_PER_CALL,
    REPLICATION_DEFAULT,
    REPLICATION_MAX,
    Arguments,
    default_settings,
    merge_settings,
)
from myqueue.daemons.metadata.records import ACTIVE, BrokerRow, PartitionRow, Topic
from myqueue.daemons.metadata.tables import Tables
from myqueue.errors import InvalidRequest, TooFewBrokers, TopicExists, UnknownTopic
from myqueue.wire.metadata_settings import TOPIC_SETTINGS

OperationResult = dict[str, Any]


@dataclass(slots=True)
class OperationContext:
    """One entry that is being applied."""

    tables: Tables
    cluster: str
    index: int
    time_ms: int
    key: bytes
    uids_drawn: int = 0

    def uid(self) -> int:
        """Draw 63 bits that no other entry draws, not even in an earlier cluster of this name.

        At least 2^62, so that they never meet numbers that are given by hand, like the managers'
        own group.
        """
        while True:
            seed = f"{self.cluster}\0{self.index}\0{self.uids_drawn}\0{self.time_ms}\0"
            self.uids_drawn += 1
            digest = blake2b(seed.encode() + self.key, digest_size=8).digest()
            uid = int.from_bytes(digest, "big") >> 2 | 1 << 62
            tables = self.tables
            if uid not in tables.groups and uid not in tables.gone and uid not in tables.by_uid:
                return uid

    def topic(self, name: str) -> Topic:
        topic = self.tables.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic


# -- topics ---------------------------------------------------------------------------------------


def create_topic(call: OperationContext, args: Arguments) -> OperationResult:
    name = args.name("topic")
    count = args.number("partitions", 1, 1, PARTITIONS_PER_CALL)
    replication = args.number("replication", 0, 0, REPLICATION_MAX)
    settings = args.settings()
    avoid = args.numbers("avoid")
    args.done()
    if name in call.tables.topics:
        raise TopicExists(f"topic {name!r} exists already")
    topic = add_topic(call, name, count, replication, settings, avoid)
    return {"topic_uid": topic.uid, "partitions": [one.group for one in topic.partitions]}


def add_topic(
    call: OperationContext,
    name: str,
    count: int,
    replication: int,
    given: dict[Any, Any],
    avoid: list[int],
) -> Topic:
    settings = merge_settings(TOPIC_SETTINGS, default_settings(TOPIC_SETTINGS), given)
    brokers = sum(one.state == ACTIVE for one in call.tables.brokers.values())
    replication = replication or max(1, min(REPLICATION_DEFAULT, brokers))
    chosen = _choose_nodes(call.tables, count, replication, avoid)
    topic = Topic(call.uid(), name, replication, call.time_ms, settings)
    call.tables.add_topic(topic)
    _add_partitions(call, topic, chosen)
    return topic


def _choose_nodes(
    tables: Tables, count: int, replication: int, avoid: list[int]
) -> list[list[int]]:
    """Choose nodes for new partitions; changes nothing."""
    if not count:
        return []
    room = tables.settings["partitions_max"] - len(tables.groups)
    if count > room:
        raise InvalidRequest(
            f"{count} more partitions; the cluster has room for {max(0, room)}",
            hint="Delete topics that are not needed, or raise partitions_max.",
        )
    most = tables.settings["replicas_per_broker_max"]
    loads = [
        placement.BrokerLoad(
            one.node, host_label(one), len(tables.held[one.node]), tables.led[one.node]
        )
        for one in sorted(tables.brokers.values(), key=lambda one: one.node)
        if one.state == ACTIVE and len(tables.held[one.node]) < most
    ]
    if len(loads) < replication:
        full = len(tables.brokers) - len(loads)
        raise TooFewBrokers(
            f"{replication} replicas need as many brokers; {len(loads)} are known"
            + (f", and {full} that can take no more" if full else "")
        )
    silent = set(avoid)
    awake = [one for one in loads if one.node not in silent]
    chosen = placement.place_partitions(
        awake if len(awake) >= replication else loads, count, replication
    )
    new: dict[int, int] = {}
    for nodes in chosen:
        for node in nodes:
            new[node] = new.get(node, 0) + 1
            if len(tables.held[node]) + new[node] > most:
                raise TooFewBrokers(f"broker {node} would hold more than {most} replicas")
    return chosen


def host_label(broker: BrokerRow) -> str:
    """Return the broker's host label. Without one each broker counts as its own host."""
    return broker.host or f"broker {broker.node}"


def _add_partitions(call: OperationContext, topic: Topic, chosen: list[list[int]]) -> list[int]:
    tables, numbers = call.tables, []
    for nodes in chosen:
        replicas = []
        for node in nodes:
            replicas.append((node, tables.counters.incarnation))
            tables.counters.incarnation += 1
        numbers.append(len(topic.partitions))
        tables.add_partition(topic, PartitionRow(call.uid(), replicas))
        tables.bump_orders_version(nodes, call.index)
    tables.mark_counters_changed()
    return numbers


def delete_topic(call: OperationContext, args: Arguments) -> OperationResult:
    name = args.name("topic")
    args.done()
    topic = call.topic(name)
    for partition in topic.partitions:
        replicas = {*partition.replicas, *partition.leaving}
        call.tables.add_pending_removal(partition.group, replicas, call.index)
        call.tables.bump_orders_version(partition.all_node_ids, call.index)
    call.tables.remove_topic(topic)
    return {"topic_uid": topic.uid}


def alter_topic(call: OperationContext, args: Arguments) -> OperationResult:
    name, given = args.name("topic"), args.settings()
    args.done()
    topic = call.topic(name)
    topic.settings = merge_settings(TOPIC_SETTINGS, topic.settings, given)
    call.tables.add_topic(topic)
    for partition in topic.partitions:
        call.tables.note_orders_changed(partition)
        call.tables.bump_orders_version(partition.all_node_ids, call.index)
    return {"settings": dict(topic.settings)}


def grow_topic(call: OperationContext, args: Arguments) -> OperationResult:
    """Add `count` partitions, or as many as are missing to `to` in all."""
    name = args.name("topic")
    count = args.number("count", 1, 1, PARTITIONS_PER_CALL)
    to = args.number("to", 0)
    avoid = args.numbers("avoid")
    args.done()
    topic = call.topic(name)
    if to:
        count = max(0, to - len(topic.partitions))
        if count > PARTITIONS_PER_CALL:
            raise InvalidRequest(f"{count} partitions at once; the limit is {PARTITIONS_PER_CALL}")
    return {
        "partitions": _add_partitions(
            call, topic, _choose_nodes(call.tables, count, topic.replication, avoid)
        )
    }


def grow_by_threshold(call: OperationContext, args: Arguments) -> OperationResult:
    """Add one partition, if the topic still has as many as when the leader decided that it
    is due.
    """
    uid, seen, avoid = args.number("topic_uid"), args.number("partitions"), args.numbers("avoid")
    args.done()
    topic = call.tables.by_uid.get(uid)
    if topic is None or len(topic.partitions) != seen:
        return {"partitions": []}
    return {
        "partitions": _add_partitions(
            call, topic, _choose_nodes(call.tables, 1, topic.replication, avoid)
        )
    }
