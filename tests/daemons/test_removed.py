"""A broker that was removed by force: who needs it still."""

from __future__ import annotations

from kit.moving import Moving

from myqueue.admin import _counts_on


def test_who_counts_on_a_removed_broker_beside_what_is_stranded() -> None:
    """It is stopped when nobody does but what is stranded; some of that is a replica still, as it
    may not be founded.
    """
    cluster = Moving(4, t=40)
    cluster.update("create_topic", topic="two", partitions=8, replication=2)
    cluster.pass_time(3000)
    cluster.kill(3)
    cluster.pass_time(1500)
    done = cluster.update("remove_broker", node=1, force=True)
    parts = [part for one in cluster.read("topics", detail=True)["topics"]
             for part in one["partitions"]]  # fmt: skip
    waiting = sum(_counts_on(part, 1) for part in parts) - done["stranded"]
    leaving = [part for part in parts if 1 in part["leaving"]]
    assert done["stranded"] and any(1 in part["replicas"] for part in parts)
    assert waiting == len(leaving) > 0
