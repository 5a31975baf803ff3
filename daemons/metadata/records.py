"""Records of the metadata's tables: topics, partitions, daemons, clients. They have no behaviour.

A *replica* is named by (node, incarnation). Incarnations come from one counter and are used once,
for one group on one disk, so that a replica that lost its data never speaks under its old name.

Invariants of a `PartitionRow`: no node is twice among its replicas; no replica is both wanted and
leaving; `is_moving` as long as any is leaving.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ACTIVE: Final = "active"
NO_PARTITION: Final = -1
DRAINING: Final = "draining"  # it gives its replicas away and gets none


@dataclass(slots=True)
class PartitionRow:
    """The replicas a partition should have. Its Raft group knows its real members; its leader
    reports them.
    """

    group: int
    replicas: list[tuple[int, int]]  # (node, incarnation); the first should lead
    leaving: list[tuple[int, int]] = field(default_factory=list)  # may still be members
    moved: int = 0  # index of the entry that changed them last; 0: they are its founders
    is_moving: bool = False  # its group is not known to consist of exactly these replicas
    # Those for which it was created, if it was moved before it was known to be founded: one of them
    # that is made only now still founds it. Empty: all that matter were made.
    founders: list[tuple[int, int]] = field(default_factory=list)

    @property
    def nodes(self) -> list[int]:
        return [node for node, _ in self.replicas]

    @property
    def all_node_ids(self) -> list[int]:
        """Nodes of all replicas, the leaving ones included, each once."""
        return sorted({node for node, _ in (*self.replicas, *self.leaving)})


@dataclass(slots=True)
class Topic:
    uid: int
    name: str
    replication: int
    created_ms: int
    settings: dict[str, int]
    partitions: list[PartitionRow] = field(default_factory=list)


@dataclass(slots=True)
class BrokerRow:
    node: int
    disk: str
    address: str  # of its client listener
    peer: str  # of its peer listener
    host: str
    since_ms: int
    state: str = ACTIVE
    version: int = 0  # index of the last entry that changed what this broker is ordered
    life: int = 0  # incarnation of the process whose orders these are
    process_first_incarnation: int = (
        0  # replicas with this incarnation or a later one were drawn in this life
    )
    disk_first_incarnation: int = (
        0  # its disk was replaced: what was drawn before this is not on it
    )


@dataclass(slots=True)
class ManagerRow:
    node: int
    disk: str
    address: str
    peer: str
    host: str
    since_ms: int


@dataclass(slots=True)
class Producer:
    id: int
    name: str  # "": none
    topic_uid: int  # 0: it was opened, not registered for a topic
    epoch: int
    seen_ms: int
    partition: int = NO_PARTITION  # for requests that name none


@dataclass(slots=True)
class Consumer:
    id: int
    topic_uid: int
    seen_ms: int
    partition: int = NO_PARTITION  # for requests that name none


@dataclass(slots=True)
class PendingRemoval:
    """Replicas of a group that brokers still have to remove: its topic was deleted, or they left
    it.

    `index` is that of the entry which says so.
    """

    group: int
    replicas: list[tuple[int, int, int]]  # (node, incarnation, index)

    @property
    def nodes(self) -> list[int]:
        return sorted({node for node, _, _ in self.replicas})


@dataclass(slots=True)
class ResultRow:
    index: int
    key: bytes
    outcome: bytes  # packed


@dataclass(slots=True)
class NextNumbers:
    """The next numbers to give out; none is ever given twice."""

    producer: int = 1
    consumer: int = 1
    incarnation: int = 1
