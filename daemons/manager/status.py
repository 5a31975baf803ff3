"""What a manager tells: STATUS for people, STATS for metrics, and details of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from myqueue.daemons.raft.types import node_of
from myqueue.errors import MyQueueError, UnknownPartition

if TYPE_CHECKING:
    from myqueue.daemons.manager.cluster_view import Liveness
    from myqueue.daemons.metadata.machine import MetadataMachine
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica


def with_details(error: MyQueueError, **details: Any) -> MyQueueError:
    """What the loop puts beside the text of an error."""
    vars(error)["details"] = details
    return error


def status(engine: Engine, replica: Replica | None, own: int, group: int) -> dict[str, Any]:
    """`own` is the managers' group, `group` the one that was asked for; 0: all."""
    if group not in (0, own):
        raise UnknownPartition(f"no replica of group {group} is here")
    known: dict[str, Any] = {"daemon": "manager", "node": engine.node}
    if replica is None:
        repair, refused = engine.repair.status(), {str(own): engine.refused.get(own, "")}
        none: dict[str, Any] = {"groups": [], "refused": refused, "repair": repair}
        return known | none | {"incarnation": engine.incarnation, "closed": engine.closing.told()}
    story: dict[str, Any] = {
        "group": own, "leads": replica.is_leader, "ready": replica.is_ready,
        "role": replica.node.role.name.lower(), "term": replica.node.term,
        "leader": replica.leader_node, "commit": replica.node.commit_index,
        "members": [node_of(one) for one in replica.node.config.voters],
        "applied": replica.machine.applied_index,
    }  # fmt: skip
    if group:
        return known | story
    repair = engine.repair.status()
    return known | {"incarnation": engine.incarnation, "groups": [story], "repair": repair}


def stats(
    engine: Engine, metadata: MetadataMachine, liveness: Liveness, more: dict[str, int]
) -> dict[str, Any]:
    tables, now = metadata.tables, engine.now
    gauges = {
        "topics": len(tables.topics), "partitions": len(tables.groups),
        "brokers": len(tables.brokers), "applied": metadata.applied_index,
        "brokers_alive": sum(liveness.alive(node, now) for node in tables.brokers),
    }  # fmt: skip
    known = {"daemon": "manager", "node": engine.node, "gauges": gauges | more}
    return known | engine.counts.as_map()
