"""Groups that would lose their majority if a broker were removed by force. Pure.

A group needs a majority of its voters. That majority may depend on this one broker although others
have replicas too, because these are silent or cannot take part. If the broker itself is alive, its
group can remove it first, and a majority of the others is enough.
"""

from __future__ import annotations

from myqueue.daemons.manager.cluster_view import ClusterView
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.raft.quorum import majority


def stranded_groups(tables: Tables, cluster_view: ClusterView, node: int, now: int) -> list[int]:
    """Groups that would have no leader without this broker until others of theirs are back."""
    stranded = []
    for group in sorted(tables.held.get(node, set()) | tables.left.get(node, set())):
        voters = _known_voters(tables, cluster_view, group)
        others = [one for one in voters if one[0] != node]
        answer = sum(cluster_view.has_active_replica(at, group, now, named) for at, named in others)
        can_remove_it = (
            cluster_view.has_active_replica(node, group, now)
            and cluster_view.leader_of(group, now)[0]
        )
        needed = majority(len(others if can_remove_it else voters))
        if len(others) < len(voters) and answer < needed:
            stranded.append(group)
    return stranded


def _known_voters(tables: Tables, cluster_view: ClusterView, group: int) -> list[tuple[int, int]]:
    """The voters that its leader reported last; without a report all that may vote (0: any)."""
    members = cluster_view.members_of(group)
    if members is not None:
        return [one for one, votes in members.items() if votes]
    partition = tables.partition(group)
    return [(node, 0) for node in partition.all_node_ids] if partition is not None else []
