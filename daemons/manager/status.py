"""A manager's answers to STATUS (for people) and STATS (for metrics), and details of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from myqueue.daemons.raft.types import node_of
from myqueue.errors import MyQueueError, UnknownPartition

if TYPE_CHECKING:
    from myqueue.daemons.manager.cluster_view import ClusterView
    from myqueue.daemons.metadata.machine import MetadataMachine
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica


def add_details(error: MyQueueError, **details: Any) -> MyQueueError:
    """Attach the details that the loop sends with the text of an error."""
    vars(error)["details"] = details
    return error


def manager_status(engine: Engine, replica: Replica | None, own: int, group: int) -> dict[str, Any]:
    """Answer STATUS. `own` is the managers' raft group, `group` the requested one; 0: all."""
    if group not in (0, own):
        raise UnknownPartition(f"no replica of group {group} is here")
    identity: dict[str, Any] = {"daemon": "manager", "node": engine.node}
    if replica is None:
        state = engine.status(engine.unhealthy())
        state["refused"].setdefault(str(own), "")
        return identity | state | {"groups": [], "closed": engine.closing.report()}
    raft: dict[str, Any] = {
        "group": own,
        "leads": replica.is_leader,
        "ready": replica.is_ready,
        "role": replica.raft.role.name.lower(),
        "term": replica.raft.term,
        "leader": replica.leader_node,
        "commit": replica.raft.commit_index,
        "members": [node_of(voter) for voter in replica.raft.config.voters],
        "applied": replica.machine.applied_index,
    }
    if group:
        return identity | raft
    return identity | {"groups": [raft]} | engine.status(engine.unhealthy())


def manager_stats(
    engine: Engine, metadata: MetadataMachine, cluster_view: ClusterView, more: dict[str, int]
) -> dict[str, Any]:
    tables, now = metadata.tables, engine.now
    gauges = {
        "topics": len(tables.topics),
        "partitions": len(tables.groups),
        "brokers": len(tables.brokers),
        "applied": metadata.applied_index,
        "brokers_alive": sum(cluster_view.is_broker_alive(node, now) for node in tables.brokers),
    }
    known = {"daemon": "manager", "node": engine.node, "gauges": gauges | more}
    return known | engine.counts.as_map()
