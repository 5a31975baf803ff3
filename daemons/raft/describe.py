"""Where a replica stands, for people and for the notes of a simulation."""

from __future__ import annotations

from typing import Any

from myqueue.daemons.raft.node import RaftNode


def describe_raft_node(node: RaftNode) -> dict[str, Any]:
    """Where this replica stands, for people."""
    return {
        "group": node.group,
        "replica": node.replica,
        "role": node.role.name.lower(),
        "term": node.term,
        "vote": node.vote,
        "leader": node.leader,
        "commit": node.commit_index,
        "applied": node.applied_index,
        "log": f"{node.log.first_index}..{node.log.last_index}",
        "persisted": node.log.persisted_index,
        "config": node.config,
        "recovering": node._may_miss_entries,
        "lacking": node._has_unreadable_entries,
    }
