"""What would be missed if a broker were removed by force, as far as managers can tell. Pure.

A group lives as long as a majority of its voters answers. Its majority may hang on this one broker
although others have replicas of it, too: they are silent, or can't take part. If the broker itself
answers, its group can let it go first, and a majority of the others is enough.
"""

from __future__ import annotations

from myqueue.daemons.manager.cluster_view import Liveness
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.raft.quorum import majority


def stranded(tables: Tables, liveness: Liveness, node: int, now: int) -> list[int]:
    """Groups that nobody could lead without it, until others of their brokers are back."""
    found = []
    for group in sorted(tables.held.get(node, set()) | tables.left.get(node, set())):
        voters = _voters(tables, liveness, group)
        others = [one for one in voters if one[0] != node]
        answer = sum(liveness.has(at, group, now, named) for at, named in others)
        can_let_go = liveness.has(node, group, now) and liveness.leader(group, now)[0]
        needed = majority(len(others if can_let_go else voters))
        if len(others) < len(voters) and answer < needed:
            found.append(group)
    return found


def _voters(tables: Tables, liveness: Liveness, group: int) -> list[tuple[int, int]]:
    """As its leader told last; if nobody did, those who may be, under whatever names."""
    members = liveness.members(group)
    if members is not None:
        return [one for one, votes in members.items() if votes]
    partition = tables.partition(group)
    return [(node, 0) for node in partition.all_node_ids] if partition is not None else []
