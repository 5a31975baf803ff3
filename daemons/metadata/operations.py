"""What the entries of the managers' log do to the tables: one function for each operation.

An operation gets an `OperationContext` (tables, index and time of the entry, key of the request)
and its arguments. It first checks everything and raises an error of `myqueue.errors` to refuse;
only then it changes the tables. So a refusal changes nothing. The result is a map. Operations use
no clock and no random number: uids come from a hash over the entry, incarnations of replicas from a
counter, so every manager computes the same.

Clients may ask for `CLIENT_OPERATIONS`; only managers make the others. `topics.py` has the
operations on topics, `brokers.py` those on brokers and replicas, `groups.py` those on consumer
groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from myqueue.daemons.metadata import brokers, groups, topics
from myqueue.daemons.metadata.arguments import Arguments, merge_settings
from myqueue.daemons.metadata.records import NO_PARTITION, Consumer, ManagerRow, Producer
from myqueue.daemons.metadata.tables import CONSUMER, PRODUCER, Tables
from myqueue.daemons.metadata.topics import OperationContext, OperationResult
from myqueue.errors import (
    Busy,
    IdentityMismatch,
    InvalidRequest,
    UnknownClient,
    UnknownPartition,
    Unsupported,
)
from myqueue.wire.metadata_settings import CLUSTER_SETTINGS

UNUSED_PRODUCER_MS: Final = (
    3_600_000  # idle time after which one without name and topic may be removed
)

# -- producers and consumers ----------------------------------------------------------------------


def register_producer(call: OperationContext, args: Arguments) -> OperationResult:
    name, create, avoid = args.name("topic"), args.flag("create", True), args.numbers("avoid")
    partition = args.number("partition", NO_PARTITION, low=NO_PARTITION)
    args.done()
    tables = call.tables
    unused = _removable_producers(call)
    topic = tables.topics.get(name)
    created = topic is None and create
    if topic is not None or created:
        _check_partition(name, partition, len(topic.partitions) if topic is not None else 1)
    topic = topics.add_topic(call, name, 1, 0, {}, avoid) if created else call.topic(name)
    _remove_producers(tables, unused)
    producer = _add_producer(call, "", topic.uid, 0, partition)
    return {
        "producer_id": producer.id,
        "epoch": 0,
        "topic_uid": topic.uid,
        "created": created,
    }


def _check_partition(topic: str, partition: int, count: int) -> None:
    """Refuse a registration for a partition that does not exist."""
    if partition >= count:
        raise UnknownPartition(f"{topic} has partitions 0 to {count - 1}, not {partition}")


def open_producer(call: OperationContext, args: Arguments) -> OperationResult:
    """Open a session by id, by name, or for a new producer. Its epoch fences all earlier
    sessions.
    """
    number, name = args.number("producer_id", 0), args.name("name", "")
    args.done()
    tables = call.tables
    known = number or tables.producer_names.get(name, 0)
    if not known:
        _remove_producers(tables, _removable_producers(call))
        producer = _add_producer(call, name, 0, 1)
        return {"producer_id": producer.id, "epoch": 1}
    found = tables.producers.get(known)
    if found is None:
        raise UnknownClient(f"there is no producer {known}")
    if name and found.name != name:
        raise InvalidRequest(f"producer {known} is not the one named {name!r}")
    found.epoch += 1
    found.seen_ms = max(found.seen_ms, call.time_ms)
    tables.put_producer(found)
    return {"producer_id": found.id, "epoch": found.epoch}


def _add_producer(
    call: OperationContext, name: str, topic_uid: int, epoch: int, partition: int = NO_PARTITION
) -> Producer:
    tables = call.tables
    producer = Producer(tables.counters.producer, name, topic_uid, epoch, call.time_ms, partition)
    tables.counters.producer += 1
    tables.mark_counters_changed()
    tables.put_producer(producer)
    return producer


def _removable_producers(call: OperationContext) -> list[Producer]:
    """Return producers that may be removed: none while there is room. Raises Busy if there are
    none.

    Each start of an application opens a producer, and most never come back: without a limit the
    state would grow forever. Brokers keep their own sessions.
    """
    tables = call.tables
    most = tables.settings["producers_max"]
    if len(tables.producers) < most:
        return []
    old = [
        one
        for one in tables.producers.values()
        if not one.name and not one.topic_uid and one.seen_ms + UNUSED_PRODUCER_MS < call.time_ms
    ]
    old.sort(key=lambda one: (one.seen_ms, one.id))
    old = old[: max(1, most // 100, len(tables.producers) - most + 1)]
    if len(tables.producers) - len(old) >= most:
        raise Busy(f"{most} producers are known already", hint="Raise producers_max.")
    return old


def _remove_producers(tables: Tables, producers: list[Producer]) -> None:
    for producer in producers:
        tables.remove_producer(producer)


def register_consumer(call: OperationContext, args: Arguments) -> OperationResult:
    name, partition = args.name("topic"), args.number("partition", NO_PARTITION, low=NO_PARTITION)
    args.done()
    topic, tables = call.topic(name), call.tables
    _check_partition(name, partition, len(topic.partitions))
    if len(tables.consumers) >= tables.settings["consumers_max"]:
        raise Busy("as many consumers as may be are registered", hint="Raise consumers_max.")
    consumer = Consumer(tables.counters.consumer, topic.uid, call.time_ms, partition)
    tables.counters.consumer += 1
    tables.mark_counters_changed()
    tables.put_consumer(consumer)
    return {
        "consumer_id": consumer.id,
        "topic_uid": topic.uid,
        "partitions": list(range(len(topic.partitions))),
    }


def seen(call: OperationContext, args: Arguments) -> OperationResult:
    """Note when clients were last seen, in batches. Unknown ids are ignored."""
    producers, consumers = args.pairs("producers"), args.pairs("consumers")
    args.done()
    tables = call.tables
    for kind, table, pairs in (
        (PRODUCER, tables.producers, producers),
        (CONSUMER, tables.consumers, consumers),
    ):
        clients: Any = table
        for number, time_ms in pairs:
            client = clients.get(number)
            if client is not None and client.seen_ms < time_ms:
                client.seen_ms = time_ms
                tables.touch(kind, number)
    return {}


# -- daemons --------------------------------------------------------------------------------------


def register_manager(call: OperationContext, args: Arguments) -> OperationResult:
    """Register a manager. A known one with another disk is refused: it may have forgotten votes."""
    new = ManagerRow(*brokers.read_daemon_identity(args), call.time_ms)
    args.done()
    before = call.tables.managers.get(new.node)
    if before is not None and before.disk != new.disk:
        raise IdentityMismatch(f"manager {new.node} has disk {before.disk}, not {new.disk}")
    new.since_ms = before.since_ms if before is not None else new.since_ms
    call.tables.put_manager(new)
    return {"node": new.node}


def alter_cluster(call: OperationContext, args: Arguments) -> OperationResult:
    given = args.settings()
    args.done()
    tables = call.tables
    tables.settings = merge_settings(CLUSTER_SETTINGS, tables.settings, given)
    tables.mark_counters_changed()
    return {"settings": dict(tables.settings)}


Operation = Callable[[OperationContext, Arguments], OperationResult]
_FOR_CLIENTS: tuple[Operation, ...] = (
    topics.create_topic, topics.delete_topic, topics.alter_topic, topics.grow_topic,
    register_producer, register_consumer, open_producer, alter_cluster,
    brokers.drain_broker, brokers.undrain_broker, brokers.remove_broker,
    groups.join_group, groups.leave_group, groups.begin_reset, groups.end_reset,
    groups.remove_group,
)  # fmt: skip
_FOR_MANAGERS: tuple[Operation, ...] = (
    topics.grow_by_threshold, seen, register_manager, brokers.register_broker,
    brokers.forget_gone, brokers.move_replicas, brokers.settle_replicas, brokers.prefer_replica,
    groups.balance_groups, groups.release_shares, groups.expire_members,
)  # fmt: skip
_BY_NAME: Final = {one.__name__: one for one in _FOR_CLIENTS + _FOR_MANAGERS}
CLIENT_OPERATIONS: Final = tuple(one.__name__ for one in _FOR_CLIENTS)
# These may create a topic or a group by a name that a client gives.
TOPIC_CREATING_OPERATIONS: Final = {
    "create_topic": "topic",
    "register_producer": "topic",
    "join_group": "group",
    "begin_reset": "group",
}
REPLICA_PLACING_OPERATIONS: Final = (
    "create_topic",
    "grow_topic",
    "register_producer",
    "grow_by_threshold",
    "remove_broker",
    "drain_broker",
)


def run_operation(call: OperationContext, operation: Any, arguments: Any) -> OperationResult:
    """Run an operation and return its result. A refusal is raised and changes nothing."""
    found = _BY_NAME.get(operation) if type(operation) is str else None
    if found is None:
        raise Unsupported(f"there is no operation {operation!r}")
    if type(arguments) is not dict:
        raise InvalidRequest(f"the arguments of {operation} are not a map")
    call.tables.index = call.index
    return found(call, Arguments(str(operation), arguments))
