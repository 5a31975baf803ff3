"""The tables of the metadata, and each record as a row for the store.

There are topics with their partitions, brokers, managers, producers, consumers, consumer groups,
replicas that brokers still have to remove, counters and settings, and the results of the last
requests. Operations (`operations.py`) change them only through the methods here. These note each
changed row, so that `take_changes` returns just these.

A row's key is a letter and one or two numbers, big-endian; its value is packed fields. Partitions
are in rows of 64, so that a big topic that grows by one writes one small row. A snapshot is all
rows. Whatever can be derived from the rows (replicas by node, names to ids) is kept in memory only.

Invariants: every partition's raft group is in `topic_by_raft_uid`, and counted for each broker that
has a replica; `preferred_leader_counts[node]` counts the partitions whose first replica is on the
node; results are in the order of their entries. No output depends on the order of a dict that was
loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Final

from myqueue.daemons.metadata import group_records
from myqueue.daemons.metadata.arguments import default_settings
from myqueue.daemons.metadata.group_records import ConsumerGroup, GroupPartition
from myqueue.daemons.metadata.records import (
    NO_PARTITION,
    BrokerRow,
    Consumer,
    ManagerRow,
    NextNumbers,
    PartitionRow,
    PendingRemoval,
    Producer,
    ResultRow,
    Topic,
)
from myqueue.daemons.state_machine import RowChanges
from myqueue.wire.metadata_settings import CLUSTER_SETTINGS, TOPIC_SETTINGS
from myqueue.wire.protocol import pack, unpack

PARTITIONS_PER_ROW: Final = 64  # partitions in a row
RESULTS_MAX: Final = 10_000
ORDER_CHANGES_MAX: Final = 20_000  # remembered for one broker

COUNTERS, TOPIC, PARTITIONS, BROKER, MANAGER = b"c", b"t", b"p", b"b", b"m"
PRODUCER, CONSUMER, PENDING_REMOVAL, RESULT = b"r", b"o", b"x", b"k"
REMOVED_BROKER, CONSUMER_GROUP, GROUP_PARTITIONS = b"d", b"g", b"s"


def row_key(kind: bytes, *numbers: int) -> bytes:
    return kind + b"".join(number.to_bytes(8, "big") for number in numbers)


class Tables:
    """All tables of the metadata, and what is derived from them."""

    def __init__(self) -> None:
        self.counters = NextNumbers()
        self.settings = default_settings(CLUSTER_SETTINGS)
        self.topics: dict[str, Topic] = {}
        self.by_uid: dict[int, Topic] = {}
        self.brokers: dict[int, BrokerRow] = {}
        self.managers: dict[int, ManagerRow] = {}
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.gone: dict[int, PendingRemoval] = {}
        self.removed: dict[int, str] = {}  # brokers that were removed: node -> disk
        self.results: dict[int, ResultRow] = {}  # by index, oldest first
        self.consumer_groups: dict[str, ConsumerGroup] = {}  # consumer groups
        self.consumer_groups_by_uid: dict[int, ConsumerGroup] = {}
        self.unbalanced: set[str] = set()  # consumer groups whose decision is due
        # Derived from the above.
        self.groups: dict[int, tuple[Topic, int]] = {}
        self.held: defaultdict[int, set[int]] = defaultdict(set)  # node -> groups
        self.left: defaultdict[int, set[int]] = defaultdict(set)  # node -> groups it is to leave
        self.gone_by_node: defaultdict[int, set[int]] = defaultdict(set)  # node -> groups to remove
        self._gone_nodes: dict[int, tuple[int, ...]] = {}  # group -> nodes in `gone_by_node`
        self.moving: set[int] = set()  # groups
        self.under_replicated: set[int] = (
            set()
        )  # groups with fewer replicas than their topic promises
        self.led: defaultdict[int, int] = defaultdict(int)
        self.producer_names: dict[str, int] = {}
        self.result_keys: dict[bytes, int] = {}  # key -> index
        self.changed: set[bytes] = set()
        self.layout_version = 0  # rises in this object whenever partitions come or go
        # For orders that name only what changed; the past is unknown where rows were loaded.
        self.index = 0  # of the entry that is applied
        self.loaded_index = 0  # changes of later entries are in `_order_changes`
        # Node -> group -> index of the last entry that changed the partition, the oldest first.
        self._order_changes: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._forgotten_changes: dict[int, int] = {}  # node -> index of the last one dropped
        self.replica_changes: defaultdict[int, int] = defaultdict(int)  # node -> how many
        self.removal_changes = 0  # of `gone`

    # -- changes -------------------------------------------------------------------------------

    def touch(self, kind: bytes, *numbers: int) -> None:
        self.changed.add(row_key(kind, *numbers))

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = self.by_uid[topic.uid] = topic
        self.touch(TOPIC, topic.uid)

    def add_partition(self, topic: Topic, partition: PartitionRow) -> None:
        number = len(topic.partitions)
        topic.partitions.append(partition)
        self.groups[partition.group] = (topic, number)
        self.layout_version += 1
        self._count(partition)
        self.note_orders_changed(partition)
        self.touch(PARTITIONS, topic.uid, number // PARTITIONS_PER_ROW)

    def _count(self, partition: PartitionRow) -> None:
        raft_uid = partition.group
        for node, _ in partition.replicas:
            self.held[node].add(raft_uid)
        for node, _ in partition.leaving:
            self.left[node].add(raft_uid)
        self.led[partition.nodes[0]] += 1
        if partition.is_moving:
            self.moving.add(raft_uid)
        if len(partition.replicas) < self.groups[raft_uid][0].replication:
            self.under_replicated.add(raft_uid)

    def _remove_from_counts(self, partition: PartitionRow) -> None:
        raft_uid = partition.group
        for node, _ in partition.replicas:
            self.held[node].discard(raft_uid)
        for node, _ in partition.leaving:
            self.left[node].discard(raft_uid)
        self.led[partition.nodes[0]] -= 1
        self.moving.discard(raft_uid)
        self.under_replicated.discard(raft_uid)

    def partition(self, raft_uid: int) -> PartitionRow | None:
        found = self.groups.get(raft_uid)
        return found[0].partitions[found[1]] if found else None

    @contextmanager
    def change_partition(self, partition: PartitionRow) -> Iterator[None]:
        """Within this context the partition's replicas may be changed; derived counts follow."""
        topic, number = self.groups[partition.group]
        self._remove_from_counts(partition)
        self.note_orders_changed(partition)  # of brokers that it leaves
        yield
        self._count(partition)
        self.note_orders_changed(partition)
        self.touch(PARTITIONS, topic.uid, number // PARTITIONS_PER_ROW)

    def remove_topic(self, topic: Topic) -> None:
        """Remove the topic, its partitions, and the clients that were registered for it."""
        del self.topics[topic.name], self.by_uid[topic.uid]
        self.layout_version += 1
        self.touch(TOPIC, topic.uid)
        for number, partition in enumerate(topic.partitions):
            del self.groups[partition.group]
            self._remove_from_counts(partition)
            self.note_orders_changed(partition)
            self.touch(PARTITIONS, topic.uid, number // PARTITIONS_PER_ROW)
        for producer in [one for one in self.producers.values() if one.topic_uid == topic.uid]:
            self.remove_producer(producer)
        for consumer in [one for one in self.consumers.values() if one.topic_uid == topic.uid]:
            del self.consumers[consumer.id]
            self.touch(CONSUMER, consumer.id)

    def put_broker(self, broker: BrokerRow) -> None:
        self.brokers[broker.node] = broker
        self.touch(BROKER, broker.node)

    def remove_broker(self, node: int) -> None:
        """Remove a broker and remember its disk; another daemon may take the number."""
        self.removed[node] = self.brokers.pop(node).disk
        for gone in [self.gone[group] for group in sorted(self.gone_by_node[node])]:
            gone.replicas = [one for one in gone.replicas if one[0] != node]
            self.put_pending_removal(gone)
        self.touch(BROKER, node)
        self.touch(REMOVED_BROKER, node)

    def put_manager(self, manager: ManagerRow) -> None:
        self.managers[manager.node] = manager
        self.touch(MANAGER, manager.node)

    def put_producer(self, producer: Producer) -> None:
        self.producers[producer.id] = producer
        if producer.name:
            self.producer_names[producer.name] = producer.id
        self.touch(PRODUCER, producer.id)

    def remove_producer(self, producer: Producer) -> None:
        del self.producers[producer.id]
        if producer.name:
            del self.producer_names[producer.name]
        self.touch(PRODUCER, producer.id)

    def put_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.id] = consumer
        self.touch(CONSUMER, consumer.id)

    def add_pending_removal(
        self, raft_uid: int, replicas: Iterable[tuple[int, int]], index: int
    ) -> None:
        """Add replicas that are to be removed."""
        gone = self.gone.get(raft_uid) or PendingRemoval(raft_uid, [])
        gone.replicas += [(node, incarnation, index) for node, incarnation in sorted(replicas)]
        self.put_pending_removal(gone)

    def pending_removals_of(self, node: int) -> list[tuple[int, int, int]]:
        """(group, incarnation, index of the removing entry) of replicas that it is to remove."""
        return sorted(
            (group, incarnation, index)
            for group in self.gone_by_node.get(node, ())
            for holder, incarnation, index in self.gone[group].replicas
            if holder == node
        )

    def put_pending_removal(self, gone: PendingRemoval) -> None:
        """Store the record, or delete it if no replica remains."""
        self.removal_changes += 1
        for node in self._gone_nodes.pop(gone.group, ()):
            self.gone_by_node[node].discard(gone.group)
        if gone.replicas:
            self.gone[gone.group] = gone
            self._gone_nodes[gone.group] = tuple(gone.nodes)
            for node in gone.nodes:
                self.gone_by_node[node].add(gone.group)
        else:
            self.gone.pop(gone.group, None)
        self.touch(PENDING_REMOVAL, gone.group)

    def bump_orders_version(self, nodes: Iterable[int], index: int) -> None:
        """Note that the orders of these brokers changed with this entry."""
        for node in nodes:
            broker = self.brokers.get(node)
            if broker is not None and broker.version != index:
                broker.version = index
                self.touch(BROKER, node)

    def note_orders_changed(self, partition: PartitionRow) -> None:
        """Note that this entry changed what orders say of the partition."""
        for node in partition.all_node_ids:
            self.replica_changes[node] += 1
            changes = self._order_changes[node]
            changes.pop(partition.group, None)
            changes[partition.group] = self.index
            if len(changes) > ORDER_CHANGES_MAX:
                self._forgotten_changes[node] = changes.pop(next(iter(changes)))

    def groups_changed_since(self, node: int, version: int) -> list[int] | None:
        """Groups of which a broker's orders changed after this version, deleted ones as well.

        None: this manager does not know them all.
        """
        if version < max(self.loaded_index, self._forgotten_changes.get(node, 0)):
            return None
        changes = reversed(self._order_changes.get(node, {}).items())
        return [group for group, _ in takewhile(lambda one: one[1] > version, changes)]

    def put_consumer_group(self, group: ConsumerGroup) -> None:
        """Store a group with all its partitions."""
        self.consumer_groups[group.name] = self.consumer_groups_by_uid[group.uid] = group
        (self.unbalanced.add if group.unbalanced else self.unbalanced.discard)(group.name)
        self.touch(CONSUMER_GROUP, group.uid)
        for topic in {one.topic_uid for one in group.shares.values()}:
            self.touch(GROUP_PARTITIONS, group.uid, topic)

    def remove_group_partition(self, group: ConsumerGroup, partition: GroupPartition) -> None:
        del group.shares[partition.group]
        self.touch(GROUP_PARTITIONS, group.uid, partition.topic_uid)

    def remove_consumer_group(self, group: ConsumerGroup) -> None:
        self.put_consumer_group(group)
        del self.consumer_groups[group.name], self.consumer_groups_by_uid[group.uid]
        self.unbalanced.discard(group.name)

    def mark_counters_changed(self) -> None:
        self.touch(COUNTERS)

    def put_result(self, result: ResultRow) -> None:
        self.results[result.index] = result
        self.result_keys[result.key] = result.index
        self.touch(RESULT, result.index)
        if len(self.results) > RESULTS_MAX:
            oldest = self.results.pop(next(iter(self.results)))
            del self.result_keys[oldest.key]
            self.touch(RESULT, oldest.index)

    def known_result(self, key: bytes) -> bytes | None:
        index = self.result_keys.get(key)
        return None if index is None else self.results[index].outcome

    # -- rows ----------------------------------------------------------------------------------

    def take_changes(self) -> RowChanges:
        puts: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        for key in sorted(self.changed):
            value = self.row(key)
            if value is None:
                deletes.append(key)
            else:
                puts[key] = value
        self.changed.clear()
        return puts, deletes

    def row_keys(self) -> Iterator[bytes]:
        yield row_key(COUNTERS)
        for topic in self.by_uid.values():
            yield row_key(TOPIC, topic.uid)
            for chunk in range(-(-len(topic.partitions) // PARTITIONS_PER_ROW)):
                yield row_key(PARTITIONS, topic.uid, chunk)
        for group in self.consumer_groups.values():
            yield row_key(CONSUMER_GROUP, group.uid)
            for uid in {one.topic_uid for one in group.shares.values()}:
                yield row_key(GROUP_PARTITIONS, group.uid, uid)
        for kind, numbers in (
            (BROKER, self.brokers),
            (MANAGER, self.managers),
            (PRODUCER, self.producers),
            (CONSUMER, self.consumers),
            (PENDING_REMOVAL, self.gone),
            (RESULT, self.results),
            (REMOVED_BROKER, self.removed),
        ):
            for number in numbers:
                yield row_key(kind, number)

    def row(self, key: bytes) -> bytes | None:
        """Return the value of a row; None if there is no such row (any more)."""
        fields = self._fields(key[:1], *_numbers(key))
        return None if fields is None else pack(fields)

    def _fields(self, kind: bytes, number: int = 0, chunk: int = 0) -> list[Any] | None:
        if kind == COUNTERS:
            counters = self.counters
            return [counters.producer, counters.consumer, counters.incarnation, self.settings]
        if kind in (TOPIC, PARTITIONS):
            topic = self.by_uid.get(number)
            if topic is None:
                return None
            if kind == TOPIC:
                t = topic
                return [t.uid, t.name, t.replication, t.created_ms, t.settings]
            part = topic.partitions[chunk * PARTITIONS_PER_ROW : (chunk + 1) * PARTITIONS_PER_ROW]
            return [
                [one.group, one.replicas, one.leaving, one.moved, one.is_moving]
                + ([one.founders] if one.founders else [])
                for one in part
            ] or None
        if kind in (CONSUMER_GROUP, GROUP_PARTITIONS):
            group = self.consumer_groups_by_uid.get(number)
            if group is None:
                return None
            return (
                group_records.pack_group(group)
                if kind == CONSUMER_GROUP
                else group_records.pack_group_partitions(group, chunk)
            )
        if kind == REMOVED_BROKER:
            disk = self.removed.get(number)
            return None if disk is None else [number, disk]
        table: Any = {
            BROKER: self.brokers,
            MANAGER: self.managers,
            PRODUCER: self.producers,
            CONSUMER: self.consumers,
            PENDING_REMOVAL: self.gone,
            RESULT: self.results,
        }[kind]
        found = table.get(number)
        if found is None:
            return None
        fields = [getattr(found, name) for name in found.__slots__]
        if kind in (PRODUCER, CONSUMER) and found.partition == NO_PARTITION:
            fields.pop()  # so rows that an earlier version wrote are equal, byte by byte
        return fields

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[bytes, bytes]]) -> Tables:
        """Make tables from rows, in any order."""
        tables = cls()
        kinds: defaultdict[bytes, list[tuple[bytes, list[Any]]]] = defaultdict(list)
        for key, value in sorted(rows):
            kinds[key[:1]].append((key, unpack(value)))
        for _, (producer, consumer, incarnation, settings) in kinds[COUNTERS]:
            tables.counters = NextNumbers(producer, consumer, incarnation)
            tables.settings = add_default_settings(CLUSTER_SETTINGS, settings)
        for _, (uid, name, replication, created_ms, settings) in kinds[TOPIC]:
            settings = add_default_settings(TOPIC_SETTINGS, settings)
            tables.add_topic(Topic(uid, name, replication, created_ms, settings))
        for key, partitions in kinds[PARTITIONS]:
            topic = tables.by_uid[_numbers(key)[0]]
            for raft_uid, replicas, leaving, moved, is_moving, *more in partitions:
                wanted, going, founders = (
                    [(node, drawn) for node, drawn in names]
                    for names in (replicas, leaving, more[0] if more else ())
                )
                known = PartitionRow(raft_uid, wanted, going, moved, is_moving, founders)
                tables.add_partition(topic, known)
        for _, fields in kinds[BROKER]:
            tables.put_broker(BrokerRow(*fields))
        for _, fields in kinds[MANAGER]:
            tables.put_manager(ManagerRow(*fields))
        for _, fields in kinds[PRODUCER]:
            tables.put_producer(Producer(*fields))
        for _, fields in kinds[CONSUMER]:
            tables.put_consumer(Consumer(*fields))
        for _, (raft_uid, gone) in kinds[PENDING_REMOVAL]:
            tables.put_pending_removal(PendingRemoval(raft_uid, [tuple(one) for one in gone]))
        for _, fields in kinds[CONSUMER_GROUP]:
            tables.put_consumer_group(group_records.unpack_group(fields))
        for key, rows in kinds[GROUP_PARTITIONS]:
            uid, topic_uid = _numbers(key)
            shares = tables.consumer_groups_by_uid[uid].shares
            for raft_uid, *rest in rows:
                shares[raft_uid] = GroupPartition(raft_uid, topic_uid, *rest)
        tables.removed = dict(fields for _, fields in kinds[REMOVED_BROKER])
        for _, fields in kinds[RESULT]:
            tables.put_result(ResultRow(*fields))
        tables.changed.clear()
        tables._order_changes.clear()
        tables._forgotten_changes.clear()
        return tables


def add_default_settings(known: Any, saved: dict[str, int]) -> dict[str, int]:
    """Add the defaults of settings that this version introduced."""
    return default_settings(known) | saved


def _numbers(key: bytes) -> list[int]:
    return [int.from_bytes(key[at : at + 8], "big") for at in range(1, len(key), 8)]
